//! Descriptions of single transfers, memory regions and address vectors (`fi_endpoint.h`, `fi_tagged.h`, `fi_rma.h`,
//! `fi_domain.h`).
#![allow(missing_docs, reason = "the fields are libfabric's; fi_msg(3), fi_tagged(3), fi_rma(3), fi_mr(3), fi_av(3) document them")]

use libc::iovec;
use std::ffi::{c_char, c_int, c_void};

#[repr(C)]
pub struct FiMsg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct FiMsgTagged {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiRmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub struct FiMsgRma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const FiRmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct FiMrAttr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_int,
    pub device: u64,
    pub hmem_data: *mut c_void,
    pub page_size: usize,
    pub base_mr: *const c_void,
    pub sub_mr_cnt: usize,
}

#[repr(C)]
pub struct FiAvAttr {
    pub r#type: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<FiMsg>() == 48 && size_of::<FiMsgTagged>() == 64 && size_of::<FiMsgRma>() == 64);
    assert!(size_of::<FiRmaIov>() == 24 && size_of::<FiAvAttr>() == 48);
    assert!(size_of::<FiMrAttr>() == 112 && offset_of!(FiMrAttr, iface) == 64 && offset_of!(FiMrAttr, sub_mr_cnt) == 104);
};
