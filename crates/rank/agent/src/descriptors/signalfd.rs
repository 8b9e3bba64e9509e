//! Signals by descriptor: signalfd(2).

use super::calls::new_descriptor;
use super::{What, fdinfo};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// What `fdinfo` tells of one.
pub(super) fn parse(info: &str) -> Option<What> {
    Some(What::Signals { mask: u64::from_str_radix(fdinfo::field(info, "sigmask:")?, 16).ok()? })
}

/// Makes one for the same signals.
pub(super) fn make(mask: u64) -> Result<OwnedFd, Errno> {
    new_descriptor(libc::SYS_signalfd4, [usize::MAX, (&raw const mask) as usize, 8, 0])
}
