//! Where an image goes: a connected stream, or a file that exists under its name only when it is whole and durable.

use crate::descriptors::table::move_high;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fsync, open, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Why a file could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("{} names no file", .0.display())]
    Name(PathBuf),
    #[error("{} cannot be {what}: {errno}", path.display())]
    File { path: PathBuf, what: &'static str, errno: Errno },
}

impl TargetError {
    /// What a user can do; may be empty.
    pub fn hint(&self) -> &'static str {
        match self {
            TargetError::Name(_) => "",
            TargetError::File { errno, .. } => mend_report::storage_hint(&(*errno).into()),
        }
    }
}

/// Before anything is opened.
pub(crate) enum Target {
    File(PathBuf),
    Stream(OwnedFd),
}

/// A file that could not be finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    what: &'static str,
    errno: Errno,
}

/// Being written.
pub(crate) enum OpenTarget {
    File { path: PathBuf, directory: OwnedFd, file: OwnedFd, temporary: OsString, name: OsString },
    Stream(OwnedFd),
}

impl Target {
    /// Makes the temporary file, readable by its owner alone. Its descriptors are out of the way of the program's.
    pub fn open(self) -> Result<OpenTarget, TargetError> {
        let path = match self {
            Target::Stream(stream) => return Ok(OpenTarget::Stream(stream)),
            Target::File(path) => path,
        };
        let name = path.file_name().ok_or_else(|| TargetError::Name(path.clone()))?.to_os_string();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let failed = |what| {
            let path = path.clone();
            move |errno| TargetError::File { path, what, errno }
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(parent, flags, Mode::empty()).and_then(move_high).map_err(failed("created"))?;
        let mut temporary = OsString::from(".");
        temporary.push(&name);
        temporary.push(".partial");
        // What a killed rank left behind under this name is worthless.
        let _ = unlinkat(&directory, &temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&directory, &temporary, flags, Mode::RUSR | Mode::WUSR).and_then(move_high).map_err(failed("created"))?;
        // The umask is the program's, and may deny its owner what the restart needs.
        fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed("created"))?;
        Ok(OpenTarget::File { path, directory, file, temporary, name })
    }
}

impl OpenTarget {
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            OpenTarget::File { file, .. } => file.as_fd(),
            OpenTarget::Stream(stream) => stream.as_fd(),
        }
    }

    /// Its descriptors, ascending.
    pub fn descriptors(&self) -> [i32; 2] {
        let pair = match self {
            OpenTarget::File { directory, file, .. } => [directory.as_raw_fd(), file.as_raw_fd()],
            OpenTarget::Stream(stream) => [stream.as_raw_fd(); 2],
        };
        [pair[0].min(pair[1]), pair[0].max(pair[1])]
    }

    /// Makes it durable and gives it its name. On failure nothing remains.
    pub fn commit(&self) -> Result<(), TargetError> {
        self.finish().map_err(|unfinished| self.explain(unfinished))
    }

    /// The same without allocating: [`OpenTarget::explain`] says the rest.
    pub fn finish(&self) -> Result<(), Unfinished> {
        let (directory, file, temporary, name) = match self {
            OpenTarget::File { directory, file, temporary, name, .. } => (directory, file, temporary, name),
            // Somebody else's file; a socket has nothing to make durable.
            OpenTarget::Stream(stream) => {
                let result = fsync(stream).or_else(|errno| if errno == Errno::INVAL { Ok(()) } else { Err(errno) });
                return result.map_err(|errno| Unfinished { what: "made durable", errno });
            }
        };
        mend_durable::publish(directory, file, temporary, name).map_err(|failed| {
            self.discard();
            Unfinished { what: failed.step, errno: failed.errno }
        })
    }

    pub fn explain(&self, unfinished: Unfinished) -> TargetError {
        let path = match self {
            OpenTarget::File { path, .. } => path.clone(),
            OpenTarget::Stream(_) => PathBuf::from("the image"),
        };
        TargetError::File { path, what: unfinished.what, errno: unfinished.errno }
    }

    /// Removes what was written.
    pub fn discard(&self) {
        if let OpenTarget::File { directory, temporary, .. } = self {
            let _ = unlinkat(directory, temporary, AtFlags::empty());
        }
    }

    /// In a restored process, where these descriptors aren't open.
    pub fn forget(self) {
        match self {
            OpenTarget::File { directory, file, .. } => {
                std::mem::forget(directory);
                std::mem::forget(file);
            }
            OpenTarget::Stream(stream) => std::mem::forget(stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_only_when_committed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-0");
        let open = Target::File(path.clone()).open().unwrap();
        rustix::io::write(open.fd(), b"x").unwrap();
        assert!(!path.exists());
        open.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        let open = Target::File(path.clone()).open().unwrap();
        open.discard();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(Target::File(directory.path().join("absent/rank-0")).open().is_err());
    }
}
