//! `fi_domain`.

use super::{av, cntr, cq, endpoint, fid_operations, give, mr, refuse, status};
use mend_fabric_sys::*;
use std::ffi::{c_int, c_void};

#[repr(C)]
struct Domain {
    fid: FidDomain,
}

static FID_OPS: FiOps = fid_operations(close);

static OPS: FiOpsDomain = FiOpsDomain {
    size: size_of::<FiOpsDomain>(),
    av_open: Some(av::open),
    cq_open: Some(cq::open),
    endpoint: Some(endpoint::open),
    scalable_ep: refuse!((*mut FidDomain, *mut FiInfo, *mut *mut FidEp, *mut c_void) -> c_int),
    cntr_open: Some(cntr::open),
    poll_open: refuse!((*mut FidDomain, *mut c_void, *mut *mut c_void) -> c_int),
    stx_ctx: refuse!((*mut FidDomain, *mut FiTxAttr, *mut *mut c_void, *mut c_void) -> c_int),
    srx_ctx: refuse!((*mut FidDomain, *mut FiRxAttr, *mut *mut FidEp, *mut c_void) -> c_int),
    query_atomic: refuse!((*mut FidDomain, c_int, c_int, *mut c_void, u64) -> c_int),
    query_collective: refuse!((*mut FidDomain, c_int, *mut c_void, u64) -> c_int),
    endpoint2: Some(endpoint::open2),
};

pub unsafe extern "C" fn open(_fabric: *mut FidFabric, _info: *mut FiInfo, place: *mut *mut FidDomain, context: *mut c_void) -> c_int {
    status(|| {
        let fid = FidDomain {
            fid: Fid { fclass: FI_CLASS_DOMAIN, context, ops: &raw const FID_OPS },
            ops: &raw const OPS,
            mr: &raw const mr::OPS,
        };
        // SAFETY: Domain starts with a FidDomain; `place` is the caller's.
        unsafe { give(Domain { fid }, place) };
        Ok(())
    })
}

pub unsafe extern "C" fn open2(
    fabric: *mut FidFabric,
    info: *mut FiInfo,
    place: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: the same contract.
    unsafe { open(fabric, info, place, context) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: made by `open`, and closed once.
        drop(unsafe { Box::from_raw(fid.cast::<Domain>()) });
        Ok(())
    })
}
