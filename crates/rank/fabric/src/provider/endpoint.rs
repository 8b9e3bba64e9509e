//! `fi_endpoint`: reliable datagram endpoints.

use super::av::{NAME_LENGTH, Vector, copy_name, encode};
use super::cntr::Counter;
use super::cq::CompletionQueue;
use super::open_endpoint::Endpoint;
use super::{fid_operations, give, message, refuse, rma, status, tagged, transfer};
use crate::engine::{Binding, Class};
use crate::fabric::fabric;
use mend_fabric_sys::*;
use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static FID_OPS: FiOps = FiOps { bind: Some(bind), control: Some(control), ..fid_operations(close) };

static OPS: FiOpsEp = FiOpsEp {
    size: size_of::<FiOpsEp>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: refuse!((*mut FidEp, c_int, *mut FiTxAttr, *mut *mut FidEp, *mut c_void) -> c_int),
    rx_ctx: refuse!((*mut FidEp, c_int, *mut FiRxAttr, *mut *mut FidEp, *mut c_void) -> c_int),
    rx_size_left: refuse!((*mut FidEp) -> isize),
    tx_size_left: refuse!((*mut FidEp) -> isize),
};

static CM: FiOpsCm = FiOpsCm {
    size: size_of::<FiOpsCm>(),
    setname: refuse!((*mut Fid, *mut c_void, usize) -> c_int),
    getname: Some(getname),
    getpeer: refuse!((*mut FidEp, *mut c_void, *mut usize) -> c_int),
    connect: refuse!((*mut FidEp, *const c_void, *const c_void, usize) -> c_int),
    listen: refuse!((*mut c_void) -> c_int),
    accept: refuse!((*mut FidEp, *const c_void, usize) -> c_int),
    reject: refuse!((*mut c_void, *mut Fid, *const c_void, usize) -> c_int),
    shutdown: refuse!((*mut FidEp, u64) -> c_int),
    join: refuse!((*mut FidEp, *const c_void, u64, *mut *mut c_void, *mut c_void) -> c_int),
};

pub unsafe extern "C" fn open(_domain: *mut FidDomain, info: *mut FiInfo, place: *mut *mut FidEp, context: *mut c_void) -> c_int {
    status(|| {
        if !fabric().wait_ready() {
            return Err(FI_ETIMEDOUT);
        }
        // SAFETY: the caller's info, whose attributes are null or valid.
        let (kind, send_flags, receive_flags, directed) = unsafe {
            let info = info.as_ref().ok_or(FI_EINVAL)?;
            (
                info.ep_attr.as_ref().map_or(FI_EP_UNSPEC, |attr| attr.r#type),
                info.tx_attr.as_ref().map_or(0, |attr| attr.op_flags),
                info.rx_attr.as_ref().map_or(0, |attr| attr.op_flags),
                (info.caps | info.rx_attr.as_ref().map_or(0, |attr| attr.caps)) & FI_DIRECTED_RECV != 0,
            )
        };
        if !matches!(kind, FI_EP_UNSPEC | FI_EP_RDM) {
            return Err(FI_EINVAL);
        }
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| {
            // SAFETY: a function that may be called at any time.
            unsafe { libc::atexit(cease) };
        });
        let mut state = fabric().lock();
        let number = state.engine.open_endpoint().ok_or(FI_ENOMEM)?;
        state.links.set_closed(false);
        drop(state);
        let fid = FidEp {
            fid: Fid { fclass: FI_CLASS_EP, context, ops: &raw const FID_OPS },
            ops: &raw const OPS,
            cm: &raw const CM,
            msg: &raw const message::OPS,
            rma: &raw const rma::OPS,
            tagged: &raw const tagged::OPS,
            atomic: std::ptr::null(),
            collective: std::ptr::null(),
        };
        // SAFETY: Endpoint starts with a FidEp; `place` is the caller's.
        unsafe { give(Endpoint { fid, number, vector: AtomicU64::new(0), send_flags, receive_flags, directed }, place) };
        Ok(())
    })
}

pub unsafe extern "C" fn open2(
    domain: *mut FidDomain,
    info: *mut FiInfo,
    place: *mut *mut FidEp,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: the same contract.
    unsafe { open(domain, info, place, context) }
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: an open endpoint and an open object, which starts with a Fid.
        let (endpoint, class) = unsafe { (Endpoint::of(fid.cast()), (*other).fclass) };
        let mut state = fabric().lock();
        let bound = state.engine.endpoint(endpoint.number).ok_or(FI_EINVAL)?;
        match class {
            FI_CLASS_AV => {
                // SAFETY: an object of this class was made by av::open.
                bound.vector = unsafe { (*other.cast::<Vector>()).number };
                endpoint.vector.store(bound.vector, Ordering::Relaxed);
            }
            FI_CLASS_CQ => {
                // SAFETY: an object of this class was made by cq::open.
                let queue = unsafe { (*other.cast::<CompletionQueue>()).number };
                let binding = Some(Binding { queue, selective: flags & FI_SELECTIVE_COMPLETION != 0 });
                if flags & FI_SEND != 0 {
                    bound.tx = binding;
                }
                if flags & FI_RECV != 0 {
                    bound.rx = binding;
                }
            }
            // What peers do to memory is not counted: they may do it by themselves.
            FI_CLASS_CNTR if flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 => return Err(FI_ENOSYS),
            FI_CLASS_CNTR => {
                // SAFETY: an object of this class was made by cntr::open.
                let counter = unsafe { (*other.cast::<Counter>()).number };
                for (flag, class) in [(FI_SEND, Class::Send), (FI_RECV, Class::Receive), (FI_READ, Class::Read), (FI_WRITE, Class::Write)] {
                    if flags & flag != 0 {
                        bound.counters[class as usize] = Some(counter);
                    }
                }
            }
            FI_CLASS_EQ => {}
            _ => return Err(FI_EINVAL),
        }
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, _argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: an open endpoint.
        let endpoint = unsafe { Endpoint::of(fid.cast()) };
        match command {
            FI_ENABLE if endpoint.vector.load(Ordering::Relaxed) == 0 => Err(FI_ENOAV),
            FI_ENABLE => Ok(()),
            _ => Err(FI_ENOSYS),
        }
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, name: *mut c_void, length: *mut usize) -> c_int {
    status(|| {
        if !fabric().wait_ready() {
            return Err(FI_ETIMEDOUT);
        }
        // SAFETY: an open endpoint.
        let endpoint = unsafe { Endpoint::of(fid.cast()) };
        let own: [u8; NAME_LENGTH] = {
            let state = fabric().lock();
            let identity = state.links.identity().ok_or(FI_EOPBADSTATE)?;
            encode(&identity.job, (identity.rank, endpoint.number))
        };
        // SAFETY: the caller's buffer and its length.
        if unsafe { copy_name(&own, name, length) } { Ok(()) } else { Err(FI_ETOOSMALL) }
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    transfer(|| {
        // SAFETY: an open endpoint.
        let endpoint = unsafe { Endpoint::of(fid.cast()) };
        fabric().lock().engine.cancel(endpoint.number, context as usize)
    })
}

unsafe extern "C" fn getopt(fid: *mut Fid, level: c_int, name: c_int, value: *mut c_void, length: *mut usize) -> c_int {
    status(|| {
        if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
            return Err(FI_ENOPROTOOPT);
        }
        // SAFETY: an open endpoint; the caller's buffer and its length.
        unsafe {
            let endpoint = Endpoint::of(fid.cast());
            if *length < size_of::<usize>() {
                return Err(FI_ETOOSMALL);
            }
            let minimum = fabric().lock().engine.endpoint(endpoint.number).ok_or(FI_EINVAL)?.min_multi_receive;
            value.cast::<usize>().write_unaligned(minimum);
            *length = size_of::<usize>();
        }
        Ok(())
    })
}

unsafe extern "C" fn setopt(fid: *mut Fid, level: c_int, name: c_int, value: *const c_void, length: usize) -> c_int {
    status(|| {
        if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
            return Err(FI_ENOPROTOOPT);
        }
        if length != size_of::<usize>() {
            return Err(FI_EINVAL);
        }
        // SAFETY: an open endpoint; the caller's value of this length.
        let (endpoint, minimum) = unsafe { (Endpoint::of(fid.cast()), value.cast::<usize>().read_unaligned()) };
        fabric().lock().engine.endpoint(endpoint.number).ok_or(FI_EINVAL)?.min_multi_receive = minimum;
        Ok(())
    })
}

/// Called by exit(3), before libraries take leave.
extern "C" fn cease() {
    fabric().cease();
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: made by `open`, and closed once.
        let endpoint = unsafe { Box::from_raw(fid.cast::<Endpoint>()) };
        fabric().close_endpoint(endpoint.number);
        Ok(())
    })
}
