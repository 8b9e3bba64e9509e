//! Opening files in directories that may be anybody's: nothing blocks, nothing leads out of the directory, and only a regular file will do.
//!
//! Source: openat2(2), `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS` (Linux 5.6). Where the kernel (or a filter of system calls) does not have
//! it, the path is gone through part by part, none of which may be a link.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};

/// Never blocks in opening a pipe, never makes a terminal ours.
const CAREFUL_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens the regular file `name` within `directory` for reading, through no symbolic link. The directory itself may be named by one.
///
/// # Errors
/// Those of opening; [`io::ErrorKind::InvalidInput`] where it is no regular file, or the name is more than a name.
pub fn open_within(directory: &Path, name: &Path) -> io::Result<File> {
    let above = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = match openat2(&above, name, CAREFUL_FLAGS, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => step_by_step(above, name),
        opened => opened,
    };
    regular(File::from(opened?))
}

/// The same with older system calls.
fn step_by_step(mut above: OwnedFd, name: &Path) -> Result<OwnedFd, Errno> {
    let mut parts = name.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(part) = part else { return Err(Errno::XDEV) };
        let flags = if parts.peek().is_some() { OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC } else { CAREFUL_FLAGS };
        above = openat(&above, part, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(above)
}

/// Opens a regular file for reading; its last part may not be a symbolic link.
///
/// # Errors
/// As for [`open_within`].
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(File::from(open(path, CAREFUL_FLAGS | OFlags::NOFOLLOW, Mode::empty())?))
}

/// The whole of a regular file, which may have `most` bytes.
///
/// # Errors
/// As for [`open_within`]; [`io::ErrorKind::InvalidData`] if it has more.
pub fn read_within(directory: &Path, name: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_within(directory, name)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_regular_files_of_the_directory_are_opened_and_nothing_blocks() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("1");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("good"), b"12345").unwrap();
        std::fs::write(place.path().join("outside"), b"x").unwrap();
        symlink("good", directory.join("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, directory.join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(read_within(&directory, Path::new("good"), 5).unwrap(), b"12345");
        assert_eq!(read_within(&directory, Path::new("good"), 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
        for name in ["link", "pipe", ".", "../outside", "/dev/zero"] {
            assert!(open_within(&directory, Path::new(name)).is_err(), "{name}");
        }
        for path in [directory.join("link"), directory.join("pipe"), "/dev/zero".into()] {
            assert!(open_regular(&path).is_err(), "{}", path.display());
        }
        let step = |name| step_by_step(open(&directory, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap(), Path::new(name));
        assert!(step("good").is_ok());
        let _ = ["link", "../outside", "/dev/zero", "link/good"].map(|name| step(name).unwrap_err());
        // The directory may be reached by one.
        symlink(&directory, place.path().join("newest")).unwrap();
        assert!(open_within(&place.path().join("newest"), Path::new("good")).is_ok());
    }
}
