//! Files, directories and devices that are found again by their paths.

use super::inherited::Inherited;
use super::reopen_error::ReopenError;
use super::{Open, PathKind};
use mend_image::launch::Role;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, ftruncate, open, seek};
use rustix::io::Errno;

/// Files of this process in `/proc` by a name that stays true: the number there may be another in the next process.
pub(super) fn lasting(path: String) -> String {
    let own = rustix::fs::readlink("/proc/self", Vec::new()).ok().and_then(|link| link.into_string().ok());
    match own.and_then(|own| path.strip_prefix(&format!("/proc/{own}/")).map(|rest| format!("/proc/self/{rest}"))) {
        Some(path) => path,
        None => path,
    }
}

/// Whether a device has no state of the program's.
pub(super) fn is_harmless(path: &str) -> bool {
    const DEVICES: [&str; 8] =
        ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console", "/dev/ptmx"];
    DEVICES[..7].contains(&path) || path.starts_with("/dev/pts/")
}

/// A terminal that isn't there (on another node, in another session): its part is played by the job's own streams.
pub(super) fn terminal(saved: &Open, inherited: &Inherited) -> Result<OwnedFd, Errno> {
    let role = if saved.flags & libc::O_ACCMODE == libc::O_RDONLY { Role::Stdin } else { Role::Stdout };
    inherited.attached(role)
}

/// Opens one again.
pub(super) fn make(path: &str, kind: PathKind, size: u64, saved: &Open, inherited: &Inherited) -> Result<OwnedFd, ReopenError> {
    let failed = |errno| ReopenError::Open { path: path.to_string(), errno };
    // Never created, never truncated by opening: what is there decides.
    let once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY;
    let flags = OFlags::from_bits_retain((saved.flags & !once | libc::O_CLOEXEC | libc::O_NOCTTY) as u32);
    let made = open(path, flags, Mode::empty()).map_err(failed)?;
    if kind == PathKind::Place {
        return Ok(made);
    }
    let stat = rustix::fs::fstat(&made).map_err(failed)?;
    let (wanted, name) = match kind {
        PathKind::File => (FileType::RegularFile, "regular file"),
        PathKind::Directory => (FileType::Directory, "directory"),
        PathKind::Device | PathKind::Place => (FileType::CharacterDevice, "device"),
    };
    if FileType::from_raw_mode(stat.st_mode) != wanted {
        return Err(ReopenError::Kind { path: path.to_string(), kind: name });
    }
    if kind == PathKind::File && !inherited.files_put_back && !path.starts_with("/proc/") && !path.starts_with("/sys/") {
        let now = stat.st_size as u64;
        if now < size {
            return Err(ReopenError::Short { path: path.to_string(), now, then: size });
        }
        let written = saved.flags & libc::O_ACCMODE != libc::O_RDONLY;
        if inherited.restart && written && now > size {
            ftruncate(&made, size).map_err(failed)?;
        }
    }
    if kind != PathKind::Device {
        seek(&made, SeekFrom::Start(saved.offset)).map_err(failed)?;
    }
    Ok(made)
}
