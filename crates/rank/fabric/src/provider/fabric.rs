//! `fi_fabric`.

use super::{domain, eq, fid_operations, give, refuse, status};
use crate::fabric::fabric as process;
use mend_fabric_sys::*;
use std::ffi::{c_int, c_void};

#[repr(C)]
struct Fabric {
    fid: FidFabric,
}

static FID_OPS: FiOps = fid_operations(close);

static OPS: FiOpsFabric = FiOpsFabric {
    size: size_of::<FiOpsFabric>(),
    domain: Some(domain::open),
    passive_ep: refuse!((*mut FidFabric, *mut FiInfo, *mut *mut c_void, *mut c_void) -> c_int),
    eq_open: Some(eq::open),
    wait_open: refuse!((*mut FidFabric, *mut c_void, *mut *mut c_void) -> c_int),
    trywait: refuse!((*mut FidFabric, *mut *mut Fid, c_int) -> c_int),
    domain2: Some(domain::open2),
};

pub unsafe extern "C" fn open(attr: *mut FiFabricAttr, place: *mut *mut FidFabric, context: *mut c_void) -> c_int {
    status(|| {
        process().mark_used();
        // SAFETY: libfabric passes its attributes; api_version is set by it afterwards.
        let api_version = unsafe { attr.as_ref() }.map_or(0, |attr| attr.api_version);
        let fid = FidFabric { fid: Fid { fclass: FI_CLASS_FABRIC, context, ops: &raw const FID_OPS }, ops: &raw const OPS, api_version };
        // SAFETY: Fabric starts with a FidFabric; `place` is the caller's.
        unsafe { give(Fabric { fid }, place) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: made by `open`, and closed once.
        drop(unsafe { Box::from_raw(fid.cast::<Fabric>()) });
        Ok(())
    })
}
