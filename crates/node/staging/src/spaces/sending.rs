//! One file on its way from a space to where it is sent.
//!
//! ```text
//! noted as begun ──► read from the space, written there ──► unchanged here? ──► read back, compared ──► noted: these bytes get its name ──► its own name ──► noted as sent
//! ```
//! Invariants: a file is noted as sent only when what is there has been read back and is one state of the file in the space. What has the file's name there and did not come from here
//! stays, whenever it came. Faults assumed: this process is killed anywhere (what was begun is known by its note, and what had got its name by its bytes); others write to the place; the file changes, gets another name or is removed meanwhile; another one has taken the turn.

use super::ledger_file::LedgerFile;
use super::turn::Turn;
use crate::destination::{About, Destination, Named, Summing};
use crate::failure::{FAILED, Failure, UNREACHABLE};
use crate::settings::Settings;
use bytes::Bytes;
use mend_data::offload::ledger::{Line, Sent};
use mend_data::plan::Fault;
use mend_data::record::Version;
use mend_data::space::Entry;
use mend_data::sums::{Sum, Sums};
use mend_space::client::{Client, Refused, Writer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

/// Bytes that are read from the space at once.
const PIECE: u32 = 4 << 20;
/// Pieces that wait to be written.
const WAITING: usize = 2;
/// Pauses between tries: the first one; it doubles.
const PAUSE: Duration = Duration::from_millis(500);

/// A file as it was seen, in a state in which it may be sent.
#[derive(Clone, Debug)]
pub struct Item {
    pub entry: Entry,
    pub size: u64,
    pub changed_ns: i64,
}

/// What came of sending one.
#[derive(Debug)]
pub enum Outcome {
    /// It has arrived; false if it was there already.
    Sent(bool),
    /// It changed meanwhile, or is gone.
    Changed,
    /// It could not be sent.
    Failed(Failure),
}

/// Why a file is not sent, within this file.
enum Stop {
    Changed,
    /// Something else has its name there by now.
    Taken,
    /// What the place says, and while what was done.
    There(Fault),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::There(fault)
    }
}

/// What sends files of a space to one place.
pub struct Sending {
    pub client: Arc<Client>,
    pub writer: Arc<Writer>,
    pub destination: Destination,
    pub uri: String,
    pub ledger: Mutex<LedgerFile>,
    pub turn: Turn,
    pub settings: Settings,
    pub force: bool,
    /// The place does not take files: no more are begun.
    pub stopped: AtomicBool,
}

/// How long to wait after so many faults.
fn pause(faults: u32) -> Duration {
    PAUSE * 2_u32.saturating_pow(faults - 1).min(64)
}

/// The checksum of checksums, as it is noted.
fn digest(sums: &[Sum]) -> String {
    format!("{:032x}", Sum::of(&Sums::new(sums.to_vec()).to_bytes()).0)
}

impl Sending {
    pub fn ledger(&self) -> MutexGuard<'_, LedgerFile> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, line: Line) -> Result<(), Failure> {
        block_in_place(|| self.ledger().note(line))
    }

    fn shown(&self, path: &str) -> String {
        format!("{}:{path}", self.client.space.name)
    }

    /// What went wrong there, with what to do.
    pub fn failure(&self, path: &str, fault: &Fault) -> Failure {
        let (Fault::Passing(why) | Fault::Final(why)) = fault;
        let hint = if why.contains("No space left") || why.contains("is full") || why.contains("quota") {
            "make room there; what has arrived is not sent again"
        } else if why.contains("credentials") || why.contains("401") || why.contains("403") {
            "see the credentials in `mend data stage --help`"
        } else {
            ""
        };
        Failure::new(format!("{} cannot be sent to {}: {why}", self.shown(path), self.uri), hint, UNREACHABLE)
    }

    /// Removes what senders had begun that were killed.
    pub async fn sweep(&self) -> Result<(), Failure> {
        let parts = self.ledger().ledger.parts();
        for (part, path) in parts {
            self.destination.remove(&part).await.map_err(|fault| self.failure(&path, &fault))?;
            self.note(Line::Dropped { part })?;
        }
        Ok(())
    }

    /// Files that are noted as sent and are not there any more as they arrived.
    pub async fn is_there(&self, sent: &Sent) -> Result<bool, Failure> {
        let found = self.again(|| self.destination.version(&sent.path)).await.map_err(|fault| self.failure(&sent.path, &fault))?;
        Ok(found.is_some_and(|found| sent.there.changed_at(&self.uri, &found).is_none()))
    }

    /// Sends a file.
    pub async fn send(&self, item: &Item) -> Outcome {
        if self.stopped.load(Ordering::Relaxed) || self.turn.is_lost() {
            return Outcome::Changed;
        }
        let path = &item.entry.path;
        if let Some(why) = self.destination.refuses(path) {
            let hint = "give it another name, or send it to a directory (file://)";
            return Outcome::Failed(Failure::new(format!("{} cannot be sent to {}: {why}", self.shown(path), self.uri), hint, FAILED));
        }
        match self.sent(item).await {
            Ok(new) => Outcome::Sent(new),
            Err(Stop::Changed) => Outcome::Changed,
            Err(Stop::Taken) => Outcome::Failed(self.another(path)),
            Err(Stop::There(fault)) => Outcome::Failed(self.failure(path, &fault)),
            Err(Stop::Failed(failure)) => Outcome::Failed(failure),
        }
    }

    /// Asks once more after faults that may pass.
    async fn again<T, Asked: Future<Output = Result<T, Fault>>>(&self, ask: impl Fn() -> Asked) -> Result<T, Fault> {
        let mut faults = 0;
        loop {
            match ask().await {
                Err(Fault::Passing(why)) => {
                    faults += 1;
                    if faults >= self.settings.attempts || self.turn.is_lost() {
                        return Err(Fault::Passing(why));
                    }
                    tokio::time::sleep(pause(faults)).await;
                }
                other => return other,
            }
        }
    }

    /// True if it was not there.
    async fn sent(&self, item: &Item) -> Result<bool, Stop> {
        let path = &item.entry.path;
        let before = self.ledger().ledger.sent(path).cloned();
        // Another target says another time of what is the same: one that has the copy of a lost one.
        if let Some(before) = before.filter(|before| (before.id, before.size) == (item.entry.id, item.size)) {
            let there = self.again(|| self.destination.version(path)).await?;
            if let Some(there) = there.filter(|there| before.there.changed_at(&self.uri, there).is_none()) {
                let sums = self.read(item, None).await?;
                if digest(&sums) == before.sum {
                    self.unchanged(item).await?;
                    self.note(self.line(item, &sums, there))?;
                    return Ok(false);
                }
            }
        }
        let mut faults = 0;
        loop {
            let replaces = self.force || self.ledger().ledger.is_ours(path);
            let there = if replaces { None } else { self.again(|| self.destination.version(path)).await? };
            let named = match &there {
                Some(there) => self.was_named(path, there).await?,
                None => false,
            };
            if let Some(there) = there.filter(|_| !named) {
                return self.compared(item, there).await.map(|()| false);
            }
            let stop = match self.transfer(item, replaces || named).await {
                Ok(()) => return Ok(true),
                Err(stop) => stop,
            };
            faults += 1;
            match stop {
                // What came meanwhile is looked at.
                Stop::Taken if faults < self.settings.attempts => {}
                Stop::There(Fault::Passing(_)) if faults < self.settings.attempts && !self.turn.is_lost() => {
                    tokio::time::sleep(pause(faults)).await;
                    // What may be sent is what was seen, and it may have changed in this time.
                    self.unchanged(item).await?;
                }
                stop => return Err(stop),
            }
        }
    }

    /// True if what is there came from here: its name was given, and then this was killed, or did not hear of it.
    async fn was_named(&self, path: &str, there: &Version) -> Result<bool, Fault> {
        if !self.ledger().ledger.was_named(path, there.size, None) {
            return Ok(false);
        }
        let sums = self.again(|| self.destination.sums(path, there.size)).await?;
        Ok(self.ledger().ledger.was_named(path, there.size, Some(&digest(&sums))))
    }

    /// A file that is there and did not come from here: if it is the same, nothing is to be sent.
    async fn compared(&self, item: &Item, there: Version) -> Result<(), Stop> {
        let path = &item.entry.path;
        if there.size == item.size {
            let sums = self.read(item, None).await?;
            if self.again(|| self.destination.sums(path, item.size)).await? == sums {
                self.unchanged(item).await?;
                return Ok(self.note(self.line(item, &sums, there))?);
            }
        }
        Err(self.another(path).into())
    }

    fn another(&self, path: &str) -> Failure {
        let shown = self.shown(path);
        Failure::new(
            format!("{shown} is not sent to {}: another file of that name is there, which did not come from this space", self.uri),
            format!("send to another directory, or replace it: `mend data offload {shown} {} --force`", self.uri),
            FAILED,
        )
    }

    fn line(&self, item: &Item, sums: &[Sum], there: Version) -> Line {
        Line::Sent(Sent {
            path: item.entry.path.clone(),
            id: item.entry.id,
            size: item.size,
            changed_ns: item.changed_ns,
            of_all: true,
            sum: digest(sums),
            there,
        })
    }

    async fn transfer(&self, item: &Item, replaces: bool) -> Result<(), Stop> {
        let path = &item.entry.path;
        let unique = mend_wire::secret::to_hex(&mend_wire::random_bytes::<16>());
        let part = self.destination.part(path, &unique);
        if let Some(part) = &part {
            self.note(Line::Begun { path: path.clone(), part: part.clone() })?;
        }
        let done = self.through(item, part.as_deref(), replaces).await;
        if let (Err(_), Some(part)) = (&done, part) {
            // If it stays, the next one removes it.
            if self.destination.remove(&part).await.is_ok() {
                self.note(Line::Dropped { part })?;
            }
        }
        done
    }

    async fn through(&self, item: &Item, part: Option<&str>, replaces: bool) -> Result<(), Stop> {
        let path = &item.entry.path;
        let about = About { size: item.size, mode: item.entry.written().map_or(0o600, |file| file.mode), replaces };
        let name = part.unwrap_or(path);
        let sums = self.read(item, Some((name, about))).await?;
        let arrived = self.destination.sums(name, item.size).await?;
        if arrived != sums {
            if part.is_none() {
                // It has its name, and not by its bytes.
                self.note(Line::Begun { path: path.clone(), part: String::new() })?;
            }
            return Err(Fault::Passing("other bytes came back than were sent".to_owned()).into());
        }
        if self.turn.is_lost() {
            return Err(Stop::Changed);
        }
        if let Some(part) = part {
            self.note(Line::Named { path: path.clone(), size: item.size, sum: digest(&sums) })?;
            if self.destination.publish(part, path, about).await? == Named::Taken {
                return Err(Stop::Taken);
            }
        }
        let there = self.again(|| self.destination.version(path)).await?;
        let there = there.filter(|there| there.size == item.size);
        let there = there.ok_or_else(|| Fault::Passing("it is not there as it was sent".to_owned()))?;
        let line = self.line(item, &sums, there);
        block_in_place(|| {
            let mut ledger = self.ledger();
            ledger.note(line)?;
            // The name that it had is none any more.
            part.map_or(Ok(()), |part| ledger.note(Line::Dropped { part: part.to_owned() }))
        })?;
        Ok(())
    }

    /// Reads all of a file from the space, and writes it there, if that is wanted. Its end is written only if the file is as it was seen, and nothing else has its name.
    async fn read(&self, item: &Item, to: Option<(&str, About)>) -> Result<Vec<Sum>, Stop> {
        let mut upload = match to {
            Some((name, about)) => Some(self.destination.begin(name, about).await?),
            None => None,
        };
        let (give, mut pieces) = mpsc::channel(WAITING);
        let (writer, id, size) = (self.writer.clone(), item.entry.id, item.size);
        tokio::task::spawn_blocking(move || read_all(&writer, id, size, &give));
        let mut summing = Summing::default();
        let poured: Result<(), Stop> = async {
            while let Some(piece) = pieces.recv().await {
                let piece: Bytes = piece.map_err(|refused| self.unreadable(item, refused))?;
                summing.take(&piece);
                if let Some(upload) = &mut upload {
                    upload.write(piece).await?;
                }
            }
            if summing.length() != item.size { Err(Stop::Changed) } else { self.unchanged(item).await }
        }
        .await;
        let sums = summing.end();
        let may_end = match (to, poured) {
            (Some((name, about)), Ok(())) if name == item.entry.path => self.may_have_its_name(item, &sums, about).await,
            (_, poured) => poured,
        };
        match (upload, may_end) {
            (Some(upload), Ok(())) => {
                if upload.finish().await? == Named::Taken {
                    return Err(Stop::Taken);
                }
            }
            (None, Ok(())) => {}
            (upload, Err(stop)) => {
                if let Some(upload) = upload {
                    upload.abandon().await;
                }
                return Err(stop);
            }
        }
        Ok(sums)
    }

    /// It gets its own name with its last byte: before that it is looked whether something has the name by now, and noted what gets it.
    async fn may_have_its_name(&self, item: &Item, sums: &[Sum], about: About) -> Result<(), Stop> {
        let path = &item.entry.path;
        if !about.replaces && self.again(|| self.destination.version(path)).await?.is_some() {
            return Err(Stop::Taken);
        }
        Ok(self.note(Line::Named { path: path.clone(), size: item.size, sum: digest(sums) })?)
    }

    fn unreadable(&self, item: &Item, refused: Refused) -> Stop {
        match refused {
            Refused::Removed | Refused::Absent => Stop::Changed,
            refused => {
                let hint = if let Refused::Fault(fault) = &refused { fault.hint().to_owned() } else { String::new() };
                Stop::Failed(Failure::new(format!("{} cannot be read: {refused}", self.shown(&item.entry.path)), hint, FAILED))
            }
        }
    }

    /// An end, unless the file is as it was seen.
    async fn unchanged(&self, item: &Item) -> Result<(), Stop> {
        block_in_place(|| {
            self.client.refresh_since(Instant::now());
            let now = self.client.names().entry(&item.entry.id).cloned();
            let Some(now) = now.filter(|now| now.path == item.entry.path) else { return Err(Stop::Changed) };
            match self.writer.shape(&now) {
                Ok(shape) if shape == (item.size, item.changed_ns) => Ok(()),
                Ok(_) => Err(Stop::Changed),
                Err(fault) => Err(self.unreadable(item, fault.into())),
            }
        })
    }
}

/// Gives all of a file; less if it became shorter, or nobody takes it any more.
fn read_all(writer: &Writer, id: mend_data::space::Id, size: u64, give: &mpsc::Sender<Result<Bytes, Refused>>) {
    let mut at = 0;
    while at < size {
        let wanted = u64::from(PIECE).min(size - at) as u32;
        let read = writer.read(&id, at, wanted).map(|content| Bytes::from(content.bytes));
        let length = read.as_ref().map_or(0, Bytes::len);
        at += length as u64;
        let ends = length < wanted as usize;
        if give.blocking_send(read).is_err() || ends {
            return;
        }
    }
}
