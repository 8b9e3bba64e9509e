//! `fi_eq`: the provider has no connection events, so a queue is always empty. Some libraries open one all the same.

use super::{fid_operations, give, refuse, status};
use mend_fabric_sys::*;
use std::ffi::{c_char, c_int, c_void};

#[repr(C)]
struct EventQueue {
    fid: FidEq,
}

static FID_OPS: FiOps = fid_operations(close);

static OPS: FiOpsEq = FiOpsEq {
    size: size_of::<FiOpsEq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: refuse!((*mut FidEq, u32, *const c_void, usize, u64) -> isize),
    sread: refuse!((*mut FidEq, *mut u32, *mut c_void, usize, c_int, u64) -> isize),
    strerror: Some(strerror),
};

pub unsafe extern "C" fn open(_fabric: *mut FidFabric, _attr: *mut c_void, place: *mut *mut FidEq, context: *mut c_void) -> c_int {
    status(|| {
        let fid = FidEq { fid: Fid { fclass: FI_CLASS_EQ, context, ops: &raw const FID_OPS }, ops: &raw const OPS };
        // SAFETY: EventQueue starts with a FidEq; `place` is the caller's.
        unsafe { give(EventQueue { fid }, place) };
        Ok(())
    })
}

unsafe extern "C" fn read(_: *mut FidEq, _: *mut u32, _: *mut c_void, _: usize, _: u64) -> isize {
    -FI_EAGAIN as isize
}

unsafe extern "C" fn readerr(_: *mut FidEq, _: *mut c_void, _: u64) -> isize {
    -FI_EAGAIN as isize
}

unsafe extern "C" fn strerror(_: *mut FidEq, _: c_int, _: *const c_void, _: *mut c_char, _: usize) -> *const c_char {
    c"no event".as_ptr()
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: made by `open`, and closed once.
        drop(unsafe { Box::from_raw(fid.cast::<EventQueue>()) });
        Ok(())
    })
}
