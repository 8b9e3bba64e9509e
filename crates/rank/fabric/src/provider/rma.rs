//! `fi_rma`: reads and writes of registered memory of a peer.

use super::open_endpoint::Endpoint;
use super::{Segments, transfer};
use crate::engine::{Begun, Engine, Transfer};
use crate::fabric::{State, fabric};
use libc::iovec;
use mend_fabric_sys::*;
use std::ffi::c_void;

pub static OPS: FiOpsRma = FiOpsRma {
    size: size_of::<FiOpsRma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// What an RMA call says.
struct Access {
    read: bool,
    segments: Segments,
    target: Target,
    data: Option<u64>,
    context: *mut c_void,
    /// `None`: the endpoint's.
    flags: Option<u64>,
    inject: bool,
}

/// Memory of a peer.
#[derive(Clone, Copy)]
struct Target {
    to: u64,
    address: u64,
    key: u64,
}

/// # Safety
/// `ep` is open; the segments are lent by the application as fi_rma(3) says.
unsafe fn submit(ep: *mut FidEp, access: &Access) -> isize {
    transfer(|| {
        // SAFETY: by the caller's promise.
        let endpoint = unsafe { Endpoint::of(ep) };
        let mut state = fabric().lock();
        let mut transfer = Transfer {
            to: endpoint.peer(&state, access.target.to)?,
            key: access.target.key,
            address: access.target.address,
            segments: access.segments.as_slice(),
            data: access.data,
            context: access.context as usize,
            flags: access.flags.unwrap_or(endpoint.send_flags),
            inject: access.inject,
            done: 0,
        };
        loop {
            let State { engine, links, .. } = &mut *state;
            let begin = if access.read { Engine::read } else { Engine::write };
            match begin(engine, links, endpoint.number, &transfer)? {
                Begun::Waits => return Ok(()),
                Begun::Complete => {
                    state.serve_others();
                    return Ok(());
                }
                Begun::Partly(done) => {
                    transfer.done = done;
                    state.progress();
                    // The agent and other threads may want it.
                    drop(state);
                    state = fabric().lock();
                }
            }
        }
    })
}

/// An access with the endpoint's flags and without remote data, from one piece of memory.
///
/// # Safety
/// The contract of `fi_read` and `fi_write`.
unsafe fn submit_one(ep: *mut FidEp, read: bool, segments: Segments, target: Target, context: *mut c_void) -> isize {
    // SAFETY: by the caller's promise.
    unsafe { submit(ep, &Access { read, segments, target, data: None, context, flags: None, inject: false }) }
}

/// The same from several pieces.
///
/// # Safety
/// The contract of `fi_readv` and `fi_writev`.
unsafe fn submit_many(ep: *mut FidEp, read: bool, iov: *const iovec, count: usize, target: Target, context: *mut c_void) -> isize {
    // SAFETY: by the caller's promise.
    match unsafe { Segments::many(iov, count) } {
        // SAFETY: by the caller's promise.
        Ok(segments) => unsafe { submit_one(ep, read, segments, target, context) },
        Err(error) => -error as isize,
    }
}

/// # Safety
/// The contract of `fi_readmsg` and `fi_writemsg`.
unsafe fn submit_message(ep: *mut FidEp, msg: *const FiMsgRma, flags: u64, read: bool) -> isize {
    // SAFETY: by the caller's promise.
    unsafe {
        let msg = &*msg;
        if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
            return -FI_EINVAL as isize;
        }
        let remote = *msg.rma_iov;
        match Segments::many(msg.msg_iov, msg.iov_count) {
            Ok(segments) => {
                let data = (!read && flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
                let target = Target { to: msg.addr, address: remote.addr, key: remote.key };
                submit(ep, &Access { read, segments, target, data, context: msg.context, flags: Some(flags), inject: false })
            }
            Err(error) => -error as isize,
        }
    }
}

unsafe extern "C" fn read(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    to: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_one(ep, true, Segments::one(buf, len), Target { to, address, key }, context) }
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_many(ep, true, iov, count, Target { to, address, key }, context) }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const FiMsgRma, flags: u64) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_message(ep, msg, flags, true) }
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_one(ep, false, Segments::one(buf, len), Target { to, address, key }, context) }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_many(ep, false, iov, count, Target { to, address, key }, context) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const FiMsgRma, flags: u64) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_message(ep, msg, flags, false) }
}

/// A write whose buffer is free again on return and that is not reported.
///
/// # Safety
/// The contract of `fi_inject_write`.
unsafe fn submit_injected(ep: *mut FidEp, segments: Segments, target: Target, data: Option<u64>) -> isize {
    let context = std::ptr::null_mut();
    // SAFETY: by the caller's promise.
    unsafe { submit(ep, &Access { read: false, segments, target, data, context, flags: Some(0), inject: true }) }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64, address: u64, key: u64) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_injected(ep, Segments::one(buf, len), Target { to, address, key }, None) }
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let (segments, target) = (Segments::one(buf, len), Target { to, address, key });
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &Access { read: false, segments, target, data: Some(data), context, flags: None, inject: false }) }
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: u64, address: u64, key: u64) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_injected(ep, Segments::one(buf, len), Target { to, address, key }, Some(data)) }
}
