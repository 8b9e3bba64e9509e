//! `fi_rma`: reads and writes of registered memory of a peer.

use super::endpoint::Endpoint;
use super::{Segments, transfer};
use crate::engine::Transfer;
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
    to: u64,
    address: u64,
    key: u64,
    data: Option<u64>,
    context: *mut c_void,
    /// `None`: the endpoint's.
    flags: Option<u64>,
    inject: bool,
}

/// # Safety
/// `ep` is open; the segments are lent by the application as fi_rma(3) says.
unsafe fn submit(ep: *mut FidEp, access: &Access) -> isize {
    transfer(|| {
        // SAFETY: by the caller's promise.
        let endpoint = unsafe { Endpoint::of(ep) };
        let mut state = fabric().lock();
        let transfer = Transfer {
            to: endpoint.peer(&state, access.to)?,
            key: access.key,
            address: access.address,
            segments: access.segments.as_slice(),
            data: access.data,
            context: access.context as usize,
            flags: access.flags.unwrap_or(endpoint.send_flags),
            inject: access.inject,
        };
        let State { engine, links, .. } = &mut *state;
        if access.read { engine.read(links, endpoint.number, &transfer) } else { engine.write(links, endpoint.number, &transfer) }
    })
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
        let target = *msg.rma_iov;
        match Segments::many(msg.msg_iov, msg.iov_count) {
            Ok(segments) => {
                let data = (!read && flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
                let (address, key, context) = (target.addr, target.key, msg.context);
                submit(ep, &Access { read, segments, to: msg.addr, address, key, data, context, flags: Some(flags), inject: false })
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
    let segments = Segments::one(buf, len);
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &Access { read: true, segments, to, address, key, data: None, context, flags: None, inject: false }) }
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
    unsafe {
        match Segments::many(iov, count) {
            Ok(segments) => submit(ep, &Access { read: true, segments, to, address, key, data: None, context, flags: None, inject: false }),
            Err(error) => -error as isize,
        }
    }
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
    let segments = Segments::one(buf, len);
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &Access { read: false, segments, to, address, key, data: None, context, flags: None, inject: false }) }
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
    unsafe {
        match Segments::many(iov, count) {
            Ok(segments) => {
                submit(ep, &Access { read: false, segments, to, address, key, data: None, context, flags: None, inject: false })
            }
            Err(error) => -error as isize,
        }
    }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const FiMsgRma, flags: u64) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { submit_message(ep, msg, flags, false) }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64, address: u64, key: u64) -> isize {
    let (segments, context) = (Segments::one(buf, len), std::ptr::null_mut());
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &Access { read: false, segments, to, address, key, data: None, context, flags: Some(0), inject: true }) }
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
    let segments = Segments::one(buf, len);
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &Access { read: false, segments, to, address, key, data: Some(data), context, flags: None, inject: false }) }
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: u64, address: u64, key: u64) -> isize {
    let (segments, context) = (Segments::one(buf, len), std::ptr::null_mut());
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &Access { read: false, segments, to, address, key, data: Some(data), context, flags: Some(0), inject: true }) }
}
