//! A job's directory, `$MEND_HOME/jobs/ID` (0700): `job.json`, `secret` (0600), `lock`, `printed.json`, `checkpoints/N/`.
//!
//! Invariants: `lock` is held (flock) by the controller while the job runs, so that a second one refuses to start (a successor of one that is silent puts
//! another file in its place: [`crate::job_lock`]);
//! every file is written beside its place and renamed; what was made is for its owner alone whatever the umask, and durable
//! before anything is promised that needs it.

use crate::branch::Branch;
use crate::lock_identity::LockIdentity;
pub use crate::record_error::{RecordError, some};
use mend_job::event::MeasuredRates;
use mend_job::setup::CheckpointPlan;
use mend_kernel::untrusted::read_within;
use mend_messages::job::{Rank, Secret};
use mend_policy::restarts::Restarts;
use mend_wire::secret::{from_hex, to_hex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where a Mend job stands in a batch job: what its record keeps of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// The batch system.
    pub system: String,
    /// The batch job's number.
    pub job: String,
    /// How often that had been queued again when this life of the Mend job began.
    pub restarts: u32,
    /// How many jobs of the same command in the same directory that run of the batch job had begun before.
    pub nth: u32,
}

/// What `job.json` holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Name people use.
    pub id: String,
    /// Command line.
    pub command: Vec<String>,
    /// Where the first of its programs began; `None` in records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// Number of ranks, with those that ranks have spawned.
    pub size: u32,
    /// How many it began with; 0 in records of earlier releases, where `size` says it.
    #[serde(default)]
    pub first: u32,
    /// Hosts, spares last.
    pub hosts: Vec<String>,
    /// Host of the controller.
    pub controller_host: String,
    /// Its port for the verbs.
    pub controller_port: u16,
    /// Its process id on that host.
    pub controller_pid: u32,
    /// Start (or restart), seconds since 1970.
    pub started: u64,
    /// Which start of the job this is: higher than that of all before, on any host ([`JobDirectory::next_epoch`]).
    #[serde(default)]
    pub epoch: u64,
    /// End, seconds since 1970, and how; `None` while it runs or if the controller was killed.
    pub ended: Option<(u64, String)>,
    /// With which exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Spaces of which files were still to be sent away when it had ended, and where to: they are being sent, or were not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsent: Vec<(String, String)>,
    /// What was measured of ranks that moved.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rates: BTreeMap<Rank, MeasuredRates>,
    /// A failure has stopped it, and it is about to go on by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes_on: bool,
    /// The batch job that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchRecord>,
    /// Number of the batch job around it, also with hosts of its own: not [`BatchRecord`], since the batch job does not go on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    /// Where its checkpoints are.
    pub checkpoints: PathBuf,
    /// Bytes up to which they copy files that are open for writing; `None` in records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_files: Option<u64>,
    /// When they are taken, and which are kept; a restart goes on with it.
    #[serde(default)]
    pub plan: Option<CheckpointPlan>,
    /// What its last restarts took: the plan's chains are as long as that makes them best.
    #[serde(default, skip_serializing_if = "Restarts::is_empty")]
    pub restarts: Restarts,
    /// Hosts that took part before, or were to, and did not answer when it began: a restart tries them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
    /// Hosts that were lost while it ran: a restart does not wait for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// Which of its checkpoints it goes on from.
    #[serde(default, skip_serializing_if = "Branch::is_plain")]
    pub branch: Branch,
    /// How long a node goes on with it without a word from its controller, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Until when ranks of a life that is over may live, on nodes that could not be asked, milliseconds since 1970; `None`: they had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_until_ms: Option<u64>,
}

impl JobRecord {
    /// How many ranks it began with.
    #[must_use]
    pub fn first_world(&self) -> u32 {
        if self.first > 0 { self.first } else { self.size }
    }

    /// The batch job that it was begun in.
    pub(crate) fn batch_job(&self) -> Option<&str> {
        self.within.as_deref().or(self.batch.as_ref().map(|batch| batch.job.as_str()))
    }
}

/// Most bytes of a file of the directory.
const MAX_RECORD_BYTES: u64 = 512 << 20;

/// Whether a job can have this name: a directory of the jobs' is called so.
#[must_use]
pub fn is_job_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=255).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

/// An open job directory.
#[derive(Debug)]
pub struct JobDirectory {
    path: PathBuf,
    /// The lock of the controller that writes there. Once another one has taken the job over, nothing is written any more.
    holder: Option<LockIdentity>,
}

/// How a job is said to have ended whose program ended it, with this exit code.
pub(crate) fn by_itself(code: i32) -> String {
    format!("exit code {code}")
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    since_1970().as_secs()
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// As a record has a time that is to come, milliseconds since 1970; `None`: it is over.
pub(crate) fn until_ms(at: Instant) -> Option<u64> {
    let left = at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
    Some((since_1970() + left).as_millis() as u64)
}

/// How much is left of that.
pub(crate) fn left_until(ms: Option<u64>) -> Duration {
    ms.map(Duration::from_millis).unwrap_or_default().saturating_sub(since_1970())
}

/// Makes a directory for its owner alone, durable in the one above.
///
/// # Errors
/// Those of the file system, [`io::ErrorKind::AlreadyExists`] among them.
fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    mend_durable::sync_name(path)
}

/// Makes a directory with those above it that are missing, as [`make_directory`] does.
///
/// # Errors
/// Those of the file system.
pub fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        make_directories(above)?;
    }
    match make_directory(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Tries whether a checkpoint can be published in `directory`, or in the nearest one above it that is there: makes a directory and a
/// file in it, both durable, renames and removes them. Nothing is left: there may never be a checkpoint.
///
/// # Errors
/// Those of the file system.
pub fn try_below(directory: &Path) -> io::Result<()> {
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    if !there.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let name = |state| there.join(format!(".{}.{state}", to_hex(&mend_wire::random_bytes::<8>())));
    let (part, place) = (name("trial"), name("tried"));
    match make_directory(&part) {
        // As /proc says it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(io::Error::other("nothing can be made in this file system")),
        made => made?,
    }
    let tried = mend_durable::write(&part.join("manifest.json"), b"{}").and_then(|()| mend_durable::rename(&part, &place));
    for left in [part, place] {
        let _ = fs::remove_dir_all(left);
    }
    tried
}

impl JobDirectory {
    pub(crate) fn io(&self, source: io::Error) -> RecordError {
        RecordError::Io { path: self.path.clone(), source }
    }

    /// Makes the directory of a new job. The name is the program's with a random ending.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn create(program: &str) -> Result<(Self, String), RecordError> {
        let jobs = jobs_directory()?;
        let stem: String = Path::new(program).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let stem: String = stem.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(16).collect();
        let stem = if stem.is_empty() { "job" } else { &stem };
        loop {
            let id = format!("{stem}-{}", to_hex(&mend_wire::random_bytes::<3>()));
            let path = jobs.join(&id);
            match make_directory(&path) {
                Ok(()) => return Ok((Self { path, holder: None }, id)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(RecordError::Io { path, source }),
            }
        }
    }

    /// The directory of job `id`, made if it is gone (a checkpoint kept elsewhere outlives it).
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn open(id: &str) -> Result<Self, RecordError> {
        if !is_job_name(id) {
            return Err(RecordError::NoSuchJob { name: id.to_owned(), known: Vec::new() });
        }
        let path = jobs_directory()?.join(id);
        match make_directory(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(RecordError::Io { path, source: error }),
            _ => Ok(Self { path, holder: None }),
        }
    }

    /// The one that is there.
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), holder: None }
    }

    /// The epoch of the start that begins now: the time in microseconds, so that it is the latest even where the record of the earlier
    /// ones is gone; or one more than the last one, should that clock be behind.
    #[must_use]
    pub fn next_epoch(&self) -> u64 {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        self.record().map_or(time, |record| time.max(record.epoch + 1))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the job's secret.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn write_secret(&self, secret: &Secret) -> Result<(), RecordError> {
        mend_durable::write(&self.path.join("secret"), to_hex(&secret.0).as_bytes()).map_err(|e| self.io(e))
    }

    /// The job's secret.
    ///
    /// # Errors
    /// [`RecordError::Io`], [`RecordError::Damaged`].
    pub fn secret(&self) -> Result<Secret, RecordError> {
        let path = self.path.join("secret");
        let text = fs::read_to_string(&path).map_err(|e| self.io(e))?;
        from_hex(text.trim()).map(Secret).ok_or(RecordError::Damaged { path })
    }

    /// From now on files are written for the holder of this lock.
    pub(crate) fn hold(&mut self, lock: LockIdentity) {
        self.holder = Some(lock);
    }

    /// For whom files are written.
    pub(crate) fn holder(&self) -> Option<LockIdentity> {
        self.holder
    }

    /// Writes a JSON file of the directory.
    ///
    /// # Errors
    /// [`RecordError::Io`]; [`RecordError::TakenOver`] if it is written for a controller that has lost the job.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), RecordError> {
        let text = serde_json::to_vec_pretty(value).map_err(|e| self.io(e.into()))?;
        let path = self.path.join(name);
        let Some(holder) = self.holder.map(LockIdentity::number) else { return mend_durable::write(&path, &text).map_err(|e| self.io(e)) };
        // Two controllers may write at a time: one that stood still knows late that it is lost.
        let partial = path.with_extension(format!("{holder}.new"));
        let ours = || LockIdentity::of(&self.path) == self.holder;
        match mend_durable::write_if(&path, &partial, &text, ours) {
            Ok(true) => Ok(()),
            Ok(false) => Err(RecordError::TakenOver { path }),
            Err(error) => Err(self.io(error)),
        }
    }

    /// Reads a JSON file of the directory.
    ///
    /// # Errors
    /// [`RecordError::Io`], [`RecordError::Damaged`].
    pub fn read<T: for<'a> Deserialize<'a>>(&self, name: &str) -> Result<T, RecordError> {
        let path = self.path.join(name);
        let text =
            read_within(&self.path, Path::new(name), MAX_RECORD_BYTES).map_err(|source| RecordError::Io { path: path.clone(), source })?;
        serde_json::from_slice(&text).map_err(|_| RecordError::Damaged { path })
    }

    /// `job.json`.
    ///
    /// # Errors
    /// [`RecordError::Io`], [`RecordError::Damaged`].
    pub fn record(&self) -> Result<JobRecord, RecordError> {
        self.read("job.json")
    }
}

/// The user's directory, `$MEND_HOME`.
///
/// # Errors
/// [`RecordError::Io`] if nothing says where it is.
pub(crate) fn home() -> Result<PathBuf, RecordError> {
    Ok(mend_settings::home()?)
}

pub(crate) fn jobs_directory() -> Result<PathBuf, RecordError> {
    let jobs = home()?.join("jobs");
    make_directories(&jobs).map_err(|source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => RecordError::Io { path: jobs.clone(), source },
        _ => RecordError::NoPlace { path: jobs.clone(), source },
    })?;
    Ok(jobs)
}

/// Opens a file of the job's directory to write at its end, or makes one, for its owner alone, whatever the umask.
///
/// # Errors
/// Those of the system.
pub(crate) fn open_at_end(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// The same, of a file that is not there yet.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::AlreadyExists`].
pub(crate) fn make_at_end(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Files of these spaces are still to be sent to these places, now that the job is over. Said by the holder of this lock.
pub(crate) fn put_unsent_on_record(id: &str, lock: Option<LockIdentity>, unsent: Vec<(String, String)>) {
    let written = JobDirectory::open(id).and_then(|mut directory| {
        lock.into_iter().for_each(|lock| directory.hold(lock));
        let record = directory.record()?;
        directory.write("job.json", &JobRecord { unsent, ..record })
    });
    if let Err(error) = written {
        tracing::warn!(%error, "what is still to be sent away is not on record");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_time_on_record_is_no_more_than_it_was() {
        let (time, now) = (Duration::from_secs(30), Instant::now());
        let left = left_until(until_ms(now + time));
        assert!(left <= time && left > time - Duration::from_secs(5), "{left:?}");
        assert_eq!((until_ms(now), left_until(None), left_until(Some(7))), (None, Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_trial_leaves_nothing_and_tells_a_place_where_nothing_can_be_made() {
        let place = tempfile::tempdir().unwrap();
        try_below(place.path()).unwrap();
        try_below(&place.path().join("a/b")).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        fs::write(place.path().join("file"), "").unwrap();
        assert_eq!(try_below(&place.path().join("file/a")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        // Nobody can, whatever access(2) says to root.
        for closed in ["/proc", "/proc/a/b", "/sys"] {
            assert!(try_below(Path::new(closed)).is_err(), "{closed}");
        }
    }
}
