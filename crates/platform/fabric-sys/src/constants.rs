//! Flags, capabilities, classes and error numbers (`fabric.h`, `fi_endpoint.h`, `fi_eq.h`, `fi_errno.h`).
#![allow(missing_docs, reason = "the names are libfabric's; fi_getinfo(3), fi_endpoint(3), fi_cq(3) document them")]

/// `FI_VERSION(major, minor)`.
#[must_use]
pub const fn fi_version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_DISCARD: u64 = 1 << 58;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_CLAIM: u64 = 1 << 59;
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

pub const FI_FORMAT_UNSPEC: u32 = 0;
pub const FI_SOCKADDR: u32 = 1;
pub const FI_SOCKADDR_IN: u32 = 2;
pub const FI_SOCKADDR_IN6: u32 = 3;
pub const FI_SOCKADDR_IB: u32 = 4;
pub const FI_NUMERICHOST: u64 = 1 << 55;
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;

pub const FI_AV_UNSPEC: i32 = 0;
pub const FI_AV_MAP: i32 = 1;
pub const FI_AV_TABLE: i32 = 2;

pub const FI_PROGRESS_UNSPEC: i32 = 0;
pub const FI_PROGRESS_AUTO: i32 = 1;
pub const FI_PROGRESS_MANUAL: i32 = 2;
pub const FI_PROGRESS_CONTROL_UNIFIED: i32 = 3;

pub const FI_THREAD_UNSPEC: i32 = 0;
pub const FI_THREAD_SAFE: i32 = 1;
pub const FI_THREAD_DOMAIN: i32 = 3;

pub const FI_RM_UNSPEC: i32 = 0;
pub const FI_RM_ENABLED: i32 = 2;

pub const FI_EP_UNSPEC: i32 = 0;
pub const FI_EP_RDM: i32 = 3;

pub const FI_ORDER_SAS: u64 = 1 << 8;

/// First value outside the protocols that libfabric assigns: `FI_PROV_SPECIFIC`.
pub const FI_PROV_SPECIFIC: u32 = 1 << 31;

pub const FI_CONTEXT: u64 = 1 << 59;
pub const FI_CONTEXT2: u64 = 1 << 52;

pub const FI_MR_LOCAL: i32 = 1 << 2;
pub const FI_MR_VIRT_ADDR: i32 = 1 << 4;
pub const FI_MR_ALLOCATED: i32 = 1 << 5;
pub const FI_MR_PROV_KEY: i32 = 1 << 6;
pub const FI_MR_ENDPOINT: i32 = 1 << 9;

pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;

pub const FI_GETWAIT: i32 = 5;
pub const FI_ENABLE: i32 = 6;

pub const FI_OPT_ENDPOINT: i32 = 0;
pub const FI_OPT_MIN_MULTI_RECV: i32 = 0;

pub const FI_CQ_FORMAT_UNSPEC: i32 = 0;
pub const FI_CQ_FORMAT_CONTEXT: i32 = 1;
pub const FI_CQ_FORMAT_MSG: i32 = 2;
pub const FI_CQ_FORMAT_DATA: i32 = 3;
pub const FI_CQ_FORMAT_TAGGED: i32 = 4;

pub const FI_WAIT_NONE: i32 = 0;
pub const FI_WAIT_UNSPEC: i32 = 1;
pub const FI_WAIT_FD: i32 = 3;
pub const FI_WAIT_YIELD: i32 = 5;

pub const FI_CNTR_EVENTS_COMP: i32 = 0;

pub const FI_ENOENT: i32 = 2;
pub const FI_EIO: i32 = 5;
pub const FI_EAGAIN: i32 = 11;
pub const FI_ENOMEM: i32 = 12;
pub const FI_EACCES: i32 = 13;
pub const FI_EBUSY: i32 = 16;
pub const FI_ENODEV: i32 = 19;
pub const FI_EINVAL: i32 = 22;
pub const FI_ENOSYS: i32 = 38;
pub const FI_ENOMSG: i32 = 42;
pub const FI_ENODATA: i32 = 61;
pub const FI_EMSGSIZE: i32 = 90;
pub const FI_ENOPROTOOPT: i32 = 92;
pub const FI_EOPNOTSUPP: i32 = 95;
pub const FI_ETIMEDOUT: i32 = 110;
pub const FI_ECANCELED: i32 = 125;
pub const FI_EKEYREJECTED: i32 = 129;
pub const FI_EOTHER: i32 = 256;
pub const FI_ETOOSMALL: i32 = 257;
pub const FI_EOPBADSTATE: i32 = 258;
pub const FI_EAVAIL: i32 = 259;
pub const FI_EBADFLAGS: i32 = 260;
pub const FI_ENOCQ: i32 = 263;
pub const FI_ETRUNC: i32 = 265;
pub const FI_ENOKEY: i32 = 266;
pub const FI_ENOAV: i32 = 267;
