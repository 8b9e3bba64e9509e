//! What a save is told: what the agent has, and what it found out before the threads stand still.

use crate::capture::scratch::Scratch;
use crate::descriptors::attached::Attached;
use crate::descriptors::node_files::CopyBuffer;
use crate::memory::address_space::AddressSpace;
use crate::memory::maps;
use mend_image::cpu::CpuNeeds;
use mend_messages::agent::{Compression, Welcome};

/// What a save needs to know of the agent.
pub(crate) struct SaveRequest<'a> {
    pub scratch: &'a Scratch,
    pub attached: &'a Attached,
    pub identity: &'a Welcome,
    /// Descriptors of agent and fabric: not part of the program.
    pub own_descriptors: Vec<i32>,
    /// Memory of fabric and agent that is not saved.
    pub excluded: Vec<(u64, u64)>,
    /// What `smaps` said lately.
    pub advice: maps::Advice,
    /// What the program needs of a processor, if that was asked lately: on a virtual machine it takes half a millisecond.
    pub cpu: Option<CpuNeeds>,
    /// Nothing stood in the way a moment ago; what has come since is found when the threads stand still.
    pub clear: Option<CleanInspection>,
    /// See [`mend_messages::agent::SaveOrder::files_kept`].
    pub files_kept: bool,
    /// See [`mend_messages::agent::SaveOrder::compression`].
    pub compression: Compression,
}

/// What an inspection that found nothing in the way learned.
pub(crate) struct CleanInspection {
    /// Numbers of the files that the program writes to.
    pub written_files: Vec<i32>,
    /// For copies of what lies in `/dev/shm`.
    pub copy_buffer: CopyBuffer,
    /// Read last, since everything else may take memory.
    pub space: Option<AddressSpace>,
}
