//! Files that are memory: memfd_create(2), POSIX shared memory, unlinked files. The restorer filled them and holds them open.

use super::Open;
use super::inherited::Inherited;
use mend_freestanding::{check, syscall};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::Errno;

/// Opens one again.
pub(super) fn make(object: Option<u32>, seals: u32, saved: &Open, inherited: &Inherited) -> Result<OwnedFd, Errno> {
    let kept = inherited.kept.iter().find(|kept| Some(kept.object) == object).ok_or(Errno::BADF)?;
    // A description of its own, so that twins opened separately keep separate offsets.
    let path = format!("/proc/self/fd/{}", kept.fd);
    let made = open(path, OFlags::from_bits_retain((saved.flags & libc::O_ACCMODE | libc::O_CLOEXEC) as u32), Mode::empty())?;
    seek(&made, SeekFrom::Start(saved.offset))?;
    if seals != 0 && saved.flags & libc::O_ACCMODE != libc::O_RDONLY {
        // SAFETY: F_ADD_SEALS takes a number.
        check(unsafe { syscall(libc::SYS_fcntl, [made.as_raw_fd() as usize, libc::F_ADD_SEALS as usize, seals as usize, 0, 0, 0]) })
            .map_err(Errno::from_raw_os_error)?;
    }
    Ok(made)
}
