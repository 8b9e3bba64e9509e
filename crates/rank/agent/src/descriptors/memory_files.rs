//! Files that are memory: memfd_create(2), POSIX shared memory, unlinked files. The restorer filled them and holds them open.

use super::Open;
use super::inherited::Inherited;
use super::paths::open_anyway;
use mend_freestanding::{check, syscall};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

/// Opens one again.
pub(super) fn make(object: Option<u32>, seals: u32, saved: &Open, inherited: &Inherited) -> Result<OwnedFd, Errno> {
    let kept = inherited.kept.iter().find(|kept| Some(kept.object) == object).ok_or(Errno::BADF)?;
    // A description of its own, so that twins opened separately keep separate offsets. The mode is the saved one already, and may deny that.
    let path = format!("/proc/self/fd/{}", kept.fd);
    let made = open_anyway(path.as_str(), OFlags::from_bits_retain((saved.flags & libc::O_ACCMODE | libc::O_CLOEXEC) as u32))?;
    seek(&made, SeekFrom::Start(saved.offset))?;
    if saved.flags & libc::O_ACCMODE != libc::O_RDONLY && seals & !seals_of(&made) != 0 {
        control(&made, libc::F_ADD_SEALS, seals)?;
    }
    Ok(made)
}

/// Those that it has: a twin may have brought them, and the last one forbids any more.
fn seals_of(file: &OwnedFd) -> u32 {
    control(file, libc::F_GET_SEALS, 0).unwrap_or(0) as u32
}

fn control(file: &OwnedFd, command: i32, argument: u32) -> Result<usize, Errno> {
    // SAFETY: both commands take a number at most.
    check(unsafe { syscall(libc::SYS_fcntl, [file.as_raw_fd() as usize, command as usize, argument as usize, 0, 0, 0]) })
        .map_err(Errno::from_raw_os_error)
}
