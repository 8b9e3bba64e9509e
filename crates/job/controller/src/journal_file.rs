//! A job's journal on disk: `journal` in its directory, only ever appended to, or replaced whole by a shorter one.
//!
//! ```text
//! open: read ─► cut the torn tail ─► the last life has no end? ControllerDied, or TookOver by a successor
//! record: append (one write) ─► too long? journal.new ──fsync, rename, fsync──► journal
//! ```
//! When what is recorded is durable: [`Journal::decide`] returns after fsync(2), and what it recorded takes effect only then: where ranks
//! are placed, that a checkpoint is published, that a rank has moved, how the job ended. Everything else is written at once, so that
//! it outlives this process, and made durable within about [`SYNC_INTERVAL`], so that a power failure costs that much.
//!
//! Invariants: one controller writes, the holder of the job's lock; the file is at most about twice [`MAX_FILE_BYTES`] long (for a job of very
//! many ranks, what their state takes more); a journal that cannot be written never hurts the job: it is said once, and tried again.
//! Faults assumed: SIGKILL and power failures at any moment; disks full or failing; readers that read at any moment.

use crate::deferred_sync::DeferredSync;
use mend_journal::compact::compact;
use mend_journal::event::Cause;
use mend_journal::frame::{self, HeadError};
use mend_journal::{Entry, Event, State};
use mend_report::with_causes;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The file's name in the job's directory.
const FILE_NAME: &str = "journal";
/// Length from which on it is compacted, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// What stays of the newest events then, bytes.
const COMPACTED_BYTES: usize = 512 << 10;
/// Longest time from an event to when it is durable, but for the time that takes.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refuses.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file that this is about.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Not a journal that this release reads.
    #[error("cannot read {}", path.display())]
    Head {
        /// The file that this is about.
        path: PathBuf,
        /// What went wrong.
        source: HeadError,
    },
}

impl JournalError {
    /// What a user can do about it; may be empty.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => "the job was started by a release that kept no journal",
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => "is the job's directory yours?",
            Self::Io { .. } => "",
            Self::Head { source: HeadError::Newer(_), .. } => "use the release that wrote it",
            Self::Head { .. } => "",
        }
    }
}

/// What was read.
#[derive(Debug, Default)]
pub struct Read {
    /// All entries.
    pub entries: Vec<Entry>,
    /// Bytes in its middle that are none.
    pub damaged: usize,
}

/// Reads a job's journal as it is now.
///
/// # Errors
/// [`JournalError`]
pub fn read(directory: &Path) -> Result<Read, JournalError> {
    let (scan, _) = scan(&directory.join(FILE_NAME))?;
    Ok(Read { damaged: scan.damage.iter().map(|(_, length)| length).sum(), entries: scan.entries })
}

/// What tells whether a journal has changed since it was read: of its file, the number and the length.
#[must_use]
pub fn version(directory: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(directory.join(FILE_NAME)).ok().map(|found| (found.ino(), found.len()))
}

fn scan(path: &Path) -> Result<(frame::Scan, u64), JournalError> {
    let bytes = fs::read(path).map_err(|source| JournalError::Io { path: path.to_owned(), source })?;
    let scan = frame::scan(&bytes).map_err(|source| JournalError::Head { path: path.to_owned(), source })?;
    Ok((scan, bytes.len() as u64))
}

/// The time as entries have it, microseconds since 1970.
#[must_use]
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// A job's journal, open for its controller.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    file: Option<File>,
    length: u64,
    seq: u64,
    unsynced: DeferredSync,
    told: bool,
    limit: u64,
    /// Bytes of the newest events that stay when it is compacted. It does not grow with the limit, or each round would leave more.
    budget: usize,
    /// What is to blame for the end of the job; the first that was found.
    cause: Option<Cause>,
}

impl Journal {
    /// Opens it, or makes a new one. The caller holds the job's lock.
    #[must_use]
    pub fn open(directory: &Path) -> Self {
        Self::open_with(directory, MAX_FILE_BYTES)
    }

    /// Opens it to go on where a lost controller was. The caller holds the job's lock.
    #[must_use]
    pub fn succeed(directory: &Path, host: &str) -> Self {
        let mut journal = Self::with(directory, MAX_FILE_BYTES);
        match journal.reopen() {
            Ok(_) => journal.decide(Event::TookOver { host: host.to_owned() }),
            Err(error) => journal.tell(&error),
        }
        journal
    }

    fn with(directory: &Path, limit: u64) -> Self {
        let (directory, budget) = (directory.to_owned(), COMPACTED_BYTES.min(limit as usize / 2));
        Self {
            directory,
            file: None,
            length: 0,
            seq: 0,
            unsynced: DeferredSync::new(SYNC_INTERVAL),
            told: false,
            limit,
            budget,
            cause: None,
        }
    }

    fn open_with(directory: &Path, limit: u64) -> Self {
        let mut journal = Self::with(directory, limit);
        match journal.reopen() {
            Ok(state) if state.is_open() => journal.decide(Event::ControllerDied),
            Ok(_) => {}
            Err(error) => journal.tell(&error),
        }
        journal
    }

    fn path(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }

    fn reopen(&mut self) -> Result<State, JournalError> {
        let path = self.path();
        let io = |source| JournalError::Io { path: path.clone(), source };
        let found = match scan(&path) {
            Err(JournalError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        let mut file = crate::record::open_at_end(&path).map_err(io)?;
        let (scan, length) = found.unwrap_or_default();
        if scan.torn > 0 {
            file.set_len(scan.end as u64).map_err(io)?;
            tracing::info!(path = %path.display(), bytes = scan.torn, "the torn end of a journal is cut off");
        }
        self.length = length - scan.torn as u64;
        if self.length == 0 {
            file.write_all(&frame::file_head()).map_err(io)?;
            self.length = frame::FILE_HEAD as u64;
        }
        file.sync_all().map_err(io)?;
        mend_durable::sync_directory(&self.directory).map_err(io)?;
        let state = State::of(&scan.entries);
        // By the entries themselves, whatever a summary says.
        self.seq = scan.entries.iter().map(|entry| entry.seq).max().unwrap_or(0).max(state.seq);
        self.file = Some(file);
        Ok(state)
    }

    /// Says once that there is no journal, or that it is not complete.
    fn tell(&mut self, error: &dyn std::error::Error) {
        let why = with_causes(error);
        if !std::mem::replace(&mut self.told, true) {
            mend_report::tell!("mend: the job's journal cannot be kept: {why}; the job runs on, `mend log` will not show all of it");
        }
        tracing::debug!(why, "an event is not in the journal");
    }

    /// Records what happened.
    pub fn record(&mut self, event: Event) {
        self.record_of(None, None, event);
    }

    /// Records what happened to a node or a rank.
    pub fn record_of(&mut self, node: Option<&str>, rank: Option<u32>, event: Event) {
        let entry = Entry { seq: self.seq + 1, at: now_us(), node: node.map(str::to_owned), rank, event };
        let path = self.path();
        match self.append(&entry) {
            Ok(()) => {
                self.seq = entry.seq;
                self.unsynced.written();
            }
            Err(source) => self.tell(&JournalError::Io { path, source }),
        }
        if self.length > self.limit
            && let Err(error) = self.compact()
        {
            self.tell(&error);
        }
    }

    fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let Some(frame) = frame::encode(entry) else { return Err(io::Error::other("an event is too long")) };
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        if self.length > 4 * self.limit + frame::MAX_BODY as u64 {
            return Err(io::Error::other("it is too long and cannot be made shorter"));
        }
        if let Err(error) = file.write_all(&frame) {
            // Half a frame, as where there is no space, is a torn tail: what is written later would stand behind it.
            let _ = file.set_len(self.length);
            return Err(error);
        }
        self.length += frame.len() as u64;
        Ok(())
    }

    /// Records a decision, or an end: durable when this returns, or told that it could not be made so.
    pub fn decide(&mut self, event: Event) {
        self.decide_of(None, None, event);
    }

    /// As [`Journal::decide`], about a node or a rank.
    pub fn decide_of(&mut self, node: Option<&str>, rank: Option<u32>, event: Event) {
        self.record_of(node, rank, event);
        self.sync();
    }

    /// Makes all durable that is recorded.
    pub fn sync(&mut self) {
        let path = self.path();
        if self.unsynced.take()
            && let Some(Err(source)) = self.file.as_ref().map(File::sync_data)
        {
            self.tell(&JournalError::Io { path, source });
        }
    }

    /// When [`Journal::tick`] has something to do.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.unsynced.due()
    }

    /// To be called now and then: begins to make durable what has waited long enough, on another thread.
    pub fn tick(&mut self) {
        if let Some(file) = &self.file {
            self.unsynced.tick(file);
        }
    }

    fn compact(&mut self) -> Result<(), JournalError> {
        let path = self.path();
        let (scan, _) = scan(&path)?;
        let kept = compact(&scan.entries, self.budget);
        let mut bytes = frame::file_head().to_vec();
        kept.iter().filter_map(frame::encode).for_each(|frame| bytes.extend(frame));
        let io = |source| JournalError::Io { path: path.clone(), source };
        mend_durable::write(&path, &bytes).map_err(io)?;
        self.file = Some(OpenOptions::new().append(true).open(&path).map_err(io)?);
        self.length = bytes.len() as u64;
        // What a job's state takes more than this must not be written again and again.
        self.limit = self.limit.max(2 * self.length);
        Ok(())
    }

    /// The job is about to end for this reason; the first one counts.
    pub fn cause(&mut self, cause: Cause) {
        self.cause.get_or_insert(cause);
    }

    /// What was found to be to blame for the job's end.
    pub fn blamed(&mut self) -> Option<Cause> {
        self.cause.take()
    }

    /// Records the job's end, for this reason whatever was found before.
    pub fn end_for(&mut self, status: i32, cause: Cause) {
        self.decide(Event::Ended { status, cause });
    }

    /// Records the job's end, for the reason that was found.
    pub fn end(&mut self, status: i32, otherwise: Cause) {
        let cause = self.cause.take().unwrap_or(otherwise);
        self.decide(Event::Ended { status, cause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_journal::event::Asker;
    use std::collections::BTreeMap;

    fn started() -> Event {
        let (hosts, settings) = (vec!["a".into()], BTreeMap::new());
        Event::JobStarted { command: vec!["x".into()], ranks: 2, hosts, settings, release: "1".into(), interval: String::new() }
    }

    fn names(directory: &Path) -> Vec<String> {
        read(directory).unwrap().entries.iter().map(|entry| entry.event.name()).collect()
    }

    #[test]
    fn it_goes_on_where_it_was_and_tells_of_a_controller_that_died() {
        let place = tempfile::tempdir().unwrap();
        let mut first = Journal::open(place.path());
        first.record(started());
        drop(first);
        // Torn, as by a power failure.
        let path = place.path().join(FILE_NAME);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, [&bytes[..], &bytes[frame::FILE_HEAD..bytes.len() - 3]].concat()).unwrap();
        let mut second = Journal::open(place.path());
        second.record(started());
        second.end(0, Cause::Done);
        drop(second);
        drop(Journal::open(place.path()));
        assert_eq!(names(place.path()), ["job_started", "controller_died", "job_started", "ended"]);
        let entries = read(place.path()).unwrap().entries;
        assert!(entries.iter().map(|entry| entry.seq).eq(1..=4));
        assert_eq!(
            fs::metadata(&path).unwrap().len() as usize,
            frame::FILE_HEAD + entries.iter().map(|e| frame::encode(e).unwrap().len()).sum::<usize>()
        );
    }

    #[test]
    fn it_stays_small_and_adds_up() {
        let place = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_with(place.path(), 20_000);
        journal.record(started());
        for checkpoint in 1..=2_000 {
            let (by, mode) = (Asker::Schedule, "stop".into());
            journal.record(Event::CheckpointAsked { checkpoint, by, mode, base: None });
            journal.record(Event::CheckpointCommitted {
                checkpoint,
                by,
                kind: "full".into(),
                bytes: 5,
                stopped_us: 1,
                durable_us: 2,
                phases: Default::default(),
            });
            journal.record(Event::CheckpointRemoved { checkpoints: vec![checkpoint], by });
            assert!(fs::metadata(place.path().join(FILE_NAME)).unwrap().len() <= 25_000);
        }
        let entries = read(place.path()).unwrap().entries;
        assert_eq!(State::of(&entries).tallies.checkpoints, 2_000);
        assert_eq!(entries[0].event, started());
        assert!(!place.path().join("journal.new").exists());
        drop(journal);
        assert_eq!(Journal::open(place.path()).seq, 6_002);
    }

    #[test]
    fn a_journal_that_cannot_be_kept_hurts_nobody() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(FILE_NAME), "something else entirely").unwrap();
        let mut journal = Journal::open(place.path());
        journal.record(started());
        journal.decide(Event::KillAsked);
        journal.end(0, Cause::Done);
        assert_eq!(fs::read(place.path().join(FILE_NAME)).unwrap(), b"something else entirely");
        assert!(matches!(read(place.path()), Err(JournalError::Head { source: HeadError::Foreign, .. })));
        let mut nowhere = Journal::open(&place.path().join("gone"));
        nowhere.record(started());
        nowhere.tick();
    }
}
