//! Objects of files that ranks write: byte ranges in any order, with checksums that the target makes.
//!
//! ```text
//! objects/ab/ID.POSITION        bytes, with holes
//! objects/ab/ID.POSITION.sums   a checksum for each block of 64 KiB, as if it were filled up with zeros; 0 of a block that must be zeros
//! objects/ab/ID.POSITION.open   there, and durable, from before the first write until all of it is synced
//! ```
//! Invariants: a block that is read or partly overwritten is compared with its checksum first, so that damage is never taken for content. Blocks that were
//! being written when the process or the node ended are of an object that is open: their checksums are made anew (`open`). A block that a medium has changed gets back what it had (`mending`). All copies tell the same time (`times`).
//! Faults assumed: the process is killed at any moment; the power fails (what was not synced is lost, and the writer is told by `boot`); the medium is full or damaged.

use super::{Failure, Store, database};
use crate::holes::are_zeros;
use mend_data::ranges::{self, Range};
use mend_data::space::blocks::{self, BlockTold};
use mend_data::space::catalogue::Change;
use mend_data::space::target::{Answer, Failed};
use mend_data::space::written::{Shape, Written, piece_sums, range_sum, sum_of_pieces};
use mend_data::space::{BLOCK, Entry, Id, filled_block_sum};
use open::Open;
use redb::ReadableDatabase;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use times::{changed, set_changed};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Locks for objects, which share them by their names.
const LOCKS: usize = 64;
/// Blocks whose checksums are made at once.
const BLOCKS: u64 = 64;

/// An object.
type Object = (Id, u16);

/// What is under way.
#[derive(Debug)]
pub(super) struct Writing {
    /// Which start of the node this is.
    boot: Id,
    locks: Vec<RwLock<()>>,
    open: Mutex<HashMap<Object, Open>>,
    /// Number of the next write.
    writes: AtomicU64,
    /// What was written of objects that are being filled, since they were made.
    filling: Mutex<HashMap<Object, Vec<Range>>>,
    /// Objects are made for one file at a time.
    adopting: Mutex<()>,
}

impl Default for Writing {
    fn default() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        // If it cannot be told, each start of the process counts as one of the node.
        let boot = boot.map_or_else(|_| mend_wire::random_bytes(), |boot| xxh3_128(boot.as_bytes()).to_le_bytes());
        let locks = (0..LOCKS).map(|_| RwLock::default()).collect();
        Self { boot, locks, open: Mutex::default(), writes: AtomicU64::new(1), filling: Mutex::default(), adopting: Mutex::default() }
    }
}

impl Writing {
    fn lock(&self, object: &Object) -> &RwLock<()> {
        &self.locks[place_of_lock(object)]
    }

    /// Waits until nobody else has any of these objects.
    fn lock_all(&self, objects: impl Iterator<Item = Object>) -> Vec<RwLockWriteGuard<'_, ()>> {
        // Each once, and in the same order everywhere.
        let places: BTreeSet<usize> = objects.map(|object| place_of_lock(&object)).collect();
        places.into_iter().map(|place| write_guard(&self.locks[place])).collect()
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<Object, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn filling(&self) -> std::sync::MutexGuard<'_, HashMap<Object, Vec<Range>>> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what was written, if the object is being filled.
    fn note(&self, object: Object, range: Range) {
        if let Some(written) = self.filling().get_mut(&object) {
            let before = std::mem::take(written);
            *written = ranges::merged(before.into_iter().chain([range]).collect());
        }
    }

    /// Files of which something was written and not synced.
    pub fn unsynced(&self) -> HashSet<Id> {
        self.open().iter().filter(|(_, open)| open.is_unsynced()).map(|((file, _), _)| *file).collect()
    }

    /// Copies of a file that lack nothing: what is written to them need not be noted any more.
    pub fn is_whole(&self, file: &Id, known: &Written) {
        self.filling().retain(|(of, position), _| of != file || known.filling.contains(position));
    }

    /// The objects of a file but those at these places are gone, and so is what was noted of them.
    pub fn let_go(&self, file: &Id, but: &[u16]) {
        let stays = |(of, position): &Object| of != file || but.contains(position);
        self.open().retain(|object, _| stays(object));
        self.filling().retain(|object, _| stays(object));
    }

    /// An object was open when the target began.
    pub fn found_open(&self, file: Id, position: u16) {
        self.open().insert((file, position), Open::FOUND);
    }
}

fn place_of_lock((file, position): &Object) -> usize {
    xxh3_64(&[&file[..], &position.to_le_bytes()].concat()) as usize % LOCKS
}

fn write_guard(lock: &RwLock<()>) -> RwLockWriteGuard<'_, ()> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn read_guard(lock: &RwLock<()>) -> RwLockReadGuard<'_, ()> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Where bytes are to be in an object.
fn range(offset: u64, bytes: &[u8]) -> Result<Range, Failure> {
    let length = bytes.len() as u64;
    let fits = offset.checked_add(length).is_some_and(|end| i64::try_from(end).is_ok());
    if fits { Ok(Range { offset, length }) } else { Err(Failure::new(Failed::Nonsense, "no object is that long")) }
}

fn no_object() -> Failure {
    Failure::new(Failed::Nonsense, "the file has no such object")
}

/// The number in its file of an object's block.
fn index_in_file(file: &Written, position: u16, block: u64) -> u64 {
    file.layout().file_offset(usize::from(position), block.saturating_mul(BLOCK)) / BLOCK
}

/// The name of what belongs to an object.
fn beside(object: &Path, what: &str) -> PathBuf {
    let mut name = object.as_os_str().to_owned();
    name.push(what);
    name.into()
}

/// An object with its checksums, opened.
struct Opened {
    id: Id,
    position: u16,
    file: Written,
    path: PathBuf,
    bytes: File,
    sums: File,
    length: u64,
    /// When it was changed, as of when it was opened.
    changed_ns: i64,
}

impl Opened {
    fn sum_of(&self, block: u64, bytes: &[u8]) -> u128 {
        filled_block_sum(&self.id, index_in_file(&self.file, self.position, block), bytes)
    }

    /// What a block has; less than a whole one at the end of the object.
    fn block(&self, block: u64) -> io::Result<Vec<u8>> {
        let from = block.saturating_mul(BLOCK);
        let mut bytes = vec![0; self.length.saturating_sub(from).min(BLOCK) as usize];
        self.bytes.read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    }

    fn known_sums(&self, first: u64, count: u64) -> io::Result<Vec<u128>> {
        let mut known = vec![0; count as usize * 16];
        let mut filled = 0;
        while filled < known.len() {
            match self.sums.read_at(&mut known[filled..], first * 16 + filled as u64)? {
                0 => break,
                more => filled += more,
            }
        }
        Ok(known.chunks_exact(16).map(|sum| u128::from_le_bytes(sum.try_into().unwrap_or_default())).collect())
    }

    fn keep_sums(&self, first: u64, sums: &[u128]) -> io::Result<()> {
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.sums.write_all_at(&bytes, first * 16)
    }

    fn is_right(&self, block: u64, bytes: &[u8], sum: u128) -> bool {
        if sum == 0 { bytes.iter().all(|byte| *byte == 0) } else { self.sum_of(block, bytes) == sum }
    }

    /// True if its end is lost: it never has more checksums than blocks.
    fn is_short(&self) -> io::Result<bool> {
        Ok(self.sums.metadata()?.len() > self.length.div_ceil(BLOCK) * 16)
    }

    /// An error if its end is lost.
    fn ends(&self) -> Result<(), Failure> {
        let short = || Failure::new(Failed::Short, format!("{} is shorter than it was written", self.path.display()));
        if self.is_short()? { Err(short()) } else { Ok(()) }
    }

    /// An error if it ends before that, and its last block is not as it was written: that says that nothing is behind it.
    fn ends_before(&self, wanted: u64) -> Result<(), Failure> {
        if wanted > self.length && !self.length.is_multiple_of(BLOCK) {
            self.verified(self.length / BLOCK)?;
        }
        Ok(())
    }

    /// What a block has, if it is as it was written.
    fn verified(&self, block: u64) -> Result<Vec<u8>, Failure> {
        let bytes = self.block(block)?;
        let sum = self.known_sums(block, 1)?.first().copied().unwrap_or_default();
        if self.is_right(block, &bytes, sum) {
            return Ok(bytes);
        }
        Err(Failure::new(Failed::Medium, format!("block {block} of {} has another checksum than it was written with", self.path.display())))
    }

    /// Takes these blocks as they are now.
    fn sum_up(&self, blocks: std::ops::Range<u64>) -> io::Result<()> {
        let mut first = blocks.start;
        while first < blocks.end {
            let count = (blocks.end - first).min(BLOCKS);
            let mut sums = self.known_sums(first, count)?;
            for (sum, block) in sums.iter_mut().zip(first..) {
                let bytes = self.block(block)?;
                if !self.is_right(block, &bytes, *sum) {
                    *sum = self.sum_of(block, &bytes);
                }
            }
            self.keep_sums(first, &sums)?;
            first += count;
        }
        Ok(())
    }
}

impl Store {
    /// A file that ranks write, if it is here and its map is of this epoch.
    fn written(&self, file: &Id, epoch: Option<u32>) -> Result<Written, Failure> {
        match self.known(file)? {
            Some(Change::There(entry)) => match entry.written() {
                Some(known) if epoch.is_none_or(|epoch| epoch == known.epoch) => Ok(known.clone()),
                Some(_) => Err(Failure::new(Failed::Moved, "the file is on other targets now")),
                None => Err(Failure::new(Failed::Nonsense, "it was staged, and is never changed")),
            },
            Some(Change::Gone(_)) => Err(Failure::new(Failed::Absent, "the file was removed")),
            None => Err(Failure::new(Failed::Absent, "it does not know this file")),
        }
    }

    fn open_object(&self, file: &Id, position: u16, known: Written) -> Result<Opened, Failure> {
        if usize::from(position) >= known.objects.len() {
            return Err(no_object());
        }
        let path = self.path(file, position);
        let bytes = OpenOptions::new().read(true).write(true).open(&path)?;
        let sums = beside(&path, ".sums");
        let sums = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(sums)?;
        let about = bytes.metadata()?;
        Ok(Opened { id: *file, position, file: known, path, bytes, sums, length: about.len(), changed_ns: changed(&about) })
    }

    /// Makes objects that come here, empty. What of them is to be copied from another target is filled then.
    pub(super) fn adopt(&self, entry: &Entry, positions: &[u16], fresh: &[u16]) -> Result<(), Failure> {
        let Some(known) = entry.written() else { return Err(Failure::new(Failed::Nonsense, "ranks do not write it")) };
        let _one = self.writing.adopting.lock().unwrap_or_else(PoisonError::into_inner);
        match self.known(&entry.id)? {
            // It was asked before, and the answer was lost.
            Some(Change::There(before)) if *before == *entry => return Ok(()),
            // By whoever was stopped for long: what others have written here since stays.
            Some(Change::There(before)) if !entry.replaces(&before) => {
                return Err(Failure::new(Failed::Moved, "the file is on other targets now"));
            }
            Some(Change::Gone(_)) => return Err(Failure::new(Failed::Absent, "the file was removed")),
            Some(Change::There(_)) | None => {}
        }
        // A copy that is made anew where it was is emptied when the map says that it lacks something: who ends in between must not leave an empty one that counts as whole.
        let is_again = |position: &u16| known.filling.contains(position) && self.path(&entry.id, *position).exists();
        let (again, new): (Vec<u16>, Vec<u16>) = fresh.iter().copied().partition(is_again);
        for position in new {
            let _held = write_guard(self.writing.lock(&(entry.id, position)));
            self.make_object(entry, known, position)?;
        }
        // Nobody writes to it in between: that would be emptied as well.
        let held = self.writing.lock_all(again.iter().map(|position| (entry.id, *position)));
        self.put(entry, positions)?;
        again.into_iter().try_for_each(|position| self.make_object(entry, known, position))?;
        drop(held);
        // Whoever still writes by the map that was has one of these. Who comes later looks at the map first.
        (0..known.objects.len() as u16).for_each(|position| drop(write_guard(self.writing.lock(&(entry.id, position)))));
        Ok(())
    }

    /// Makes an empty object, also of one that was here before the file went onto other targets and is out of date. Whoever calls holds its lock.
    fn make_object(&self, entry: &Entry, known: &Written, position: u16) -> Result<(), Failure> {
        let key = (entry.id, position);
        let path = self.path(&entry.id, position);
        let directory = self.make_directory(&path)?;
        let before = fs::metadata(&path).map_or(0, |about| about.len());
        for name in [path.clone(), beside(&path, ".sums")] {
            let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&name)?;
            if name == path {
                // All copies tell the same time, which whoever made the file knows.
                set_changed(&made, entry.made_ns)?;
            }
            made.sync_all()?;
        }
        mend_durable::sync_directory(&directory)?;
        self.count_used(before, 0);
        self.writing.open().remove(&key);
        if known.filling.contains(&position) {
            self.writing.filling().insert(key, Vec::new());
        }
        Ok(())
    }

    /// Removes the objects of a file, which it has by its map. The bytes that they had.
    pub(super) fn remove_written(&self, file: &Id, known: &Written) -> Result<u64, Failure> {
        self.writing.let_go(file, &[]);
        let mut bytes = 0;
        for position in 0..known.objects.len() as u16 {
            let path = self.path(file, position);
            bytes += fs::metadata(&path).map_or(0, |about| about.len());
            for name in [path.clone(), beside(&path, ".sums"), beside(&path, ".open")] {
                match fs::remove_file(name) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(bytes)
    }

    pub(super) fn fill(
        &self,
        file: &Id,
        epoch: u32,
        position: u16,
        offset: u64,
        bytes: &[u8],
        (sum, changed_ns): (u128, i64),
    ) -> Result<Answer, Failure> {
        if range_sum(bytes) != sum {
            return Err(Failure::new(Failed::Nonsense, "the bytes are not those that were sent"));
        }
        self.has_room(bytes.len() as u64)?;
        // Whoever writes meanwhile is before or behind all of this.
        let _held = write_guard(self.writing.lock(&(*file, position)));
        let known = self.written(file, Some(epoch))?;
        let Some(written) = self.writing.filling().get(&(*file, position)).cloned() else {
            return Err(Failure::new(Failed::Absent, "it was started anew while a copy was made"));
        };
        let untouched = written.is_empty();
        let wanted = range(offset, bytes)?;
        let mut at = wanted.offset;
        let end = Range { offset: wanted.end(), length: 0 };
        for taken in written.into_iter().filter(|taken| taken.end() > wanted.offset && taken.offset < wanted.end()).chain([end]) {
            if taken.offset > at {
                let piece = &bytes[(at - offset) as usize..(taken.offset.min(wanted.end()) - offset) as usize];
                // Where nobody has written since the object was made, there are zeros.
                let put = match are_zeros(piece) {
                    true => self.lengthen(file, position, known.clone(), at + piece.len() as u64)?,
                    false => self.put_range(file, position, known.clone(), at, piece, &[])?,
                };
                match put {
                    Some(object) if untouched => set_changed(&object.bytes, changed_ns)?,
                    Some(object) => object.stays_as_it_was()?,
                    None => {}
                }
            }
            at = at.max(taken.end());
        }
        Ok(Answer::Held { boot: self.writing.boot })
    }

    /// An object is so long at least, with a hole at its end. Whoever calls holds its lock.
    fn lengthen(&self, file: &Id, position: u16, known: Written, length: u64) -> Result<Option<Opened>, Failure> {
        let object = self.open_object(file, position, known)?;
        if length > object.length {
            self.begin_writing(&object, object.length / BLOCK..object.length.div_ceil(BLOCK))?;
            object.bytes.set_len(length)?;
            self.count_used(object.length, length);
        }
        Ok(Some(object))
    }

    fn count_used(&self, before: u64, now: u64) {
        use std::sync::atomic::Ordering;
        let count = |used: u64| Some(used.saturating_add(now).saturating_sub(before));
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
    }

    pub(super) fn write_range(
        &self,
        file: &Id,
        epoch: u32,
        position: u16,
        (offset, appends): (u64, bool),
        bytes: &[u8],
        (sum, changed_ns): (u128, i64),
    ) -> Result<Answer, Failure> {
        let known = self.written(file, Some(epoch))?;
        if usize::from(position) >= known.objects.len() {
            return Err(no_object());
        }
        let sums: Vec<u128> = piece_sums(file, offset, bytes, |at| index_in_file(&known, position, offset / BLOCK + at)).collect();
        if sum_of_pieces(&sums) != sum {
            return Err(Failure::new(Failed::Nonsense, "the bytes are not those that were sent"));
        }
        self.has_room_in(file, position, range(offset, bytes)?)?;
        let _held = write_guard(self.writing.lock(&(*file, position)));
        // It may have moved meanwhile.
        let known = self.written(file, Some(epoch))?;
        if appends && !self.open_object(file, position, known.clone())?.is_free_for(offset, bytes)? {
            return Err(Failure::new(Failed::Busy, "somebody else has appended to it meanwhile"));
        }
        if let Some(object) = self.put_range(file, position, known, offset, bytes, &sums)? {
            object.written_at(changed_ns)?;
        }
        self.writing.note((*file, position), range(offset, bytes)?);
        Ok(Answer::Held { boot: self.writing.boot })
    }

    /// The object, if there is anything to write. Whoever calls holds its lock. `known_sums`: those of the blocks, if they are known; of blocks that are not whole they are not used.
    fn put_range(
        &self,
        file: &Id,
        position: u16,
        known: Written,
        offset: u64,
        bytes: &[u8],
        known_sums: &[u128],
    ) -> Result<Option<Opened>, Failure> {
        let end = range(offset, bytes)?.end();
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut object = self.open_object(file, position, known)?;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        self.begin_writing(&object, blocks.clone())?;
        let mut sums = Vec::with_capacity((blocks.end - blocks.start) as usize);
        for block in blocks.clone() {
            let start = block * BLOCK;
            let (from, until) = (offset.max(start), end.min(start + BLOCK));
            let new = &bytes[(from - offset) as usize..(until - offset) as usize];
            if new.len() as u64 == BLOCK {
                let known = known_sums.get((block - blocks.start) as usize);
                sums.push(known.copied().unwrap_or_else(|| object.sum_of(block, new)));
                continue;
            }
            let mut merged = object.verified(block)?;
            let (from, until) = ((from - start) as usize, (until - start) as usize);
            merged.resize(merged.len().max(until), 0);
            merged[from..until].copy_from_slice(new);
            sums.push(object.sum_of(block, &merged));
        }
        let before = object.length;
        let written = object.bytes.write_all_at(bytes, offset).and_then(|()| object.keep_sums(blocks.start, &sums));
        object.length = object.bytes.metadata()?.len();
        self.count_used(before, object.length);
        if let Err(error) = written {
            // A part of it may be there. Who wrote it is told; what else is in these blocks stays.
            object.sum_up(blocks.start..blocks.end.min(object.length.div_ceil(BLOCK)))?;
            return Err(error.into());
        }
        Ok(Some(object))
    }

    /// An object of which these blocks are to be read; nobody writes it while the guard is held.
    fn reading(&self, file: &Id, position: u16, blocks: std::ops::Range<u64>) -> Result<(Opened, RwLockReadGuard<'_, ()>), Failure> {
        let known = self.written(file, None)?;
        let lock = self.writing.lock(&(*file, position));
        if self.is_doubted(&(*file, position)) {
            let _held = write_guard(lock);
            self.ascertain(&self.open_object(file, position, known.clone())?, blocks)?;
        }
        let held = read_guard(lock);
        let object = self.open_object(file, position, known)?;
        object.ends()?;
        Ok((object, held))
    }

    /// `sums`: 16 bytes for each block, the checksum that whoever asks knows.
    pub(super) fn read_blocks(&self, file: &Id, position: u16, first: u64, sums: &[u8]) -> Result<Vec<u8>, Failure> {
        let count = sums.len() as u64 / 16;
        let (object, _held) = self.reading(file, position, first..first.saturating_add(count))?;
        let known = object.known_sums(first, count)?;
        let asked = sums.chunks_exact(16).map(|sum| u128::from_le_bytes(sum.try_into().unwrap_or_default()));
        let end = first.saturating_add(count).saturating_mul(BLOCK);
        object.ends_before(end)?;
        let mut content = Vec::new();
        for (block, (sum, asked)) in (first..).zip(known.into_iter().zip(asked)) {
            let length = object.length.saturating_sub(block.saturating_mul(BLOCK)).min(BLOCK) as u32;
            // What is not read here cannot be wrong: the checksum says that the other side has what was written.
            content.push(match sum {
                _ if length == 0 => (length, None),
                0 => object.verified(block).map(|_| (length, None))?,
                sum if sum == asked => (length, Some(None)),
                _ => (length, Some(Some(object.verified(block)?))),
            });
        }
        let told = content.iter().map(|(length, bytes)| match bytes {
            None => BlockTold::Zeros(*length),
            Some(None) => BlockTold::Same(*length),
            Some(Some(bytes)) => BlockTold::Bytes(bytes),
        });
        Ok(blocks::encode(&told.collect::<Vec<_>>()))
    }

    pub(super) fn read_range(&self, file: &Id, position: u16, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        let wanted = offset.saturating_add(length.into());
        let (object, _held) = self.reading(file, position, offset / BLOCK..wanted.div_ceil(BLOCK))?;
        object.ends_before(wanted)?;
        let end = wanted.min(object.length);
        let mut bytes = Vec::with_capacity(end.saturating_sub(offset) as usize);
        let mut at = offset;
        while at < end {
            let start = at / BLOCK * BLOCK;
            let block = object.verified(at / BLOCK)?;
            let until = (end - start).min(BLOCK) as usize;
            bytes.extend_from_slice(block.get((at - start) as usize..until).unwrap_or_default());
            at = start + BLOCK;
        }
        Ok(bytes)
    }

    pub(super) fn cut(&self, file: &Id, epoch: u32, position: u16, length: u64, changed_ns: i64) -> Result<Answer, Failure> {
        let _held = write_guard(self.writing.lock(&(*file, position)));
        let object = self.open_object(file, position, self.written(file, Some(epoch))?)?;
        self.writing.note((*file, position), Range::between(length, u64::MAX));
        if length != object.length {
            self.begin_writing(&object, length / BLOCK..length.div_ceil(BLOCK))?;
            let partial = length < object.length && !length.is_multiple_of(BLOCK);
            let last = length / BLOCK;
            let kept = partial.then(|| object.verified(last)).transpose()?;
            object.bytes.set_len(length)?;
            self.count_used(object.length, length);
            if length < object.length {
                object.sums.set_len(length.div_ceil(BLOCK) * 16)?;
            }
            if let Some(kept) = kept {
                object.keep_sums(last, &[object.sum_of(last, &kept[..(length % BLOCK) as usize])])?;
            }
            object.written_at(changed_ns)?;
        }
        Ok(Answer::Held { boot: self.writing.boot })
    }

    /// True if the end of an object is lost. One that was open when the target began says nothing of its end.
    pub(super) fn is_short(&self, file: &Id, position: u16) -> bool {
        let _held = read_guard(self.writing.lock(&(*file, position)));
        let begun = self.is_doubted(&(*file, position));
        let path = self.path(file, position);
        let length = |path: &Path| fs::metadata(path).map_or(0, |about| about.len());
        !begun && length(&beside(&path, ".sums")) > length(&path).div_ceil(BLOCK) * 16
    }

    pub(super) fn shapes(&self, files: &[Id]) -> Result<Vec<u8>, Failure> {
        let mut all = Vec::new();
        for file in files {
            let reading = self.database.begin_read().map_err(database)?;
            let there = reading.open_table(super::KNOWN).map_err(database)?.get(file).map_err(database)?.is_some();
            let known = there.then(|| self.written(file, None).ok()).flatten();
            let positions = 0..known.map_or(0, |known| known.objects.len() as u16);
            let shape = |position: u16| {
                let path = self.path(file, position);
                let about = fs::metadata(&path).ok()?;
                let sums = || fs::metadata(beside(&path, ".sums")).map_or(0, |sums| sums.len());
                if sums() > about.len().div_ceil(BLOCK) * 16 && self.is_short(file, position) {
                    return None;
                }
                Some(Shape { position, length: about.len(), changed_ns: changed(&about) })
            };
            all.push(positions.filter_map(shape).collect::<Vec<Shape>>());
        }
        postcard::to_stdvec(&all).map_err(|error| Failure::new(Failed::Nonsense, error.to_string()))
    }
}

mod appending;
mod mending;
mod open;
#[cfg(test)]
mod tests;
mod times;
