//! Files of a job's directory that the holder of the job's lock alone replaces, and appends to.
//!
//! ```text
//! written beside its place, under the holder's own name ── the lock is still the holder's ──► renamed ──► appended to
//! ```
//! Each holder has a file of its own. A controller that has lost the job, and does not know it yet, replaces nothing, and what it still appends goes to
//! a file that has no name any more. Faults assumed: the holder stands still between any two steps, for any time.

use crate::lock_identity::LockIdentity;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Another controller has the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the job is another controller's")]
struct TakenOver;

/// Whether the job is another controller's, as this error says.
#[must_use]
pub fn is_lost(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<TakenOver>())
}

/// Puts this in the file's place, durable.
///
/// # Errors
/// Those of the file system; [`is_lost`] says of which error that the job has another controller.
pub fn replace(directory: &Path, name: &str, holder: LockIdentity, bytes: &[u8]) -> io::Result<()> {
    let path = directory.join(name);
    let partial = path.with_extension(format!("{}.new", holder.number()));
    let published = mend_durable::write_if(&path, &partial, bytes, || LockIdentity::of(directory) == Some(holder))?;
    if published { Ok(()) } else { Err(io::Error::other(TakenOver)) }
}

/// The same, opened to be appended to.
///
/// # Errors
/// As of [`replace`].
pub fn begin(directory: &Path, name: &str, holder: LockIdentity, bytes: &[u8]) -> io::Result<File> {
    replace(directory, name, holder, bytes)?;
    let file = crate::record::open_at_end(&directory.join(name))?;
    // Opened by its name, it may be the successor's.
    if LockIdentity::of(directory) == Some(holder) { Ok(file) } else { Err(io::Error::other(TakenOver)) }
}

/// Removes what an earlier controller left, or this one has made.
pub fn remove(directory: &Path, name: &str, holder: LockIdentity) {
    if LockIdentity::of(directory) == Some(holder) {
        let _ = fs::remove_file(directory.join(name));
    }
}
