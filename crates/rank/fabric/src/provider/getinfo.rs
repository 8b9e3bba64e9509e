//! `fi_getinfo`: what the provider can do, and whether that is what the caller wants.
//!
//! Attributes are chosen so that MPI libraries take their best path: messages of any size (they never cut them
//! themselves), tag matching with source, remote completion data, multi-receive, offset-based regions with keys of
//! the caller's choice (no registration cost), manual progress.

use super::{NAME, edge};
use crate::engine::INJECT_LIMIT;
use crate::engine::buffers::MAX_SEGMENTS;
use crate::fabric::fabric;
use mend_fabric_sys::*;
use std::ffi::{CStr, c_char, c_int};

const PRIMARY: u64 = FI_MSG | FI_RMA | FI_TAGGED | FI_DIRECTED_RECV;
const SECONDARY: u64 =
    FI_READ | FI_WRITE | FI_RECV | FI_SEND | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_SOURCE | FI_LOCAL_COMM | FI_REMOTE_COMM;
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const OP_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_MULTI_RECV
    | FI_REMOTE_CQ_DATA;
/// A tag of 64 single bits (`FI_TAG_GENERIC`).
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
const MAX_MESSAGE: usize = isize::MAX as usize;
/// Nominal depth of the queues; they grow as needed.
const QUEUE_DEPTH: usize = 64 * 1024;
const MAX_OBJECTS: usize = 32 * 1024;

pub unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const FiInfo,
    info: *mut *mut FiInfo,
) -> c_int {
    edge(-FI_EOTHER, || {
        // Outside of Mend there is no daemon to say who this rank is.
        if std::env::var_os("MEND_RANK").is_none() {
            return -FI_ENODATA;
        }
        fabric().mark_used();
        // SAFETY: libfabric passes null or a valid structure whose attributes are null or valid.
        let hints = unsafe { hints.as_ref() };
        // SAFETY: as above.
        if hints.is_some_and(|hints| !unsafe { acceptable(hints) }) {
            return -FI_ENODATA;
        }
        // SAFETY: `info` is where libfabric wants the result.
        unsafe {
            *info = describe(hints);
            if (*info).is_null() { -FI_ENOMEM } else { 0 }
        }
    })
}

/// # Safety
/// The attributes that `hints` points to are null or valid.
unsafe fn acceptable(hints: &FiInfo) -> bool {
    let same = |name: *const c_char| {
        // SAFETY: a name in hints is null or a C string.
        name.is_null() || unsafe { CStr::from_ptr(name) } == NAME
    };
    // SAFETY: by the caller's promise.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (hints.tx_attr.as_ref(), hints.rx_attr.as_ref(), hints.ep_attr.as_ref(), hints.domain_attr.as_ref(), hints.fabric_attr.as_ref())
    };
    hints.caps & !(PRIMARY | SECONDARY) == 0
        && hints.addr_format == FI_FORMAT_UNSPEC
        && tx.is_none_or(|tx| {
            tx.caps & !(PRIMARY | SECONDARY) == 0
                && tx.op_flags & !OP_FLAGS == 0
                && tx.msg_order & !FI_ORDER_SAS == 0
                && tx.comp_order == 0
                && tx.inject_size <= INJECT_LIMIT
                && tx.iov_limit <= MAX_SEGMENTS
                && tx.rma_iov_limit <= 1
                && tx.size <= QUEUE_DEPTH
        })
        && rx.is_none_or(|rx| {
            rx.caps & !(PRIMARY | SECONDARY) == 0
                && rx.op_flags & !OP_FLAGS == 0
                && rx.msg_order & !FI_ORDER_SAS == 0
                && rx.comp_order == 0
                && rx.iov_limit <= MAX_SEGMENTS
                && rx.size <= QUEUE_DEPTH
        })
        && ep.is_none_or(|ep| {
            matches!(ep.r#type, FI_EP_UNSPEC | FI_EP_RDM)
                && ep.max_msg_size <= MAX_MESSAGE
                && ep.tx_ctx_cnt <= 1
                && ep.rx_ctx_cnt <= 1
                && ep.auth_key_size == 0
                && matches!(ep.protocol, 0 | FI_PROV_SPECIFIC)
        })
        && domain.is_none_or(|domain| {
            same(domain.name)
                && domain.data_progress != FI_PROGRESS_AUTO
                && domain.control_progress != FI_PROGRESS_AUTO
                && domain.cq_data_size <= 8
                && domain.mr_key_size <= 8
        })
        && fabric.is_none_or(|fabric| same(fabric.name) && same(fabric.prov_name))
}

/// A zeroed structure from the C library's allocator, because `fi_freeinfo` frees it.
fn zeroed<T>() -> *mut T {
    // SAFETY: calloc has no preconditions; null is handled by the callers.
    unsafe { libc::calloc(1, size_of::<T>()) }.cast()
}

fn text(value: &CStr) -> *mut c_char {
    // SAFETY: a valid C string; the result is freed by libfabric.
    unsafe { libc::strdup(value.as_ptr()) }
}

fn given<T: PartialEq + Default>(hint: Option<T>, default: T) -> T {
    hint.filter(|hint| *hint != T::default()).unwrap_or(default)
}

/// # Safety
/// The attributes that `hints` points to are null or valid.
unsafe fn describe(hints: Option<&FiInfo>) -> *mut FiInfo {
    let info: *mut FiInfo = zeroed();
    let (tx, rx, ep, domain, fabric): (*mut FiTxAttr, *mut FiRxAttr, *mut FiEpAttr, *mut FiDomainAttr, *mut FiFabricAttr) =
        (zeroed(), zeroed(), zeroed(), zeroed(), zeroed());
    // SAFETY: by the caller's promise.
    let (want_tx, want_rx, want_ep, want_domain) = unsafe {
        (
            hints.and_then(|hints| hints.tx_attr.as_ref()),
            hints.and_then(|hints| hints.rx_attr.as_ref()),
            hints.and_then(|hints| hints.ep_attr.as_ref()),
            hints.and_then(|hints| hints.domain_attr.as_ref()),
        )
    };
    let wanted = hints.map_or(0, |hints| hints.caps);
    let caps = if wanted == 0 { PRIMARY | SECONDARY } else { (wanted & PRIMARY) | SECONDARY };
    // SAFETY: each pointer is null (checked) or a fresh zeroed structure, which is a valid value of its type.
    let parts = unsafe { (info.as_mut(), tx.as_mut(), rx.as_mut(), ep.as_mut(), domain.as_mut(), fabric.as_mut()) };
    let (Some(all), Some(t), Some(r), Some(e), Some(d), Some(f)) = parts else {
        for part in [info.cast(), tx.cast(), rx.cast(), ep.cast(), domain.cast(), fabric.cast()] {
            // SAFETY: null or from calloc above, given to nobody.
            unsafe { libc::free(part) };
        }
        return std::ptr::null_mut();
    };
    t.caps = caps;
    t.op_flags = want_tx.map_or(0, |want| want.op_flags);
    t.msg_order = FI_ORDER_SAS;
    t.inject_size = INJECT_LIMIT;
    t.size = QUEUE_DEPTH;
    t.iov_limit = MAX_SEGMENTS;
    t.rma_iov_limit = 1;
    r.caps = caps;
    r.op_flags = want_rx.map_or(0, |want| want.op_flags);
    r.msg_order = FI_ORDER_SAS;
    r.size = QUEUE_DEPTH;
    r.iov_limit = MAX_SEGMENTS;
    e.r#type = FI_EP_RDM;
    e.protocol = FI_PROV_SPECIFIC;
    e.protocol_version = mend_messages::PROTOCOL;
    e.max_msg_size = MAX_MESSAGE;
    e.mem_tag_format = given(want_ep.map(|want| want.mem_tag_format), TAG_FORMAT);
    e.tx_ctx_cnt = 1;
    e.rx_ctx_cnt = 1;
    d.name = text(NAME);
    d.threading = given(want_domain.map(|want| want.threading), FI_THREAD_SAFE);
    d.control_progress = given(want_domain.map(|want| want.control_progress), FI_PROGRESS_MANUAL);
    d.data_progress = given(want_domain.map(|want| want.data_progress), FI_PROGRESS_MANUAL);
    d.resource_mgmt = FI_RM_ENABLED;
    d.av_type = given(want_domain.map(|want| want.av_type), FI_AV_TABLE);
    d.mr_key_size = 8;
    d.cq_data_size = 8;
    d.cq_cnt = MAX_OBJECTS;
    d.ep_cnt = MAX_OBJECTS;
    d.tx_ctx_cnt = MAX_OBJECTS;
    d.rx_ctx_cnt = MAX_OBJECTS;
    d.max_ep_tx_ctx = 1;
    d.max_ep_rx_ctx = 1;
    d.cntr_cnt = MAX_OBJECTS;
    d.mr_iov_limit = 1;
    d.mr_cnt = MAX_OBJECTS;
    d.caps = DOMAIN_CAPS;
    d.max_cntr_value = u64::MAX;
    d.max_err_cntr_value = u64::MAX;
    f.name = text(NAME);
    f.prov_version = fi_version(0, 1);
    all.caps = caps;
    all.addr_format = FI_FORMAT_UNSPEC;
    all.tx_attr = tx;
    all.rx_attr = rx;
    all.ep_attr = ep;
    all.domain_attr = domain;
    all.fabric_attr = fabric;
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `fi_getinfo` without hints offers, as the table of docs/providers.md.
    fn reference() -> String {
        let capabilities = [
            (FI_MSG, "`FI_MSG`", "messages matched by order: MPICH's active messages (one-sided operations, partitioned messages)"),
            (FI_TAGGED, "`FI_TAGGED`", "matching by tag with ignored bits, `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD`: MPI's messages and probes"),
            (
                FI_RMA,
                "`FI_RMA`",
                "reads and writes: MPI_Put, MPI_Get, large active messages; on one node by the origin alone, else emulated by messages",
            ),
            (FI_DIRECTED_RECV, "`FI_DIRECTED_RECV`", "receives name their source, so that no tag bits are spent on it"),
            (FI_SOURCE, "`FI_SOURCE`", "completions name the sender"),
            (FI_MULTI_RECV, "`FI_MULTI_RECV`", "one buffer takes many messages"),
            (FI_LOCAL_COMM, "`FI_LOCAL_COMM`", "ranks of the same node, through shared memory"),
            (FI_REMOTE_COMM, "`FI_REMOTE_COMM`", "ranks of other nodes"),
        ];
        // SAFETY: no hints; the result is a valid structure with valid attributes, and freed piece by piece never: a test.
        let (all, t, e, d) = unsafe {
            let all = describe(None).as_ref().unwrap();
            (all, &*all.tx_attr, &*all.ep_attr, &*all.domain_attr)
        };
        let named: u64 = capabilities.iter().map(|(bit, ..)| bit).sum();
        let directions = FI_READ | FI_WRITE | FI_RECV | FI_SEND | FI_REMOTE_READ | FI_REMOTE_WRITE;
        assert_eq!(all.caps, named | directions, "a capability without a row");
        let mut page = String::from("| capability | what for |\n| --- | --- |\n");
        for (_, name, why) in capabilities {
            page += &format!("| {name} | {why} |\n");
        }
        let limits = [
            ("`ep_attr->type`", "FI_EP_RDM".to_owned(), "the only kind"),
            ("`tx_attr->inject_size`", t.inject_size.to_string(), "bytes; longer messages may be announced, to be read by their receivers"),
            ("`tx_attr->iov_limit`", t.iov_limit.to_string(), "pieces of a message; receives alike"),
            ("`tx_attr->rma_iov_limit`", t.rma_iov_limit.to_string(), "pieces at the target"),
            ("`tx_attr->msg_order`", "FI_ORDER_SAS".to_owned(), "sends after sends: what MPI needs"),
            ("`tx_attr->size`", t.size.to_string(), "nominal; queues grow"),
            ("`ep_attr->max_msg_size`", e.max_msg_size.to_string(), "the library need not cut messages"),
            ("`domain_attr->threading`", "FI_THREAD_SAFE".to_owned(), "or whatever weaker is asked for"),
            (
                "`domain_attr->data_progress`",
                "FI_PROGRESS_MANUAL".to_owned(),
                "reading a queue or counter moves packets; there is no thread",
            ),
            (
                "`domain_attr->mr_mode`",
                d.mr_mode.to_string(),
                "no local registration, no virtual addresses, no allocated keys: keys are the caller's, addresses are offsets",
            ),
            ("`domain_attr->mr_key_size`", d.mr_key_size.to_string(), "bytes"),
            ("`domain_attr->cq_data_size`", d.cq_data_size.to_string(), "bytes of remote completion data"),
            ("`domain_attr->av_type`", "FI_AV_TABLE".to_owned(), "or FI_AV_MAP; both are indices"),
            ("`domain_attr->max_ep_tx_ctx`", d.max_ep_tx_ctx.to_string(), "no scalable endpoints; open several plain ones"),
        ];
        assert_eq!((e.r#type, t.msg_order, d.threading), (FI_EP_RDM, FI_ORDER_SAS, FI_THREAD_SAFE));
        assert_eq!((d.data_progress, d.av_type), (FI_PROGRESS_MANUAL, FI_AV_TABLE));
        page += "\n| attribute | value | |\n| --- | --- | --- |\n";
        for (name, value, note) in limits {
            page += &format!("| {name} | {value} | {note} |\n");
        }
        page
    }

    #[test]
    fn the_page_for_mpi_developers_says_what_is_offered() {
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/providers.md");
        let page = std::fs::read_to_string(place).unwrap();
        let (start, end) = ("<!-- written by mend-fabric's tests -->\n", "<!-- until here -->");
        let (before, rest) = page.split_once(start).unwrap();
        let (found, after) = rest.split_once(end).unwrap();
        let wanted = reference();
        if std::env::var_os("MEND_WRITE_DOCS").is_some() {
            std::fs::write(place, format!("{before}{start}{wanted}{end}{after}")).unwrap();
        } else {
            assert_eq!(found, wanted, "run this test once with MEND_WRITE_DOCS=1");
        }
    }
}
