//! What a target keeps on its medium.
//!
//! ```text
//! DIRECTORY/objects/ab/ab…ID.POSITION    bytes of a file's object (what is beside those of files that ranks write: `written`)
//! DIRECTORY/catalogue.redb               entries and what is gone, in the order in which they came; checksums
//! ```
//! An object is durable when it is settled. An entry is durable when it is put, together with its checksums, and only if its objects have the length that they
//! must have. Objects without an entry are of files that are being written, or never will be: they are removed when the target begins, unless they are of files that
//! are being staged (`begun`), and a while after their last byte came. Faults assumed: the process is killed at any moment, the power fails (what was not settled is lost, and the writer is told by
//! `life`), the medium gives errors or is full. So are objects that do not belong to the entry that is known of their file: second copies that were begun.

mod begun;
mod directories;
mod holds;
mod leaving;
mod verify;
mod written;

use super::{Answered, Clients, Failure, bytes};
use crate::holes;
use holds::Holds;
use mend_data::ranges::Range;
use mend_data::space::catalogue::Change;
use mend_data::space::layout::Layout;
use mend_data::space::placement::RESERVE;
use mend_data::space::target::{Answer, CHANGES_BYTES, Failed, Lease, Request};
use mend_data::space::{Entry, Id};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use rustix::fs::statvfs;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use written::Writing;

/// What a directory is of.
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
/// What came to be known, by its number.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// The number of what is known of an entry last.
const KNOWN: TableDefinition<'_, &[u8; 16], u64> = TableDefinition::new("known");
/// Checksums, by file and page.
const SUMS: TableDefinition<'_, (&[u8; 16], u32), &[u8]> = TableDefinition::new("sums");

/// Places of the objects that belong to the entry of a file that was staged: what else is there of it is a copy that was begun.
const HELD: TableDefinition<'_, &[u8; 16], &[u8]> = TableDefinition::new("held");

/// Name of what says that [`HELD`] is complete.
const KNOWS_HELD: &str = "held";

/// Name of the database.
const DATABASE: &str = "catalogue.redb";
/// How long a file that is being written may stand still before its objects go.
const ABANDONED: Duration = Duration::from_secs(600);
/// Objects that are looked up one by one; of more the directory is read.
const LOOKED_UP: u16 = 64;
/// Memory of the database for pages, bytes.
const DATABASE_CACHE: usize = 16 << 20;

/// Makes a failure of an error of the database.
fn database(error: impl Into<redb::Error>) -> Failure {
    match error.into() {
        redb::Error::Io(error) => error.into(),
        // By a lock of the file, which other nodes see, too.
        redb::Error::DatabaseAlreadyOpen => Failure::new(
            Failed::Nonsense,
            "another target is served from this directory: two nodes share it\tname a directory that nodes do not share (--directory, --target)",
        ),
        redb::Error::PreviousIo => begin_anew(),
        error => Failure::new(Failed::Medium, format!("its database: {error}")),
    }
}

/// Once its medium has failed, be it full for a moment, the database takes nothing more from this process. It does from another one, which the daemon starts for whoever asks next.
fn begin_anew() -> ! {
    mend_report::tell!("mend-space: the database takes nothing more since its medium has failed: the target begins anew");
    std::process::exit(1)
}

/// A target's directory.
#[derive(Debug)]
pub struct Store {
    objects: PathBuf,
    database: Database,
    instance: Id,
    life: Id,
    used: AtomicU64,
    /// Files that are being written, and when they last got something.
    begun: Mutex<HashMap<Id, Instant>>,
    /// Who touches which blocks: in memory, since it is of use for minutes.
    clients: Clients,
    writing: Writing,
    holds: Holds,
    /// Directories of objects are made one at a time.
    making: Mutex<()>,
    /// All of it is being removed. Whatever else is carried out holds it for reading.
    leaving: RwLock<bool>,
}

fn hex(id: &Id) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn identity(name: &str) -> Option<Id> {
    let (hex, _) = name.split_once('.')?;
    let mut id = Id::default();
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(id)
}

impl Store {
    /// Opens the directory, which must be of this space; with `create` an empty one, or none, becomes its.
    pub fn open(directory: &Path, space: &Id, create: bool) -> Result<Self, Failure> {
        let file = directory.join(DATABASE);
        if !file.exists() {
            if !create {
                return Err(Failure::new(Failed::Absent, "there is no target in this directory"));
            }
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            directories::sync_names(directory)?;
            if fs::read_dir(directory)?.next().is_some() {
                return Err(Failure::new(
                    Failed::Nonsense,
                    "the directory has other files in it\tname a directory that is empty or not there, and that nodes do not share (--directory, --target)",
                ));
            }
        }
        let about = fs::metadata(directory)?;
        if about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o022 != 0 {
            return Err(Failure::new(Failed::Nonsense, "the directory is another user's, or others may write to it"));
        }
        let opened = Database::builder().set_cache_size(DATABASE_CACHE).create(&file);
        let store = Self {
            objects: directory.join("objects"),
            database: opened.map_err(database)?,
            instance: mend_wire::random_bytes(),
            life: mend_wire::random_bytes(),
            used: AtomicU64::new(0),
            begun: Mutex::default(),
            clients: Clients::default(),
            writing: Writing::default(),
            holds: Holds::default(),
            making: Mutex::default(),
            leaving: RwLock::default(),
        };
        let instance = store.settle_identity(space)?;
        let store = Self { instance, ..store };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&store.objects)?;
        mend_durable::sync_directory(directory)?;
        // An earlier process may have made directories in it, and ended before they were durable.
        mend_durable::sync_directory(&store.objects)?;
        store.tidy()?;
        Ok(store)
    }

    /// Makes the tables, and compares or writes what the directory is of. Which database it is.
    fn settle_identity(&self, space: &Id) -> Result<Id, Failure> {
        let begun = self.database.begin_write().map_err(database)?;
        let instance = {
            let mut about = begun.open_table(ABOUT).map_err(database)?;
            let known = |name: &str| -> Result<Option<Vec<u8>>, Failure> {
                Ok(about.get(name).map_err(database)?.map(|found| found.value().to_vec()))
            };
            let (of, instance) = (known("space")?, known("instance")?);
            if of.as_ref().is_some_and(|of| of != space) {
                return Err(Failure::new(Failed::Nonsense, "the directory is a target of another data space"));
            }
            let instance = instance.and_then(|bytes| Id::try_from(bytes).ok()).unwrap_or(self.instance);
            about.insert("space", &space[..]).map_err(database)?;
            about.insert("instance", &instance[..]).map_err(database)?;
            instance
        };
        begun.open_table(LOG).map_err(database)?;
        begun.open_table(KNOWN).map_err(database)?;
        begun.open_table(SUMS).map_err(database)?;
        begun.open_table(HELD).map_err(database)?;
        begun::prepare(&begun)?;
        begun.commit().map_err(database)?;
        Ok(instance)
    }

    fn path(&self, file: &Id, position: u16) -> PathBuf {
        self.objects.join(format!("{:02x}", file[0])).join(format!("{}.{position}", hex(file)))
    }

    /// What is known of an entry last.
    fn known(&self, id: &Id) -> Result<Option<Change>, Failure> {
        let reading = self.database.begin_read().map_err(database)?;
        let Some(number) = reading.open_table(KNOWN).map_err(database)?.get(id).map_err(database)? else { return Ok(None) };
        let log = reading.open_table(LOG).map_err(database)?;
        let row = log.get(number.value()).map_err(database)?;
        Ok(row.and_then(|row| postcard::from_bytes(row.value()).ok()))
    }

    /// Places of the objects that belong to the entry of a file that was staged.
    fn held(&self, id: &Id) -> Result<Vec<u16>, Failure> {
        let reading = self.database.begin_read().map_err(database)?;
        let row = reading.open_table(HELD).map_err(database)?.get(id).map_err(database)?;
        Ok(row.and_then(|row| postcard::from_bytes(row.value()).ok()).unwrap_or_default())
    }

    /// Removes objects without an entry and those that do not belong to theirs, and counts the others.
    fn tidy(&self) -> Result<(), Failure> {
        let mut used = 0;
        // An earlier release did not write down which objects belong to an entry: all that are there do.
        let begun = self.database.begin_write().map_err(database)?;
        let knows_held = begun.open_table(ABOUT).map_err(database)?.insert(KNOWS_HELD, &[][..]).map_err(database)?.is_some();
        let mut earlier: HashMap<Id, Vec<u16>> = HashMap::new();
        for directory in fs::read_dir(&self.objects)? {
            for object in fs::read_dir(directory?.path())? {
                let object = object?;
                let name = object.file_name();
                let id = name.to_str().and_then(identity);
                match (id.zip(id.map(|id| self.known(&id)).transpose()?.flatten()), place_of(&object)) {
                    (Some((id, Change::There(entry))), Some(place)) if entry.file().is_some() => {
                        if !knows_held {
                            earlier.entry(id).or_default().push(place);
                        } else if !self.held(&id)?.contains(&place) {
                            fs::remove_file(object.path())?;
                            continue;
                        }
                        used += object.metadata()?.len();
                    }
                    (Some((_, Change::There(_))), Some(_)) => used += object.metadata()?.len(),
                    (Some((id, Change::There(_))), None) => {
                        let open = name.to_str().and_then(|name| name.strip_suffix(".open")?.rsplit_once('.')?.1.parse().ok());
                        open.into_iter().for_each(|position| self.writing.found_open(id, position));
                    }
                    (None, Some(_)) if id.map(|id| self.stays(&id, &object)).transpose()? == Some(true) => {}
                    _ => fs::remove_file(object.path())?,
                }
            }
        }
        self.forget_begun(&begun)?;
        self.used.store(used, Ordering::Relaxed);
        earlier.iter().try_for_each(|(id, places)| hold(&begun, id, places))?;
        begun.commit().map_err(database)
    }

    /// Removes what was begun and stands still.
    fn sweep(&self) {
        let abandoned: Vec<Id> = {
            let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let stands_still = |(id, since): &(&Id, &Instant)| since.elapsed() > self.stands_still(id);
            let old: Vec<Id> = begun.iter().filter(stands_still).map(|(id, _)| *id).collect();
            begun.retain(|id, _| !old.contains(id));
            old
        };
        for id in abandoned {
            let _ = self.discard(&id);
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
            Request::Lacking { at } => return bytes(self.lacking(at)?),
            Request::Verify { file, position, first, count } => return bytes(self.verify(&file, position, first, count)?),
            Request::Leave => self.leave().map(|()| Answer::Done)?,
            Request::Discard { file } => self.discard(&file).map(|()| Answer::Done)?,
            Request::WriteRange { file, epoch, position, offset, sum, changed_ns, appends, .. } => {
                self.write_range(&file, epoch, position, (offset, appends), payload, (sum, changed_ns))?
            }
            Request::ReadRange { file, position, offset, length } => return bytes(self.read_range(&file, position, offset, length)?),
            Request::ReadBlocks { file, position, first, .. } => return bytes(self.read_blocks(&file, position, first, payload)?),
            Request::Adopt { entry, positions, fresh } => self.adopt(&entry, &positions, &fresh).map(|()| Answer::Done)?,
            Request::Fill { file, epoch, position, offset, sum, changed_ns, .. } => {
                self.fill(&file, epoch, position, offset, payload, (sum, changed_ns))?
            }
            Request::MendBlock { file, epoch, position, block, .. } => {
                self.mend_block(&file, epoch, position, block, payload).map(|()| Answer::Done)?
            }
            Request::Cut { file, epoch, position, length, changed_ns } => self.cut(&file, epoch, position, length, changed_ns)?,
            Request::Sync { file, epoch, position, boot } => self.sync(&file, epoch, position, boot).map(|()| Answer::Done)?,
            Request::Shapes { files } => return bytes(self.shapes(&files)?),
            Request::Stamp { file, changed_ns } => self.stamp(&file, changed_ns).map(|()| Answer::Done)?,
            Request::Holds { who, files } => {
                self.holds.say(who, files);
                Answer::Done
            }
            Request::Writing { files } => return bytes(self.are_written(&files)),
            Request::Begin { entry } => self.begin(&entry).map(|()| Answer::Done)?,
            request @ (Request::Touched { .. } | Request::Patterns { .. } | Request::Heal { .. } | Request::Claim { .. }) => {
                return self.clients.answer(request);
            }
        };
        Ok((done, Vec::new()))
    }

    fn look(&self) -> Result<Answer, Failure> {
        self.sweep();
        let room = statvfs(&self.objects).map_err(io::Error::from)?;
        let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
        Ok(Answer::Seen {
            free: bytes(room.f_bavail),
            total: bytes(room.f_blocks),
            used: self.used.load(Ordering::Relaxed),
            life: self.life,
        })
    }

    /// An error if so many bytes more would not leave the database the room that it needs.
    fn has_room(&self, more: u64) -> Result<(), Failure> {
        let room = statvfs(&self.objects).map_err(io::Error::from)?;
        let enough = room.f_bavail.saturating_mul(room.f_frsize) >= RESERVE.saturating_add(more);
        if enough { Ok(()) } else { Err(Failure::new(Failed::Full, "there is no room left")) }
    }

    /// The same of bytes of an object: one without holes has the room up to its end.
    fn has_room_in(&self, file: &Id, position: u16, wanted: Range) -> Result<(), Failure> {
        let about = fs::metadata(self.path(file, position));
        let there = about.ok().filter(|about| about.blocks().saturating_mul(512) >= about.len()).map_or(0, |about| about.len());
        match wanted.end().saturating_sub(there).min(wanted.length) {
            0 => Ok(()),
            more => self.has_room(more),
        }
    }

    fn changes(&self, after: u64) -> Result<Answer, Failure> {
        let reading = self.database.begin_read().map_err(database)?;
        let log = reading.open_table(LOG).map_err(database)?;
        let (mut upto, mut changes, mut bytes, mut more) = (after, Vec::new(), 0, false);
        for row in log.range(after.saturating_add(1)..).map_err(database)? {
            let (number, row) = row.map_err(database)?;
            if bytes > CHANGES_BYTES {
                more = true;
                break;
            }
            bytes += row.value().len();
            upto = number.value();
            changes.extend(postcard::from_bytes::<Change>(row.value()).ok());
        }
        Ok(Answer::Changes { instance: self.instance, upto, more, changes, lease: Lease::default() })
    }

    fn write(&self, file: &Id, position: u16, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.has_room(bytes.len() as u64)?;
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(*file, Instant::now());
        let path = self.path(file, position);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let object = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_directory(&path)?;
                options.open(&path)?
            }
            opened => opened?,
        };
        Ok(holes::put(&object, bytes, offset)?)
    }

    fn settle(&self, file: &Id, position: u16, length: u64, life: Id) -> Result<(), Failure> {
        if life != self.life {
            return Err(Failure::new(Failed::Absent, "it was started anew while the file was written"));
        }
        let path = self.path(file, position);
        // Writing, or nothing could be synced on some file systems.
        let object = OpenOptions::new().write(true).open(&path)?;
        let has = object.metadata()?.len();
        if has != length {
            return Err(Failure::new(Failed::Short, format!("an object has {has} bytes instead of {length}")));
        }
        object.sync_all()?;
        Ok(mend_durable::sync_directory(&self.make_directory(&path)?)?)
    }

    fn keep_sums(&self, file: &Id, page: u32, sums: &[u8]) -> Result<(), Failure> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(*file, Instant::now());
        let mut begun = self.database.begin_write().map_err(database)?;
        begun.set_durability(Durability::None).map_err(database)?;
        begun.open_table(SUMS).map_err(database)?.insert((file, page), sums).map_err(database)?;
        begun.commit().map_err(database)
    }

    fn put(&self, entry: &Entry, positions: &[u16]) -> Result<(), Failure> {
        // What is known does not change before this is committed.
        let begun = self.database.begin_write().map_err(database)?;
        let before = match self.known(&entry.id)? {
            Some(Change::There(known)) if !entry.replaces(&known) => return Ok(()),
            Some(Change::There(known)) => Some(known),
            Some(Change::Gone(_)) => return Err(Failure::new(Failed::Nonsense, "it was removed")),
            None => None,
        };
        let (mut bytes, mut counted) = (0, None);
        if let Some(file) = entry.file() {
            let layout = Layout::of(file);
            let held = counted.insert(self.held(&entry.id)?);
            for position in positions {
                let (has, must) = (fs::metadata(self.path(&entry.id, *position))?.len(), layout.object_length(usize::from(*position)));
                if has != must {
                    return Err(Failure::new(Failed::Short, format!("an object has {has} bytes instead of {must}")));
                }
                if !held.contains(position) {
                    bytes += has;
                }
            }
            hold(&begun, &entry.id, positions)?;
        }
        append(&begun, entry.id, &Change::There(Box::new(entry.clone())))?;
        begun::is_over(&begun, &entry.id)?;
        begun.commit().map_err(database)?;
        if let Some(known) = entry.written() {
            self.writing.is_whole(&entry.id, known);
        }
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(&entry.id);
        if before.is_some() {
            // They are on others now.
            let counted = counted.as_deref();
            let bytes = self.remove_objects(&entry.id, places(entry), positions, counted)?;
            self.used.fetch_sub(bytes.min(self.used.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&self, file: &Id, position: u16, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        let object = File::open(self.path(file, position))?;
        let length = length as usize;
        let mut bytes = Vec::with_capacity(length);
        // Into memory that need not be cleared first.
        while bytes.len() < length {
            let at = offset + bytes.len() as u64;
            match rustix::io::pread(&object, rustix::buffer::spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(Failure::new(Failed::Short, "an object is shorter than it must be")),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    fn sums(&self, file: &Id, page: u32) -> Result<Vec<u8>, Failure> {
        let reading = self.database.begin_read().map_err(database)?;
        let sums = reading.open_table(SUMS).map_err(database)?;
        let found = sums.get((file, page)).map_err(database)?.map(|found| found.value().to_vec());
        found.ok_or_else(|| Failure::new(Failed::Absent, "it does not have these checksums"))
    }

    fn forget(&self, ids: &[Id]) -> Result<(), Failure> {
        let (mut removed, mut counted) = (Vec::new(), HashMap::new());
        let begun = self.database.begin_write().map_err(database)?;
        for id in ids {
            match self.known(id)? {
                Some(Change::Gone(_)) => continue,
                Some(Change::There(entry)) => removed.push(entry),
                None => {}
            }
            append(&begun, *id, &Change::Gone(*id))?;
            begun::is_over(&begun, id)?;
            remove_sums(&begun, id)?;
            if let Some(held) = begun.open_table(HELD).map_err(database)?.remove(id).map_err(database)? {
                counted.insert(*id, postcard::from_bytes::<Vec<u16>>(held.value()).unwrap_or_default());
            }
        }
        begun.commit().map_err(database)?;
        for entry in removed {
            let bytes = match entry.written() {
                Some(known) => self.remove_written(&entry.id, known)?,
                None => self.remove_objects(&entry.id, places(&entry), &[], counted.get(&entry.id).map(Vec::as_slice))?,
            };
            self.used.fetch_sub(bytes.min(self.used.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        Ok(())
    }

    fn discard(&self, file: &Id) -> Result<(), Failure> {
        if let Some(Change::There(_)) = self.known(file)? {
            return self.let_go_of_begun(file);
        }
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(file);
        self.remove_objects(file, None, &[], None)?;
        let begun = self.database.begin_write().map_err(database)?;
        remove_sums(&begun, file)?;
        begun::is_over(&begun, file)?;
        begun.commit().map_err(database)
    }

    /// Removes objects that do not belong to the entry of their file, of a copy that was begun and stands still.
    fn let_go_of_begun(&self, file: &Id) -> Result<(), Failure> {
        // Nobody puts it meanwhile.
        let _putting = self.database.begin_write().map_err(database)?;
        match self.known(file)? {
            Some(Change::There(entry)) if entry.file().is_some() => {
                let held = self.held(file)?;
                self.remove_objects(file, None, &held, Some(&held)).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Removes the objects of a file but those at these places. `places`: how many it has, if that is known; without it its directory, which is others' as well, is looked through.
    /// The bytes that they had; where `counted` is given, of those objects alone.
    fn remove_objects(&self, file: &Id, places: Option<u16>, but: &[u16], counted: Option<&[u16]>) -> Result<u64, Failure> {
        self.writing.let_go(file, but);
        let mut bytes = 0;
        let mut remove = |object: PathBuf, place: Option<u16>| -> io::Result<()> {
            let about = match fs::metadata(&object) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                about => about?,
            };
            bytes += if place.is_some_and(|place| counted.is_none_or(|counted| counted.contains(&place))) { about.len() } else { 0 };
            fs::remove_file(object)
        };
        if let Some(places) = places.filter(|places| *places <= LOOKED_UP) {
            (0..places).filter(|place| !but.contains(place)).try_for_each(|place| remove(self.path(file, place), Some(place)))?;
            return Ok(bytes);
        }
        let listed = match fs::read_dir(self.objects.join(format!("{:02x}", file[0]))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            listed => listed?,
        };
        for object in listed {
            let object = object?;
            let place = |name: &str| name.split('.').nth(1).and_then(|place| place.parse::<u16>().ok());
            let kept = object.file_name().to_str().and_then(place).is_some_and(|place| but.contains(&place));
            if !kept && object.file_name().to_str().and_then(identity) == Some(*file) {
                remove(object.path(), place_of(&object))?;
            }
        }
        Ok(bytes)
    }
}

/// How many places objects of a file that was staged have; `None` if there may be more beside them.
fn places(entry: &Entry) -> Option<u16> {
    entry.file().and_then(|file| u16::try_from(file.targets.len()).ok())
}

/// The place of an object; `None` of what belongs to one.
fn place_of(found: &fs::DirEntry) -> Option<u16> {
    found.file_name().to_str().and_then(|name| name.split_once('.'))?.1.parse().ok()
}

/// Writes down what came to be known, instead of what was known of the entry before.
fn append(begun: &WriteTransaction, id: Id, change: &Change) -> Result<(), Failure> {
    let mut log = begun.open_table(LOG).map_err(database)?;
    let mut known = begun.open_table(KNOWN).map_err(database)?;
    let number = log.last().map_err(database)?.map_or(0, |(number, _)| number.value()) + 1;
    let row = postcard::to_stdvec(change).map_err(|error| Failure::new(Failed::Nonsense, error.to_string()))?;
    if let Some(before) = known.insert(&id, number).map_err(database)?.map(|before| before.value()) {
        log.remove(before).map_err(database)?;
    }
    log.insert(number, &row[..]).map_err(database)?;
    Ok(())
}

/// Writes down which objects belong to an entry.
fn hold(begun: &WriteTransaction, id: &Id, places: &[u16]) -> Result<(), Failure> {
    let row = postcard::to_stdvec(places).map_err(|error| Failure::new(Failed::Nonsense, error.to_string()))?;
    begun.open_table(HELD).map_err(database)?.insert(id, &row[..]).map_err(database)?;
    Ok(())
}

fn remove_sums(begun: &WriteTransaction, file: &Id) -> Result<(), Failure> {
    let mut sums = begun.open_table(SUMS).map_err(database)?;
    sums.retain_in((file, 0)..=(file, u32::MAX), |_, _| false).map_err(database)
}

#[cfg(test)]
mod tests;
