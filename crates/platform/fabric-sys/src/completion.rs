//! Completion entries and the attributes of queues and counters (`fi_eq.h`).
#![allow(missing_docs, reason = "the fields are libfabric's; fi_cq(3) and fi_cntr(3) document them")]

use std::ffi::{c_int, c_void};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiCqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiCntrAttr {
    pub events: c_int,
    pub wait_obj: c_int,
    pub wait_set: *mut c_void,
    pub flags: u64,
}

/// The msg entry.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiCqMsgEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

/// The tagged entry. The context, msg and data entries are prefixes of it: 8, 24 and 40 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiCqTaggedEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiCqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    pub src_addr: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<FiCqAttr>() == 40 && offset_of!(FiCqAttr, wait_cond) == 28);
    assert!(size_of::<FiCntrAttr>() == 24);
    assert!(size_of::<FiCqMsgEntry>() == 24);
    assert!(size_of::<FiCqTaggedEntry>() == 48 && offset_of!(FiCqTaggedEntry, data) == 32);
    assert!(size_of::<FiCqErrEntry>() == 88 && offset_of!(FiCqErrEntry, err) == 56 && offset_of!(FiCqErrEntry, src_addr) == 80);
};
