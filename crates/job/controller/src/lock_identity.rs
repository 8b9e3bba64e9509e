//! Which file a job's lock is: who holds it controls the job. See [`crate::job_lock`].

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Name of the file.
pub(crate) const FILE_NAME: &str = "lock";

/// Which file the job's lock is. Another one: somebody has taken the job over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockIdentity(pub(crate) u64);

impl LockIdentity {
    /// Of the job with this directory; `None` if it cannot be seen.
    pub(crate) fn of(directory: &Path) -> Option<Self> {
        // Opened: NFS asks its server then, and answers from memory else, for up to a minute (nfs(5), "close-to-open").
        File::open(directory.join(FILE_NAME)).and_then(|file| file.metadata()).ok().map(|found| Self(found.ino()))
    }
}
