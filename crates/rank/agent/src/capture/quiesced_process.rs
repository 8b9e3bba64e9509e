//! A quiesced process: its threads are parked, and nothing in it changes.

use crate::allocator;
use crate::descriptors::Descriptors;
use crate::descriptors::file_attributes::FileAttributes;
use crate::descriptors::node_files::NodeFiles;
use crate::memory::address_space::AddressSpace;
use crate::memory::layout::Layout;
use crate::memory::mapping_attributes::Policy;
use crate::park::Parked;
use crate::process::state::{State, StateError};
use mend_image::handoff::Context;
use mend_kernel::threads::Registration;
use std::time::Duration;

/// The agent's allocator, held: no parked thread is inside. Dropping it lets the threads in.
pub(crate) struct HeldAllocator;

impl HeldAllocator {
    pub fn hold() -> Self {
        allocator::freeze();
        Self
    }
}

impl Drop for HeldAllocator {
    fn drop(&mut self) {
        allocator::thaw();
    }
}

/// A process whose threads are parked and whose allocator is held, with everything the agent read of it when it was saved, here or before
/// it was restored. Dropping it lets everything run again.
pub(crate) struct QuiescedProcess {
    pub context: Context,
    pub registration: Registration,
    // Order matters: threads are let go before the allocator is.
    pub parked: Parked,
    pub allocator: Option<HeldAllocator>,
    pub descriptors: Descriptors,
    pub state: State,
    /// Guard pages within mappings (`MADV_GUARD_INSTALL`).
    pub guards: Vec<(u64, u64)>,
    pub files: NodeFiles,
    /// Others put the program's files back before this process comes out of its image.
    pub files_kept: bool,
    pub file_attributes: FileAttributes,
    pub policies: Vec<Policy>,
    pub layout: Layout,
    /// What the layout was made of: not to be freed before the image is complete.
    pub space: Option<AddressSpace>,
}

impl QuiescedProcess {
    /// Makes this kernel thread know what the saved one knew, and waits for the others to leave the restorer's code.
    pub fn settle(&self, limit: Duration) -> Result<(), i32> {
        // The agent's own thread asks for nothing.
        // SAFETY: read from this very thread before it was saved.
        let _ = unsafe { self.registration.restore() };
        self.parked.await_arrival(limit)
    }

    /// What must come back last: see [`State::restore_last`].
    pub fn restore_last(&self) -> Result<(), StateError> {
        self.state.restore_last(&self.parked)
    }

    /// Lets everything run again. Dropping it then waits until the threads do.
    pub fn release(&mut self) {
        self.parked.release();
        self.allocator = None;
    }
}
