//! `fi_msg`: plain messages, matched by order alone.

use super::open_endpoint::Endpoint;
use super::{Segments, transfer};
use crate::engine::{Message, Receive};
use crate::fabric::{State, fabric};
use libc::iovec;
use mend_fabric_sys::*;
use std::ffi::c_void;

pub static OPS: FiOpsMsg = FiOpsMsg {
    size: size_of::<FiOpsMsg>(),
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

/// What a send call says, tagged or not.
pub struct Outgoing {
    pub segments: Segments,
    pub to: u64,
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub context: *mut c_void,
    /// `None`: the endpoint's.
    pub flags: Option<u64>,
    pub inject: bool,
}

/// # Safety
/// `ep` is open; the segments are lent by the application as fi_msg(3) says.
#[inline]
pub unsafe fn submit(ep: *mut FidEp, message: &Outgoing) -> isize {
    transfer(|| {
        // SAFETY: by the caller's promise.
        let endpoint = unsafe { Endpoint::of(ep) };
        let mut state = fabric().lock();
        let to = endpoint.peer(&state, message.to)?;
        // MPICH asks for delivery-complete operations on the whole endpoint, because writes need it for MPI's flush, and for no
        // message's sake: without one-sided operations it does not. An acknowledgement of each long message would be a packet more.
        let flags = message.flags.unwrap_or(endpoint.send_flags & !FI_DELIVERY_COMPLETE);
        // FI_INJECT in a sendmsg frees the buffer at once but still completes; as the engine copies messages of that
        // size anyway, only their length needs care.
        let message = Message {
            to,
            tag: message.tag,
            data: message.data,
            segments: message.segments.as_slice(),
            context: message.context as usize,
            flags,
            inject: message.inject,
        };
        if flags & FI_INJECT != 0 && message.segments.iter().map(|segment| segment.len).sum::<usize>() > crate::engine::INJECT_LIMIT {
            return Err(FI_EMSGSIZE);
        }
        let State { engine, links, .. } = &mut *state;
        engine.send(links, endpoint.number, &message)
    })
}

/// What a receive call says, tagged or not.
pub struct Incoming {
    pub segments: Segments,
    pub from: u64,
    pub tag: Option<(u64, u64)>,
    pub context: *mut c_void,
    /// `None`: the endpoint's.
    pub flags: Option<u64>,
}

/// # Safety
/// `ep` is open; the segments are lent by the application as fi_msg(3) says.
#[inline]
pub unsafe fn receive(ep: *mut FidEp, incoming: &Incoming) -> isize {
    transfer(|| {
        // SAFETY: by the caller's promise.
        let endpoint = unsafe { Endpoint::of(ep) };
        let mut state = fabric().lock();
        let source = endpoint.source(&state, incoming.from)?;
        let flags = incoming.flags.unwrap_or(endpoint.receive_flags);
        let receive =
            Receive { tag: incoming.tag, source, buffers: incoming.segments.buffers(), context: incoming.context as usize, flags };
        let (claim, discard) = (flags & FI_CLAIM != 0, flags & FI_DISCARD != 0);
        if flags & FI_PEEK != 0 {
            let State { engine, links, .. } = &mut *state;
            let found = engine.peek(links, endpoint.number, &receive, claim, discard);
            // A probe that finds nothing is a poll: packets move, and a waiting rank rests. What comes meanwhile is for
            // the next probe: MPICH's messages of a rank to itself travel outside of the provider; it looks for those
            // first and here second, and receives in the same order. A probe that found what came after it began would
            // overtake one of those, and the receive that follows would get another message than was probed.
            if found == Err(FI_ENOMSG) {
                state.probed = true;
                // fi_tagged(3) has both answers. Intel MPI's MPI_Comm_accept, which looks at all sources, takes only one that stands in
                // the queue; the other one is quicker.
                let by_queue = receive.source.is_none() && !claim && !discard;
                if by_queue {
                    state.engine.report_missed(endpoint.number, &receive);
                }
                if !fabric().look(&mut state) {
                    drop(fabric().rest(state));
                }
                if by_queue {
                    return Ok(());
                }
            }
            return found;
        }
        let State { engine, links, .. } = &mut *state;
        if claim || discard {
            return engine.receive_claimed(links, endpoint.number, receive, discard);
        }
        engine.receive(links, endpoint.number, receive)
    })
}

unsafe extern "C" fn send(ep: *mut FidEp, buf: *const c_void, len: usize, _desc: *mut c_void, to: u64, context: *mut c_void) -> isize {
    let message = Outgoing { segments: Segments::one(buf, len), to, tag: None, data: None, context, flags: None, inject: false };
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &message) }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    match unsafe { Segments::many(iov, count) } {
        // SAFETY: the C caller's contract.
        Ok(segments) => unsafe { submit(ep, &Outgoing { segments, to, tag: None, data: None, context, flags: None, inject: false }) },
        Err(error) => -error as isize,
    }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const FiMsg, flags: u64) -> isize {
    // SAFETY: the C caller's contract.
    unsafe {
        let msg = &*msg;
        match Segments::many(msg.msg_iov, msg.iov_count) {
            Ok(segments) => {
                let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
                submit(ep, &Outgoing { segments, to: msg.addr, tag: None, data, context: msg.context, flags: Some(flags), inject: false })
            }
            Err(error) => -error as isize,
        }
    }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64) -> isize {
    let context = std::ptr::null_mut();
    let message = Outgoing { segments: Segments::one(buf, len), to, tag: None, data: None, context, flags: Some(0), inject: true };
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
    context: *mut c_void,
) -> isize {
    let message = Outgoing { segments: Segments::one(buf, len), to, tag: None, data: Some(data), context, flags: None, inject: false };
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &message) }
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: u64) -> isize {
    let context = std::ptr::null_mut();
    let message = Outgoing { segments: Segments::one(buf, len), to, tag: None, data: Some(data), context, flags: Some(0), inject: true };
    // SAFETY: the C caller's contract.
    unsafe { submit(ep, &message) }
}

unsafe extern "C" fn recv(ep: *mut FidEp, buf: *mut c_void, len: usize, _desc: *mut c_void, from: u64, context: *mut c_void) -> isize {
    // SAFETY: the C caller's contract.
    unsafe { receive(ep, &Incoming { segments: Segments::one(buf, len), from, tag: None, context, flags: None }) }
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's contract.
    match unsafe { Segments::many(iov, count) } {
        // SAFETY: the C caller's contract.
        Ok(segments) => unsafe { receive(ep, &Incoming { segments, from, tag: None, context, flags: None }) },
        Err(error) => -error as isize,
    }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const FiMsg, flags: u64) -> isize {
    // SAFETY: the C caller's contract.
    unsafe {
        let msg = &*msg;
        match Segments::many(msg.msg_iov, msg.iov_count) {
            Ok(segments) => receive(ep, &Incoming { segments, from: msg.addr, tag: None, context: msg.context, flags: Some(flags) }),
            Err(error) => -error as isize,
        }
    }
}
