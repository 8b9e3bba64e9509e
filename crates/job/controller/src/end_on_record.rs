//! How the end of a life comes to be on record: of the job, or of one that another life follows.
//!
//! Invariant: where the end of the job cannot be written, as on a full disk, nobody goes on with the job for that. Faults assumed: the job's directory takes nothing, for a while or
//! for good; the job has another controller by now.

use crate::failover::log;
use crate::lock_identity::LockIdentity;
use crate::record::{JobDirectory, JobRecord, RecordError, now};
use std::thread::sleep;
use std::time::Duration;

/// How often the end of a job is tried to be put on record, and the time between two tries.
const TRIES: (u32, Duration) = (10, Duration::from_millis(500));

/// Puts the end of a life on record: of the job, with how and the exit code, or, with `None`, of one that another life follows.
///
/// If the end of the job cannot be written, what a successor needs is removed, which also makes room. Then it is tried again, for five seconds at most.
pub(crate) fn put_end(directory: &JobDirectory, record: &mut JobRecord, end: Option<(String, i32)>) {
    let mut tries = if end.is_some() { TRIES.0 } else { 1 };
    record.goes_on = end.is_none();
    (record.ended, record.exit_code) = end.map(|(how, code)| ((now(), how), code)).unzip();
    while let Err(error) = directory.write("job.json", record) {
        tries -= 1;
        if tries == 0 || matches!(error, RecordError::TakenOver { .. }) {
            tracing::warn!(%error, "the end of the job is not on record");
            return;
        }
        if let Some(holder) = directory.holder() {
            log::remove(directory.path(), holder);
        }
        sleep(TRIES.1);
    }
}

/// The job is over: no other life follows. Said by the holder of this lock.
pub(crate) fn put_end_on_record(id: &str, lock: LockIdentity, how: String, exit_code: i32) {
    let found = JobDirectory::open(id).and_then(|directory| Ok((directory.record()?, directory)));
    match found {
        Ok((mut record, mut directory)) => {
            directory.hold(lock);
            put_end(&directory, &mut record, Some((how, exit_code)));
        }
        Err(error) => tracing::warn!(%error, "the end of the job is not on record"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_end_of_a_job_waits_for_room_and_nobody_goes_on_with_it_meanwhile() {
        let place = tempfile::tempdir().unwrap();
        let (told, json) = (place.path().join("told"), place.path().join("job.json"));
        let mut directory = JobDirectory::at(place.path());
        let lock = directory.lock("a-job").unwrap();
        directory.hold(lock.identity());
        fs::write(&told, "what a successor needs").unwrap();
        // Nothing can take its place, as on a full disk.
        fs::create_dir_all(json.join("full")).unwrap();
        let text = r#"{"id": "a-job", "command": [], "size": 1, "hosts": [], "controller_host": "a", "controller_port": 1, "controller_pid": 1,
            "started": 1, "ended": null, "checkpoints": "/nonexistent"}"#;
        let mut record: JobRecord = serde_json::from_str(text).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while told.exists() {
                    sleep(Duration::from_millis(10));
                }
                fs::remove_dir_all(&json).unwrap();
            });
            put_end(&directory, &mut record, Some(("it was killed".into(), 137)));
        });
        assert_eq!(directory.record().unwrap().exit_code, Some(137));
    }
}
