//! Why an image cannot be written. What lies below the writer fails with it, too.

use rustix::event::Timespec;
use rustix::io::Errno;

/// A peer that takes nothing for this long is dead.
pub(crate) const STALL_LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Why the stream could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("writing the image failed: {0}")]
    Out(Errno),
    #[error("the receiver of the image took nothing for {} s", STALL_LIMIT.tv_sec)]
    Stalled,
    #[error("the process that sends the image has ended")]
    Sender,
    #[error("memory at {0:#x} cannot be read: {1}")]
    Memory(u64, Errno),
    #[error("page tables cannot be read: {0}")]
    Pagemap(Errno),
    #[error("the image would hold more than its format allows")]
    Format,
}

impl WriteError {
    /// What a user can do; may be empty.
    pub fn hint(self) -> &'static str {
        match self {
            WriteError::Out(Errno::PIPE | Errno::CONNRESET) | WriteError::Stalled => {
                "look at what takes the image: the node that the rank moves to, or mendd on this one"
            }
            WriteError::Out(errno) => mend_report::storage_hint(&errno.into()),
            WriteError::Memory(_, errno) | WriteError::Pagemap(errno) => mend_report::proc_hint(&errno.into()),
            WriteError::Sender | WriteError::Format => "",
        }
    }
}
