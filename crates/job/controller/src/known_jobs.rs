//! Jobs on record: all of them, and the one that a name means.

use crate::record::{JobDirectory, JobRecord, RecordError, jobs_directory};
use std::cmp::Reverse;
use std::fs;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// All jobs on record, newest first. Damaged records are passed over.
///
/// # Errors
/// [`RecordError::Io`].
pub fn list() -> Result<Vec<(JobDirectory, JobRecord)>, RecordError> {
    let jobs = jobs_directory()?;
    let entries = fs::read_dir(&jobs).map_err(|source| RecordError::Io { path: jobs.clone(), source })?;
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| JobDirectory::at(&entry.path()))
        .filter_map(|directory| directory.record().ok().map(|record| (directory, record)))
        .collect();
    // Of those that began in the same second, whose secret is newer: it is written at every start.
    let begun = |directory: &JobDirectory| fs::metadata(directory.path().join("secret")).and_then(|found| found.modified()).ok();
    found.sort_by_cached_key(|(directory, record)| Reverse((record.started, begun(directory), record.id.clone())));
    Ok(found)
}

/// When a job ended, seconds since 1970; if its controller was killed, when it last wrote something of its own.
#[must_use]
pub fn ended(directory: &JobDirectory, record: &JobRecord) -> u64 {
    if let Some((ended, _)) = record.ended {
        return ended;
    }
    let written = |path: PathBuf| {
        let modified = fs::metadata(path).and_then(|found| found.modified()).ok()?;
        Some(modified.duration_since(UNIX_EPOCH).ok()?.as_secs())
    };
    // Some change at the start alone, others only if ranks print or checkpoints are taken.
    let own = ["job.json", "journal", "told", "shown.json", "shown.log", "spool"].map(|name| directory.path().join(name));
    own.into_iter().chain([record.checkpoints.clone()]).filter_map(written).max().unwrap_or(record.started)
}

/// In a batch script its own jobs are meant where no name is given, if there are any: the user may have others. With `no_other` those are never meant.
fn keep_own<T>(jobs: &mut Vec<T>, batch_job: Option<&str>, no_other: bool, batch_job_of: impl Fn(&T) -> Option<&str>) {
    let Some(batch_job) = batch_job else { return };
    let is_own = |job: &T| batch_job_of(job) == Some(batch_job);
    if no_other || jobs.iter().any(is_own) {
        jobs.retain(is_own);
    }
}

/// Finds a job by its name or the beginning of it (if a running one is asked for and some run, of those); without a name, the only one that runs, or the one that
/// ended last, within a batch job of its own.
///
/// # Errors
/// [`RecordError::EmptyName`], [`RecordError::NoSuchJob`], [`RecordError::Ambiguous`], [`RecordError::SeveralRun`], [`RecordError::None`], [`RecordError::NoneEnded`], [`RecordError::Io`].
pub fn find(name: Option<&str>, running: bool) -> Result<(JobDirectory, JobRecord), RecordError> {
    find_of(name, running, false)
}

/// The same, but that without a name no job is found in a batch job that is not its own: another one's end or exit code is not to be taken for it.
///
/// # Errors
/// As of [`find`]; [`RecordError::NoneOfBatch`].
pub fn find_own(name: Option<&str>, running: bool) -> Result<(JobDirectory, JobRecord), RecordError> {
    find_of(name, running, true)
}

/// Number of the batch job that this process is in.
pub(crate) fn batch_job_around() -> Option<String> {
    mend_batch::detect().ok().flatten().map(|system| system.run().job)
}

fn find_of(name: Option<&str>, running: bool, no_other: bool) -> Result<(JobDirectory, JobRecord), RecordError> {
    let mut jobs = list()?;
    let known: Vec<String> = jobs.iter().map(|(_, record)| record.id.clone()).collect();
    let Some(name) = name else {
        let batch_job = batch_job_around();
        keep_own(&mut jobs, batch_job.as_deref(), no_other, |(_, record)| record.batch_job());
        if let (true, true, Some(batch_job)) = (no_other, jobs.is_empty(), batch_job) {
            return Err(RecordError::NoneOfBatch { batch_job });
        }
        jobs.retain(|(directory, _)| directory.is_running() == running);
        if running && jobs.len() > 1 {
            let known = jobs.into_iter().map(|(_, record)| record.id).collect();
            return Err(RecordError::SeveralRun { known });
        }
        // A job that began later may have ended earlier.
        jobs.sort_by_cached_key(|(directory, record)| Reverse(ended(directory, record)));
        return match (jobs.into_iter().next(), running) {
            (Some(found), _) => Ok(found),
            (None, true) => Err(RecordError::None { qualifier: " that runs" }),
            (None, false) if known.is_empty() => Err(RecordError::None { qualifier: "" }),
            (None, false) => Err(RecordError::NoneEnded { known }),
        };
    };
    if name.is_empty() {
        return Err(RecordError::EmptyName);
    }
    if let Some(at) = known.iter().position(|id| id == name) {
        return Ok(jobs.swap_remove(at));
    }
    let mut matching: Vec<usize> = (0..known.len()).filter(|&at| known[at].starts_with(name)).collect();
    if running && matching.len() > 1 {
        let on: Vec<usize> = matching.iter().copied().filter(|&at| jobs[at].0.is_running()).collect();
        matching = if on.is_empty() { matching } else { on };
    }
    match matching[..] {
        [at] => Ok(jobs.swap_remove(at)),
        [] => Err(RecordError::NoSuchJob { name: name.to_owned(), known }),
        _ => {
            let known = matching.into_iter().map(|at| known[at].clone()).collect();
            Err(RecordError::Ambiguous { name: name.to_owned(), known })
        }
    }
}

/// The job of this name, as [`find`] has it; where none is given, the one that runs, or ended last.
///
/// # Errors
/// As of [`find`].
pub fn find_any(name: Option<&str>) -> Result<(JobDirectory, JobRecord), RecordError> {
    find_any_of(name, false)
}

/// The same, of a batch job's own as [`find_own`] has it.
///
/// # Errors
/// As of [`find_own`].
pub fn find_any_own(name: Option<&str>) -> Result<(JobDirectory, JobRecord), RecordError> {
    find_any_of(name, true)
}

fn find_any_of(name: Option<&str>, no_other: bool) -> Result<(JobDirectory, JobRecord), RecordError> {
    match (name, find_of(name, name.is_none(), no_other)) {
        (None, Err(RecordError::None { .. })) => find_of(None, false, no_other),
        (_, found) => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::BatchRecord;
    use std::fs::File;
    use std::time::Duration;

    #[test]
    fn a_batch_scripts_own_jobs_are_meant() {
        let text = r#"{"id": "job", "command": ["a"], "size": 1, "hosts": [], "controller_host": "a", "controller_port": 1,
            "controller_pid": 1, "started": 1000, "ended": null, "checkpoints": "/nonexistent"}"#;
        let free: JobRecord = serde_json::from_str(text).unwrap();
        let of = |job: &str| {
            let batch = Some(BatchRecord { system: "Slurm".into(), job: job.into(), restarts: 0, nth: 0 });
            JobRecord { batch, ..free.clone() }
        };
        // Begun with --hosts there.
        let within = |job: &str| JobRecord { within: Some(job.into()), ..free.clone() };
        let all = || vec![("a", free.clone()), ("b", of("7")), ("c", of("8")), ("d", within("7"))];
        let kept = |batch_job: Option<&str>, no_other| {
            let mut jobs = all();
            keep_own(&mut jobs, batch_job, no_other, |(_, record)| record.batch_job());
            jobs.into_iter().map(|(name, _)| name).collect::<String>()
        };
        let all = |no_other| [kept(Some("7"), no_other), kept(Some("9"), no_other), kept(None, no_other)];
        assert_eq!((all(false), all(true)), (["bd", "abcd", "abcd"].map(Into::into), ["bd", "", "abcd"].map(Into::into)));
    }

    #[test]
    fn a_job_whose_controller_was_killed_ended_when_it_wrote_last() {
        let (place, checkpoints) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directory = JobDirectory::at(place.path());
        let text = r#"{"id": "job", "command": ["a"], "size": 1, "hosts": [], "controller_host": "a", "controller_port": 1,
            "controller_pid": 1, "started": 1000, "ended": null, "checkpoints": "/nonexistent"}"#;
        let mut record: JobRecord = serde_json::from_str(text).unwrap();
        let write = |path: PathBuf, at: u64| {
            File::create(&path).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(at)).unwrap();
        };
        assert_eq!(ended(&directory, &record), 1000);
        write(place.path().join("job.json"), 1001);
        assert_eq!(ended(&directory, &record), 1001);
        for (name, at) in [("journal", 2000), ("told", 3000)] {
            write(place.path().join(name), at);
            assert_eq!(ended(&directory, &record), at, "{name}");
        }
        // Its checkpoints may be elsewhere.
        record.checkpoints = checkpoints.path().to_owned();
        File::open(checkpoints.path()).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(4000)).unwrap();
        assert_eq!(ended(&directory, &record), 4000);
        record.ended = Some((1500, "exit code 0".into()));
        assert_eq!(ended(&directory, &record), 1500);
    }
}
