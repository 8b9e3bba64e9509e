//! The objects of a core provider: fabric, domain, address vector, completion queue, endpoint.
//!
//! One reliable datagram endpoint serves all of a process's peers. Everything here belongs to this process on this node. A rank opens it
//! when its first `ofi` channel needs it and closes it before an image is written; a node opens it for the chunks of ranks that move
//! ([`ChunkPool`]).
//!
//! Called by one thread at a time (in a rank with the fabric's lock held): the domain is opened with `FI_THREAD_DOMAIN`, and
//! with manual progress, so that a provider that can do without threads starts none.

mod accepted;
pub mod environment;
mod locked;
mod operations;
mod pool;

pub use pool::{ChunkPool, Ended, PoolAccess, PoolError};

use crate::*;
use accepted::Accepted;
use std::ffi::{CStr, CString, c_void};
use std::net::IpAddr;
use std::ptr::{null, null_mut};

/// Longest address of an endpoint that can be told to peers, bytes.
pub const MAX_ADDRESS: usize = 64;
/// Events taken at a time.
pub const BATCH: usize = 16;
/// Release of the interface whose meaning is relied upon.
const API: u32 = fi_version(1, 18);
/// What is understood of memory registration; a provider asks for a part of it.
const MR_MODE: i32 = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
const CAPS: u64 = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_REMOTE_READ;

/// Whose libfabric the objects are of.
#[derive(Debug)]
pub enum Origin {
    /// One that is loaded for them and goes with them: nothing that a provider keeps while it is loaded stays behind.
    Own(Instance),
    /// The one that the program uses, or that this process has loaded for good.
    Programs(Library),
}

impl Origin {
    fn library(&self) -> Library {
        match self {
            Self::Own(instance) => *instance.library(),
            Self::Programs(library) => *library,
        }
    }
}

/// Why a core provider cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreError {
    /// No libfabric in this process.
    #[error("this process has loaded no libfabric")]
    NoLibrary,
    /// Not there, or without what is needed.
    #[error("libfabric has no provider {provider:?} with reliable datagram endpoints, ordered sends and RMA reads here")]
    NoProvider {
        /// What was asked for.
        provider: String,
    },
    /// It would end this process for want of memory that it may lock.
    #[error("provider {provider:?} locks {} MiB of memory, and this process may lock {} KiB", locked::MIN_LOCKABLE_BYTES >> 20, bytes >> 10)]
    Locked {
        /// The provider.
        provider: String,
        /// What may be locked, in bytes.
        bytes: u64,
    },
    /// A call failed.
    #[error("{call} of provider {provider:?} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Call {
        /// The function.
        call: &'static str,
        /// The provider.
        provider: String,
        /// Positive error number.
        errno: i32,
    },
}

/// An open object; closed when dropped.
struct Open<T>(*mut T);

impl<T> Drop for Open<T> {
    fn drop(&mut self) {
        let fid = self.0.cast::<Fid>();
        // SAFETY: an open object of libfabric starts with a Fid; it is closed once, after the objects that refer to it
        // (the order of Core's fields, and Core's promise about Registration).
        unsafe {
            if let Some(close) = (*fid).ops.as_ref().and_then(|ops| ops.close) {
                close(fid);
            }
        }
    }
}

/// Memory that the provider may access. Must not outlive its [`Core`].
pub struct Registration {
    mr: Open<FidMr>,
}

// SAFETY: used under the fabric's lock only.
unsafe impl Send for Registration {}

impl Registration {
    /// For operations on this memory.
    pub fn descriptor(&self) -> *mut c_void {
        // SAFETY: an open region.
        unsafe { (*self.mr.0).mem_desc }
    }

    /// For peers.
    pub fn key(&self) -> u64 {
        // SAFETY: an open region.
        unsafe { (*self.mr.0).key }
    }
}

/// What a poll of the completion queue found.
pub enum Event {
    /// The operation of this context ended well.
    Done {
        /// Its context.
        context: *mut c_void,
        /// Bytes received, if it was a receive.
        len: usize,
    },
    /// The operation of this context failed.
    Failed {
        /// Its context.
        context: *mut c_void,
        /// Positive error number.
        errno: i32,
    },
}

/// The open objects. Fields are closed in this order.
pub struct Core {
    endpoint: Option<Open<FidEp>>,
    queue: Open<FidCq>,
    vector: Open<FidAv>,
    domain: Open<FidDomain>,
    fabric: Open<FidFabric>,
    /// What the provider may leave open of the endpoint's connections.
    accepted: Accepted,
    /// Becomes readable when the queue has news; some providers have no such descriptor.
    pub wait: Option<i32>,
    /// Name of the provider, layers included.
    pub provider: String,
    /// Format of addresses.
    pub format: u32,
    /// Address of the endpoint.
    pub address: Vec<u8>,
    /// How memory is registered, `FI_MR_…`.
    pub mr_mode: i32,
    /// Bytes of a key of a region.
    pub key_size: usize,
    /// Longest message that [`Core::inject`] takes, bytes.
    pub inject_size: usize,
    origin: Origin,
}

// SAFETY: the objects are used under the fabric's lock only, whichever thread holds it.
unsafe impl Send for Core {}

/// A list of descriptions, freed when dropped.
struct Infos<'a>(*mut FiInfo, &'a Library);

impl Drop for Infos<'_> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: from getinfo or dupinfo, freed once.
            unsafe { (self.1.freeinfo)(self.0) };
        }
    }
}

/// The call's `errno` as an error.
fn checked(call: &'static str, provider: &str, result: i32) -> Result<(), CoreError> {
    if result == 0 { Ok(()) } else { Err(CoreError::Call { call, provider: provider.to_owned(), errno: -result }) }
}

/// A function that an operation table should have.
fn offered<F>(call: &'static str, provider: &str, function: Option<F>) -> Result<F, CoreError> {
    function.ok_or_else(|| CoreError::Call { call, provider: provider.to_owned(), errno: FI_ENOSYS })
}

fn name_of(info: &FiInfo) -> String {
    // SAFETY: attributes that libfabric returned are null or valid; so are their names.
    unsafe {
        match info.fabric_attr.as_ref() {
            Some(attr) if !attr.prov_name.is_null() => CStr::from_ptr(attr.prov_name).to_string_lossy().into_owned(),
            _ => String::new(),
        }
    }
}

fn speaks_ip(format: u32) -> bool {
    matches!(format, FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IN6 | FI_SOCKADDR_IB)
}

impl Core {
    /// Opens an endpoint of this provider. A provider whose addresses are internet addresses is bound to `source`. `more` are capabilities
    /// (`FI_…`) that it must have besides messages and reads.
    ///
    /// # Errors
    /// [`CoreError`].
    pub fn open(origin: Origin, provider: &str, source: IpAddr, more: u64) -> Result<Self, CoreError> {
        let library = &origin.library();
        let missing = || CoreError::NoProvider { provider: provider.to_owned() };
        let name = CString::new(provider).map_err(|_| missing())?;
        let node = CString::new(source.to_string()).map_err(|_| missing())?;
        // With its address first: a node has several interfaces, and peers may reach only one of them. Providers whose
        // addresses are not internet addresses refuse that, and have nothing to choose.
        let bound = ask(library, &name, Some(&node), more);
        let infos = if bound.0.is_null() { ask(library, &name, None, more) } else { bound };
        let mut best: Option<&FiInfo> = None;
        let mut at = infos.0;
        // SAFETY: a list as libfabric returns it; it lives as long as `infos`.
        while let Some(info) = unsafe { at.as_ref() } {
            // The provider itself, before layers that libfabric puts over it.
            if best.is_none() || name_of(info) == provider && best.is_some_and(|best| name_of(best) != provider) {
                best = Some(info);
            }
            at = info.next;
        }
        let info = best.ok_or_else(missing)?;
        let provider = name_of(info);
        if let Some(bytes) = locked::too_few(&provider) {
            return Err(CoreError::Locked { provider, bytes });
        }
        let built = Self::build(library, info, provider)?;
        drop(infos);
        Ok(built(origin))
    }

    fn build(library: &Library, info: &FiInfo, provider: String) -> Result<impl FnOnce(Origin) -> Self + use<>, CoreError> {
        let name = provider.as_str();
        let asked = std::ptr::from_ref(info).cast_mut();
        // SAFETY: each call gets a description as libfabric returned it and objects opened just before; results are
        // stored only where a call succeeded. Tables and attributes of open objects and descriptions are valid.
        unsafe {
            let mut made: *mut FidFabric = null_mut();
            checked("fi_fabric", name, (library.fabric)(info.fabric_attr, &raw mut made, null_mut()))?;
            let fabric = Open(made);
            let mut made: *mut FidDomain = null_mut();
            let open = offered("fi_domain", name, (*(*fabric.0).ops).domain)?;
            checked("fi_domain", name, open(fabric.0, asked, &raw mut made, null_mut()))?;
            let domain = Open(made);
            let mut attr = FiAvAttr {
                r#type: (*info.domain_attr).av_type,
                rx_ctx_bits: 0,
                count: 64,
                ep_per_node: 0,
                name: null(),
                map_addr: null_mut(),
                flags: 0,
            };
            let mut made: *mut FidAv = null_mut();
            let open = offered("fi_av_open", name, (*(*domain.0).ops).av_open)?;
            checked("fi_av_open", name, open(domain.0, &raw mut attr, &raw mut made, null_mut()))?;
            let vector = Open(made);
            let (queue, wait) = open_queue(&domain, name)?;
            let mut made: *mut FidEp = null_mut();
            let open = offered("fi_endpoint", name, (*(*domain.0).ops).endpoint)?;
            checked("fi_endpoint", name, open(domain.0, asked, &raw mut made, null_mut()))?;
            let endpoint = Open(made);
            let fid = endpoint.0.cast::<Fid>();
            let bind = offered("fi_ep_bind", name, (*(*fid).ops).bind)?;
            checked("fi_ep_bind", name, bind(fid, vector.0.cast(), 0))?;
            checked("fi_ep_bind", name, bind(fid, queue.0.cast(), FI_SEND | FI_RECV))?;
            let control = offered("fi_enable", name, (*(*fid).ops).control)?;
            checked("fi_enable", name, control(fid, FI_ENABLE, null_mut()))?;
            let mut address = vec![0; MAX_ADDRESS];
            let mut length = address.len();
            let getname = offered("fi_getname", name, (*endpoint.0).cm.as_ref().and_then(|cm| cm.getname))?;
            checked("fi_getname", name, getname(fid, address.as_mut_ptr().cast(), &raw mut length))?;
            address.truncate(length);
            let (mr_mode, key_size) = ((*info.domain_attr).mr_mode, (*info.domain_attr).mr_key_size);
            let (format, inject_size) = (info.addr_format, (*info.tx_attr).inject_size);
            Ok(move |origin| Self {
                endpoint: Some(endpoint),
                queue,
                vector,
                domain,
                fabric,
                accepted: Accepted::default(),
                wait,
                provider,
                format,
                address,
                mr_mode,
                key_size,
                inject_size,
                origin,
            })
        }
    }

    /// A number for the endpoint of this address.
    ///
    /// # Errors
    /// A positive error number.
    pub fn insert(&self, address: &[u8]) -> Result<u64, i32> {
        // Providers read as much as their format is long; shorter addresses were refused before.
        let (mut padded, mut number) = ([0u8; MAX_ADDRESS], FI_ADDR_UNSPEC);
        padded.get_mut(..address.len()).ok_or(FI_EINVAL)?.copy_from_slice(address);
        // SAFETY: an open vector; one address, and room for one number.
        let inserted = unsafe {
            let Some(insert) = (*(*self.vector.0).ops).insert else { return Err(FI_ENOSYS) };
            insert(self.vector.0, padded.as_ptr().cast(), 1, &raw mut number, 0, null_mut())
        };
        match inserted {
            1 if number != FI_ADDR_UNSPEC => Ok(number),
            negative if negative < 0 => Err(-negative),
            _ => Err(FI_EINVAL),
        }
    }

    /// Forgets a number that [`Core::insert`] gave.
    pub fn remove(&self, mut number: u64) {
        // SAFETY: an open vector; one of its numbers.
        unsafe {
            if let Some(remove) = (*(*self.vector.0).ops).remove {
                remove(self.vector.0, &raw mut number, 1, 0);
            }
        }
    }

    /// Lets the provider access memory, locally and (with `FI_REMOTE_READ`) from elsewhere. `key` counts where the
    /// provider does not choose keys itself.
    ///
    /// # Errors
    /// A positive error number.
    ///
    /// # Safety
    /// The memory stays mapped as long as the registration lives.
    pub unsafe fn register(&self, base: *mut u8, len: usize, access: u64, key: u64) -> Result<Registration, i32> {
        let mut made: *mut FidMr = null_mut();
        // SAFETY: an open domain; the caller's promise.
        let result = unsafe {
            let Some(reg) = (*self.domain.0).mr.as_ref().and_then(|mr| mr.reg) else { return Err(FI_ENOSYS) };
            reg(self.domain.0.cast(), base.cast(), len, access, 0, key, 0, &raw mut made, null_mut())
        };
        if result != 0 {
            return Err(-result);
        }
        let registration = Registration { mr: Open(made) };
        if self.mr_mode & FI_MR_ENDPOINT != 0 {
            let Some(endpoint) = &self.endpoint else { return Err(FI_EOPBADSTATE) };
            let fid = made.cast::<Fid>();
            // SAFETY: an open region and an open endpoint.
            let (bound, enabled) = unsafe {
                let (bind, control) = ((*(*fid).ops).bind, (*(*fid).ops).control);
                let bound = bind.map_or(-FI_ENOSYS, |bind| bind(fid, endpoint.0.cast(), 0));
                (bound, control.map_or(-FI_ENOSYS, |control| control(fid, FI_ENABLE, null_mut())))
            };
            if bound != 0 || enabled != 0 {
                return Err(-bound.min(enabled));
            }
        }
        Ok(registration)
    }

    /// To be called by each thread before it uses the objects.
    #[inline]
    pub fn adopt(&self) {
        if let Origin::Own(instance) = &self.origin {
            instance.adopt();
        }
    }

    /// Ends all operations, without events. Then registrations may go, then the rest.
    pub fn close_endpoint(&mut self) {
        if self.endpoint.is_some() && speaks_ip(self.format) {
            self.accepted = Accepted::at(&self.address);
        }
        self.endpoint = None;
    }

    /// True if local buffers must be registered.
    pub fn needs_descriptors(&self) -> bool {
        self.mr_mode & FI_MR_LOCAL != 0
    }
}

fn taken(result: isize) -> Result<bool, i32> {
    match result {
        0 => Ok(true),
        again if again == -(FI_EAGAIN as isize) => Ok(false),
        error => Err(-error as i32),
    }
}

/// Descriptions of what the provider offers, bound to the address of `node`.
fn ask<'a>(library: &'a Library, provider: &CStr, node: Option<&CStr>, more: u64) -> Infos<'a> {
    // SAFETY: dupinfo of null gives an empty description with all attributes, which freeinfo frees, names included. The provider's
    // is lent for the call alone: a libfabric of our own has a C library of its own, which would free what another has allocated.
    unsafe {
        let hints = Infos((library.dupinfo)(null()), library);
        let Some(wanted) = hints.0.as_mut() else { return Infos(null_mut(), library) };
        wanted.caps = CAPS | more;
        wanted.mode = FI_CONTEXT | FI_CONTEXT2;
        (*wanted.ep_attr).r#type = FI_EP_RDM;
        (*wanted.tx_attr).msg_order = FI_ORDER_SAS;
        (*wanted.rx_attr).msg_order = FI_ORDER_SAS;
        (*wanted.domain_attr).mr_mode = MR_MODE;
        (*wanted.domain_attr).threading = FI_THREAD_DOMAIN;
        (*wanted.domain_attr).control_progress = FI_PROGRESS_MANUAL;
        (*wanted.domain_attr).data_progress = FI_PROGRESS_MANUAL;
        (*wanted.domain_attr).resource_mgmt = FI_RM_ENABLED;
        let (name, flags) = match node {
            Some(node) => (node.as_ptr(), FI_SOURCE | FI_NUMERICHOST),
            None => (null(), 0),
        };
        let mut found = Infos(null_mut(), library);
        (*wanted.fabric_attr).prov_name = provider.as_ptr().cast_mut();
        (library.getinfo)(API, name, null(), flags | OFI_GETINFO_HIDDEN, hints.0, &raw mut found.0);
        (*wanted.fabric_attr).prov_name = null_mut();
        // An address that is not of the network's format would be a name to no avail.
        if node.is_some() && found.0.as_ref().is_some_and(|info| !speaks_ip(info.addr_format)) {
            return Infos(null_mut(), library);
        }
        found
    }
}

/// A completion queue, with a descriptor to wait for if the provider has one.
///
/// # Safety
/// The domain is open.
unsafe fn open_queue(domain: &Open<FidDomain>, provider: &str) -> Result<(Open<FidCq>, Option<i32>), CoreError> {
    let mut attr = FiCqAttr {
        size: 4096,
        flags: 0,
        format: FI_CQ_FORMAT_MSG,
        wait_obj: FI_WAIT_FD,
        signaling_vector: 0,
        wait_cond: 0,
        wait_set: null_mut(),
    };
    let mut made: *mut FidCq = null_mut();
    // SAFETY: the caller's domain; its table and those of objects it opens are valid.
    unsafe {
        let open = offered("fi_cq_open", provider, (*(*domain.0).ops).cq_open)?;
        if open(domain.0, &raw mut attr, &raw mut made, null_mut()) != 0 {
            attr.wait_obj = FI_WAIT_NONE;
            attr.size = 4096;
            checked("fi_cq_open", provider, open(domain.0, &raw mut attr, &raw mut made, null_mut()))?;
            return Ok((Open(made), None));
        }
        let queue = Open(made);
        let mut wait = -1i32;
        let told = (*(*queue.0.cast::<Fid>()).ops).control.map(|control| control(queue.0.cast(), FI_GETWAIT, (&raw mut wait).cast()));
        Ok((queue, (told == Some(0) && wait >= 0).then_some(wait)))
    }
}
