//! Whether a job is being restarted, whatever its record says of its last life: a file in its directory says so from when the restart has the lock until the job's next life is on record.
//! It names the lock. One that a killed restart has left says nothing: nobody has that lock then, or its next holder has removed the file.

use crate::lock_identity::LockIdentity;
use crate::record::JobDirectory;
use std::fs;

const FILE_NAME: &str = "restarting";

/// A restart has this lock of the job.
pub(crate) fn note(directory: &JobDirectory, lock: LockIdentity) {
    if let Err(error) = fs::write(directory.path().join(FILE_NAME), lock.text()) {
        tracing::warn!(%error, "that the job is being restarted is not on record");
    }
}

/// Its next life is on record, or the one before goes on.
pub(crate) fn forget(directory: &JobDirectory) {
    let _ = fs::remove_file(directory.path().join(FILE_NAME));
}

/// Whether a job is being restarted: the life of this record is its last one, ended or not.
#[must_use]
pub fn is(directory: &JobDirectory) -> bool {
    let lock = || LockIdentity::of(directory.path()).map(LockIdentity::text);
    let noted = fs::read_to_string(directory.path().join(FILE_NAME)).ok();
    noted.is_some_and(|noted| lock() == Some(noted)) && directory.is_running()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    #[test]
    fn what_a_killed_restart_has_left_says_nothing() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let lock = directory.lock("a-job").unwrap();
        assert!(!is(&directory), "it runs, or is about to end");
        note(&directory, lock.identity());
        assert!(is(&directory));
        let successor = directory.seize_lock("a-job", lock.identity()).unwrap();
        assert!(!is(&directory), "it is another's");
        note(&directory, successor.identity());
        assert!(is(&directory));
        drop((lock, successor));
        // A process that another test has just forked may have the locks until it runs its program.
        let dropped = Instant::now();
        while is(&directory) {
            assert!(dropped.elapsed() < Duration::from_secs(10));
            sleep(Duration::from_millis(5));
        }
        let _lock = directory.lock("a-job").unwrap();
        forget(&directory);
        assert!(!is(&directory));
    }
}
