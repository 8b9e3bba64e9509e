//! `fi_mr`: memory that peers may access, by a key of the caller's choice and an offset from its start.

use super::{fid_operations, give, status};
use crate::engine::Region as Memory;
use crate::fabric::{State, fabric};
use libc::iovec;
use mend_fabric_sys::*;
use std::ffi::{c_int, c_void};

#[repr(C)]
struct Region {
    fid: FidMr,
}

static FID_OPS: FiOps = FiOps { bind: Some(bind), control: Some(control), ..fid_operations(close) };

pub static OPS: FiOpsMr = FiOpsMr { size: size_of::<FiOpsMr>(), reg: Some(reg), regv: Some(regv), regattr: Some(regattr) };

unsafe extern "C" fn reg(
    _domain: *mut Fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    place: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        let access = access & (FI_REMOTE_READ | FI_REMOTE_WRITE);
        // A region that no peer may access exists only for local descriptors, which this provider does not need: its
        // key takes no place.
        if access != 0 {
            fabric().lock().engine.register(key, Memory { base: buf as usize, len, access })?;
        }
        let mem_desc = if access == 0 { std::ptr::null_mut() } else { std::ptr::dangling_mut() };
        let fid = FidMr { fid: Fid { fclass: FI_CLASS_MR, context, ops: &raw const FID_OPS }, mem_desc, key };
        // SAFETY: Region starts with a FidMr; `place` is the caller's.
        unsafe { give(Region { fid }, place) };
        Ok(())
    })
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    place: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    if count != 1 || iov.is_null() {
        return -FI_EINVAL;
    }
    // SAFETY: the C caller's contract.
    unsafe { reg(domain, (*iov).iov_base, (*iov).iov_len, access, offset, key, flags, place, context) }
}

unsafe extern "C" fn regattr(domain: *mut Fid, attr: *const FiMrAttr, flags: u64, place: *mut *mut FidMr) -> c_int {
    // SAFETY: the C caller's contract.
    unsafe {
        let attr = &*attr;
        if attr.iface != 0 {
            // Not the system's memory.
            return -FI_ENOSYS;
        }
        regv(domain, attr.mr_iov, attr.iov_count, attr.access, attr.offset, attr.requested_key, flags, place, attr.context)
    }
}

unsafe extern "C" fn bind(_: *mut Fid, other: *mut Fid, _: u64) -> c_int {
    // Regions are the process's, not an endpoint's. What peers do to them is not counted: they may do it by themselves.
    // SAFETY: an open object, which starts with a Fid.
    if unsafe { (*other).fclass } == FI_CLASS_CNTR { -FI_ENOSYS } else { 0 }
}

unsafe extern "C" fn control(_: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -FI_ENOSYS }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: made by `reg`, and closed once.
        let region = unsafe { Box::from_raw(fid.cast::<Region>()) };
        if !region.fid.mem_desc.is_null() {
            let mut state = fabric().lock();
            let State { engine, links, .. } = &mut *state;
            engine.unregister(links, region.fid.key);
        }
        Ok(())
    })
}
