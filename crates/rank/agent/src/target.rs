//! Where an image goes: a connected stream, or a file that exists under its name only when it is whole and durable.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fsync, open, openat, renameat, unlinkat};
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

/// Before anything is opened.
pub(crate) enum Target {
    File(PathBuf),
    Stream(OwnedFd),
}

/// Being written.
pub(crate) enum OpenTarget {
    File { path: PathBuf, directory: OwnedFd, file: OwnedFd, temporary: OsString, name: OsString },
    Stream(OwnedFd),
}

impl Target {
    /// Makes the temporary file, readable by its owner alone.
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
        let directory = open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(failed("created"))?;
        let mut temporary = OsString::from(".");
        temporary.push(&name);
        temporary.push(".partial");
        // What a killed rank left behind under this name is worthless.
        let _ = unlinkat(&directory, &temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&directory, &temporary, flags, Mode::RUSR | Mode::WUSR).map_err(failed("created"))?;
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

    /// Makes it durable and gives it its name. On failure nothing remains.
    pub fn commit(self) -> Result<(), TargetError> {
        let OpenTarget::File { path, directory, file, temporary, name } = &self else { return Ok(()) };
        let result = fsync(file)
            .map_err(|errno| ("made durable", errno))
            .and_then(|()| renameat(directory, temporary, directory, name).map_err(|errno| ("renamed", errno)))
            .and_then(|()| fsync(directory).map_err(|errno| ("made durable in its directory", errno)));
        let result = result.map_err(|(what, errno)| TargetError::File { path: path.clone(), what, errno });
        if result.is_err() {
            self.discard();
        }
        result
    }

    /// Removes what was written.
    pub fn discard(self) {
        if let OpenTarget::File { directory, temporary, .. } = &self {
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
