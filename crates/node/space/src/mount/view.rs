//! A mounted view of a space: what its numbers stand for, and what is open through it.

use super::listings::Listings;
use crate::client::{Client, Pattern, Reader, Touches, Writer};
use fuser::{Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo};
use mend_data::patterns::Who;
use mend_data::space::catalogue::Node;
use mend_data::space::{BLOCK, Entry, Id};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// How long names are good without another look.
pub(super) const NAMES_FOR: Duration = Duration::from_secs(1);
/// How long attributes of a file are good: they never change.
pub(super) const ATTRIBUTES_FOR: Duration = Duration::from_secs(3600);
/// Largest read, bytes.
pub const MAX_READ: u32 = 1 << 20;

/// What an open file that ranks write is known by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    pub id: Id,
    /// It was opened for writing.
    pub writes: bool,
}

/// One mounted view of a space. All of a node share its client, reader and inodes.
#[derive(Clone, Debug)]
pub struct Files {
    pub(super) shared: Arc<Shared>,
    /// Whose mount it is.
    pub(super) who: Arc<Who>,
    /// Its ranks may write.
    pub(super) writable: bool,
    /// Which mount this is, of those of this process.
    pub(super) mount: u64,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Arc<Client>,
    pub(super) writer: Arc<Writer>,
    pub(super) reader: Reader,
    pub(super) touches: Arc<Touches>,
    inodes: Mutex<Inodes>,
    pub(super) open: Mutex<HashMap<u64, OpenFile>>,
    /// Those that ranks write, and through which mount.
    pub(super) writing: Mutex<HashMap<u64, (Handle, u64)>>,
    pub(super) listings: Listings,
    /// Who is told that one of them was closed.
    closes: OnceLock<SyncSender<()>>,
    pub(super) next: AtomicU64,
    pub(super) owner: (u32, u32),
}

/// An open file, and how it is read.
pub(super) type OpenFile = (Arc<Entry>, Arc<Pattern>);

/// What numbers stand for. They are kept: a name of a few hundred bytes each.
#[derive(Debug, Default)]
struct Inodes {
    paths: HashMap<u64, String>,
    entries: HashMap<u64, Arc<Entry>>,
}

pub(super) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Files {
    /// A view of a space, which is no rank's.
    pub fn new(client: Arc<Client>, reader: Reader, touches: Arc<Touches>) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut inodes = Inodes::default();
        inodes.paths.insert(INodeNo::ROOT.0, String::new());
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let who = Arc::new(Who { job: String::new(), rank: None, node });
        let writer = Arc::new(Writer::new(client.clone(), Some(reader.cache())));
        let (open, writing, listings, next) = (Mutex::default(), Mutex::default(), Listings::default(), AtomicU64::new(1));
        let shared = Shared {
            client,
            writer,
            reader,
            touches,
            inodes: Mutex::new(inodes),
            open,
            writing,
            listings,
            closes: OnceLock::new(),
            next,
            owner,
        };
        Self { shared: Arc::new(shared), who, writable: false, mount: 0 }
    }

    /// The same view as somebody else's, who may write or not.
    pub fn of(&self, who: Who, writable: bool) -> Self {
        let mount = self.shared.next.fetch_add(1, Ordering::Relaxed);
        Self { shared: self.shared.clone(), who: Arc::new(who), writable, mount }
    }

    /// The mount is gone, and with it who had files open: the kernel does not say so of each.
    pub fn close_all(&self) {
        let left: Vec<Handle> =
            held(&self.shared.writing).extract_if(|_, (_, mount)| *mount == self.mount).map(|(_, (handle, _))| handle).collect();
        left.into_iter().for_each(|handle| self.close_file(handle));
        self.shared.listings.close_all(self.mount);
    }

    /// Has somebody told when a file is closed that was open for writing.
    pub fn tell_of_closes(&self, who: SyncSender<()>) {
        let _ = self.shared.closes.set(who);
    }

    pub(super) fn was_closed(&self, handle: Handle) {
        if let Some(who) = self.shared.closes.get().filter(|_| handle.writes) {
            // One that was told already, and has not looked yet, needs no second word.
            let _ = who.try_send(());
        }
    }

    /// Files that are open for writing through mounts of this process.
    pub fn open_for_writing(&self) -> BTreeSet<Id> {
        held(&self.shared.writing).values().filter(|(handle, _)| handle.writes).map(|(handle, _)| handle.id).collect()
    }

    /// What it is seen through.
    pub fn client(&self) -> Arc<Client> {
        self.shared.client.clone()
    }

    /// Tells targets what was touched since they were told last.
    pub fn tell_touches(&self) {
        self.shared.touches.tell(&self.shared.client);
    }

    pub(super) fn attributes(&self, number: u64, entry: Option<&Entry>) -> FileAttr {
        let file = entry.and_then(Entry::file);
        let made = entry.and_then(|entry| u64::try_from(entry.made_ns).ok()).map_or(UNIX_EPOCH, |ns| UNIX_EPOCH + Duration::from_nanos(ns));
        let size = file.map_or(0, |file| file.size);
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: made,
            mtime: made,
            ctime: made,
            crtime: made,
            kind: if file.is_some() { FileType::RegularFile } else { FileType::Directory },
            perm: if file.is_some() {
                0o444
            } else if self.writable {
                0o755
            } else {
                0o555
            },
            nlink: if file.is_some() { 1 } else { 2 },
            uid: self.shared.owner.0,
            gid: self.shared.owner.1,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        }
    }

    /// The number of what is at a path.
    pub(super) fn number(&self, path: &str, node: Node<'_>) -> u64 {
        let mut inodes = held(&self.shared.inodes);
        match node {
            Node::File(entry) => {
                let number = number_of_file(&entry.id);
                inodes.entries.entry(number).or_insert_with(|| Arc::new(entry.clone()));
                number
            }
            Node::Directory => {
                let number = number_of_directory(path);
                inodes.paths.entry(number).or_insert_with(|| path.to_owned());
                number
            }
        }
    }

    /// What the kernel is told of a file or directory, and for how long.
    pub(super) fn shown(&self, number: u64, entry: Option<&Entry>) -> Result<(Duration, FileAttr), Errno> {
        match entry {
            Some(entry) if entry.written().is_some() => Ok((Duration::ZERO, self.written_attributes(number, entry)?)),
            Some(_) => Ok((ATTRIBUTES_FOR, self.attributes(number, entry))),
            None => Ok((NAMES_FOR, self.attributes(number, None))),
        }
    }

    /// How long the kernel keeps names. What one rank makes, another one opens at once, where ranks write.
    pub(super) fn names_for(&self) -> Duration {
        if self.writable { Duration::ZERO } else { NAMES_FOR }
    }

    pub(super) fn hear(&self) {
        if self.writable {
            self.shared.client.refresh_since(Instant::now());
        } else {
            self.shared.client.refresh_if_older(NAMES_FOR);
        }
    }

    pub(super) fn handle(&self, handle: FileHandle) -> Option<Handle> {
        held(&self.shared.writing).get(&handle.0).map(|(handle, _)| *handle)
    }

    /// A handle of a file that ranks write.
    pub(super) fn opened(&self, entry: &Entry, writes: bool) -> (FileHandle, FopenFlags) {
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        held(&self.shared.writing).insert(number, (self.open_written(entry, writes), self.mount));
        (FileHandle(number), if self.writable { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() })
    }

    pub(super) fn directory(&self, number: INodeNo) -> Option<String> {
        held(&self.shared.inodes).paths.get(&number.0).cloned()
    }

    pub(super) fn entry(&self, number: INodeNo) -> Option<Arc<Entry>> {
        held(&self.shared.inodes).entries.get(&number.0).cloned()
    }
}

/// The number of a file, the same on every node.
pub(super) fn number_of_file(file: &Id) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| file[at])).max(2)
}

/// The number of a directory, the same on every node.
pub(super) fn number_of_directory(path: &str) -> u64 {
    if path.is_empty() { INodeNo::ROOT.0 } else { xxhash_rust::xxh3::xxh3_64(path.as_bytes()).max(2) }
}

pub(super) fn below(directory: &str, name: &OsStr) -> Option<String> {
    let name = name.to_str()?;
    Some(if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") })
}
