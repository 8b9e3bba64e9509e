//! Which file a job's lock is: who holds it controls the job. See [`crate::job_lock`].

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Name of the file.
pub(crate) const FILE_NAME: &str = "lock";

/// Which file the job's lock is. Another one: somebody has taken the job over.
///
/// Number of the inode, and when the file was made: nothing is ever written to it, and a number is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockIdentity {
    inode: u64,
    made: (i64, i64),
}

impl LockIdentity {
    /// Of the job with this directory; `None` if it cannot be seen.
    pub(crate) fn of(directory: &Path) -> Option<Self> {
        // Opened: NFS asks its server then, and answers from memory else, for up to a minute (nfs(5), "close-to-open").
        File::open(directory.join(FILE_NAME)).and_then(|file| Self::of_file(&file)).ok()
    }

    /// Of this file.
    pub(crate) fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::from(&file.metadata()?))
    }

    /// As text, in which no two files are the same.
    pub(crate) fn text(self) -> String {
        let (seconds, nanoseconds) = self.made;
        format!("{} {seconds} {nanoseconds}", self.inode)
    }

    /// What names files that are being written for the holder.
    pub(crate) fn number(self) -> u64 {
        self.inode
    }
}

impl From<&Metadata> for LockIdentity {
    fn from(found: &Metadata) -> Self {
        Self { inode: found.ino(), made: (found.mtime(), found.mtime_nsec()) }
    }
}
