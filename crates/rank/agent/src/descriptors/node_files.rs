//! What lies in the rank's `/dev/shm`: a directory of the job's own on this node, which goes with the job.
//!
//! Nothing outside of an image keeps it. Files that the program has open or mapped come back as what they are, memory, under
//! their names; of the others the agent holds a copy while the image is taken, so that it is in the image with the agent's memory.
//! Which rank of a node made a file nobody knows: each has all of them in its image, and of two of one name the newer stays.
//! Where ranks share the node's `/dev/shm`, its files are left alone.

use crate::descriptors::inherited::Inherited;
use crate::descriptors::paths::open_anyway;
use crate::descriptors::{Descriptors, What, map_identity};
use crate::memory::layout::Layout;
use crate::memory::maps::{Area, NODE_MEMORY};
use crate::memory::pages::nonzero;
use crate::process::tasks::names_in;
use mend_image::record::object;
use mend_messages::agent::SHARED_MEMORY_PREFIX;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, futimens, linkat, open};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::{DirBuilder, File, Metadata, read_link, rename};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Most that is kept of what nobody has open or mapped, bytes, with [`ENTRY_BYTES`] for every entry.
const MAX_LOOSE_BYTES: u64 = 256 << 20;
const ENTRY_BYTES: u64 = 4096;
/// Bytes that are read at a time.
const READ_BYTES: u64 = 64 << 10;
/// Most bytes of copies for which memory is made ready.
const MAX_READY_BYTES: u64 = 16 << 20;
/// How often a directory is opened that others close.
const MAX_ATTEMPTS: u32 = 1000;

/// Device and inode as `/proc/self/maps` writes them.
type Identity = (u64, u64);

/// A file that cannot be saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeFileError {
    #[error("{} in the node's memory, with more than {} MiB that nobody has open or mapped", .0.display(), MAX_LOOSE_BYTES >> 20)]
    Large(PathBuf),
    #[error("{} in the node's memory cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

impl NodeFileError {
    pub fn hint(&self) -> &'static str {
        match self {
            NodeFileError::Large(_) => "keep large files open or mapped, or in a directory on a disk that other nodes see",
            NodeFileError::Unreadable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "let the program have read access to its own files, or remove them"
            }
            NodeFileError::Unreadable { source, .. } => mend_report::process_hint(source),
        }
    }
}

/// Everything in the rank's `/dev/shm`, directories before what is in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFiles {
    entries: Vec<Entry>,
    /// Of copies, but for pages of zeros.
    bytes: Vec<u8>,
}

/// Memory for copies that was made ready while the program ran.
pub(crate) struct CopyBuffer {
    piece: Vec<u8>,
    bytes: Vec<u8>,
}

impl CopyBuffer {
    /// For so many bytes; for a part of them if they are many.
    pub fn new(bytes: u64) -> Self {
        // Written to, so that the kernel has given it.
        let populated = |length: u64| vec![1; length as usize];
        let mut buffer = Self { piece: populated(if bytes == 0 { 0 } else { READ_BYTES }), bytes: populated(bytes.min(MAX_READY_BYTES)) };
        buffer.bytes.clear();
        buffer
    }
}

#[derive(Clone, Debug)]
struct Entry {
    path: PathBuf,
    mode: u32,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Directory,
    Link(PathBuf),
    Pipe,
    /// Open or mapped. Its object in the image, once there is one.
    Held {
        identity: Identity,
        size: u64,
        object: Option<u32>,
    },
    /// A copy, if it is wanted.
    Loose(Copied),
}

/// A file's bytes but for pages of zeros.
#[derive(Clone, Debug, Default)]
struct Copied {
    size: u64,
    /// Where each run belongs, where it begins in [`NodeFiles::bytes`], and where it ends.
    runs: Vec<(u64, usize, usize)>,
}

impl Copied {
    /// Copies a file.
    fn read(path: &Path, CopyBuffer { piece, bytes }: &mut CopyBuffer) -> io::Result<Self> {
        let file = File::open(path)?;
        let mut copied = Self::default();
        piece.resize(READ_BYTES as usize, 0);
        loop {
            let got = match file.read_at(piece, copied.size) {
                Ok(0) => return Ok(copied),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for (from, to) in nonzero(&piece[..got]) {
                let at = bytes.len();
                bytes.extend_from_slice(&piece[from..to]);
                copied.runs.push((copied.size + from as u64, at, bytes.len()));
            }
            copied.size += got as u64;
        }
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        file.set_len(self.size)?;
        self.runs.iter().try_for_each(|(at, from, to)| file.write_all_at(&bytes[*from..*to], *at))
    }
}

impl NodeFiles {
    /// Bytes of files that would be copied, or what cannot be saved; may run beside the program.
    pub fn look(descriptors: &Descriptors, areas: &[Area]) -> Result<u64, NodeFileError> {
        let files = Survey::below(Path::new(NODE_MEMORY), || held(descriptors, areas), None)?;
        let sizes = files.entries.iter().map(|entry| if let Kind::Loose(copied) = &entry.kind { copied.size } else { 0 });
        Ok(sizes.sum())
    }

    /// Looks at everything, and copies what nobody holds. The threads are parked.
    pub fn capture(descriptors: &Descriptors, areas: &[Area], buffer: CopyBuffer) -> Result<Self, NodeFileError> {
        Survey::below(Path::new(NODE_MEMORY), || held(descriptors, areas), Some(buffer))
    }

    /// Makes what is held an object of the image that keeps its name.
    pub fn link_objects(&mut self, layout: &mut Layout) {
        for entry in &mut self.entries {
            if let Kind::Held { identity, size, object } = &mut entry.kind {
                let name = entry.path.strip_prefix(NODE_MEMORY).unwrap_or(&entry.path).to_string_lossy();
                let index = layout.memory(*identity, &name, *size);
                let record = &mut layout.objects[index as usize];
                record.size = *size;
                record.flags |= object::KEEP | object::NAMED;
                *object = Some(index);
            }
        }
    }

    /// Adds what is mapped only to the objects that are read from a descriptor: index, descriptor, size.
    pub fn hold(&self, objects: &mut Vec<(u32, OwnedFd, u64)>) -> Result<(), NodeFileError> {
        for entry in &self.entries {
            let Kind::Held { identity, size, object: Some(object) } = &entry.kind else { continue };
            if objects.iter().any(|(known, ..)| known == object) {
                continue;
            }
            let failed = |source| NodeFileError::Unreadable { path: entry.path.clone(), source };
            let opened = open_anyway(entry.path.as_path(), OFlags::RDONLY | OFlags::CLOEXEC);
            let file = File::from(opened.map_err(|errno| failed(errno.into()))?);
            if identity_of(&file.metadata().map_err(failed)?) != *identity {
                return Err(failed(io::Error::other("it was exchanged")));
            }
            objects.push((*object, file.into(), *size));
        }
        Ok(())
    }

    /// Makes everything again that is not there, or is older. Before descriptors are opened and directories entered.
    pub fn bring_back(&self, inherited: &Inherited) -> Result<(), (PathBuf, Errno)> {
        let failed = |path: &Path, error: &io::Error| (path.to_owned(), Errno::from_io_error(error).unwrap_or(Errno::IO));
        let mut opened = HashSet::new();
        for entry in &self.entries {
            entry.put(inherited, &self.bytes, &mut opened).map_err(|error| failed(&entry.path, &error))?;
        }
        // What is in them is there now, the deepest first.
        for entry in self.entries.iter().rev().filter(|entry| opened.contains(entry.path.as_path())) {
            rustix::fs::chmod(&entry.path, Mode::from_raw_mode(entry.mode)).map_err(|error| (entry.path.clone(), error))?;
        }
        Ok(())
    }
}

/// What of `/dev/shm` the program has open or mapped shared.
fn held(descriptors: &Descriptors, areas: &[Area]) -> HashSet<Identity> {
    let open = descriptors.opens.iter().filter_map(|open| match open.what {
        What::Memory { identity, .. } => Some(identity),
        _ => None,
    });
    open.chain(areas.iter().filter(|area| area.is_shared_memory()).map(|area| area.identity)).collect()
}

fn identity_of(metadata: &Metadata) -> Identity {
    map_identity((metadata.dev(), metadata.ino()))
}

/// Whether what is mounted at `place` is a job's own directory.
fn is_own(place: &Path) -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    // "36 35 98:0 /root-within-the-file-system /mount-point options …"; of several the last is on top.
    let root = mounts.lines().rev().find_map(|line| {
        let mut words = line.split(' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        (Path::new(point) == place).then_some(root)
    });
    root.and_then(|root| root.rsplit('/').next()).is_some_and(|name| name.starts_with(SHARED_MEMORY_PREFIX))
}

struct Survey {
    held: HashSet<Identity>,
    /// For copies, if they are wanted.
    buffer: Option<CopyBuffer>,
    total: u64,
    found: NodeFiles,
}

impl Survey {
    fn below(place: &Path, held: impl FnOnce() -> HashSet<Identity>, buffer: Option<CopyBuffer>) -> Result<NodeFiles, NodeFileError> {
        // Most are empty, and the table of mounts may be long.
        if names_in(place).map_or(true, |names| names.is_empty()) || !is_own(place) {
            return Ok(NodeFiles::default());
        }
        let mut survey = Self { held: held(), buffer, total: 0, found: NodeFiles::default() };
        survey.directory(place)?;
        let bytes = survey.buffer.map(|buffer| buffer.bytes).unwrap_or_default();
        Ok(NodeFiles { bytes, ..survey.found })
    }

    fn directory(&mut self, place: &Path) -> Result<(), NodeFileError> {
        let failed = |source| NodeFileError::Unreadable { path: place.to_owned(), source };
        for name in names_in(place).map_err(failed)? {
            let path = place.join(name);
            match self.entry(&path) {
                // Another rank of this node removed it.
                Err(NodeFileError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path) -> Result<(), NodeFileError> {
        let failed = |source| NodeFileError::Unreadable { path: path.to_owned(), source };
        let metadata = path.symlink_metadata().map_err(failed)?;
        let about = metadata.file_type();
        self.total += ENTRY_BYTES;
        let kind = if about.is_dir() {
            Kind::Directory
        } else if about.is_symlink() {
            Kind::Link(read_link(path).map_err(failed)?)
        } else if about.is_fifo() {
            Kind::Pipe
        } else if !about.is_file() {
            // A socket that somebody listens at is told by its descriptor; one that nobody does is no good.
            return Ok(());
        } else if self.held.contains(&identity_of(&metadata)) {
            Kind::Held { identity: identity_of(&metadata), size: metadata.len(), object: None }
        } else {
            self.total += metadata.len();
            if self.total > MAX_LOOSE_BYTES {
                return Err(NodeFileError::Large(path.to_owned()));
            }
            let copied = match &mut self.buffer {
                Some(buffer) => Copied::read(path, buffer),
                None => File::open(path).map(|_| Copied { size: metadata.len(), ..Copied::default() }),
            };
            Kind::Loose(copied.map_err(failed)?)
        };
        if self.total > MAX_LOOSE_BYTES {
            return Err(NodeFileError::Large(path.to_owned()));
        }
        let directory = matches!(kind, Kind::Directory);
        let (path, mode, modified) = (path.to_owned(), metadata.mode() & 0o7777, (metadata.mtime(), metadata.mtime_nsec()));
        self.found.entries.push(Entry { path: path.clone(), mode, modified, kind });
        if directory { self.directory(&path) } else { Ok(()) }
    }
}

impl Entry {
    /// Brings it back, also into a directory that its owner may not change: that is opened to him first. What was made or opened
    /// goes to `opened`: its mode is yet to be set. Another rank that brings the same back may have closed it again.
    fn put<'a>(&'a self, inherited: &Inherited, bytes: &[u8], opened: &mut HashSet<&'a Path>) -> io::Result<()> {
        let above = self.path.parent().filter(|above| *above != Path::new(NODE_MEMORY));
        let mut attempts = 0;
        loop {
            let makes = matches!(self.kind, Kind::Directory) && self.path.symlink_metadata().is_err();
            match (self.bring_back(inherited, bytes), above) {
                (Err(error), Some(above)) if error.kind() == io::ErrorKind::PermissionDenied && attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                    // If it is not ours to open, what was in the way is told.
                    rustix::fs::chmod(above, Mode::RWXU).map_err(|_| error)?;
                    opened.insert(above);
                }
                (done, _) => {
                    if makes && done.is_ok() {
                        opened.insert(&self.path);
                    }
                    return done;
                }
            }
        }
    }

    fn bring_back(&self, inherited: &Inherited, bytes: &[u8]) -> io::Result<()> {
        let mode = Mode::from_raw_mode(self.mode);
        let there = self.path.symlink_metadata().ok();
        match &self.kind {
            _ if there.as_ref().is_some_and(|there| !self.replaces(there)) => Ok(()),
            Kind::Directory => DirBuilder::new().mode(0o700).create(&self.path),
            Kind::Link(target) => symlink(target, &self.path),
            Kind::Pipe => {
                rustix::fs::mknodat(CWD, &self.path, rustix::fs::FileType::Fifo, mode, 0)?;
                Ok(rustix::fs::chmod(&self.path, mode)?)
            }
            Kind::Held { object, .. } => {
                let kept = inherited.kept.iter().find(|kept| Some(kept.object) == *object).ok_or(Errno::BADF)?;
                // SAFETY: handed over by the restorer, open until all descriptors are placed.
                match self.name(unsafe { BorrowedFd::borrow_raw(kept.fd) }) {
                    // The restorer could not make it there: it has no name then, as an unlinked one.
                    Err(Errno::XDEV) => Ok(()),
                    other => Ok(other?),
                }
            }
            Kind::Loose(copied) => {
                let directory = self.path.parent().unwrap_or(Path::new(NODE_MEMORY));
                let made = File::from(open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?);
                copied.write(&made, bytes)?;
                Ok(self.name(made.as_fd())?)
            }
        }
    }

    /// Whether it shall be in the place of what is there.
    fn replaces(&self, there: &Metadata) -> bool {
        match self.kind {
            Kind::Held { .. } => true,
            Kind::Loose(_) => there.is_file() && self.modified > (there.mtime(), there.mtime_nsec()),
            _ => false,
        }
    }

    /// Gives a file without a name this one's.
    fn name(&self, file: BorrowedFd) -> Result<(), Errno> {
        rustix::fs::fchmod(file, Mode::from_raw_mode(self.mode))?;
        let modified = Timespec { tv_sec: self.modified.0, tv_nsec: self.modified.1 };
        futimens(file, &Timestamps { last_access: modified, last_modification: modified })?;
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = |to: &Path| linkat(CWD, &own, CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(&self.path) {
            Err(Errno::EXIST) => {
                let temporary = self.path.with_file_name(format!(".mend-{}", rustix::process::getpid().as_raw_nonzero()));
                link(&temporary)?;
                rename(&temporary, &self.path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
            other => other,
        }
    }
}
