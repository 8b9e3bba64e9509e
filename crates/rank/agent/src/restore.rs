//! The first steps of a restored agent, while all other threads are parked.

use crate::capture::quiesced_process::QuiescedProcess;
use crate::capture::scratch::Scratch;
use crate::descriptors::file_attributes::FileError;
use crate::descriptors::inherited::Inherited;
use crate::descriptors::locks::{Due, Patience};
use crate::descriptors::reopen::reopen;
use crate::descriptors::reopen_error::ReopenError;
use crate::memory::guards;
use crate::memory::mapping_attributes::{self, MappingError};
use crate::park::monotonic;
use crate::process::origin;
use crate::process::state::StateError;
use crate::rollback::leftovers;
use mend_freestanding::syscall;
use mend_image::ZONES;
use mend_image::handoff::{HANDOFF_MAGIC, Handoff};
use mend_messages::agent::LOCK_LIMIT_S;
use rustix::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

const ARRIVAL_LIMIT: Duration = Duration::from_secs(30);
/// A process that was killed a moment ago may still have its locks; one on a node that was lost has them until a file server forgets it.
const LOCK_LIMITS: Patience = Patience { here: Duration::from_secs(5), network: Duration::from_secs(LOCK_LIMIT_S) };

/// Ends a restored process that has nobody to tell. Its threads never ran.
pub(crate) fn end_process() -> ! {
    loop {
        // SAFETY: exit_group does not return.
        unsafe { mend_freestanding::syscall(libc::SYS_exit_group, [1, 0, 0, 0, 0, 0]) };
    }
}

/// Why a restored process cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RebuildError {
    #[error("the restorer left no valid hand-over")]
    Handoff,
    #[error("thread {0} did not come back")]
    Thread(i32),
    #[error("thread {0} cannot get back {1}")]
    Attribute(i32, &'static str),
    #[error("the process cannot go back in place: {0}")]
    Leftover(String),
    #[error("guard pages at {0:#x} cannot be made again: {1}")]
    Guards(u64, rustix::io::Errno),
    #[error("a lock on {0} cannot be taken again, somebody else has it: {1}")]
    Lock(String, rustix::io::Errno),
    #[error("{} cannot be made again: {errno}", path.display())]
    NodeFile { path: std::path::PathBuf, errno: rustix::io::Errno },
    #[error(transparent)]
    Mapping(#[from] MappingError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Reopen(#[from] ReopenError),
    #[error(transparent)]
    State(#[from] StateError),
}

impl RebuildError {
    /// True if a file is no longer as it was when the image was taken. Another rank may have removed or cut it since.
    pub(crate) fn is_for_files(&self) -> bool {
        matches!(self, Self::Reopen(ReopenError::Open { .. } | ReopenError::Kind { .. } | ReopenError::Short { .. }))
    }
}

/// The hand-over, checked.
pub(crate) fn handoff(scratch: &Scratch) -> Result<Handoff, RebuildError> {
    // SAFETY: scratch memory, written by the restorer before any thread ran; any bytes are valid.
    let handoff = unsafe { scratch.handoff().read() };
    let within = |zone: (u64, u64)| handoff.restorer_start >= zone.0 && handoff.restorer_end <= zone.1;
    let inside = ZONES.into_iter().any(within) && handoff.restorer_start <= handoff.restorer_end;
    if handoff.magic == HANDOFF_MAGIC && inside { Ok(handoff) } else { Err(RebuildError::Handoff) }
}

/// Everything but the fabric and the connection to the daemon.
/// Returns the locks on files that are due when the rank resumes.
pub(crate) fn rebuild(quiesced: &QuiescedProcess, handoff: &Handoff) -> Result<Due, RebuildError> {
    quiesced.settle(ARRIVAL_LIMIT).map_err(RebuildError::Thread)?;
    if let Some((tid, what)) = quiesced.parked.threads().find_map(|slot| slot.lost.map(|what| (slot.tid, what))) {
        return Err(RebuildError::Attribute(tid, what));
    }
    // What is inherited here, before the program's own is added: a process that went back in place had nothing of its own.
    origin::record();
    if handoff.in_place != 0 {
        leftovers::clear(&quiesced.parked).map_err(RebuildError::Leftover)?;
    }
    let length = (handoff.restorer_end - handoff.restorer_start) as usize;
    // SAFETY: the restorer's own memory, which all threads have left.
    unsafe { syscall(libc::SYS_munmap, [handoff.restorer_start as usize, length, 0, 0, 0, 0]) };
    let mut inherited = Inherited::new(handoff, quiesced.descriptors.top());
    inherited.files_put_back = quiesced.files_kept && inherited.restart;
    guards::install(&quiesced.guards, &quiesced.layout.plans).map_err(|(start, errno)| RebuildError::Guards(start, errno))?;
    quiesced.files.bring_back(&inherited).map_err(|(path, errno)| RebuildError::NodeFile { path, errno })?;
    quiesced.state.restore()?;
    quiesced.file_attributes.restore_memory(&quiesced.descriptors, &inherited);
    reopen(&quiesced.descriptors, &inherited)?;
    quiesced.file_attributes.restore(&quiesced.descriptors, &inherited)?;
    for fd in handoff.attach.into_iter().chain(inherited.kept.iter().map(|kept| kept.fd)).filter(|fd| *fd >= 0) {
        // SAFETY: handed over by the restorer, no longer needed; owned by nobody else.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let areas = quiesced.space.as_ref().map_or(&[][..], |space| &space.areas);
    mapping_attributes::restore(&quiesced.policies, areas, &quiesced.layout.plans)?;
    quiesced.restore_last()?;
    if handoff.in_place != 0 {
        quiesced.parked.postpone(monotonic().saturating_sub(quiesced.state.monotonic));
    }
    let _ = mend_kernel::slice::shorten();
    let due = Due::of(&quiesced.descriptors);
    if handoff.mode == 0 {
        due.take(LOCK_LIMITS).map_err(|(file, errno)| RebuildError::Lock(file, rustix::io::Errno::from_raw_os_error(errno)))?;
        return Ok(Due::default());
    }
    // The rank that is moving still has them.
    Ok(due)
}
