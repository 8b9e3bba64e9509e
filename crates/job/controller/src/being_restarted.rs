//! Whether a job whose record still says how it ended is being restarted: a file in its directory says so from when the restart has the lock until the job's next life is on record. One
//! that a killed restart has left says nothing: nobody has the lock then.

use crate::record::{JobDirectory, JobRecord};
use std::fs;

const FILE_NAME: &str = "restarting";

/// A restart has the job's lock.
pub(crate) fn note(directory: &JobDirectory) {
    if let Err(error) = fs::write(directory.path().join(FILE_NAME), "") {
        tracing::warn!(%error, "that the job is being restarted is not on record");
    }
}

/// Its next life is on record.
pub(crate) fn forget(directory: &JobDirectory) {
    let _ = fs::remove_file(directory.path().join(FILE_NAME));
}

/// Whether a job of this record has ended and is being restarted.
#[must_use]
pub fn is(directory: &JobDirectory, record: &JobRecord) -> bool {
    record.ended.is_some() && directory.path().join(FILE_NAME).exists() && directory.is_running()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_restart_has_left_says_nothing() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let text = r#"{"id": "a-job", "command": [], "size": 1, "hosts": [], "controller_host": "a", "controller_port": 1, "controller_pid": 1,
            "started": 1, "ended": [2, "exit code 0"], "checkpoints": "/nonexistent"}"#;
        let mut record: JobRecord = serde_json::from_str(text).unwrap();
        let lock = directory.lock("a-job").unwrap();
        assert!(!is(&directory, &record), "it is about to end");
        note(&directory);
        assert!(is(&directory, &record));
        drop(lock);
        assert!(!is(&directory, &record));
        let _lock = directory.lock("a-job").unwrap();
        record.ended = None;
        assert!(!is(&directory, &record), "it runs");
        forget(&directory);
        record.ended = Some((2, "exit code 0".into()));
        assert!(!is(&directory, &record));
    }
}
