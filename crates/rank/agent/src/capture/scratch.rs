//! Memory of the agent that is not saved: the writers' stacks, their buffers, and the place where the restorer leaves its
//! [`Handoff`]. It is mapped again in a restored process, empty.

use crate::capture::sender::BATCHES;
use crate::capture::stream::Batch;
use mend_image::handoff::Handoff;
use mend_image::record::MAX_PAGES;
use mend_kernel::pagemap::Region;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const HANDOFF: usize = 16 << 10;
const STACK: usize = 256 << 10;
const BOUNCE: usize = MAX_PAGES as usize;
const REGIONS: usize = 4096;
const RESIDENCY: usize = 64 << 10;
const BATCH: usize = size_of::<Batch>().next_multiple_of(4096);
const TOTAL: usize = HANDOFF + 2 * STACK + BOUNCE + RESIDENCY + BATCHES * BATCH + (REGIONS * size_of::<Region>()).next_multiple_of(4096);

const _: () = assert!(size_of::<Handoff>() <= HANDOFF);

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
    pub batches: [&'static mut Batch; BATCHES],
}

impl Scratch {
    /// Maps it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self, rustix::io::Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), TOTAL, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)? };
        Ok(Self { base: base as usize })
    }

    /// Address range, not to be saved.
    pub fn range(&self) -> (usize, usize) {
        (self.base, self.base + TOTAL)
    }

    /// Where the restorer writes its hand-over.
    pub fn handoff(&self) -> *mut Handoff {
        self.base as *mut Handoff
    }

    /// End of the writer's stack.
    pub fn stack_top(&self) -> usize {
        self.base + HANDOFF + STACK
    }

    /// End of the stack of a writer that shares this memory. See [`crate::capture::dirty_copies`].
    pub fn other_stack_top(&self) -> usize {
        self.stack_top() + STACK
    }

    /// # Safety
    /// No other result of this function may be in use.
    pub unsafe fn buffers(&self) -> Buffers {
        let bounce = self.base + HANDOFF + 2 * STACK;
        let residency = bounce + BOUNCE;
        let batch = residency + RESIDENCY;
        let regions = batch + BATCHES * BATCH;
        // SAFETY: disjoint parts of a mapping that is never unmapped; any bytes are valid for these types; the caller
        // answers for there being no second borrow.
        unsafe {
            Buffers {
                bounce: core::slice::from_raw_parts_mut(bounce as *mut u8, BOUNCE),
                regions: core::slice::from_raw_parts_mut(regions as *mut Region, REGIONS),
                residency: core::slice::from_raw_parts_mut(residency as *mut u8, RESIDENCY),
                batches: core::array::from_fn(|index| &mut *((batch + index * BATCH) as *mut Batch)),
            }
        }
    }
}
