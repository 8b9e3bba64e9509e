//! What belongs to an open file beside content, offset and flags: mode, owner, times and seals of files that come back as memory, how
//! long what is written is likely to live, how an epoll polls.

use crate::descriptors::inherited::Inherited;
use crate::descriptors::table::take;
use crate::descriptors::{Descriptors, What};
use mend_freestanding::{check, syscall};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{Gid, Mode, Timespec, Timestamps, Uid, fchmod, fchown, fstat, futimens};
use rustix::io::Errno;

const F_GET_RW_HINT: usize = 1035;
const F_SET_RW_HINT: usize = 1036;
const EPIOCSPARAMS: usize = 0x4008_8a01;
const EPIOCGPARAMS: usize = 0x8008_8a02;

/// Of all files that are open.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileAttributes {
    memory: Vec<Memory>,
    /// Number and hint.
    hints: Vec<(i32, u64)>,
    /// Number and `struct epoll_params`.
    polling: Vec<(i32, u64)>,
}

/// A file in memory, by the index of its open file description.
#[derive(Clone, Copy, Debug)]
struct Memory {
    open: usize,
    mode: u32,
    owner: (u32, u32),
    accessed: (i64, i64),
    modified: (i64, i64),
    seals: u32,
}

/// Why a file is not what it was.
#[derive(Debug, thiserror::Error)]
#[error("descriptor {fd} cannot get back {what}: {errno}")]
pub(crate) struct FileError {
    fd: i32,
    what: &'static str,
    errno: Errno,
}

impl FileAttributes {
    /// Reads them; the threads are parked.
    pub fn read(descriptors: &Descriptors) -> Self {
        let mut found = Self::default();
        for (index, open) in descriptors.opens.iter().enumerate() {
            let Some(fd) = descriptors.number_of(index) else { continue };
            let Ok(taken) = take(fd) else { continue };
            let here = taken.as_fd().as_raw_fd();
            match &open.what {
                What::Memory { .. } => {
                    let Ok(stat) = fstat(&taken) else { continue };
                    found.memory.push(Memory {
                        open: index,
                        mode: stat.st_mode & 0o7777,
                        owner: (stat.st_uid, stat.st_gid),
                        accessed: (stat.st_atime, stat.st_atime_nsec as i64),
                        modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
                        seals: control(here, libc::F_GET_SEALS as usize, 0).unwrap_or(0) as u32,
                    });
                }
                What::Path { .. } => {
                    let mut hint = 0u64;
                    if control(here, F_GET_RW_HINT, (&raw mut hint) as usize).is_ok() && hint != 0 {
                        found.hints.push((fd, hint));
                    }
                }
                What::Epoll { .. } => {
                    let mut parameters = 0u64;
                    // SAFETY: the ioctl writes 8 bytes; older kernels refuse it.
                    let told = unsafe { syscall(libc::SYS_ioctl, [here as usize, EPIOCGPARAMS, (&raw mut parameters) as usize, 0, 0, 0]) };
                    if told == 0 && parameters != 0 {
                        found.polling.push((fd, parameters));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Mode, owner and times of files in memory, before they are opened and sealed again. An owner that this process may not give
    /// a file to is left out.
    pub fn restore_memory(&self, descriptors: &Descriptors, inherited: &Inherited) {
        for memory in &self.memory {
            let Some(fd) = kept(memory, descriptors, inherited) else { continue };
            let (user, group) = memory.owner;
            if fstat(fd).is_ok_and(|now| (now.st_uid, now.st_gid) != memory.owner) {
                let _ = fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
            }
            // After the owner, which takes bits away.
            let _ = fchmod(fd, Mode::from_raw_mode(memory.mode));
            let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
            let _ = futimens(fd, &Timestamps { last_access: time(memory.accessed), last_modification: time(memory.modified) });
        }
    }

    /// The rest, when all descriptors are placed.
    pub fn restore(&self, descriptors: &Descriptors, inherited: &Inherited) -> Result<(), FileError> {
        for memory in &self.memory {
            let Some(fd) = kept(memory, descriptors, inherited) else { continue };
            let now = control(fd.as_raw_fd(), libc::F_GET_SEALS as usize, 0).unwrap_or(0) as u32;
            if memory.seals & !now != 0 && memory.seals != 1 {
                control(fd.as_raw_fd(), libc::F_ADD_SEALS as usize, memory.seals as usize).map_err(|errno| FileError {
                    fd: descriptors.number_of(memory.open).unwrap_or(-1),
                    what: "its seals",
                    errno,
                })?;
            }
        }
        for (fd, hint) in &self.hints {
            // A hint: a file system without them is none the worse.
            let _ = control(*fd, F_SET_RW_HINT, (&raw const *hint) as usize);
        }
        for (fd, parameters) in &self.polling {
            let address = (&raw const *parameters) as usize;
            // SAFETY: the ioctl reads 8 bytes.
            check(unsafe { syscall(libc::SYS_ioctl, [*fd as usize, EPIOCSPARAMS, address, 0, 0, 0]) }).map_err(|errno| FileError {
                fd: *fd,
                what: "how it polls (EPIOCSPARAMS)",
                errno: Errno::from_raw_os_error(errno),
            })?;
        }
        Ok(())
    }
}

/// The descriptor under which the restorer handed the memory over.
fn kept<'a>(memory: &Memory, descriptors: &Descriptors, inherited: &Inherited<'a>) -> Option<BorrowedFd<'a>> {
    let What::Memory { object, .. } = &descriptors.opens.get(memory.open)?.what else { return None };
    let kept = inherited.kept.iter().find(|kept| Some(kept.object) == *object)?;
    // SAFETY: handed over by the restorer, open until all descriptors are placed.
    Some(unsafe { BorrowedFd::borrow_raw(kept.fd) })
}

fn control(fd: i32, command: usize, argument: usize) -> Result<usize, Errno> {
    // SAFETY: the commands of this file take a number, or the address of eight live bytes.
    check(unsafe { syscall(libc::SYS_fcntl, [fd as usize, command, argument, 0, 0, 0]) }).map_err(Errno::from_raw_os_error)
}
