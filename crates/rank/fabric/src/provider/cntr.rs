//! `fi_cntr`. Reading a counter moves packets, because progress is manual.

use super::{edge, fid_operations, give, status};
use crate::engine::completion::Counter as Count;
use crate::fabric::{State, fabric};
use crate::idle::NAP;
use mend_fabric_sys::*;
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

/// Rounds of progress in one look, while something moves.
const MAX_ROUNDS: u32 = 32;

#[repr(C)]
pub struct Counter {
    fid: FidCntr,
    /// Number of the counter in the engine.
    pub number: u64,
}

static FID_OPS: FiOps = fid_operations(close);

static OPS: FiOpsCntr = FiOpsCntr {
    size: size_of::<FiOpsCntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
};

pub unsafe extern "C" fn open(_domain: *mut FidDomain, attr: *mut FiCntrAttr, place: *mut *mut FidCntr, context: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: null or the caller's attributes.
        if let Some(attr) = unsafe { attr.as_ref() } {
            let wait = matches!(attr.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD);
            if attr.events != FI_CNTR_EVENTS_COMP || !wait {
                return Err(FI_ENOSYS);
            }
        }
        let number = fabric().lock().engine.counters.insert(Count::default());
        let fid = FidCntr { fid: Fid { fclass: FI_CLASS_CNTR, context, ops: &raw const FID_OPS }, ops: &raw const OPS };
        // SAFETY: Counter starts with a FidCntr; `place` is the caller's.
        unsafe { give(Counter { fid, number }, place) };
        Ok(())
    })
}

/// # Safety
/// `cntr` was made by `open` and is not closed.
unsafe fn number(cntr: *mut FidCntr) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { (*cntr.cast::<Counter>()).number }
}

fn look(number: u64) -> Count {
    let fabric = fabric();
    let mut state = fabric.lock();
    let tell = |state: &mut State| state.engine.counters.get_mut(number).map(Count::tell).unwrap_or_default();
    // What is here already need not be waited for, but others may wait for this rank.
    if state.engine.counters.get(number).is_some_and(Count::is_news) {
        state.serve();
        return tell(&mut state);
    }
    // What moves may be parts of a long transfer: it goes on faster without a way back to the MPI library after each.
    for _ in 0..MAX_ROUNDS {
        if !fabric.progress(&mut state) {
            match fabric.rest(state) {
                Some(rested) => {
                    state = rested;
                    state.progress();
                }
                None => state = fabric.lock(),
            }
            break;
        }
        if state.engine.counters.get(number).is_some_and(Count::is_news) {
            break;
        }
    }
    tell(&mut state)
}

unsafe extern "C" fn read(cntr: *mut FidCntr) -> u64 {
    // SAFETY: an open counter.
    edge(0, || look(unsafe { number(cntr) }).value)
}

unsafe extern "C" fn readerr(cntr: *mut FidCntr) -> u64 {
    // SAFETY: an open counter.
    edge(0, || look(unsafe { number(cntr) }).errors)
}

fn change(number: u64, f: impl FnOnce(&mut Count)) -> c_int {
    status(|| {
        f(fabric().lock().engine.counters.get_mut(number).ok_or(FI_EINVAL)?);
        Ok(())
    })
}

unsafe extern "C" fn add(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    change(unsafe { number(cntr) }, |count| count.value = count.value.wrapping_add(value))
}

unsafe extern "C" fn set(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    change(unsafe { number(cntr) }, |count| count.value = value)
}

unsafe extern "C" fn adderr(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    change(unsafe { number(cntr) }, |count| count.errors = count.errors.wrapping_add(value))
}

unsafe extern "C" fn seterr(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: an open counter.
    change(unsafe { number(cntr) }, |count| count.errors = value)
}

unsafe extern "C" fn wait(cntr: *mut FidCntr, threshold: u64, timeout: c_int) -> c_int {
    status(|| {
        // SAFETY: an open counter.
        let number = unsafe { number(cntr) };
        let start = Instant::now();
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        let fabric = fabric();
        let mut state = fabric.lock();
        let errors = state.engine.counters.get(number).ok_or(FI_EINVAL)?.errors;
        loop {
            let moved = state.serve();
            let count = state.engine.counters.get(number).ok_or(FI_EINVAL)?;
            if count.value >= threshold {
                return Ok(());
            }
            if count.errors != errors {
                return Err(FI_EAVAIL);
            }
            let left = limit.map_or(NAP, |limit| limit.saturating_sub(start.elapsed()));
            if left.is_zero() {
                return Err(FI_ETIMEDOUT);
            }
            state = if moved {
                fabric.pass(state)
            } else {
                // Bounded by NAP; a zero or tiny remainder only shortens the last rest.
                fabric.rest(state).unwrap_or_else(|| fabric.lock())
            };
        }
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: made by `open`, and closed once.
        let counter = unsafe { Box::from_raw(fid.cast::<Counter>()) };
        fabric().lock().engine.counters.remove(counter.number);
        Ok(())
    })
}
