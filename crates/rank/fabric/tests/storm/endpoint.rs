//! The provider as an MPI library uses it: through libfabric's tables, without libfabric.

use mend_fabric_sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Bytes of an endpoint's name.
const NAME: usize = 64;

/// An endpoint with its queue. Any thread may use it.
pub struct Endpoint {
    ep: *mut FidEp,
    cq: *mut FidCq,
    domain: *mut FidDomain,
}

// SAFETY: the provider offers FI_THREAD_SAFE.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

/// What ended.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub context: usize,
    pub receive: bool,
    pub length: usize,
}

fn good(code: i32) {
    assert_eq!(code, 0, "the provider refused");
}

impl Endpoint {
    /// Opens everything and makes the other ranks known: rank r is address r. All of a job's endpoint names are alike but
    /// for the rank.
    pub fn open(ranks: u32) -> Self {
        // SAFETY: the calls of fi_getinfo(3), fi_fabric(3), fi_domain(3), fi_endpoint(3), in order, each with pointers
        // that live through it; what they give is checked by their status.
        unsafe {
            let provider = &*mend_fabric::provider();
            let mut info: *mut FiInfo = null_mut();
            good(provider.getinfo.unwrap()(fi_version(2, 5), std::ptr::null(), std::ptr::null(), 0, std::ptr::null(), &raw mut info));
            let (mut fabric, mut domain, mut ep) = (null_mut(), null_mut(), null_mut());
            let (mut av, mut cq) = (null_mut(), null_mut());
            good(provider.fabric.unwrap()((*info).fabric_attr, &raw mut fabric, null_mut()));
            good((*(*fabric).ops).domain.unwrap()(fabric, info, &raw mut domain, null_mut()));
            let tables = &*(*domain).ops;
            good(tables.av_open.unwrap()(domain, null_mut(), &raw mut av, null_mut()));
            good(tables.cq_open.unwrap()(domain, null_mut(), &raw mut cq, null_mut()));
            good(tables.endpoint.unwrap()(domain, info, &raw mut ep, null_mut()));
            let bind = (*(*ep).fid.ops).bind.unwrap();
            good(bind(&raw mut (*ep).fid, &raw mut (*av).fid, 0));
            good(bind(&raw mut (*ep).fid, &raw mut (*cq).fid, FI_SEND | FI_RECV));
            good((*(*ep).fid.ops).control.unwrap()(&raw mut (*ep).fid, FI_ENABLE, null_mut()));
            let (mut name, mut length) = ([0u8; NAME], NAME);
            good((*(*ep).cm).getname.unwrap()(&raw mut (*ep).fid, name.as_mut_ptr().cast(), &raw mut length));
            for rank in 0..ranks {
                let mut number = 0;
                let own = Self::name_of(&name[..length], rank);
                assert_eq!((*(*av).ops).insert.unwrap()(av, own.as_ptr().cast(), 1, &raw mut number, 0, null_mut()), 1);
                assert_eq!(number, u64::from(rank));
            }
            Self { ep, cq, domain }
        }
    }

    /// The name with another rank in it: four bytes, little endian, after the magic and the job.
    fn name_of(own: &[u8], rank: u32) -> Vec<u8> {
        let mut name = own.to_vec();
        let at = RANK_IN_NAME;
        name[at..at + 4].copy_from_slice(&rank.to_le_bytes());
        name
    }

    fn busy(code: isize) -> bool {
        assert!(code == 0 || code == -(FI_EAGAIN as isize), "the provider says {code}");
        code != 0
    }

    /// Sends; false: try again later. The bytes stay until the completion, unless they are injected.
    pub fn send(&self, bytes: &[u8], to: u32, tag: u64, context: usize, inject: bool) -> bool {
        // SAFETY: an open endpoint; the caller keeps the bytes as said.
        !Self::busy(unsafe {
            let table = &*(*self.ep).tagged;
            if inject {
                table.inject.unwrap()(self.ep, bytes.as_ptr().cast(), bytes.len(), to.into(), tag)
            } else {
                table.send.unwrap()(self.ep, bytes.as_ptr().cast(), bytes.len(), null_mut(), to.into(), tag, context as *mut c_void)
            }
        })
    }

    /// Posts a receive from a rank or from any.
    pub fn receive(&self, memory: &mut [u8], from: Option<u32>, tag: u64, ignore: u64, context: usize) {
        let from = from.map_or(FI_ADDR_UNSPEC, u64::from);
        // SAFETY: an open endpoint; the caller keeps the memory until the completion.
        let code = unsafe {
            let (base, context) = (memory.as_mut_ptr().cast(), context as *mut c_void);
            (*(*self.ep).tagged).recv.unwrap()(self.ep, base, memory.len(), null_mut(), from, tag, ignore, context)
        };
        assert_eq!(code, 0);
    }

    /// Lets others read and write memory under a key, for good.
    pub fn expose(&self, memory: &mut [u8], key: u64) {
        let mut region = null_mut();
        // SAFETY: an open domain; the caller keeps the memory.
        good(unsafe {
            let base = memory.as_mut_ptr().cast();
            let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
            (*(*self.domain).mr).reg.unwrap()(
                &raw mut (*self.domain).fid,
                base,
                memory.len(),
                access,
                0,
                key,
                0,
                &raw mut region,
                null_mut(),
            )
        });
    }

    /// Writes to (or reads from) another rank's memory; false: try again later.
    pub fn access(&self, write: bool, memory: &mut [u8], to: u32, address: u64, key: u64, context: usize) -> bool {
        // SAFETY: an open endpoint; the caller keeps the memory until the completion.
        !Self::busy(unsafe {
            let (table, base, context) = (&*(*self.ep).rma, memory.as_mut_ptr().cast(), context as *mut c_void);
            if write {
                table.write.unwrap()(self.ep, base, memory.len(), null_mut(), to.into(), address, key, context)
            } else {
                table.read.unwrap()(self.ep, base, memory.len(), null_mut(), to.into(), address, key, context)
            }
        })
    }

    /// Makes progress and returns what ended.
    pub fn poll(&self) -> Vec<Done> {
        // SAFETY: all bits zero is a valid entry; the queue is open and has this format; room for all that is asked for.
        unsafe {
            let mut entries: [FiCqTaggedEntry; 16] = std::mem::zeroed();
            let got = (*(*self.cq).ops).read.unwrap()(self.cq, entries.as_mut_ptr().cast(), entries.len());
            if got == -(FI_EAGAIN as isize) {
                return Vec::new();
            }
            assert!(got > 0, "an operation failed ({got})");
            let done = |entry: &FiCqTaggedEntry| Done {
                context: entry.op_context as usize,
                receive: entry.flags & FI_RECV != 0,
                length: entry.len,
            };
            entries[..got as usize].iter().map(done).collect()
        }
    }

    /// Waits until everything that was sent is with its receiver.
    pub fn close(self) {
        // SAFETY: closed once; the rest is left to the end of the process.
        good(unsafe { (*(*self.ep).fid.ops).close.unwrap()(&raw mut (*self.ep).fid) });
    }
}

/// Where in a name the rank is.
const RANK_IN_NAME: usize = 20;
