//! `fi_cq`: reading completions is where packets move and where a waiting rank rests.

use super::{edge, fid_operations, give, status};
use crate::engine::completion::Completion;
use crate::fabric::{State, fabric};
use crate::idle::NAP;
use mend_fabric_sys::*;
use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

#[repr(C)]
pub struct CompletionQueue {
    fid: FidCq,
    /// Number of the queue in the engine.
    pub number: u64,
    /// Bytes of an entry: the formats are prefixes of the tagged entry.
    entry: usize,
}

/// Rounds of progress in one call, while something moves.
const MAX_ROUNDS: u32 = 32;

static FID_OPS: FiOps = fid_operations(close);

static OPS: FiOpsCq = FiOpsCq {
    size: size_of::<FiOpsCq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};

pub unsafe extern "C" fn open(_domain: *mut FidDomain, attr: *mut FiCqAttr, place: *mut *mut FidCq, context: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: null or the caller's attributes.
        let attr = unsafe { attr.as_mut() };
        let (format, wait) = attr.as_ref().map_or((FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE), |attr| (attr.format, attr.wait_obj));
        if !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD) {
            return Err(FI_ENOSYS);
        }
        let (format, entry) = match format {
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_TAGGED => (FI_CQ_FORMAT_TAGGED, 48),
            FI_CQ_FORMAT_DATA => (format, 40),
            FI_CQ_FORMAT_MSG => (format, 24),
            FI_CQ_FORMAT_CONTEXT => (format, 8),
            _ => return Err(FI_EINVAL),
        };
        if let Some(attr) = attr {
            attr.format = format;
        }
        let number = fabric().lock().engine.queues.insert(Default::default());
        let fid = FidCq { fid: Fid { fclass: FI_CLASS_CQ, context, ops: &raw const FID_OPS }, ops: &raw const OPS };
        // SAFETY: CompletionQueue starts with a FidCq; `place` is the caller's.
        unsafe { give(CompletionQueue { fid, number, entry }, place) };
        Ok(())
    })
}

fn public(completion: &Completion) -> FiCqTaggedEntry {
    FiCqTaggedEntry {
        op_context: completion.context as *mut c_void,
        flags: completion.flags,
        len: completion.len as usize,
        buf: completion.buf as *mut c_void,
        data: completion.data,
        tag: completion.tag,
    }
}

/// Moves successes from the queue to the caller. `None`: the queue is empty; else how many, or an error.
///
/// # Safety
/// `buffer` has room for `count` entries of the queue's format, `sources` is null or has room for `count` numbers.
#[inline]
unsafe fn take(state: &mut State, cq: &CompletionQueue, buffer: *mut c_void, count: usize, sources: *mut u64) -> Option<isize> {
    let queue = state.engine.queues.get_mut(cq.number)?;
    let mut taken = 0;
    while taken < count {
        let Some(first) = queue.entries.front() else { break };
        if first.error != 0 {
            if taken == 0 {
                return Some(-FI_EAVAIL as isize);
            }
            break;
        }
        let entry = public(first);
        // SAFETY: room by the caller's promise; the formats are prefixes of the tagged entry, asserted in fabric-sys. That one,
        // the usual, is not worth a call of memcpy.
        unsafe {
            let place = buffer.cast::<u8>().add(taken * cq.entry);
            if cq.entry == size_of::<FiCqTaggedEntry>() {
                place.cast::<FiCqTaggedEntry>().write_unaligned(entry);
            } else {
                std::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), place, cq.entry);
            }
        }
        if !sources.is_null() {
            // A number means something in the vector of the endpoint alone.
            let number = first.source.and_then(|source| state.vectors.get(first.vector)?.find(source));
            // SAFETY: room by the caller's promise.
            unsafe { *sources.add(taken) = number.unwrap_or(FI_ADDR_UNSPEC) };
        }
        queue.entries.pop_front();
        taken += 1;
    }
    (taken > 0).then_some(taken as isize)
}

/// # Safety
/// As for [`take`]; `cq` is open.
#[inline]
unsafe fn read_into(cq: *mut FidCq, buffer: *mut c_void, count: usize, sources: *mut u64) -> isize {
    edge(-FI_EOTHER as isize, || {
        // SAFETY: an open queue.
        let cq = unsafe { &*cq.cast::<CompletionQueue>() };
        let fabric = fabric();
        let mut state = fabric.lock();
        // SAFETY: by the caller's promise.
        if let Some(got) = unsafe { take(&mut state, cq, buffer, count, sources) } {
            // That a probe found nothing is not what it found.
            state.probed &= got < 0;
            return got;
        }
        // Before the MPI library probes again it looks here: what comes now is for that probe.
        if state.probed {
            let moved = fabric.look(&mut state);
            // SAFETY: by the caller's promise.
            let got = unsafe { take(&mut state, cq, buffer, count, sources) };
            state.probed = got.is_none();
            if !moved {
                drop(fabric.rest(state));
            }
            return got.unwrap_or(-FI_EAGAIN as isize);
        }
        // What moves may be parts of a long message: it goes on faster without a way back to the MPI library after each.
        let mut rounds = 0;
        while fabric.progress(&mut state) {
            fabric.keep_step(&mut state, cq.number);
            // SAFETY: by the caller's promise.
            if let Some(got) = unsafe { take(&mut state, cq, buffer, count, sources) } {
                return got;
            }
            rounds += 1;
            if rounds == MAX_ROUNDS {
                return -FI_EAGAIN as isize;
            }
        }
        let Some(mut state) = fabric.rest(state) else { return -FI_EAGAIN as isize };
        state.progress();
        // SAFETY: by the caller's promise.
        unsafe { take(&mut state, cq, buffer, count, sources) }.unwrap_or(-FI_EAGAIN as isize)
    })
}

unsafe extern "C" fn read(cq: *mut FidCq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's buffer.
    unsafe { read_into(cq, buffer, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(cq: *mut FidCq, buffer: *mut c_void, count: usize, sources: *mut u64) -> isize {
    // SAFETY: the caller's buffers.
    unsafe { read_into(cq, buffer, count, sources) }
}

unsafe extern "C" fn sread(cq: *mut FidCq, buffer: *mut c_void, count: usize, condition: *const c_void, timeout: c_int) -> isize {
    // SAFETY: the caller's buffer.
    unsafe { sreadfrom(cq, buffer, count, std::ptr::null_mut(), condition, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut FidCq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    edge(-FI_EOTHER as isize, || {
        let start = Instant::now();
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        // SAFETY: an open queue.
        let queue = unsafe { &*cq.cast::<CompletionQueue>() };
        let fabric = fabric();
        let mut state = fabric.lock();
        loop {
            state.serve();
            // SAFETY: the caller's buffers.
            if let Some(got) = unsafe { take(&mut state, queue, buffer, count, sources) } {
                return got;
            }
            if state.engine.queues.get_mut(queue.number).is_some_and(|queue| std::mem::take(&mut queue.signalled)) {
                return -FI_EAGAIN as isize;
            }
            let left = limit.map_or(NAP, |limit| limit.saturating_sub(start.elapsed()));
            if left.is_zero() {
                return -FI_EAGAIN as isize;
            }
            // With something under way it does not sleep.
            state = fabric.pass(fabric.sleep(state, left.min(NAP)));
        }
    })
}

unsafe extern "C" fn signal(cq: *mut FidCq) -> c_int {
    status(|| {
        // SAFETY: an open queue.
        let cq = unsafe { &*cq.cast::<CompletionQueue>() };
        let mut state = fabric().lock();
        state.engine.queues.get_mut(cq.number).ok_or(FI_EINVAL)?.signalled = true;
        state.links.wake();
        Ok(())
    })
}

unsafe extern "C" fn readerr(cq: *mut FidCq, place: *mut FiCqErrEntry, _flags: u64) -> isize {
    edge(-FI_EOTHER as isize, || {
        // SAFETY: an open queue.
        let cq = unsafe { &*cq.cast::<CompletionQueue>() };
        let mut state = fabric().lock();
        let Some(queue) = state.engine.queues.get_mut(cq.number) else { return -FI_EINVAL as isize };
        if queue.entries.front().is_none_or(|first| first.error == 0) {
            return -FI_EAGAIN as isize;
        }
        let Some(failed) = queue.entries.pop_front() else { return -FI_EAGAIN as isize };
        // SAFETY: the caller's entry; its err_data buffer is left alone and its size set to what was written, nothing.
        unsafe {
            let entry = public(&failed);
            (*place).op_context = entry.op_context;
            (*place).flags = entry.flags;
            (*place).len = entry.len;
            (*place).buf = entry.buf;
            (*place).data = entry.data;
            (*place).tag = entry.tag;
            (*place).olen = failed.overflow as usize;
            (*place).err = failed.error;
            (*place).prov_errno = failed.error;
            (*place).err_data_size = 0;
        }
        1
    })
}

unsafe extern "C" fn strerror(_: *mut FidCq, error: c_int, _: *const c_void, text: *mut c_char, length: usize) -> *const c_char {
    let reason = match error {
        FI_ETRUNC => c"the message is longer than the receive buffer",
        FI_ECANCELED => c"cancelled",
        FI_ENOKEY => c"the target has no memory region of this key",
        FI_EACCES => c"outside of the target's memory region, or not allowed there",
        _ => c"the operation failed",
    };
    if !text.is_null() && length > 0 {
        let bytes = reason.to_bytes_with_nul();
        let fits = bytes.len().min(length);
        // SAFETY: the caller's buffer of `length` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), text.cast(), fits);
            *text.add(fits - 1) = 0;
        }
    }
    reason.as_ptr()
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: made by `open`, and closed once.
        let cq = unsafe { Box::from_raw(fid.cast::<CompletionQueue>()) };
        fabric().lock().engine.queues.remove(cq.number);
        Ok(())
    })
}
