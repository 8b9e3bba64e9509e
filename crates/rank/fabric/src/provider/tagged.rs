//! `fi_tagged`: messages matched by tag and source.

use super::Segments;
use super::message::{Incoming, Outgoing, receive, submit};
use libc::iovec;
use mend_fabric_sys::*;
use std::ffi::c_void;

pub static OPS: FiOpsTagged = FiOpsTagged {
    size: size_of::<FiOpsTagged>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let message = Outgoing { segments: Segments::one(buf, len), to, tag: Some(tag), data: None, context, flags: None, inject: false };
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &message) }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    match unsafe { Segments::many(iov, count) } {
        // SAFETY: the C caller's contract.
        Ok(segments) => unsafe { submit(ep, &Outgoing { segments, to, tag: Some(tag), data: None, context, flags: None, inject: false }) },
        Err(error) => -error as isize,
    }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const FiMsgTagged, flags: u64) -> isize {
    // SAFETY: the C caller's contract.
    unsafe {
        let msg = &*msg;
        match Segments::many(msg.msg_iov, msg.iov_count) {
            Ok(segments) => {
                let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
                let (tag, context) = (Some(msg.tag), msg.context);
                submit(ep, &Outgoing { segments, to: msg.addr, tag, data, context, flags: Some(flags), inject: false })
            }
            Err(error) => -error as isize,
        }
    }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64, tag: u64) -> isize {
    let context = std::ptr::null_mut();
    let message = Outgoing { segments: Segments::one(buf, len), to, tag: Some(tag), data: None, context, flags: Some(0), inject: true };
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &message) }
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let message = Outgoing { segments: Segments::one(buf, len), to, tag: Some(tag), data: Some(data), context, flags: None, inject: false };
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &message) }
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: u64, tag: u64) -> isize {
    let context = std::ptr::null_mut();
    let message =
        Outgoing { segments: Segments::one(buf, len), to, tag: Some(tag), data: Some(data), context, flags: Some(0), inject: true };
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &message) }
}

unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { receive(ep, &Incoming { segments: Segments::one(buf, len), from, tag: Some((tag, ignore)), context, flags: None }) }
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    match unsafe { Segments::many(iov, count) } {
        // SAFETY: the C caller's contract.
        Ok(segments) => unsafe { receive(ep, &Incoming { segments, from, tag: Some((tag, ignore)), context, flags: None }) },
        Err(error) => -error as isize,
    }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const FiMsgTagged, flags: u64) -> isize {
    // SAFETY: the C caller's contract. A peek may leave its buffer undefined.
    unsafe {
        let msg = &*msg;
        let segments = if flags & (FI_PEEK | FI_DISCARD) != 0 {
            Segments::many(std::ptr::null(), 0)
        } else {
            Segments::many(msg.msg_iov, msg.iov_count)
        };
        match segments {
            Ok(segments) => {
                let (tag, context) = (Some((msg.tag, msg.ignore)), msg.context);
                receive(ep, &Incoming { segments, from: msg.addr, tag, context, flags: Some(flags) })
            }
            Err(error) => -error as isize,
        }
    }
}
