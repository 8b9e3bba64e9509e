//! A file that gets its name only when it is whole.
//!
//! ```text
//! new ──► .NAME.RANDOM.partial ── publish ──► fsync, rename, fsync of the directory ──► NAME
//!                └── dropped ──► gone
//! ```
//! Invariants: a file under its own name is complete and durable, and its owner's alone whatever the umask; no two partial files
//! have one name. Faults assumed: disks fill up; this process is killed, and a partial file stays, which [`sweep`] removes.

use crate::TransferError;
use crate::pipeline::Target;
use mend_wire::secret::to_hex;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// See the module's head.
#[derive(Debug)]
pub struct AtomicFile {
    /// What is written.
    pub file: File,
    path: PathBuf,
    place: PathBuf,
}

impl AtomicFile {
    /// A new file beside `place`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn new(place: PathBuf) -> io::Result<Self> {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let path = place.with_file_name(format!(".{name}.{}.partial", to_hex(&mend_wire::random_bytes::<8>())));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let partial = Self { file, path, place };
        partial.file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(partial)
    }

    /// Where it will be.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Makes it durable and gives it its name. Its length, bytes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn publish(self) -> io::Result<u64> {
        self.file.sync_all()?;
        mend_durable::rename(&self.path, &self.place)?;
        Ok(self.file.metadata()?.len())
    }
}

impl Target for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.file.write_all(bytes).map_err(|source| TransferError::Target { place: self.place.display().to_string(), source })
    }

    fn commit(self) -> Result<u64, TransferError> {
        let place = self.place.display().to_string();
        self.publish().map_err(|source| TransferError::Target { place, source })
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // Nothing is there if it got its name.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the partial files in a directory that a killed process left.
pub fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(".partial") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let place = directory.path().join("image");
        drop(AtomicFile::new(place.clone()).unwrap());
        assert_eq!(names(), 0);
        std::mem::forget(AtomicFile::new(place.clone()).unwrap());
        let mut partial = AtomicFile::new(place.clone()).unwrap();
        partial.file.write_all(b"image").unwrap();
        assert!(!place.exists() && names() == 2);
        assert_eq!(partial.publish().unwrap(), 5);
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
        sweep(directory.path());
        assert_eq!((fs::read(&place).unwrap(), names()), (b"image".to_vec(), 1));
    }
}
