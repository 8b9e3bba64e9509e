//! Removing jobs that have ended: their directory, and their checkpoints wherever they are.
//!
//! Invariants: a job that runs is never touched, and none can start while it is removed (its lock is held); what is removed in a job's
//! name lies in its directory, or is a checkpoint of it by its name; a removal that was cut short can be done again: the record goes last.
//! Faults assumed: files vanish meanwhile; the record is damaged or names a place that is not the job's.

use crate::job_lock::JobLock;
use crate::known_jobs;
use crate::record::{JobDirectory, JobRecord, RecordError, now};
use crate::{failover, manifest, portable, tiers};
use serde::Serialize;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What one removal did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// The job's name.
    pub id: String,
    /// Bytes on disk that it had.
    pub bytes: u64,
    /// Something of it is left here: it is not the job's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<PathBuf>,
    /// Copies of its checkpoints may be in other tiers (nodes' memory and disks, object stores): those stay.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub in_tiers: bool,
}

/// Bytes on disk below a path; files with several names count once. What cannot be looked at counts as nothing.
#[must_use]
pub fn size(path: &Path) -> u64 {
    fn below(path: &Path, seen: &mut HashSet<(u64, u64)>) -> u64 {
        let Ok(found) = fs::symlink_metadata(path) else { return 0 };
        let own = found.blocks() * 512;
        if found.is_dir() {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            return own + entries.map(|entry| below(&entry.path(), seen)).sum::<u64>();
        }
        if found.nlink() > 1 && !seen.insert((found.dev(), found.ino())) { 0 } else { own }
    }
    below(path, &mut HashSet::new())
}

/// Bytes on disk that a job has: its directory, and its checkpoints if they are elsewhere.
#[must_use]
pub fn size_of(directory: &JobDirectory, record: &JobRecord) -> u64 {
    let elsewhere = elsewhere(directory, record).map_or(0, size);
    size(directory.path()) + elsewhere
}

fn elsewhere<'a>(directory: &JobDirectory, record: &'a JobRecord) -> Option<&'a Path> {
    let path = record.checkpoints.as_path();
    (!path.starts_with(directory.path())).then_some(path)
}

/// True if the job ended that long ago.
#[must_use]
pub fn is_older(directory: &JobDirectory, record: &JobRecord, age: Duration) -> bool {
    now().saturating_sub(known_jobs::ended(directory, record)) >= age.as_secs()
}

/// Removes a job that does not run, with the portable checkpoints that it has taken. `age`: only if it ended that long ago.
///
/// # Errors
/// [`RecordError::Running`], also if it has run since `record` was read, and is not that old any more; [`RecordError::NoSuchJob`] if somebody else has
/// removed it meanwhile; [`RecordError::Io`].
pub fn remove(directory: &JobDirectory, record: &JobRecord, age: Option<Duration>) -> Result<Removed, RecordError> {
    // Refused before anything goes, and held to the end: a restart that came in between would go on from what is removed.
    let (lock, record) = lock_ended(directory, record, age)?;
    let place = portable::place(directory.path());
    let portable: Vec<_> = portable::kept(directory.path()).into_iter().map(|one| (size(&one.directory), one.tiers)).collect();
    let left = portable::remove(directory.path()).map_err(|source| RecordError::Io { path: place, source })?;
    let mut removed = remove_held(directory, record, lock)?;
    removed.in_tiers |= portable.iter().any(|(_, held)| tiers::are_elsewhere(held));
    if left.is_none() {
        removed.bytes += portable.iter().map(|(bytes, _)| bytes).sum::<u64>();
    }
    removed.left = removed.left.or(left);
    Ok(removed)
}

/// Its lock, if the job is there.
fn lock(directory: &JobDirectory, record: &JobRecord) -> Result<JobLock, RecordError> {
    let gone = || RecordError::NoSuchJob { name: record.id.clone(), known: Vec::new() };
    let lock = match directory.lock(&record.id) {
        Err(RecordError::Io { .. }) if !directory.path().exists() => return Err(gone()),
        lock => lock?,
    };
    if directory.path().join("job.json").exists() {
        return Ok(lock);
    }
    // Its file came anew into a directory that was about to go. Other things in it are not ours to remove.
    let _ = fs::remove_file(directory.path().join("lock"));
    let _ = fs::remove_dir(directory.path());
    Err(gone())
}

/// The lock of a job that has ended, that long ago, and its record as it is now: `record` may have been read long before, and the job have gone on since.
fn lock_ended(directory: &JobDirectory, record: &JobRecord, age: Option<Duration>) -> Result<(JobLock, JobRecord), RecordError> {
    let lock = lock(directory, record)?;
    let record = directory.record()?;
    // Its ranks may live while another controller is about to take the place of one that was killed.
    if failover::awaits_successor(directory) || age.is_some_and(|age| !is_older(directory, &record, age)) {
        return Err(RecordError::Running { id: record.id });
    }
    Ok((lock, record))
}

fn remove_job(directory: &JobDirectory, record: &JobRecord, age: Option<Duration>) -> Result<Removed, RecordError> {
    let (lock, record) = lock_ended(directory, record, age)?;
    remove_held(directory, record, lock)
}

/// Removes the job whose lock this is.
fn remove_held(directory: &JobDirectory, record: JobRecord, lock: JobLock) -> Result<Removed, RecordError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| RecordError::Io { path, source }
    };
    let in_tiers = tiers::hold_any(&record.checkpoints, &manifest::numbers(&record.checkpoints));
    let bytes = size_of(directory, &record);
    let mut left = None;
    if let Some(path) = elsewhere(directory, &record) {
        left = remove_checkpoints(path, &record.id).map_err(io(path))?;
    }
    let last = ["lock", "job.json"];
    let entries = fs::read_dir(directory.path()).map_err(io(directory.path()))?;
    for entry in entries.flatten().filter(|entry| !last.iter().any(|name| entry.file_name() == *name)) {
        gone(if entry.path().is_dir() && !entry.path().is_symlink() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        })
        .map_err(io(&entry.path()))?;
    }
    let path = directory.path().join("job.json");
    gone(fs::remove_file(&path)).map_err(io(&path))?;
    // On NFS a file that is open stays, under another name, and the directory with it. Whoever comes now finds no job.
    drop(lock);
    remove_empty(directory.path()).map_err(io(directory.path()))?;
    Ok(Removed { id: record.id, bytes: bytes.saturating_sub(left.as_deref().map_or(0, size)), left, in_tiers })
}

/// Removes a job's directory that has no more than its lock. Somebody who looks whether it runs, or wants to remove it, too, may make a new one meanwhile, and
/// finds no job then.
fn remove_empty(path: &Path) -> io::Result<()> {
    const TRIES: u32 = 100;
    let mut tries = 0;
    loop {
        gone(fs::remove_file(path.join("lock")))?;
        match gone(fs::remove_dir(path)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

/// Removes what has a checkpoint's name in a directory that has the job's. Returns the directory if it is not empty then, or not the job's.
fn remove_checkpoints(path: &Path, id: &str) -> io::Result<Option<PathBuf>> {
    if path.file_name().is_none_or(|name| name != id) || fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir()) {
        return Ok(path.exists().then(|| path.to_owned()));
    }
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().map(|name| name.trim_end_matches(".part").trim_end_matches(".old"));
        if number.is_some_and(|number| number.parse::<u64>().is_ok()) && entry.file_type()?.is_dir() {
            gone(fs::remove_dir_all(entry.path()))?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(Some(path.to_owned())),
        done => gone(done).map(|()| None),
    }
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// After how many days jobs go that have ended, as `MEND_EXPIRE` says; `None`: never.
///
/// # Errors
/// The setting has a value that it may not have.
pub fn expiry() -> Result<Option<u64>, mend_settings::SettingError> {
    Ok(match mend_settings::EXPIRE.word_or_number(None)? {
        mend_settings::WordOrNumber::Number(days) => Some(days),
        _ => None,
    })
}

/// Removes the jobs that ended more than so many days ago. What goes wrong is of no interest to the job that begins.
pub fn expire(days: u64, quiet: bool) {
    let age = Duration::from_secs(days * 86_400);
    // Beside the job: it may take long.
    std::thread::spawn(move || {
        let jobs = known_jobs::list().unwrap_or_default();
        let old = jobs.iter().filter(|(directory, record)| is_older(directory, record, age) && !directory.is_running());
        let removed: Vec<Removed> = old.filter_map(|(directory, record)| remove_job(directory, record, Some(age)).ok()).collect();
        if !removed.is_empty() && !quiet {
            let mib = removed.iter().map(|one| one.bytes).sum::<u64>() >> 20;
            let name = mend_settings::EXPIRE.name;
            mend_report::tell!("mend: {} job(s) that ended more than {days} days ago are removed ({name}): {mib} MiB", removed.len());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_a_checkpoint_by_its_name_goes() {
        let place = tempfile::tempdir().unwrap();
        let of_job = place.path().join("job-1");
        for name in ["1", "2.part", "3.old", "notes"] {
            fs::create_dir_all(of_job.join(name)).unwrap();
            fs::write(of_job.join(name).join("x"), "x").unwrap();
        }
        assert_eq!(remove_checkpoints(&of_job, "job-1").unwrap(), Some(of_job.clone()));
        assert_eq!(fs::read_dir(&of_job).unwrap().count(), 1);
        fs::remove_dir_all(of_job.join("notes")).unwrap();
        // Not by another's name, nor through a link.
        fs::create_dir_all(of_job.join("4")).unwrap();
        assert_eq!(remove_checkpoints(&of_job, "job-2").unwrap(), Some(of_job.clone()));
        let link = place.path().join("job-3");
        std::os::unix::fs::symlink(&of_job, &link).unwrap();
        assert_eq!(remove_checkpoints(&link, "job-3").unwrap(), Some(link));
        assert_eq!(remove_checkpoints(&of_job, "job-1").unwrap(), None);
        assert!(!of_job.exists());
        assert_eq!(remove_checkpoints(&of_job, "job-1").unwrap(), None);
    }

    #[test]
    fn what_has_run_since_it_was_looked_at_stays() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let text = r#"{"id": "job", "command": ["a"], "size": 1, "hosts": [], "controller_host": "a", "controller_port": 1,
            "controller_pid": 1, "started": 1000, "ended": [1000, "exit code 0"], "checkpoints": "/nonexistent"}"#;
        let looked_at: JobRecord = serde_json::from_str(text).unwrap();
        let age = Some(Duration::from_secs(86_400));
        let goes_on = |directory: &JobDirectory| {
            let is_running = |result| matches!(result, Err(RecordError::Running { .. }));
            is_running(remove(directory, &looked_at, age)) && is_running(remove_job(directory, &looked_at, age))
        };
        directory.write("job.json", &JobRecord { ended: Some((now(), "exit code 0".into())), ..looked_at.clone() }).unwrap();
        assert!(goes_on(&directory), "it was restarted, and has ended again");
        // Another controller may be about to come.
        directory.write("job.json", &JobRecord { ended: None, ..looked_at.clone() }).unwrap();
        fs::write(place.path().join("told"), "").unwrap();
        assert!(matches!(remove(&directory, &looked_at, None), Err(RecordError::Running { .. })));
        directory.write("job.json", &looked_at).unwrap();
        assert!(remove(&directory, &looked_at, age).is_ok() && !place.path().exists());
    }

    #[test]
    fn a_file_with_two_names_has_its_size_once() {
        let place = tempfile::tempdir().unwrap();
        let empty = size(place.path());
        fs::write(place.path().join("a"), vec![1; 100_000]).unwrap();
        let one = size(place.path());
        assert!(one >= empty + 100_000, "{one}");
        fs::hard_link(place.path().join("a"), place.path().join("b")).unwrap();
        assert_eq!(size(place.path()), one);
    }
}
