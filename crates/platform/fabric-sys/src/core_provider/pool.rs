//! Chunks of memory that are registered with a core provider: read or written by one side of a transfer, out of or into chunks of the other.
//!
//! Invariants: a chunk's memory is touched by one party at a time, as the caller orders it: it fills or reads a chunk only while it has told no
//! peer of it and no operation of its own uses it ([`PoolError::Busy`] otherwise for the latter). What a peer knows of a chunk, its address and
//! key, is void once the chunk is renewed ([`ChunkPool::renew`]).
//!
//! Faults assumed: peers go away in the middle of an operation, or write to a chunk later or otherwise than they said. What is in a chunk that a
//! peer may write to is bytes of no meaning until the caller has compared its checksum.

use super::{BATCH, Core, CoreError, Event, Origin, Registration};
use crate::{FI_EINVAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_WRITE, Library};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CString, c_void};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

const PAGE: usize = 4096;
/// The soname by which libfabric is looked for where none is named.
const DEFAULT_LIBRARY: &str = "libfabric.so.1";

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolAccess {
    /// Who gets them, by `fi_read`.
    Read,
    /// Who has them, by `fi_write`.
    Write,
}

/// Why there is no pool, or why an operation did not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No libfabric.
    #[error("libfabric cannot be loaded as {path}")]
    NoLibrary {
        /// Where it was looked for.
        path: String,
    },
    /// The provider cannot be used.
    #[error(transparent)]
    Provider(#[from] CoreError),
    /// The provider does not register the memory.
    #[error("the provider does not register the memory of chunks: {}", std::io::Error::from_raw_os_error(*.0))]
    Unregistered(i32),
    /// The provider does not take an operation.
    #[error("the provider refused an operation: {}", std::io::Error::from_raw_os_error(*.0))]
    Refused(i32),
    /// The chunk is in an operation, or there is none of this number or length.
    #[error("chunk {0} cannot be used now")]
    Busy(usize),
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its chunk.
    pub chunk: usize,
    /// A positive error number if it failed.
    pub result: Result<(), i32>,
}

/// What the provider is given as an operation's context; it may write to the first bytes.
#[repr(C)]
struct Context {
    /// `struct fi_context2`.
    provider: [u64; 8],
    chunk: usize,
}

struct Chunk {
    context: NonNull<Context>,
    registration: Option<Registration>,
    busy: bool,
}

/// Memory of all chunks; freed last.
struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: from alloc_zeroed with this layout; ChunkPool closes what uses it before.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// See the module.
pub struct ChunkPool {
    core: Core,
    chunks: Vec<Chunk>,
    chunk_bytes: usize,
    access: u64,
    last_key: u64,
    memory: Memory,
}

// SAFETY: the pointers are to memory that the pool owns, and nothing of it is tied to a thread.
unsafe impl Send for ChunkPool {}

impl ChunkPool {
    /// Loads libfabric (`library`, else as the dynamic linker finds it), opens an endpoint of `provider` at `source`, and registers `count`
    /// chunks of `chunk_bytes`. `random` gives keys where the provider lets them be chosen.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(
        library: Option<&Path>,
        (provider, source): (&str, IpAddr),
        access: PoolAccess,
        (count, chunk_bytes): (usize, usize),
        random: &dyn Fn() -> u64,
    ) -> Result<Self, PoolError> {
        let path = library.unwrap_or(Path::new(DEFAULT_LIBRARY));
        let missing = || PoolError::NoLibrary { path: path.display().to_string() };
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| missing())?;
        let library = Library::load(&name).ok_or_else(missing)?;
        let core = Core::open(Origin::Programs(library), provider, source, FI_WRITE | FI_REMOTE_WRITE)?;
        let chunk_bytes = chunk_bytes.max(1);
        let stride = chunk_bytes.next_multiple_of(PAGE);
        let layout = stride.checked_mul(count).and_then(|bytes| Layout::from_size_align(bytes.max(PAGE), PAGE).ok());
        let layout = layout.ok_or(PoolError::Unregistered(FI_EINVAL))?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(PoolError::Unregistered(libc::ENOMEM))?;
        let access = match access {
            PoolAccess::Read => FI_READ | FI_REMOTE_READ,
            PoolAccess::Write => FI_WRITE | FI_REMOTE_WRITE,
        };
        let mut pool = Self { core, chunks: Vec::new(), chunk_bytes, access, last_key: 0, memory: Memory { base, layout } };
        for chunk in 0..count {
            let context = Box::leak(Box::new(Context { provider: [0; 8], chunk }));
            pool.chunks.push(Chunk { context: NonNull::from(context), registration: None, busy: false });
            pool.register(chunk, random)?;
        }
        Ok(pool)
    }

    fn base(&self, chunk: usize) -> *mut u8 {
        let stride = self.chunk_bytes.next_multiple_of(PAGE);
        // SAFETY: within the memory for every chunk that there is.
        unsafe { self.memory.base.as_ptr().add(chunk * stride) }
    }

    fn register(&mut self, chunk: usize, random: &dyn Fn() -> u64) -> Result<(), PoolError> {
        let key = if self.core.mr_mode & FI_MR_PROV_KEY != 0 {
            0
        } else if self.core.key_size >= 8 {
            // Whoever reaches the network could try keys.
            random() >> 1
        } else {
            self.last_key += 1;
            self.last_key & ((1 << (8 * self.core.key_size)) - 1)
        };
        self.chunks[chunk].registration = None;
        // SAFETY: the pool's memory, which is freed after all registrations are closed.
        let registration = unsafe { self.core.register(self.base(chunk), self.chunk_bytes, self.access, key) };
        self.chunks[chunk].registration = Some(registration.map_err(PoolError::Unregistered)?);
        Ok(())
    }

    /// Number of chunks.
    #[must_use]
    pub fn count(&self) -> usize {
        self.chunks.len()
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Where the endpoint is, for [`ChunkPool::peer`] elsewhere.
    #[must_use]
    pub fn address(&self) -> &[u8] {
        &self.core.address
    }

    /// Name of the provider, layers included.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.core.provider
    }

    /// A number for a peer's endpoint.
    ///
    /// # Errors
    /// [`PoolError::Refused`].
    pub fn peer(&self, address: &[u8]) -> Result<u64, PoolError> {
        self.core.insert(address).map_err(PoolError::Refused)
    }

    /// Forgets a peer.
    pub fn forget(&self, peer: u64) {
        self.core.remove(peer);
    }

    /// What a peer must know of a chunk to read it or write to it: its address and key.
    #[must_use]
    pub fn remote(&self, chunk: usize) -> Option<(u64, u64)> {
        let key = self.chunks.get(chunk)?.registration.as_ref()?.key();
        Some((if self.core.mr_mode & FI_MR_VIRT_ADDR != 0 { self.base(chunk) as u64 } else { 0 }, key))
    }

    /// Makes void what peers know of a chunk.
    ///
    /// # Errors
    /// [`PoolError::Busy`], [`PoolError::Unregistered`].
    pub fn renew(&mut self, chunk: usize, random: &dyn Fn() -> u64) -> Result<(), PoolError> {
        if self.chunks.get(chunk).is_none_or(|chunk| chunk.busy) {
            return Err(PoolError::Busy(chunk));
        }
        self.register(chunk, random)
    }

    /// The memory of a chunk, to be filled or read.
    ///
    /// # Errors
    /// [`PoolError::Busy`].
    pub fn memory(&mut self, chunk: usize) -> Result<&mut [u8], PoolError> {
        if self.chunks.get(chunk).is_none_or(|chunk| chunk.busy) {
            return Err(PoolError::Busy(chunk));
        }
        // SAFETY: the chunk's part of the pool's memory, in no operation of this process. A peer that breaks its word may change bytes in
        // it meanwhile, like one that shares memory: they are checked and passed on as bytes, and decide nothing.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base(chunk), self.chunk_bytes) })
    }

    /// Begins to read (or, where the pool is for that, to write) `length` bytes of a chunk from (to) a peer's. False: no room now.
    ///
    /// # Errors
    /// [`PoolError::Busy`], [`PoolError::Refused`].
    pub fn begin(&mut self, chunk: usize, length: usize, peer: u64, remote: (u64, u64)) -> Result<bool, PoolError> {
        let base = self.base(chunk.min(self.chunks.len()));
        let slot = self.chunks.get_mut(chunk).filter(|slot| !slot.busy && length <= self.chunk_bytes).ok_or(PoolError::Busy(chunk))?;
        let registration = slot.registration.as_ref().filter(|_| self.core.needs_descriptors());
        let descriptor = registration.map_or(null_mut(), Registration::descriptor);
        let context: *mut c_void = slot.context.as_ptr().cast();
        // SAFETY: memory and context are the pool's and stay until the operation's event, before which `busy` keeps others away.
        let taken = unsafe {
            match self.access & FI_READ {
                0 => self.core.write(base, length, descriptor, peer, remote, context),
                _ => self.core.read(base, length, descriptor, peer, remote, context),
            }
        };
        slot.busy = taken.map_err(PoolError::Refused)?;
        Ok(slot.busy)
    }

    /// Drives the provider, also for what peers do here, and tells what has ended.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: the pool is unusable.
    pub fn poll(&mut self, ended: &mut Vec<Ended>) -> Result<(), PoolError> {
        loop {
            let from = ended.len();
            let mut each = |event: Event| {
                let (context, result) = match event {
                    Event::Done { context, .. } => (context, Ok(())),
                    Event::Failed { context, errno } => (context, Err(errno)),
                };
                // An error of a connection has no context.
                let Some(context) = NonNull::new(context.cast::<Context>()) else { return };
                // SAFETY: contexts are the pool's own, given to its operations.
                let chunk = unsafe { (*context.as_ptr()).chunk };
                ended.push(Ended { chunk, result });
            };
            let count = self.core.poll(&mut each).map_err(PoolError::Refused)?;
            for Ended { chunk, .. } in &ended[from..] {
                self.chunks[*chunk].busy = false;
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Becomes readable when there is something to poll for; some providers have no such descriptor.
    #[must_use]
    pub fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue's, which is open as long as the pool is.
        self.core.wait.map(|number| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// About to sleep on [`ChunkPool::wait_descriptor`]. False if there is news already.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.core.may_sleep()
    }
}

impl Drop for ChunkPool {
    fn drop(&mut self) {
        // Ends all operations. Then registrations may go, then the rest, then the memory.
        self.core.close_endpoint();
        for chunk in &mut self.chunks {
            chunk.registration = None;
            // SAFETY: leaked in `open`, once; no operation uses it any more.
            drop(unsafe { Box::from_raw(chunk.context.as_ptr()) });
        }
    }
}
