//! Fabric objects ("fids") and their operation tables, what `fi_getinfo` returns and takes (`fabric.h`), and the provider's entry
//! (`fi_prov.h`): these structures point at each other.
//!
//! Every object starts with [`Fid`]; a provider embeds the libfabric structure as the first field of its own.
//! Operations are `Option`s of function pointers: libfabric's inline wrappers call most of them without a check,
//! so a provider fills all that an application of its class may call.
#![allow(
    missing_docs,
    reason = "the fields are libfabric's; fi_provider(7), fi_getinfo(3), the object and the attribute pages document them"
)]
#![allow(clippy::type_complexity, reason = "the types are the C prototypes")]

use crate::completion::{FiCntrAttr, FiCqAttr, FiCqErrEntry};
use crate::transfer::{FiAvAttr, FiMrAttr, FiMsg, FiMsgRma, FiMsgTagged};
use libc::{iovec, ssize_t};
use std::ffi::{c_char, c_int, c_void};

#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const FiOps,
}

#[repr(C)]
pub struct FiOps {
    pub size: usize,
    pub close: Option<unsafe extern "C" fn(*mut Fid) -> c_int>,
    pub bind: Option<unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int>,
    pub control: Option<unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int>,
    pub ops_open: Option<unsafe extern "C" fn(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int>,
    pub tostr: Option<unsafe extern "C" fn(*const Fid, *mut c_char, usize) -> c_int>,
    pub ops_set: Option<unsafe extern "C" fn(*mut Fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int>,
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *const FiOpsFabric,
    pub api_version: u32,
}

#[repr(C)]
pub struct FiOpsFabric {
    pub size: usize,
    pub domain: Option<unsafe extern "C" fn(*mut FidFabric, *mut FiInfo, *mut *mut FidDomain, *mut c_void) -> c_int>,
    pub passive_ep: Option<unsafe extern "C" fn(*mut FidFabric, *mut FiInfo, *mut *mut c_void, *mut c_void) -> c_int>,
    pub eq_open: Option<unsafe extern "C" fn(*mut FidFabric, *mut c_void, *mut *mut FidEq, *mut c_void) -> c_int>,
    pub wait_open: Option<unsafe extern "C" fn(*mut FidFabric, *mut c_void, *mut *mut c_void) -> c_int>,
    pub trywait: Option<unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int>,
    pub domain2: Option<unsafe extern "C" fn(*mut FidFabric, *mut FiInfo, *mut *mut FidDomain, u64, *mut c_void) -> c_int>,
}

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *const FiOpsDomain,
    pub mr: *const FiOpsMr,
}

#[repr(C)]
pub struct FiOpsDomain {
    pub size: usize,
    pub av_open: Option<unsafe extern "C" fn(*mut FidDomain, *mut FiAvAttr, *mut *mut FidAv, *mut c_void) -> c_int>,
    pub cq_open: Option<unsafe extern "C" fn(*mut FidDomain, *mut FiCqAttr, *mut *mut FidCq, *mut c_void) -> c_int>,
    pub endpoint: Option<unsafe extern "C" fn(*mut FidDomain, *mut FiInfo, *mut *mut FidEp, *mut c_void) -> c_int>,
    pub scalable_ep: Option<unsafe extern "C" fn(*mut FidDomain, *mut FiInfo, *mut *mut FidEp, *mut c_void) -> c_int>,
    pub cntr_open: Option<unsafe extern "C" fn(*mut FidDomain, *mut FiCntrAttr, *mut *mut FidCntr, *mut c_void) -> c_int>,
    pub poll_open: Option<unsafe extern "C" fn(*mut FidDomain, *mut c_void, *mut *mut c_void) -> c_int>,
    pub stx_ctx: Option<unsafe extern "C" fn(*mut FidDomain, *mut FiTxAttr, *mut *mut c_void, *mut c_void) -> c_int>,
    pub srx_ctx: Option<unsafe extern "C" fn(*mut FidDomain, *mut FiRxAttr, *mut *mut FidEp, *mut c_void) -> c_int>,
    pub query_atomic: Option<unsafe extern "C" fn(*mut FidDomain, c_int, c_int, *mut c_void, u64) -> c_int>,
    pub query_collective: Option<unsafe extern "C" fn(*mut FidDomain, c_int, *mut c_void, u64) -> c_int>,
    pub endpoint2: Option<unsafe extern "C" fn(*mut FidDomain, *mut FiInfo, *mut *mut FidEp, u64, *mut c_void) -> c_int>,
}

#[repr(C)]
pub struct FiOpsMr {
    pub size: usize,
    pub reg: Option<unsafe extern "C" fn(*mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void) -> c_int>,
    pub regv: Option<unsafe extern "C" fn(*mut Fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void) -> c_int>,
    pub regattr: Option<unsafe extern "C" fn(*mut Fid, *const FiMrAttr, u64, *mut *mut FidMr) -> c_int>,
}

#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *const FiOpsAv,
}

#[repr(C)]
pub struct FiOpsAv {
    pub size: usize,
    pub insert: Option<unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int>,
    pub insertsvc: Option<unsafe extern "C" fn(*mut FidAv, *const c_char, *const c_char, *mut u64, u64, *mut c_void) -> c_int>,
    pub insertsym:
        Option<unsafe extern "C" fn(*mut FidAv, *const c_char, usize, *const c_char, usize, *mut u64, u64, *mut c_void) -> c_int>,
    pub remove: Option<unsafe extern "C" fn(*mut FidAv, *mut u64, usize, u64) -> c_int>,
    pub lookup: Option<unsafe extern "C" fn(*mut FidAv, u64, *mut c_void, *mut usize) -> c_int>,
    pub straddr: Option<unsafe extern "C" fn(*mut FidAv, *const c_void, *mut c_char, *mut usize) -> *const c_char>,
    pub av_set: Option<unsafe extern "C" fn(*mut FidAv, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int>,
    pub insert_auth_key: Option<unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut u64, u64) -> c_int>,
    pub lookup_auth_key: Option<unsafe extern "C" fn(*mut FidAv, u64, *mut c_void, *mut usize) -> c_int>,
    pub set_user_id: Option<unsafe extern "C" fn(*mut FidAv, u64, u64, u64) -> c_int>,
}

#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *const FiOpsEp,
    pub cm: *const FiOpsCm,
    pub msg: *const FiOpsMsg,
    pub rma: *const FiOpsRma,
    pub tagged: *const FiOpsTagged,
    pub atomic: *const c_void,
    pub collective: *const c_void,
}

#[repr(C)]
pub struct FiOpsEp {
    pub size: usize,
    pub cancel: Option<unsafe extern "C" fn(*mut Fid, *mut c_void) -> ssize_t>,
    pub getopt: Option<unsafe extern "C" fn(*mut Fid, c_int, c_int, *mut c_void, *mut usize) -> c_int>,
    pub setopt: Option<unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int>,
    pub tx_ctx: Option<unsafe extern "C" fn(*mut FidEp, c_int, *mut FiTxAttr, *mut *mut FidEp, *mut c_void) -> c_int>,
    pub rx_ctx: Option<unsafe extern "C" fn(*mut FidEp, c_int, *mut FiRxAttr, *mut *mut FidEp, *mut c_void) -> c_int>,
    pub rx_size_left: Option<unsafe extern "C" fn(*mut FidEp) -> ssize_t>,
    pub tx_size_left: Option<unsafe extern "C" fn(*mut FidEp) -> ssize_t>,
}

#[repr(C)]
pub struct FiOpsCm {
    pub size: usize,
    pub setname: Option<unsafe extern "C" fn(*mut Fid, *mut c_void, usize) -> c_int>,
    pub getname: Option<unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int>,
    pub getpeer: Option<unsafe extern "C" fn(*mut FidEp, *mut c_void, *mut usize) -> c_int>,
    pub connect: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, *const c_void, usize) -> c_int>,
    pub listen: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    pub accept: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize) -> c_int>,
    pub reject: Option<unsafe extern "C" fn(*mut c_void, *mut Fid, *const c_void, usize) -> c_int>,
    pub shutdown: Option<unsafe extern "C" fn(*mut FidEp, u64) -> c_int>,
    pub join: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, u64, *mut *mut c_void, *mut c_void) -> c_int>,
}

#[repr(C)]
pub struct FiOpsMsg {
    pub size: usize,
    pub recv: Option<unsafe extern "C" fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> ssize_t>,
    pub recvv: Option<unsafe extern "C" fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> ssize_t>,
    pub recvmsg: Option<unsafe extern "C" fn(*mut FidEp, *const FiMsg, u64) -> ssize_t>,
    pub send: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, *mut c_void) -> ssize_t>,
    pub sendv: Option<unsafe extern "C" fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> ssize_t>,
    pub sendmsg: Option<unsafe extern "C" fn(*mut FidEp, *const FiMsg, u64) -> ssize_t>,
    pub inject: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64) -> ssize_t>,
    pub senddata: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> ssize_t>,
    pub injectdata: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64) -> ssize_t>,
}

#[repr(C)]
pub struct FiOpsTagged {
    pub size: usize,
    pub recv: Option<unsafe extern "C" fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> ssize_t>,
    pub recvv: Option<unsafe extern "C" fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> ssize_t>,
    pub recvmsg: Option<unsafe extern "C" fn(*mut FidEp, *const FiMsgTagged, u64) -> ssize_t>,
    pub send: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> ssize_t>,
    pub sendv: Option<unsafe extern "C" fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, u64, *mut c_void) -> ssize_t>,
    pub sendmsg: Option<unsafe extern "C" fn(*mut FidEp, *const FiMsgTagged, u64) -> ssize_t>,
    pub inject: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64) -> ssize_t>,
    pub senddata: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> ssize_t>,
    pub injectdata: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64, u64) -> ssize_t>,
}

#[repr(C)]
pub struct FiOpsRma {
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> ssize_t>,
    pub readv: Option<unsafe extern "C" fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> ssize_t>,
    pub readmsg: Option<unsafe extern "C" fn(*mut FidEp, *const FiMsgRma, u64) -> ssize_t>,
    pub write: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> ssize_t>,
    pub writev: Option<unsafe extern "C" fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> ssize_t>,
    pub writemsg: Option<unsafe extern "C" fn(*mut FidEp, *const FiMsgRma, u64) -> ssize_t>,
    pub inject: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64, u64) -> ssize_t>,
    pub writedata: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, u64, *mut c_void) -> ssize_t>,
    pub injectdata: Option<unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64, u64, u64) -> ssize_t>,
}

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: *const FiOpsCq,
}

#[repr(C)]
pub struct FiOpsCq {
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> ssize_t>,
    pub readfrom: Option<unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *mut u64) -> ssize_t>,
    pub readerr: Option<unsafe extern "C" fn(*mut FidCq, *mut FiCqErrEntry, u64) -> ssize_t>,
    pub sread: Option<unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *const c_void, c_int) -> ssize_t>,
    pub sreadfrom: Option<unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *mut u64, *const c_void, c_int) -> ssize_t>,
    pub signal: Option<unsafe extern "C" fn(*mut FidCq) -> c_int>,
    pub strerror: Option<unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char>,
}

#[repr(C)]
pub struct FidCntr {
    pub fid: Fid,
    pub ops: *const FiOpsCntr,
}

#[repr(C)]
pub struct FiOpsCntr {
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(*mut FidCntr) -> u64>,
    pub readerr: Option<unsafe extern "C" fn(*mut FidCntr) -> u64>,
    pub add: Option<unsafe extern "C" fn(*mut FidCntr, u64) -> c_int>,
    pub set: Option<unsafe extern "C" fn(*mut FidCntr, u64) -> c_int>,
    pub wait: Option<unsafe extern "C" fn(*mut FidCntr, u64, c_int) -> c_int>,
    pub adderr: Option<unsafe extern "C" fn(*mut FidCntr, u64) -> c_int>,
    pub seterr: Option<unsafe extern "C" fn(*mut FidCntr, u64) -> c_int>,
}

#[repr(C)]
pub struct FidEq {
    pub fid: Fid,
    pub ops: *const FiOpsEq,
}

#[repr(C)]
pub struct FiOpsEq {
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(*mut FidEq, *mut u32, *mut c_void, usize, u64) -> ssize_t>,
    pub readerr: Option<unsafe extern "C" fn(*mut FidEq, *mut c_void, u64) -> ssize_t>,
    pub write: Option<unsafe extern "C" fn(*mut FidEq, u32, *const c_void, usize, u64) -> ssize_t>,
    pub sread: Option<unsafe extern "C" fn(*mut FidEq, *mut u32, *mut c_void, usize, c_int, u64) -> ssize_t>,
    pub strerror: Option<unsafe extern "C" fn(*mut FidEq, c_int, *const c_void, *mut c_char, usize) -> *const c_char>,
}

const _: () = {
    use std::mem::size_of;
    assert!(size_of::<Fid>() == 24 && size_of::<FiOps>() == 56);
    assert!(size_of::<FidFabric>() == 40 && size_of::<FiOpsFabric>() == 56);
    assert!(size_of::<FidDomain>() == 40 && size_of::<FiOpsDomain>() == 96);
    assert!(size_of::<FidMr>() == 40 && size_of::<FiOpsMr>() == 32);
    assert!(size_of::<FidAv>() == 32 && size_of::<FiOpsAv>() == 88);
    assert!(size_of::<FidEp>() == 80 && size_of::<FiOpsEp>() == 64 && size_of::<FiOpsCm>() == 80);
    assert!(size_of::<FiOpsMsg>() == 80 && size_of::<FiOpsTagged>() == 80 && size_of::<FiOpsRma>() == 80);
    assert!(size_of::<FidCq>() == 32 && size_of::<FiOpsCq>() == 64);
    assert!(size_of::<FidCntr>() == 32 && size_of::<FiOpsCntr>() == 64);
    assert!(size_of::<FidEq>() == 32 && size_of::<FiOpsEq>() == 48);
};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiTxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiRxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiEpAttr {
    pub r#type: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiDomainAttr {
    pub domain: *mut FidDomain,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
    pub max_ep_auth_key: usize,
    pub max_group_id: u32,
    pub max_cntr_value: u64,
    pub max_err_cntr_value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiFabricAttr {
    pub fabric: *mut FidFabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct FiInfo {
    pub next: *mut FiInfo,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut FiTxAttr,
    pub rx_attr: *mut FiRxAttr,
    pub ep_attr: *mut FiEpAttr,
    pub domain_attr: *mut FiDomainAttr,
    pub fabric_attr: *mut FiFabricAttr,
    pub nic: *mut c_void,
}

pub type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo) -> c_int;
pub type OpenFabric = unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int;

/// `struct fi_provider`; libfabric writes `context`.
#[repr(C)]
pub struct FiProvider {
    pub version: u32,
    pub fi_version: u32,
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: Option<GetInfo>,
    pub fabric: Option<OpenFabric>,
    pub cleanup: Option<unsafe extern "C" fn()>,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<FiInfo>() == 120 && offset_of!(FiInfo, tx_attr) == 72 && offset_of!(FiInfo, nic) == 112);
    assert!(size_of::<FiTxAttr>() == 80 && size_of::<FiRxAttr>() == 64);
    assert!(size_of::<FiEpAttr>() == 96 && offset_of!(FiEpAttr, mem_tag_format) == 56);
    assert!(size_of::<FiDomainAttr>() == 224 && offset_of!(FiDomainAttr, mr_mode) == 36);
    assert!(offset_of!(FiDomainAttr, caps) == 136 && offset_of!(FiDomainAttr, max_err_cntr_value) == 216);
    assert!(size_of::<FiFabricAttr>() == 32 && offset_of!(FiFabricAttr, api_version) == 28);
    assert!(size_of::<FiProvider>() == 72 && offset_of!(FiProvider, name) == 40);
};
