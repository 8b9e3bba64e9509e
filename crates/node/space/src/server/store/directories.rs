//! Directories of a target that are there after a power failure.

use super::{Failure, Store};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

impl Store {
    /// Makes the directory that an object is in, if it is not there. Another thread may be at it: when this returns, it is durable.
    pub(super) fn make_directory(&self, object: &Path) -> Result<PathBuf, Failure> {
        let directory = object.parent().unwrap_or(&self.objects);
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if !directory.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            mend_durable::sync_directory(&self.objects)?;
        }
        Ok(directory.to_owned())
    }
}

/// Makes durable that a directory is there, and those above it, which may have been made with it.
pub(super) fn sync_names(directory: &Path) -> io::Result<()> {
    for above in fs::canonicalize(directory)?.ancestors().skip(1) {
        match mend_durable::sync_directory(above) {
            // Nobody has made anything there just now: it is another user's, or of a file system that takes no names.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::InvalidInput
                ) =>
            {
                return Ok(());
            }
            synced => synced?,
        }
    }
    Ok(())
}
