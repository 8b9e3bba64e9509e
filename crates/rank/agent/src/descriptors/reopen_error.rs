//! Why a descriptor cannot be opened again.

use rustix::io::Errno;

/// Why a descriptor cannot come back. The process cannot run without it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReopenError {
    #[error("{path} cannot be opened again: {errno}")]
    Open { path: String, errno: Errno },
    #[error("{path} is no longer a {kind}")]
    Kind { path: String, kind: &'static str },
    #[error("{path} has {now} bytes, fewer than the {then} when the image was taken")]
    Short { path: String, now: u64, then: u64 },
    #[error("descriptor {fd} ({what}) cannot be made again: {errno}")]
    Make { fd: i32, what: &'static str, errno: Errno },
}
