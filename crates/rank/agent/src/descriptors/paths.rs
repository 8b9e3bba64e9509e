//! Files, directories and devices that are found again by their paths.

use super::inherited::Inherited;
use super::reopen_error::ReopenError;
use super::{Open, PathKind};
use mend_image::launch::Role;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Stat, accessat, chmod, fstat, ftruncate, open, seek};
use rustix::io::Errno;
use rustix::path::Arg;
use std::time::Duration;

/// How often a file is tried that another process may be opening by [`open_as_owner`], and the pause after each time.
const ATTEMPTS: usize = 200;
const PAUSE: Duration = Duration::from_millis(1);

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

/// Why a file or directory that is open with these flags can be opened by its path no more, and what to do: modes count when a file is opened, and
/// may have changed since. What denies its owner alone is no obstacle: see [`open_as_owner`].
pub(super) fn denied(link: &str, stat: &Stat, flags: i32) -> Option<(String, &'static str)> {
    if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Directory) {
        return None;
    }
    let wanted = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::READ_OK,
        libc::O_WRONLY => Access::WRITE_OK,
        _ => Access::READ_OK | Access::WRITE_OK,
    };
    let may = |access| accessat(CWD, link, access, AtFlags::EACCESS) != Err(Errno::ACCESS);
    if may(wanted) {
        return None;
    }
    if !may(Access::EXISTS) {
        let what = format!("{link}, which is in a directory that this user may not enter");
        return Some((what, "let the user enter the directories of files that are open, or close them before a checkpoint"));
    }
    let ours = stat.st_uid == rustix::process::geteuid().as_raw();
    let what = || format!("{link} of another user, who does not let it be opened as it is");
    (!ours).then(|| (what(), "let the program's user open it, or close it before a checkpoint"))
}

/// Opens a file whose mode denies that to its owner, as a mode that was given to a new file does, or one that was changed later. The owner may
/// change it, and does so for a moment; the kernel has no other way. Another process of the job may be at the same file: whoever finds
/// that the mode denies nothing leaves it alone, and tries again.
fn open_as_owner(path: impl Arg, flags: OFlags) -> Result<OwnedFd, Errno> {
    let place = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let by_number = format!("/proc/thread-self/fd/{}", place.as_raw_fd());
    for _ in 0..ATTEMPTS {
        let stat = fstat(&place)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            break;
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        let open_mode = mode | Mode::RUSR | Mode::WUSR;
        let changes = mode != open_mode;
        if changes {
            chmod(&by_number, open_mode)?;
        }
        let opened = open(&by_number, flags - OFlags::NOFOLLOW, Mode::empty());
        if changes {
            chmod(&by_number, mode)?;
        }
        match opened {
            Err(Errno::ACCESS) => std::thread::sleep(PAUSE),
            opened => return opened,
        }
    }
    Err(Errno::ACCESS)
}

/// Opens a file or directory, also one whose mode denies that to its owner.
pub(super) fn open_anyway<P: Arg + Copy>(path: P, flags: OFlags) -> Result<OwnedFd, Errno> {
    match open(path, flags, Mode::empty()) {
        Err(Errno::ACCESS) => open_as_owner(path, flags),
        opened => opened,
    }
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
    let made = match kind {
        PathKind::File | PathKind::Directory => open_anyway(path, flags),
        PathKind::Device | PathKind::Place => open(path, flags, Mode::empty()),
    };
    let made = made.map_err(failed)?;
    if kind == PathKind::Place {
        return Ok(made);
    }
    let stat = fstat(&made).map_err(failed)?;
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
