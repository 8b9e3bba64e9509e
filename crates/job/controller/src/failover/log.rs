//! What the job's machine was told in this life of the job, in `told` in the job's directory, for a successor of this controller.
//!
//! ```text
//! head, length and checksum, the life; length and checksum, what was told; …          only ever appended to
//!                            │ longer than MAX_BYTES, and nothing is under way
//!                            └─► beside it: head, the life, where it stands ── fsync, rename ──► told
//! ```
//! Frames are postcard. A frame that is not whole ends the log: it was being written when the controller was killed. What follows from an entry is done after
//! it was written, so that it outlives this process; it is made durable soon after ([`super::flush`]), and only then do daemons forget what they have said. So a
//! successor knows all if this process is killed. If its machine goes down and the directory is a network's, the newest entries may be missing: daemons have had more then than the successor knows, and
//! it counts their nodes as lost. A controller that has lost the job, and does not know it yet, neither replaces nor removes the log.
//!
//! Faults assumed: SIGKILL at any moment; disks full or failing (there is no log then, and no successor).

use crate::batch_life::BatchLife;
use crate::healing_options::HealingOptions;
use crate::held_file;
use crate::input_file::InputFile;
use crate::lock_identity::LockIdentity;
use crate::record::JobRecord;
use mend_job::healing::Healing;
use mend_job::input::Mark;
use mend_job::replay::{Standing, Told};
use mend_job::setup::Setup;
use mend_messages::daemon::{Resumption, Stream};
use mend_messages::job::{Program, Rank};
use mend_messages::tier::TierSpec;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use xxhash_rust::xxh3::xxh3_64;

/// The file's name in the job's directory.
const FILE_NAME: &str = "told";
/// First bytes of the file; the number is the format's.
const HEAD: &[u8; 8] = b"mendtola";
/// Length from which on the log is begun anew, bytes.
const MAX_BYTES: u64 = 8 << 20;

/// What stays as it is for as long as a life of the job lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifeRecord {
    /// What its machine began with.
    pub setup: Setup,
    /// What runs.
    pub program: Program,
    /// For each node what proves to its daemon that a connection is of this life.
    pub sessions: Vec<[u8; 16]>,
    /// Which start of the job it is.
    pub epoch: u64,
    /// How long a node goes on without a word from the controller, milliseconds.
    pub lease_ms: u64,
    /// How long a node may be silent, milliseconds.
    pub node_timeout_ms: u64,
    /// How long leases are renewed while the job's directory does not answer, seconds.
    pub directory_timeout_s: u64,
    /// File with the key that images are encrypted with.
    pub encryption_key: Option<PathBuf>,
    /// Take checkpoints that another user wrote.
    pub any_owner: bool,
    /// No message of ours on standard error unless something is wrong.
    pub quiet: bool,
    /// What the user wrote for this run.
    pub options: HealingOptions,
    /// What is remembered of its failures.
    pub healing: Healing,
    /// Tiers that keep its checkpoints.
    pub tiers: Vec<TierSpec>,
    /// How far each stream had come.
    pub printed: Vec<((Rank, Stream), Mark)>,
    /// How far standard input had been given.
    pub input: Mark,
    /// Where the rest of it is, if that is a file.
    pub input_file: Option<InputFile>,
    /// It runs on this machine alone, by a daemon of `mend run`'s.
    pub local: bool,
    /// The allocation that it is in.
    pub(crate) batch: Option<BatchLife>,
    /// Ranks were placed where they lived, not where the checkpoint has them.
    pub(crate) moved: bool,
    /// When the `mend run` or `mend restart` that it is a life of began, seconds since 1970: `MEND_TIME_LIMIT_S` counts from there, whoever controls it.
    pub run_began: u64,
    /// Which lock the controller has that writes this.
    pub holder: u64,
}

impl LifeRecord {
    /// What this life's controller says to a node's daemon to go on, when it has had the daemon's messages up to `delivered`.
    #[must_use]
    pub fn resumption(&self, node: usize, delivered: u64) -> Resumption {
        Resumption { identity: self.setup.identity, epoch: self.epoch, session: self.sessions[node], delivered }
    }
}

/// What was read.
#[derive(Debug)]
pub struct Found {
    /// The life.
    pub life: LifeRecord,
    /// Where it stood when the log was begun anew.
    pub standing: Option<Box<Standing>>,
    /// What its machine was told since.
    pub told: Vec<Told>,
}

impl Found {
    /// Where the lost controller stood.
    #[must_use]
    pub(crate) fn stand(self, record: &JobRecord) -> Standing {
        let Self { life, standing, told } = self;
        let mut standing = standing.map(|standing| *standing).unwrap_or_else(|| {
            let input = mend_job::input::Input::new(life.input, life.setup.stdin);
            Standing::begin(life.setup, 0, input, life.printed)
        });
        for entry in told {
            standing.take(entry, &manifest_text(record));
        }
        standing
    }
}

/// Reads a checkpoint's manifest by its number.
pub(super) fn manifest_text(record: &JobRecord) -> impl Fn(u64) -> Vec<u8> {
    let checkpoints = record.checkpoints.clone();
    move |number| fs::read(checkpoints.join(number.to_string()).join("manifest.json")).unwrap_or_default()
}

/// The log, open for the job's controller.
#[derive(Debug)]
pub struct ToldLog {
    directory: PathBuf,
    /// The lock of the controller that writes it.
    holder: LockIdentity,
    life: LifeRecord,
    file: Arc<File>,
    length: u64,
    limit: u64,
}

fn frame<T: Serialize>(into: &mut Vec<u8>, value: &T) -> io::Result<()> {
    let body = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(&xxh3_64(&body).to_le_bytes());
    into.extend_from_slice(&body);
    Ok(())
}

/// The next value, if there is a whole one, and what follows.
fn next<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    Some((postcard::from_bytes(body).ok()?, rest))
}

/// Reads that of a job; `None` if there is none that this release reads.
#[must_use]
pub fn read(directory: &Path) -> Option<Found> {
    let bytes = fs::read(directory.join(FILE_NAME)).ok()?;
    let (life, rest) = next::<LifeRecord>(bytes.strip_prefix(HEAD)?)?;
    let (standing, mut rest) = next::<Option<Box<Standing>>>(rest)?;
    let mut told = Vec::new();
    while let Some((entry, more)) = next(rest) {
        told.push(entry);
        rest = more;
    }
    Some(Found { life, standing, told })
}

/// Makes durable what is there of that of a lost controller, so that daemons may forget what it has.
///
/// # Errors
/// Those of the file system.
pub fn make_durable(directory: &Path) -> io::Result<()> {
    File::open(directory.join(FILE_NAME))?.sync_all()
}

/// When that of the job of this directory was written last; `None` if there is none.
#[must_use]
pub fn written(directory: &Path) -> Option<SystemTime> {
    fs::metadata(directory.join(FILE_NAME)).and_then(|found| found.modified()).ok()
}

/// The controller of the job of this directory lives, though there is nothing to be written down.
pub fn touch(directory: &Path) {
    // Verbs would wait less long for a successor, no more.
    let _ = File::options().write(true).open(directory.join(FILE_NAME)).and_then(|file| file.set_modified(SystemTime::now()));
}

impl ToldLog {
    /// A new one, of a life that begins, or has come to stand there, by the holder of this lock.
    ///
    /// # Errors
    /// Those of the file system; [`ToldLog::is_lost`] says of which error that the job has another controller.
    pub fn begin(directory: &Path, holder: LockIdentity, life: LifeRecord, standing: Option<&Standing>) -> io::Result<Self> {
        let life = LifeRecord { holder: holder.number(), ..life };
        let mut bytes = HEAD.to_vec();
        frame(&mut bytes, &life)?;
        frame(&mut bytes, &standing)?;
        let file = Arc::new(held_file::begin(directory, FILE_NAME, holder, &bytes)?);
        let length = bytes.len() as u64;
        Ok(Self { directory: directory.to_owned(), holder, life, file, length, limit: MAX_BYTES + length })
    }

    /// Whether the job is another controller's, as this error says.
    #[must_use]
    pub fn is_lost(error: &io::Error) -> bool {
        held_file::is_lost(error)
    }

    /// Writes down what the machine was told.
    ///
    /// # Errors
    /// Those of the file system. The log is of no use any more then: [`ToldLog::remove`].
    pub fn write(&mut self, told: &Told) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(256);
        frame(&mut bytes, told)?;
        (&*self.file).write_all(&bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// What is written, to be made durable.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Whether it is so long that it should be begun anew.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.length > self.limit
    }

    /// Begins anew, from where the life stands. All is durable then.
    ///
    /// # Errors
    /// As of [`ToldLog::begin`].
    pub fn begin_anew(&mut self, standing: &Standing) -> io::Result<()> {
        *self = Self::begin(&self.directory, self.holder, self.life.clone(), Some(standing))?;
        Ok(())
    }

    /// Nobody succeeds this controller from now on.
    pub fn remove(self) {
        remove(&self.directory, self.holder);
    }
}

/// Removes what an earlier controller left, for the holder of this lock.
pub fn remove(directory: &Path, holder: LockIdentity) {
    held_file::remove(directory, FILE_NAME, holder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::JobDirectory;
    use mend_job::event::Event;
    use mend_job::replay::What;

    #[test]
    fn who_has_lost_the_job_neither_replaces_nor_removes_its_log() {
        let place = tempfile::tempdir().unwrap();
        let (directory, log) = (JobDirectory::at(place.path()), || fs::read(place.path().join(FILE_NAME)).unwrap());
        let silent = directory.lock("a-job").unwrap();
        held_file::begin(place.path(), FILE_NAME, silent.identity(), b"the first's, ").unwrap().write_all(b"and more").unwrap();
        assert_eq!(log(), b"the first's, and more");
        let successor = directory.seize_lock("a-job", silent.identity()).unwrap();
        held_file::begin(place.path(), FILE_NAME, successor.identity(), b"its successor's").unwrap();
        let refused = held_file::begin(place.path(), FILE_NAME, silent.identity(), b"the first's again").unwrap_err();
        assert!(ToldLog::is_lost(&refused) && !ToldLog::is_lost(&io::ErrorKind::StorageFull.into()));
        remove(place.path(), silent.identity());
        assert_eq!(log(), b"its successor's");
        remove(place.path(), successor.identity());
        assert!(written(place.path()).is_none());
    }

    #[test]
    fn a_log_that_is_torn_anywhere_is_read_up_to_there() {
        let told = |at_us| Told { at_us, what: What::Event { event: Event::Time, number: None, printed: None } };
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for at in 1..4 {
            frame(&mut bytes, &told(at)).unwrap();
            ends.push(bytes.len());
        }
        for cut in 0..=bytes.len() {
            let (mut rest, mut found) = (&bytes[..cut], 0);
            while let Some((entry, more)) = next::<Told>(rest) {
                found += 1;
                assert_eq!(entry, told(found));
                rest = more;
            }
            assert_eq!(found as usize, ends.iter().filter(|end| **end <= cut).count() - 1);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(std::iter::successors(Some(&damaged[..]), |rest| next::<Told>(rest).map(|(_, more)| more)).count() < 4, "byte {at}");
        }
    }
}
