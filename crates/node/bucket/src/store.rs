//! What a target answers whose objects are in a bucket.
//!
//! ```text
//! PREFIX/NAME-0/SPACE/about                         the space, and that the target is made
//!                     owner                         which process serves the target
//!                     entries/ID, begun/ID          what is known (`catalogue`)
//!                     snapshot                      what was known of all entries (`opening`)
//!                     sums/ID/PAGE                  checksums
//!                     objects/ID/POSITION/NUMBER    bytes (`writes`)
//! ```
//! Invariants: what is acknowledged is in the bucket. Of two processes that serve the same target (a node was cut off, and another one took over) the one that began last counts: who changes
//! something looks for its own name in `owner` afterwards, and acknowledges nothing if it is not there, so whoever began before has seen all that was acknowledged. What ranks write is refused:
//! a byte range cannot be replaced in a bucket. Faults assumed: this process is killed at any moment; the bucket refuses, loses or changes objects, or does not answer.

mod begun;
mod objects;
mod opening;
#[cfg(test)]
mod tests;

use crate::bucket::{Bucket, held};
use crate::catalogue::{Catalogue, Known, written_down};
use crate::listing::Listings;
use crate::writes::Pieces;
use begun::{Begun, Stays};
use lru::LruCache;
use mend_data::space::catalogue::Change;
use mend_data::space::layout::Layout;
use mend_data::space::target::{Answer, Failed, Lease, Request, UNBOUNDED};
use mend_data::space::written::Shape;
use mend_data::space::{Entry, Id};
use mend_space::server::{Answered, Clients, Failure, Served, bytes, encoded};
use mend_wire::secret::to_hex;
use opening::Snapshot;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Locks for chunks and for entries, which share them by their names.
const LOCKS: usize = 256;
/// Pages of checksums that are kept in memory, each at most 64 KiB: while the bucket does not answer, readers can still tell what comes from sources.
const PAGES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// For how long it is believed that no other process has taken over, and that the bucket answers.
const BELIEVED: Duration = Duration::from_secs(2);
/// Objects that are removed together: as many as one request to a store takes.
const AT_ONCE: usize = 1000;

/// A failure of this kind.
fn failed(kind: Failed, why: &str) -> Failure {
    Failure::new(kind, why)
}

/// What is done when another process serves the target.
pub type Replaced = Box<dyn Fn() + Send + Sync>;

/// Pages of checksums, by file and number.
type Pages = LruCache<(Id, u32), Vec<u8>>;

/// A target of a space whose objects are in a bucket.
pub struct Store {
    bucket: Arc<Bucket>,
    /// This process, drawn when it began; and another name for the numbers of its catalogue.
    life: Id,
    instance: Id,
    replaced: Replaced,
    catalogue: RwLock<Catalogue>,
    changing: Vec<Mutex<()>>,
    chunks: Vec<RwLock<()>>,
    pieces: Mutex<Pieces>,
    /// Files that are being staged or copied.
    begun: Mutex<HashMap<Id, Begun>>,
    stays: Stays,
    /// Lengths of objects that were settled in this life.
    settled: Mutex<HashMap<(Id, u16), u64>>,
    pages: Mutex<Pages>,
    /// When it was seen last that no other process serves the target.
    seen: Mutex<Option<Instant>>,
    listings: Listings,
    clients: Clients,
    /// What is to be written into the snapshot: entries as they were read, with their tags. Empty if it is good enough.
    snapshot: Mutex<Snapshot>,
    gone: Mutex<Sender<Id>>,
    removing: Mutex<Option<Receiver<Id>>>,
}

impl Store {
    /// Opens a target, which must be there; with `create` it is made if it is not. The bucket is tried first. `replaced` is called when another process serves the target.
    pub fn open(bucket: Bucket, space: &Id, create: bool, replaced: Replaced) -> Result<Self, Failure> {
        let shown = bucket.shown().to_owned();
        // A bucket that is not there is told by a listing alone.
        bucket.list("", 1)?;
        match bucket.get("about")? {
            Some(about) if about == to_hex(space).as_bytes() => {}
            Some(_) => return Err(failed(Failed::Nonsense, &format!("{shown} has something else in the place of a target"))),
            None if create => {
                attempt(&bucket)?;
                bucket.put("about", to_hex(space).into_bytes())?;
            }
            None => return Err(failed(Failed::Absent, &format!("there is no target in {shown}"))),
        }
        let (gone, removing) = channel();
        let store = Self {
            bucket: Arc::new(bucket),
            life: mend_wire::random_bytes(),
            instance: mend_wire::random_bytes(),
            replaced,
            catalogue: RwLock::default(),
            changing: (0..LOCKS).map(|_| Mutex::default()).collect(),
            chunks: (0..LOCKS).map(|_| RwLock::default()).collect(),
            pieces: Mutex::default(),
            begun: Mutex::default(),
            stays: Stays::set(),
            settled: Mutex::default(),
            pages: Mutex::new(LruCache::new(PAGES)),
            seen: Mutex::default(),
            listings: Listings::default(),
            clients: Clients::default(),
            snapshot: Mutex::default(),
            gone: Mutex::new(gone),
            removing: Mutex::new(Some(removing)),
        };
        // From here on nobody else's changes are acknowledged, so what is read now is all of it.
        store.bucket.put("owner", to_hex(&store.life).into_bytes())?;
        store.read_catalogue()?;
        store.read_begun()?;
        Ok(store)
    }

    fn known(&self, id: &Id) -> Option<Known> {
        self.catalogue.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn learn(&self, id: Id, known: Known) {
        self.catalogue.write().unwrap_or_else(PoisonError::into_inner).learn(id, known);
    }

    fn lock_of(&self, id: &Id) -> &Mutex<()> {
        &self.changing[xxh3_64(id) as usize % LOCKS]
    }

    /// An error if another process serves the target now, or the bucket does not say. `lately`: unless that was seen a moment ago.
    fn is_owner(&self, lately: bool) -> Result<(), Failure> {
        if lately && held(&self.seen).is_some_and(|at| at.elapsed() < BELIEVED) {
            return Ok(());
        }
        let asked = Instant::now();
        let owner = self.bucket.get("owner")?;
        if owner.as_deref() != Some(to_hex(&self.life).as_bytes()) {
            (self.replaced)();
            return Err(failed(Failed::Busy, "another node serves this target now"));
        }
        *held(&self.seen) = Some(asked);
        Ok(())
    }

    fn look(&self) -> Result<Answer, Failure> {
        // What stands still can wait; whether this process counts is asked below.
        let _ = self.sweep(Instant::now());
        self.is_owner(true)?;
        let used = self.catalogue.read().unwrap_or_else(PoisonError::into_inner).used();
        Ok(Answer::Seen { free: UNBOUNDED, total: UNBOUNDED, used, life: self.life })
    }

    fn changes(&self, after: u64) -> Result<Answer, Failure> {
        match self.is_owner(true) {
            // Names are known also while the bucket does not answer.
            Err(Failure { kind: Failed::Medium, .. }) => {}
            checked => checked?,
        }
        let (upto, more, changes) = self.catalogue.read().unwrap_or_else(PoisonError::into_inner).after(after);
        Ok(Answer::Changes { instance: self.instance, upto, more, changes, lease: Lease::default() })
    }

    fn keep_sums(&self, file: &Id, page: u32, sums: &[u8]) -> Result<(), Failure> {
        self.touch(file);
        self.bucket.put(&format!("sums/{}/{page}", to_hex(file)), sums.to_vec())?;
        held(&self.pages).put((*file, page), sums.to_vec());
        Ok(())
    }

    fn sums(&self, file: &Id, page: u32) -> Result<Vec<u8>, Failure> {
        if let Some(kept) = held(&self.pages).get(&(*file, page)) {
            return Ok(kept.clone());
        }
        let stored = self.bucket.get(&format!("sums/{}/{page}", to_hex(file)))?;
        let sums = stored.ok_or_else(|| failed(Failed::Absent, "it does not have these checksums"))?;
        held(&self.pages).put((*file, page), sums.clone());
        Ok(sums)
    }

    fn put(&self, entry: &Entry, positions: &[u16]) -> Result<(), Failure> {
        let _one = held(self.lock_of(&entry.id));
        let before = match self.known(&entry.id).map(|known| known.change) {
            Some(Change::There(known)) if !entry.replaces(&known) => return Ok(()),
            Some(Change::There(known)) => Some(known),
            Some(Change::Gone(_)) => return Err(failed(Failed::Nonsense, "it was removed")),
            None => None,
        };
        if entry.written().is_some() {
            return Err(refused());
        }
        for position in positions.iter().filter(|_| entry.file().is_some()) {
            let must = entry.file().map_or(0, |file| Layout::of(file).object_length((*position).into()));
            let has = self.length(&entry.id, *position)?;
            if has != must {
                return Err(failed(Failed::Short, &format!("an object has {has} bytes instead of {must}")));
            }
        }
        let known = Known { change: Change::There(Box::new(entry.clone())), held: positions.to_vec() };
        self.write_down("entries", &entry.id, &(&known.change, &known.held))?;
        self.is_owner(false)?;
        self.learn(entry.id, known);
        self.is_over(&entry.id);
        if before.is_some() {
            // They are on others now. What stays, since the bucket does not answer, goes when the target begins anew.
            let _ = self.remove_objects(&entry.id, positions);
        }
        Ok(())
    }

    fn write_down<T: Serialize>(&self, what: &str, id: &Id, content: &T) -> Result<(), Failure> {
        self.bucket.put(&format!("{what}/{}", to_hex(id)), written_down(content))
    }

    fn forget(&self, ids: &[Id]) -> Result<(), Failure> {
        let gone = |id: &Id| matches!(self.known(id).map(|known| known.change), Some(Change::Gone(_)));
        let new: Vec<Id> = ids.iter().filter(|id| !gone(id)).copied().collect();
        let known = |id: Id| Known { change: Change::Gone(id), held: Vec::new() };
        let stored = |id: &Id| (format!("entries/{}", to_hex(id)), written_down(&(Change::Gone(*id), Vec::<u16>::new())));
        // One at a time for each of the files, in the order of the locks.
        let locks: HashSet<usize> = new.iter().map(|id| xxh3_64(id) as usize % LOCKS).collect();
        let mut locks: Vec<usize> = locks.into_iter().collect();
        locks.sort_unstable();
        let _all: Vec<MutexGuard<'_, ()>> = locks.into_iter().map(|at| held(&self.changing[at])).collect();
        let (stored, done) = self.bucket.put_all(new.iter().map(stored).collect());
        self.is_owner(false)?;
        // If it is asked again, since that did not do for all, the rest is less.
        for id in stored.into_iter().filter_map(|place| new.get(place).copied()) {
            self.learn(id, known(id));
            held(&self.pieces).retain(|chunk, _| chunk.file != id);
            held(&self.begun).remove(&id);
            // Its objects go behind this: there may be many.
            let _ = held(&self.gone).send(id);
        }
        done
    }

    /// Removes objects of a file that is gone.
    fn remove_all_of(&self, file: &Id) -> Result<(), Failure> {
        let id = to_hex(file);
        self.remove_objects(file, &[])?;
        let sums = self.bucket.list(&format!("sums/{id}"), usize::MAX)?;
        self.remove(sums.into_iter().map(|found| found.name).chain([format!("begun/{id}")]).collect())
    }

    /// Removes objects, and none when another process serves the target: what that one has acknowledged since may have the same names.
    fn remove(&self, names: Vec<String>) -> Result<(), Failure> {
        names.chunks(AT_ONCE).try_for_each(|some| {
            self.is_owner(false)?;
            self.bucket.delete(some.to_vec(), None).map(drop)
        })
    }

    /// Removes what was left behind, and then what clients remove.
    fn remove_behind(&self) {
        let Some(removing) = held(&self.removing).take() else { return };
        for failure in [self.keep_snapshot(), self.tidy()].into_iter().filter_map(Result::err) {
            mend_report::tell!("mend-bucket: {}: {}", self.bucket.shown(), failure.why);
        }
        for file in removing {
            if let Err(failure) = self.remove_all_of(&file) {
                // It goes when the target begins anew.
                mend_report::tell!("mend-bucket: {}: {}", self.bucket.shown(), failure.why);
            }
        }
    }

    /// The space is no more. It is asked again until nothing is left, and each time something goes, however slow the store is; what says that there is a target goes last.
    fn leave(&self) -> Result<(), Failure> {
        let until = Instant::now() + self.bucket.limit();
        let mut left = None;
        loop {
            let listed = self.bucket.list("", AT_ONCE)?;
            let names: Vec<String> = listed.into_iter().map(|found| found.name).filter(|name| name != "about").collect();
            if names.is_empty() {
                return self.bucket.delete(vec!["about".to_owned()], None).map(drop);
            }
            let removed = self.bucket.delete(names, left)?;
            let rest = until.saturating_duration_since(Instant::now());
            if !removed || rest.is_zero() {
                return Err(failed(Failed::Busy, "its objects are being removed"));
            }
            left = Some(rest);
        }
    }

    fn answer(&self, request: Request, payload: &[u8]) -> Answered {
        let done = match request {
            Request::Look => self.look()?,
            Request::Changes { after, .. } => self.changes(after)?,
            Request::Write { file, position, offset, .. } => self.write(&file, position, offset, payload).map(|()| Answer::Done)?,
            Request::Settle { file, position, length, life } => self.settle(&file, position, length, life).map(|()| Answer::Done)?,
            Request::Sums { file, page, .. } => self.keep_sums(&file, page, payload).map(|()| Answer::Done)?,
            Request::Put { entry, positions } => self.put(&entry, &positions).map(|()| Answer::Done)?,
            Request::Read { file, position, offset, length } => return bytes(self.read(&file, position, offset, length)?),
            Request::ReadSums { file, page } => return bytes(self.sums(&file, page)?),
            Request::Forget { ids } => self.forget(&ids).map(|()| Answer::Done)?,
            Request::Lacking { at } => return encoded(&self.lacking(at)?),
            Request::Verify { file, position, first, count } => return bytes(self.verify(&file, position, first, count)?),
            request @ (Request::Touched { .. } | Request::Patterns { .. } | Request::Heal { .. } | Request::Claim { .. }) => {
                return self.clients.answer(request);
            }
            Request::Leave => self.leave().map(|()| Answer::Done)?,
            Request::Discard { file } => self.discard(&file).map(|()| Answer::Done)?,
            Request::Begin { entry } => self.begin(&entry).map(|()| Answer::Done)?,
            // It has no files that ranks write.
            Request::Shapes { files } => return encoded(&vec![Vec::<Shape>::new(); files.len()]),
            Request::Writing { files } => return bytes(vec![0; files.len()]),
            Request::Holds { .. } => Answer::Done,
            Request::Adopt { .. }
            | Request::WriteRange { .. }
            | Request::ReadRange { .. }
            | Request::ReadBlocks { .. }
            | Request::MendBlock { .. }
            | Request::Fill { .. }
            | Request::Cut { .. }
            | Request::Sync { .. }
            | Request::Stamp { .. } => return Err(refused()),
        };
        Ok((done, Vec::new()))
    }
}

impl Served for Store {
    fn carry_out(&self, request: Request, payload: &[u8]) -> Answered {
        let told = |Failure { kind, why }: Failure| Failure::new(kind, why.replace('\t', "; "));
        self.answer(request, payload).map_err(told)
    }

    fn begun(&self) {
        self.remove_behind();
    }
}

/// Stores, reads and removes an object: what a target needs.
fn attempt(bucket: &Bucket) -> Result<(), Failure> {
    let name = format!("attempt-{}", to_hex(&mend_wire::random_bytes::<8>()));
    bucket.put(&name, b"attempt".to_vec())?;
    let read = bucket.get_range(&name, 2..5);
    bucket.delete(vec![name.clone()], Some(bucket.limit()))?;
    if read?.as_deref() != Some(b"tem") || bucket.get(&name)?.is_some() {
        return Err(failed(Failed::Medium, &format!("{} does not give back what was stored there", bucket.shown())));
    }
    Ok(())
}

fn refused() -> Failure {
    failed(Failed::Nonsense, "ranks cannot write to a bucket")
}
