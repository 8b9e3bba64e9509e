//! System calls that make descriptors.

use mend_freestanding::{check, syscall};
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

/// Makes a descriptor by a system call.
pub(super) fn new_descriptor(number: i64, arguments: [usize; 4]) -> Result<OwnedFd, Errno> {
    let [a, b, c, d] = arguments;
    // SAFETY: callers pass arguments of calls that return a new descriptor and at most read the memory pointed to.
    let fd = check(unsafe { syscall(number, [a, b, c, d, 0, 0]) }).map_err(Errno::from_raw_os_error)?;
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A duplicate with the lowest free number from `above` on.
pub(super) fn high(fd: &impl AsFd, above: i32) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, above)
}
