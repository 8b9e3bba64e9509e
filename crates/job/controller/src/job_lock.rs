//! The lock of a job: who holds it controls the job.
//!
//! It is a file of the job's directory, held by flock(2). A process that ends frees it. One that is only silent has it still: its successor puts
//! another file in its place ([`JobDirectory::seize_lock`]). So the lock is the job's only as long as it is the file of that name. Invariant: of several that
//! want to take it from the same holder one does. Faults assumed: whoever holds it stands still, at any moment, for any time.

use crate::lock_identity::{FILE_NAME, LockIdentity};
use crate::record::{JobDirectory, RecordError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a successor that was killed while it took a lock has left is of no use after that.
const SEIZING_TIME: Duration = Duration::from_secs(2);

/// Those who only look have it for less.
const LOOKING_TIME: Duration = Duration::from_millis(1);

/// Held while the job runs.
#[derive(Debug)]
pub struct JobLock {
    directory: PathBuf,
    identity: LockIdentity,
    /// The lock lasts as long as it is open.
    _file: File,
}

impl JobLock {
    fn of(directory: &Path, file: File) -> io::Result<Self> {
        let identity = LockIdentity::of_file(&file)?;
        Ok(Self { directory: directory.to_owned(), identity, _file: file })
    }

    /// Which file it is.
    #[must_use]
    pub fn identity(&self) -> LockIdentity {
        self.identity
    }

    /// The directory that it is in.
    #[must_use]
    pub fn job_directory(&self) -> JobDirectory {
        JobDirectory::at(&self.directory)
    }

    /// Whether the job is still this process's. If that cannot be seen, it counts as not.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        LockIdentity::of(&self.directory) == Some(self.identity)
    }
}

impl JobDirectory {
    fn lock_path(&self) -> PathBuf {
        self.path().join(FILE_NAME)
    }

    /// Takes the job's lock.
    ///
    /// # Errors
    /// [`RecordError::Running`] if another controller holds it.
    pub fn lock(&self, id: &str) -> Result<JobLock, RecordError> {
        loop {
            let file = self.open_lock()?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let lock = JobLock::of(self.path(), file).map_err(|error| self.io(error))?;
                    // It may have been opened just before another file took its place.
                    if lock.is_ours() {
                        return Ok(lock);
                    }
                }
                // Those who only look share it, for an instant.
                Err(Errno::WOULDBLOCK) if held(&file) => return Err(RecordError::Running { id: id.to_owned() }),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(self.io(error.into())),
            }
            std::thread::sleep(LOOKING_TIME);
        }
    }

    /// Takes the place of whoever holds this lock, who is silent: another file takes the place of his.
    ///
    /// # Errors
    /// [`RecordError::Running`] if another one does so just now, or has done so.
    pub fn seize_lock(&self, id: &str, of: LockIdentity) -> Result<JobLock, RecordError> {
        let (path, ours) = (self.lock_path(), self.path().join("lock.new"));
        let taken = || RecordError::Running { id: id.to_owned() };
        let left = fs::metadata(&ours).and_then(|found| found.modified()).ok().and_then(|made| made.elapsed().ok());
        if left.is_some_and(|age| age > SEIZING_TIME) {
            let _ = fs::remove_file(&ours);
        }
        // Made by one alone, until it has the lock's name.
        let file = match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&ours) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(taken()),
            file => file.map_err(|error| self.io(error))?,
        };
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| self.io(error.into()))?;
        if LockIdentity::of(self.path()) != Some(of) {
            let _ = fs::remove_file(&ours);
            return Err(taken());
        }
        mend_durable::rename(&ours, &path).map_err(|error| self.io(error))?;
        JobLock::of(self.path(), file).map_err(|error| self.io(error))
    }

    /// True if a controller holds the lock.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.open_lock().is_ok_and(|file| held(&file))
    }

    fn open_lock(&self) -> Result<File, RecordError> {
        let path = self.lock_path();
        // NFS 4 makes byte-range locks of these: a shared one takes reading, an exclusive one writing (flock(2), "NFS details").
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|source| RecordError::Io { path, source })?;
        file.set_permissions(Permissions::from_mode(0o600)).map_err(|error| self.io(error))?;
        Ok(file)
    }
}

/// Whether somebody has the lock for himself. Leaves it unlocked.
pub(crate) fn held(lock: &File) -> bool {
    let shared = flock(lock, FlockOperation::NonBlockingLockShared);
    // Unlocking one's own lock does not fail.
    let _ = flock(lock, FlockOperation::Unlock);
    // Where nobody can tell, it counts as taken: a job that runs is not begun again.
    shared.is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As NFS 4 wants it, which refuses the one with EBADF else.
    #[test]
    fn the_lock_is_open_for_what_shared_and_exclusive_locks_take() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let both = |file: &File| rustix::fs::fcntl_getfl(file).unwrap().contains(rustix::fs::OFlags::RDWR);
        assert!(both(&directory.open_lock().unwrap()));
        let first = directory.lock("a-job").unwrap();
        assert!(both(&directory.seize_lock("a-job", first.identity()).unwrap()._file));
    }

    #[test]
    fn who_looks_does_not_run() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let looking = directory.open_lock().unwrap();
        flock(&looking, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(!directory.is_running());
        let lock = std::thread::scope(|scope| {
            let locking = scope.spawn(|| directory.lock("a-job"));
            std::thread::sleep(Duration::from_millis(20));
            drop(looking);
            locking.join().unwrap()
        });
        assert!(lock.is_ok(), "{lock:?}");
        assert!(directory.is_running());
        assert!(matches!(directory.lock("a-job"), Err(RecordError::Running { .. })));
        drop(lock);
        assert!(!directory.is_running());
    }

    #[test]
    fn who_has_lost_the_lock_writes_nothing_any_more() {
        let place = tempfile::tempdir().unwrap();
        let (mut silent, mut successor) = (JobDirectory::at(place.path()), JobDirectory::at(place.path()));
        let first = silent.lock("a-job").unwrap();
        silent.hold(first.identity());
        silent.write("job.json", &"the first controller's").unwrap();
        let second = successor.seize_lock("a-job", first.identity()).unwrap();
        successor.hold(second.identity());
        successor.write("job.json", &"its successor's").unwrap();
        assert!(matches!(silent.write("job.json", &"the first controller's"), Err(RecordError::TakenOver { .. })));
        assert_eq!(successor.read::<String>("job.json").unwrap(), "its successor's");
    }

    #[test]
    fn of_several_that_take_a_lock_from_the_same_holder_one_has_it() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let silent = directory.lock("a-job").unwrap();
        let before = silent.identity();
        let taken: Vec<_> = std::thread::scope(|scope| {
            let seizing: Vec<_> = (0..8).map(|_| scope.spawn(|| directory.seize_lock("a-job", before))).collect();
            seizing.into_iter().filter_map(|one| one.join().unwrap().ok()).collect()
        });
        assert_eq!(taken.len(), 1);
        assert!(taken[0].is_ours() && !silent.is_ours());
        // Neither is there a second time.
        assert!(matches!(directory.seize_lock("a-job", before), Err(RecordError::Running { .. })));
        assert!(matches!(directory.lock("a-job"), Err(RecordError::Running { .. })));
    }
}
