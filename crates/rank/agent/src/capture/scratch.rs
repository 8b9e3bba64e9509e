//! Memory of the agent that is not saved: the writers' stacks, their buffers, and the place where the restorer leaves its
//! [`Handoff`]. It is mapped again in a restored process, empty.

use crate::capture::compression::Compressor;
use crate::capture::sender::BATCH_COUNT;
use crate::capture::stream::Batch;
use mend_image::handoff::Handoff;
use mend_image::record::MAX_PAGES;
use mend_kernel::pagemap::Region;
use mend_messages::agent::Compression;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const HANDOFF_BYTES: usize = 16 << 10;
const STACK_BYTES: usize = 256 << 10;
const BOUNCE_BYTES: usize = MAX_PAGES as usize;
const REGION_COUNT: usize = 4096;
const RESIDENCY_BYTES: usize = 64 << 10;
const BATCH_BYTES: usize = size_of::<Batch>().next_multiple_of(4096);
const COMPRESSOR_BYTES: usize = size_of::<Compressor>().next_multiple_of(4096);
const TOTAL_BYTES: usize = HANDOFF_BYTES
    + 2 * STACK_BYTES
    + BOUNCE_BYTES
    + RESIDENCY_BYTES
    + BATCH_COUNT * BATCH_BYTES
    + COMPRESSOR_BYTES
    + (REGION_COUNT * size_of::<Region>()).next_multiple_of(4096);

const _: () = assert!(size_of::<Handoff>() <= HANDOFF_BYTES);

/// The mapping. Lives as long as the process.
pub(crate) struct Scratch {
    base: usize,
}

/// The writer's buffers.
pub(crate) struct Buffers {
    /// Copies of pages that may change while they are written, or that cannot be read directly.
    pub bounce: &'static mut [u8],
    /// Populated regions.
    pub regions: &'static mut [Region],
    /// One byte per page, for `mincore`.
    pub residency: &'static mut [u8],
    /// Records that wait to be sent.
    pub batches: [&'static mut Batch; BATCH_COUNT],
    /// For what is compressed.
    pub compressor: Option<&'static mut Compressor>,
}

impl Scratch {
    /// Maps it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self, rustix::io::Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), TOTAL_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)? };
        Ok(Self { base: base as usize })
    }

    /// Address range, not to be saved.
    pub fn range(&self) -> (usize, usize) {
        (self.base, self.base + TOTAL_BYTES)
    }

    /// Where the restorer writes its hand-over.
    pub fn handoff(&self) -> *mut Handoff {
        self.base as *mut Handoff
    }

    /// End of the writer's stack.
    pub fn stack_top(&self) -> usize {
        self.base + HANDOFF_BYTES + STACK_BYTES
    }

    /// End of the stack of a writer that shares this memory. See [`crate::capture::dirty_copies`].
    pub fn other_stack_top(&self) -> usize {
        self.stack_top() + STACK_BYTES
    }

    /// With a compressor, unless it is never to compress.
    ///
    /// # Safety
    /// No other result of this function may be in use.
    pub unsafe fn buffers(&self, compression: Compression) -> Buffers {
        let bounce = self.base + HANDOFF_BYTES + 2 * STACK_BYTES;
        let residency = bounce + BOUNCE_BYTES;
        let batch = residency + RESIDENCY_BYTES;
        let compressor = (batch + BATCH_COUNT * BATCH_BYTES) as *mut Compressor;
        let regions = batch + BATCH_COUNT * BATCH_BYTES + COMPRESSOR_BYTES;
        // SAFETY: disjoint parts of a mapping that is never unmapped; any bytes are valid for these types, but for the compressor, which is
        // made here; the caller answers for there being no second borrow.
        unsafe {
            compressor.write(Compressor::new(compression, false));
            Buffers {
                bounce: core::slice::from_raw_parts_mut(bounce as *mut u8, BOUNCE_BYTES),
                regions: core::slice::from_raw_parts_mut(regions as *mut Region, REGION_COUNT),
                residency: core::slice::from_raw_parts_mut(residency as *mut u8, RESIDENCY_BYTES),
                batches: core::array::from_fn(|index| &mut *((batch + index * BATCH_BYTES) as *mut Batch)),
                compressor: (compression != Compression::Off).then(|| &mut *compressor),
            }
        }
    }
}
