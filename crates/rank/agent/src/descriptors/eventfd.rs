//! Counters: eventfd(2).

use super::calls::new_descriptor;
use super::{What, fdinfo};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// What `fdinfo` tells of one.
pub(super) fn parse(info: &str) -> Option<What> {
    let count = u64::from_str_radix(fdinfo::field(info, "eventfd-count:")?, 16).ok()?;
    let semaphore = fdinfo::field(info, "eventfd-semaphore:").is_some_and(|text| text != "0");
    Some(What::Event { count, semaphore })
}

/// Makes one that counts as it did.
pub(super) fn make(count: u64, semaphore: bool) -> Result<OwnedFd, Errno> {
    let flags = if semaphore { libc::EFD_SEMAPHORE as usize } else { 0 };
    let event = new_descriptor(libc::SYS_eventfd2, [0, flags, 0, 0])?;
    if count != 0 {
        rustix::io::write(&event, &count.to_ne_bytes())?;
    }
    Ok(event)
}
