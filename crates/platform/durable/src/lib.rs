//! Files and directories that appear under their names only when they are whole and durable.
//!
//! ```text
//! written under another name ── fsync ──► rename ──► fsync of the directory ──► there, also after a power failure
//! ```
//! Invariant: after an error the new name may be there, but what has it is whole. Faults assumed: the disk is full or fails at any step, the
//! process is killed between two, the power fails.

use rustix::fd::AsFd;
use rustix::fs::{CWD, RenameFlags, fsync, renameat, renameat_with};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What could not be done, where it matters which: its name for a sentence "… cannot be {0}".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotDurable {
    /// The step.
    pub step: &'static str,
    /// What the kernel said.
    pub errno: Errno,
}

impl From<NotDurable> for io::Error {
    fn from(failed: NotDurable) -> Self {
        failed.errno.into()
    }
}

/// Gives a file in an open directory its name: it is durable when this returns. Allocates nothing for names below 256 bytes, so that a
/// process may call it whose other threads are parked.
///
/// # Errors
/// See [`NotDurable`].
pub fn publish(directory: impl AsFd, file: impl AsFd, partial: &OsStr, name: &OsStr) -> Result<(), NotDurable> {
    let failed = |step| move |errno| NotDurable { step, errno };
    fsync(file).map_err(failed("made durable"))?;
    renameat(&directory, partial, &directory, name).map_err(failed("renamed"))?;
    fsync(&directory).map_err(failed("made durable in its directory"))
}

/// The directory that a path is in.
fn above(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// fsync of a directory: makes names in it durable.
///
/// # Errors
/// Those of the file system.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// fsync of the directory that a path is in.
///
/// # Errors
/// Those of the file system.
pub fn sync_name(path: &Path) -> io::Result<()> {
    sync_directory(above(path))
}

/// Renames what is durable itself, within its directory: after this the new name is, too.
///
/// # Errors
/// Those of the file system.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_name(to)
}

/// The same to a name that nothing has: whoever else gives it to something at the same time, one of both is refused.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if something has the name; those of the file system.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // NFS and others have no such rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_new(from, to)?,
        renamed => renamed?,
    }
    sync_name(to)
}

/// A second name, and then the first one goes.
fn link_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        // A file has one name alone there: to look before is all that can be done.
        Err(error)
            if [Errno::PERM, Errno::NOSYS, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error()) =>
        {
            match fs::symlink_metadata(to) {
                Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(from, to),
                Err(error) => Err(error),
            }
        }
        linked => linked.and_then(|()| fs::remove_file(from)),
    }
}

/// Writes a file that is there completely or not at all, for its owner alone whatever the umask. What was there is replaced.
///
/// # Errors
/// Those of the file system.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_if(path, &path.with_extension("new"), bytes, || true).map(|_| ())
}

/// The same, under this name in the same directory until it is whole; and only if it may be published then. False: it may not, and nothing is changed.
///
/// # Errors
/// Those of the file system.
pub fn write_if(path: &Path, partial: &Path, bytes: &[u8], may_publish: impl FnOnce() -> bool) -> io::Result<bool> {
    write_partial(partial, bytes)?;
    if !may_publish() {
        fs::remove_file(partial)?;
        return Ok(false);
    }
    rename(partial, path)?;
    Ok(true)
}

/// The same of a name that nothing has. No other process may use the name `partial`.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if something has the name: nothing is changed then. Those of the file system.
pub fn write_new(path: &Path, partial: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = write_partial(partial, bytes).and_then(|()| rename_new(partial, path));
    if written.is_err() {
        // The error that led here is the one to tell.
        let _ = fs::remove_file(partial);
    }
    written
}

fn write_partial(partial: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(partial)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_its_owner_s_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        write(&path, b"a longer text").unwrap();
        write(&path, b"short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(write(&directory.path().join("absent/state.json"), b"x").is_err());
    }

    #[test]
    fn what_may_not_be_published_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (path, partial) = (directory.path().join("state.json"), directory.path().join("state.7.new"));
        assert!(write_if(&path, &partial, b"first", || true).unwrap());
        assert!(!write_if(&path, &partial, b"second", || false).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_two_that_give_one_name_the_second_is_refused_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        write_new(&place("name"), &place("first.new"), b"first").unwrap();
        assert_eq!(write_new(&place("name"), &place("second.new"), b"second").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        // Where no rename refuses a name that is there, a link does.
        fs::write(place("third"), b"third").unwrap();
        assert_eq!(link_new(&place("third"), &place("name")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(place("name")).unwrap(), b"first");
        link_new(&place("third"), &place("other")).unwrap();
        assert_eq!(fs::read(place("other")).unwrap(), b"third");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_failed_is_named() {
        let place = tempfile::tempdir().unwrap();
        let directory = File::open(place.path()).unwrap();
        let file = File::create(place.path().join("partial")).unwrap();
        publish(&directory, &file, OsStr::new("partial"), OsStr::new("name")).unwrap();
        assert!(place.path().join("name").exists() && !place.path().join("partial").exists());
        let gone = publish(&directory, &file, OsStr::new("partial"), OsStr::new("name"));
        assert_eq!(gone, Err(NotDurable { step: "renamed", errno: Errno::NOENT }));
    }

    #[test]
    fn a_path_without_a_directory_is_in_the_working_directory() {
        assert_eq!([above(Path::new("x")), above(Path::new("a/x")), above(Path::new("/x"))], [".", "a", "/"].map(Path::new));
    }
}
