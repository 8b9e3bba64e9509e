//! Files that are being staged, so that a command that was interrupted can go on, and what was left behind.
//!
//! Their chunks stay for `MEND_SPACE_BEGUN_S` after their last byte, also when the target is started anew. Nobody sees them.

use super::{Store, failed, held};
use crate::bucket::Listed;
use crate::catalogue::read;
use crate::writes::{chunk_of, whole};
use mend_data::space::catalogue::Change;
use mend_data::space::target::Failed;
use mend_data::space::{Entry, Id};
use mend_space::server::Failure;
use mend_wire::secret::{from_hex, to_hex};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// How long objects stay of which no entry tells, after their last byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stays {
    /// Of a file that is being staged.
    pub(super) staged: Duration,
    /// Of one of which nothing else is known, and of a copy that was begun.
    pub(super) others: Duration,
}

impl Stays {
    /// As it is set.
    pub(super) fn set() -> Self {
        // A value that makes no sense was refused by the command that staged.
        Self { staged: Duration::from_secs(mend_settings::SPACE_BEGUN.number().unwrap_or(86_400)), others: Duration::from_secs(600) }
    }
}

/// A file that gets something.
#[derive(Debug)]
pub(super) struct Begun {
    /// As it will be, if that is known.
    entry: Option<Entry>,
    /// When it got something last.
    since: Instant,
    /// Lengths of chunks that are in the bucket, by the object's place and the chunk's number: those that this process has stored or seen.
    stored: HashMap<u16, BTreeMap<u64, u64>>,
}

impl Begun {
    fn new(entry: Option<Entry>) -> Self {
        Self { entry, since: Instant::now(), stored: HashMap::new() }
    }

    fn stands_still(&self, now: Instant, stays: &Stays) -> bool {
        now.saturating_duration_since(self.since) > if self.entry.is_some() { stays.staged } else { stays.others }
    }
}

impl Store {
    /// A file got something just now.
    pub(super) fn touch(&self, file: &Id) {
        if let Some(begun) = held(&self.begun).get_mut(file) {
            begun.since = Instant::now();
            return;
        }
        // Whoever removes what was left of it is done first.
        let _one = held(self.lock_of(file));
        held(&self.begun).entry(*file).or_insert_with(|| Begun::new(None)).since = Instant::now();
    }

    /// Chunks of an object are in the bucket, by number and length. Of an object that an entry tells of nothing is noted: what is lost of it later is to be found.
    pub(super) fn note_stored(&self, file: &Id, position: u16, chunks: impl IntoIterator<Item = (u64, u64)>) {
        if self.known(file).is_none_or(|known| !known.held.contains(&position))
            && let Some(begun) = held(&self.begun).get_mut(file)
        {
            begun.stored.entry(position).or_default().extend(chunks);
        }
    }

    /// Bytes of an object that are in the bucket without a gap, by what was noted.
    pub(super) fn noted_length(&self, file: &Id, position: u16) -> u64 {
        let begun = held(&self.begun);
        begun
            .get(file)
            .and_then(|begun| begun.stored.get(&position))
            .map_or(0, |stored| whole(stored.iter().map(|(at, length)| (*at, *length))))
    }

    /// Objects of this file will come, and stay for a while whatever becomes of who sends them.
    pub(super) fn begin(&self, entry: &Entry) -> Result<(), Failure> {
        let _one = held(self.lock_of(&entry.id));
        match self.known(&entry.id).map(|known| known.change) {
            Some(Change::Gone(_)) => return Err(failed(Failed::Nonsense, "it was removed")),
            Some(Change::There(_)) => return Err(failed(Failed::Nonsense, "it is there already")),
            None => {}
        }
        self.write_down("begun", &entry.id, entry)?;
        self.is_owner(false)?;
        held(&self.begun).insert(entry.id, Begun::new(Some(entry.clone())));
        Ok(())
    }

    /// What is known of a file that is being staged.
    pub(super) fn being_staged(&self, file: &Id) -> Option<Entry> {
        held(&self.begun).get(file).and_then(|begun| begun.entry.clone())
    }

    /// The file is there.
    pub(super) fn is_over(&self, file: &Id) {
        let over = held(&self.begun).remove(file);
        if over.is_some_and(|begun| begun.entry.is_some()) {
            // One that stays goes when the target begins anew.
            let _ = self.bucket.delete(vec![format!("begun/{}", to_hex(file))], Some(self.bucket.limit()));
        }
    }

    /// When the target begins: files that were being staged.
    pub(super) fn read_begun(&self) -> Result<(), Failure> {
        let listed = self.bucket.list("begun", usize::MAX)?;
        let names: Vec<String> = listed.iter().map(|found| found.name.clone()).collect();
        for (found, stored) in listed.iter().zip(self.bucket.get_all(&names)?) {
            let Some(entry) = stored.as_deref().and_then(read::<Entry>).filter(|entry| self.known(&entry.id).is_none()) else { continue };
            // What it got since it was begun counts, and is asked for only if that was long ago.
            if found.age <= self.stays.staged || self.last_byte(&entry.id)?.is_some_and(|age| age <= self.stays.staged) {
                held(&self.begun).insert(entry.id, Begun::new(Some(entry)));
            }
        }
        Ok(())
    }

    /// How long ago the newest of a file's objects was stored.
    fn last_byte(&self, file: &Id) -> Result<Option<Duration>, Failure> {
        Ok(newest(&self.bucket.list(&format!("objects/{}", to_hex(file)), usize::MAX)?))
    }

    /// Removes what was begun and stands still.
    pub(super) fn sweep(&self, now: Instant) -> Result<(), Failure> {
        let stands_still = |begun: &Begun| begun.stands_still(now, &self.stays);
        let old: Vec<Id> = held(&self.begun).iter().filter(|(_, begun)| stands_still(begun)).map(|(id, _)| *id).collect();
        old.iter().try_for_each(|id| {
            let _one = held(self.lock_of(id));
            // It may have got something meanwhile.
            let is_old = held(&self.begun).get(id).is_some_and(stands_still);
            if is_old { self.let_go(id) } else { Ok(()) }
        })
    }

    /// A file will not be; or a copy of it that was begun here.
    pub(super) fn discard(&self, file: &Id) -> Result<(), Failure> {
        let _one = held(self.lock_of(file));
        self.let_go(file)
    }

    /// The same. Whoever calls holds the file's lock.
    fn let_go(&self, file: &Id) -> Result<(), Failure> {
        self.is_owner(false)?;
        held(&self.begun).remove(file);
        match self.known(file) {
            Some(known) if known.entry().is_some() => self.remove_objects(file, &known.held),
            _ => self.remove_all_of(file),
        }
    }

    /// When the target begins: removes what belongs to nothing that is known, if nobody can be writing it, and what is left of files that are gone.
    pub(super) fn tidy(&self) -> Result<(), Failure> {
        self.left_behind()?.into_iter().try_for_each(|(file, begun)| self.tidy_one(&file, begun))
    }

    /// Files that have objects here which no entry tells of, whoever writes them; and how long ago each was begun, if that is written down.
    pub(super) fn left_behind(&self) -> Result<BTreeMap<Id, Option<Duration>>, Failure> {
        let mut files: BTreeMap<Id, Option<Duration>> = BTreeMap::new();
        for below in ["objects", "sums", "begun"] {
            for found in self.bucket.list(below, usize::MAX)? {
                let Some(id) = found.name.split('/').nth(1).and_then(from_hex::<16>) else { continue };
                let belongs = self.known(&id).is_some_and(|known| {
                    let is_held = || chunk_of(&found.name).is_none_or(|chunk| known.held.contains(&chunk.position));
                    known.entry().is_some() && below != "begun" && is_held()
                });
                if !belongs {
                    let begun = files.entry(id).or_default();
                    *begun = (*begun).or((below == "begun").then_some(found.age));
                }
            }
        }
        Ok(files)
    }

    /// Removes what was left behind of a file, by what is known and stored now: listing all took long, and it may have been sent again meanwhile.
    pub(super) fn tidy_one(&self, file: &Id, begun: Option<Duration>) -> Result<(), Failure> {
        let _one = held(self.lock_of(file));
        let (id, known) = (to_hex(file), self.known(file));
        if known.as_ref().is_some_and(|known| known.entry().is_none()) {
            return self.remove_all_of(file);
        }
        // Somebody sends it. If that ends, it is swept.
        let is_sent = held(&self.begun).contains_key(file);
        let mut found = self.bucket.list(&format!("objects/{id}"), usize::MAX)?;
        let stays = match &known {
            // A second copy that was begun, or one that came onto others.
            Some(known) => {
                found.retain(|found| chunk_of(&found.name).is_some_and(|chunk| !known.held.contains(&chunk.position)));
                self.stays.others
            }
            None => {
                found.extend(self.bucket.list(&format!("sums/{id}"), usize::MAX)?);
                self.stays.staged.max(self.stays.others)
            }
        };
        // Of a file that is there it tells nothing.
        let begun_counts = begun.filter(|_| known.is_none());
        let is_old = newest(&found).into_iter().chain(begun_counts).min().is_some_and(|age| age > stays);
        let goes = !is_sent && is_old;
        let mut names: Vec<String> = found.into_iter().filter(|_| goes).map(|found| found.name).collect();
        names.extend(begun.filter(|_| goes || known.is_some()).map(|_| format!("begun/{id}")));
        self.remove(names)
    }
}

/// How long ago the newest of these was stored.
fn newest(found: &[Listed]) -> Option<Duration> {
    found.iter().map(|found| found.age).min()
}
