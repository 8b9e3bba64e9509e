//! A regular file on this process's standard input: where in it the job's input begins, and what the job had read before.

use mend_job::input::Mark;
use rustix::fs::{FileType, SeekFrom, fstat, major, minor, seek};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

/// What standard input is.
pub(crate) enum Kind {
    Regular,
    Null,
    Other,
}

pub(crate) fn kind() -> Kind {
    let Ok(file) = fstat(rustix::stdio::stdin()) else { return Kind::Null };
    match FileType::from_raw_mode(file.st_mode) {
        FileType::RegularFile => Kind::Regular,
        FileType::CharacterDevice if (major(file.st_rdev), minor(file.st_rdev)) == (1, 3) => Kind::Null,
        _ => Kind::Other,
    }
}

/// A regular file that is standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    path: PathBuf,
    inode: u64,
    /// Where it stood when the job began with it.
    beginning: u64,
    /// What the job had read before that, of other input.
    follows: Mark,
}

impl InputFile {
    /// That of this process, if it is one.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        if !matches!(kind(), Kind::Regular) {
            return None;
        }
        let found = fstat(rustix::stdio::stdin()).ok()?;
        let path = fs::read_link("/proc/self/fd/0").ok()?;
        Some(Self { path, inode: found.st_ino, beginning: beginning().ok()?, follows: follows() })
    }

    /// Makes it that of this process.
    ///
    /// # Errors
    /// If it cannot be read, or another file is in its place.
    pub fn take(&self) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let file = File::open(&self.path)?;
        let found = file.metadata()?;
        // The device's number is the node's own.
        if !found.is_file() || found.ino() != self.inode {
            return Err(io::Error::other("another file is in its place"));
        }
        seek(&file, SeekFrom::Start(self.beginning))?;
        rustix::stdio::dup2_stdin(&file)?;
        set_follows(self.follows);
        Ok(())
    }
}

/// Where a regular file on standard input stood when this process began with it.
pub(crate) fn beginning() -> io::Result<u64> {
    static BEGINNING: OnceLock<u64> = OnceLock::new();
    if let Some(begun) = BEGINNING.get() {
        return Ok(*begun);
    }
    let begun = seek(rustix::stdio::stdin(), SeekFrom::Current(0))?;
    Ok(*BEGINNING.get_or_init(|| begun))
}

/// What a job had read before this process's regular file became its input: nothing, or other input that the file is new behind.
static FOLLOWS: Mutex<Option<Mark>> = Mutex::new(None);

pub(crate) fn follows() -> Mark {
    FOLLOWS.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or_default()
}

pub(crate) fn set_follows(mark: Mark) {
    *FOLLOWS.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
}

/// Goes back, or on, to what of a regular file follows so many of its bytes.
pub(crate) fn seek_behind(bytes: u64) -> io::Result<()> {
    seek(rustix::stdio::stdin(), SeekFrom::Start(beginning()?.saturating_add(bytes)))?;
    Ok(())
}
