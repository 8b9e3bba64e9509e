//! Files that the program has open are kept with a checkpoint while all ranks of the job stand still.
//!
//! ```text
//! each file ─ claim its name in N.part/files (O_EXCL) ┬ taken ─► another rank keeps it
//!                                                     └ mine ─► link what the last checkpoint has ─► clone ─► copy, up to a limit
//! ```
//! Which of several ranks keeps a file does not matter: none of them runs. Nothing is durable before [`KeptFiles::sync`]. Faults
//! assumed: the directory is not there on this node, disks are full, files are anybody's; then the file is named as not kept.

use crate::descriptors::file_systems::{is_shared_file_system, magic_of};
use crate::descriptors::locks::Kind;
use crate::descriptors::table::{Taken, apart, move_high, take};
use crate::descriptors::{Descriptors, PathKind, What};
use mend_messages::agent::Reply;
use mend_messages::files::{FileState, FileUse, KEPT_DIRECTORY, KeepOrder, Keeping, KeptFile};
use mend_sealed::{Key, Sealer};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Stat, StatxFlags, StatxTimestamp, fchmod, fstat, fsync, ftruncate, linkat, mkdirat, open, openat, statx,
    unlinkat,
};
use rustix::io::{Errno, pread};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Bytes moved at a time, and what direct I/O wants them aligned to.
const COPY_BYTES: usize = 1 << 20;
const ALIGNMENT_BYTES: usize = 4096;
/// Most files of one rank that are only read and told of.
const MAX_READ_FILES: usize = 1000;
/// Seconds after a change that another one may bear the same time.
const MAX_CLOCK_TICK_S: i64 = 2;

/// What this rank kept.
#[derive(Debug, Default)]
pub(crate) struct KeptFiles {
    /// By key: what it was, and where its content lies. Only what had settled when it was kept: else the same state may be of other content.
    last: HashMap<String, (FileState, Keeping, PathBuf)>,
    /// Not durable yet.
    unsynced: Vec<PathBuf>,
}

/// A file that the program has open, once for all of its descriptors.
struct OpenFile<'a> {
    path: &'a str,
    usage: FileUse,
    taken: Taken,
    /// By `taken`.
    readable: bool,
    locked: bool,
    stat: Stat,
}

impl KeptFiles {
    /// Keeps what is to be kept. All threads of all ranks of the job are parked.
    pub fn keep(&mut self, descriptors: &Descriptors, order: &KeepOrder) -> Vec<KeptFile> {
        self.unsynced.clear();
        let directory = Directory::open(&order.checkpoint);
        let mut last = std::mem::take(&mut self.last);
        let mut found = Vec::new();
        let mut read = 0;
        for file in open_files(descriptors) {
            read += usize::from(file.usage == FileUse::Read);
            if file.usage == FileUse::Read && read > MAX_READ_FILES {
                continue;
            }
            let state = file.state();
            let key = file.key();
            // Looked at before the content is read: a change after that bears another time.
            let settled = file.is_settled(&state);
            let keeping = match (&directory, file.usage) {
                (_, FileUse::Read | FileUse::Append) => Keeping::State,
                (Err(why), FileUse::Write) => Keeping::Not(why.clone()),
                (Ok(directory), FileUse::Write) => {
                    let before = last.remove(&key).filter(|(then, ..)| *then == state);
                    let kept = directory.keep((&file, state.size), &key, order, before);
                    if let Keeping::Content { name, .. } = &kept {
                        self.unsynced.push(directory.path.join(name));
                        if settled {
                            self.last.insert(key.clone(), (state, kept.clone(), directory.later.join(name)));
                        }
                    }
                    kept
                }
            };
            let state = if settled { state } else { state.unsettled() };
            found.push(KeptFile { key, rank: 0, path: file.path.to_owned(), usage: file.usage, state, keeping });
        }
        found
    }

    /// Makes all of it durable. The program may run.
    pub fn synced(&mut self) -> Reply {
        let failed = |(path, errno): (PathBuf, Errno)| Reply::Failed {
            error: format!("{} cannot be made durable: {errno}", path.display()),
            hint: mend_report::storage_hint(&errno.into()).to_string(),
        };
        self.sync().map_or_else(failed, |()| Reply::Synced)
    }

    fn sync(&mut self) -> Result<(), (PathBuf, Errno)> {
        let mut directories = Vec::new();
        for path in std::mem::take(&mut self.unsynced) {
            let failed = |errno| (path.clone(), errno);
            fsync(high(open(&path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())).map_err(failed)?)
                .map_err(failed)?;
            directories.extend(path.parent().map(Path::to_owned));
        }
        directories.dedup();
        for path in directories {
            let failed = |errno| (path.clone(), errno);
            fsync(high(open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())).map_err(failed)?)
                .map_err(failed)?;
        }
        Ok(())
    }
}

/// Files that are written to but not only appended to, with their lengths.
pub(crate) fn written(descriptors: &Descriptors) -> Vec<(String, u64)> {
    let written = open_files(descriptors).into_iter().filter(|file| file.usage == FileUse::Write);
    written.map(|file| (file.path.to_owned(), file.stat.st_size as u64)).collect()
}

fn open_files(descriptors: &Descriptors) -> Vec<OpenFile<'_>> {
    let mut found: BTreeMap<(u64, u64), OpenFile> = BTreeMap::new();
    for (index, open) in descriptors.opens.iter().enumerate() {
        let What::Path { path, kind: PathKind::File, .. } = &open.what else { continue };
        let Some(fd) = descriptors.number_of(index).filter(|_| !path.starts_with("/proc/") && !path.starts_with("/sys/")) else { continue };
        let Ok(taken) = take(fd) else { continue };
        let Ok(stat) = fstat(&taken) else { continue };
        let access = open.flags & libc::O_ACCMODE;
        let usage = match access {
            libc::O_RDONLY => FileUse::Read,
            _ if open.flags & libc::O_APPEND != 0 => FileUse::Append,
            _ => FileUse::Write,
        };
        let readable = access != libc::O_WRONLY;
        let locked = open.locks.iter().any(|lock| lock.kind == Kind::Posix);
        let file = OpenFile { path, usage, taken, readable, locked, stat };
        match found.entry((stat.st_dev, stat.st_ino)) {
            Entry::Vacant(new) => drop(new.insert(file)),
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.usage = known.usage.max(usage);
                known.locked |= locked;
                if readable && !known.readable {
                    (known.taken, known.readable) = (file.taken, true);
                }
            }
        }
    }
    found.into_values().collect()
}

impl OpenFile<'_> {
    /// As the file's server knows it: a client of a network file system may remember an older length than another node has written.
    fn state(&self) -> FileState {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let Ok(about) = statx(self.fd(), c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, wanted) else { return self.remembered() };
        let born = Some(about.stx_btime).filter(|_| about.stx_mask & StatxFlags::BTIME.bits() != 0);
        let time = |time: StatxTimestamp| (time.tv_sec, time.tv_nsec);
        FileState {
            size: about.stx_size,
            mode: u32::from(about.stx_mode) & 0o7777,
            owner: (about.stx_uid, about.stx_gid),
            inode: about.stx_ino,
            born: born.map(time),
            modified: time(about.stx_mtime),
            changed: time(about.stx_ctime),
        }
    }

    /// Where statx(2) is forbidden.
    fn remembered(&self) -> FileState {
        let stat = fstat(self.fd()).unwrap_or(self.stat);
        FileState {
            size: stat.st_size as u64,
            mode: stat.st_mode & 0o7777,
            owner: (stat.st_uid, stat.st_gid),
            inode: stat.st_ino,
            born: None,
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
            changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.taken.as_fd()
    }

    /// The same on all nodes that see the file, another one where files of one path are different ones.
    fn key(&self) -> String {
        let scope = if self.is_shared() { String::new() } else { self.node() };
        format!("{:032x}", xxh3_128(format!("{scope}\0{}\0{}", self.stat.st_ino, self.path).as_bytes()))
    }

    fn node(&self) -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        format!("{} {}", boot.trim_end(), self.stat.st_dev)
    }

    fn magic(&self) -> u64 {
        magic_of(self.fd()).unwrap_or(0)
    }

    fn is_shared(&self) -> bool {
        is_shared_file_system(self.magic())
    }

    /// Whether another change could not bear the same times: a clock ticks, and memory written through a mapping does not show in those
    /// of a file that lies in memory.
    fn is_settled(&self, state: &FileState) -> bool {
        const TMPFS: u64 = 0x0102_1994;
        const RAMFS: u64 = 0x8584_58f6;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        let (changed, _) = state.changed;
        ![TMPFS, RAMFS].contains(&self.magic()) && changed > 0 && changed + MAX_CLOCK_TICK_S <= now
    }

    /// To be read at offsets. With POSIX locks on the file, and a table that is the program's, only a descriptor of the program's will
    /// do: when another one is closed they are given up.
    fn reader(&self) -> Result<Reader<'_>, String> {
        let theirs = |why: String| if self.readable { Ok(Reader::Theirs(self.fd())) } else { Err(why) };
        if self.locked && !apart() {
            return theirs("the program has a POSIX lock on it and did not open it for reading".into());
        }
        let path = format!("/proc/thread-self/fd/{}", self.fd().as_raw_fd());
        match open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).and_then(move_high) {
            Ok(own) => Ok(Reader::Own(own)),
            Err(errno) => theirs(format!("it cannot be read: {errno}")),
        }
    }
}

enum Reader<'a> {
    Own(OwnedFd),
    Theirs(BorrowedFd<'a>),
}

impl AsFd for Reader<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Reader::Own(own) => own.as_fd(),
            Reader::Theirs(theirs) => *theirs,
        }
    }
}

/// Out of the way of the program's numbers.
fn high(low: Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    low.and_then(move_high)
}

/// Where a checkpoint keeps files.
struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    /// Its path once the checkpoint is complete.
    later: PathBuf,
}

impl Directory {
    /// Makes it in a checkpoint's directory, which must be there.
    fn open(checkpoint: &Path) -> Result<Self, String> {
        let unseen = |errno: Errno| format!("this rank cannot write to the checkpoint's directory {}: {errno}", checkpoint.display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let above = high(open(checkpoint, flags, Mode::empty())).map_err(unseen)?;
        match mkdirat(&above, KEPT_DIRECTORY, Mode::RWXU) {
            // The umask is the program's.
            Ok(()) => rustix::fs::chmodat(&above, KEPT_DIRECTORY, Mode::RWXU, AtFlags::empty()).map_err(unseen)?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(unseen(errno)),
        }
        let fd = high(openat(&above, KEPT_DIRECTORY, flags, Mode::empty())).map_err(unseen)?;
        Ok(Self { fd, path: checkpoint.join(KEPT_DIRECTORY), later: checkpoint.with_extension("").join(KEPT_DIRECTORY) })
    }

    /// Keeps this many bytes of the file.
    fn keep(&self, (file, size): (&OpenFile, u64), key: &str, order: &KeepOrder, before: Option<(FileState, Keeping, PathBuf)>) -> Keeping {
        let linked = before.and_then(|(_, keeping, path)| match linkat(CWD, &path, &self.fd, key, AtFlags::empty()) {
            Ok(()) => Some(keeping),
            Err(Errno::EXIST) => Some(Keeping::Elsewhere),
            Err(_) => None,
        });
        if let Some(linked) = linked {
            return linked;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let target = match high(openat(&self.fd, key, flags, Mode::RUSR | Mode::WUSR)) {
            Ok(target) => target,
            Err(Errno::EXIST) => return Keeping::Elsewhere,
            Err(errno) => return Keeping::Not(format!("it cannot be copied to {}: {errno}", self.path.display())),
        };
        let kept = fchmod(&target, Mode::RUSR | Mode::WUSR).map_err(|errno| errno.to_string());
        let kept = kept.and_then(|()| file.reader()).and_then(|reader| fill(target, &reader, size, order));
        match kept {
            Ok((stored, checksum)) => Keeping::Content { name: key.to_owned(), stored, checksum },
            Err(why) => {
                let _ = unlinkat(&self.fd, OsStr::from_bytes(key.as_bytes()), AtFlags::empty());
                Keeping::Not(why)
            }
        }
    }
}

/// Gives `target` the content; its length, and the content's checksum if it was read.
fn fill(target: OwnedFd, reader: &Reader, size: u64, order: &KeepOrder) -> Result<(u64, Option<u64>), String> {
    // What is to be encrypted must not lie there as it is.
    if order.seal.is_none() && rustix::fs::ioctl_ficlone(&target, reader.as_fd()).is_ok() {
        return Ok((size, None));
    }
    if size > order.limit {
        return Err(format!("it has more than {} MiB (MEND_KEEP_FILES_MB) and cannot be cloned", order.limit >> 20));
    }
    let failed = |error: io::Error| format!("it cannot be copied: {error}");
    let target = File::from(target);
    let checksum = match order.seal {
        Some(seal) => {
            let mut salt = [0; 32];
            rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty()).map_err(|errno| failed(errno.into()))?;
            let mut sealer = Sealer::new(&target, &Key::from_bytes(seal), salt).map_err(failed)?;
            let checksum = read_all(reader, size, |piece, _| sealer.write_all(piece)).map_err(failed)?;
            sealer.finish().map_err(failed)?;
            checksum
        }
        None => {
            ftruncate(&target, size).map_err(|errno| failed(errno.into()))?;
            let is_zero = |piece: &[u8]| piece.iter().all(|byte| *byte == 0);
            read_all(reader, size, |piece, at| if is_zero(piece) { Ok(()) } else { target.write_all_at(piece, at) }).map_err(failed)?
        }
    };
    let stored = target.metadata().map_err(failed)?.len();
    Ok((stored, Some(checksum)))
}

/// Reads `size` bytes from the beginning, piece by piece; their checksum.
fn read_all(reader: &Reader, size: u64, mut each: impl FnMut(&[u8], u64) -> io::Result<()>) -> io::Result<u64> {
    let mut room = vec![0u8; COPY_BYTES + ALIGNMENT_BYTES];
    let begin = room.as_ptr().align_offset(ALIGNMENT_BYTES);
    let room = &mut room[begin..begin + COPY_BYTES];
    let (mut at, mut sum) = (0, Xxh3::new());
    while at < size {
        let got = match pread(reader.as_fd(), &mut *room, at) {
            Ok(0) => return Err(io::Error::other("somebody cut it meanwhile")),
            Ok(got) => got.min((size - at) as usize),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        sum.update(&room[..got]);
        each(&room[..got], at)?;
        at += got as u64;
    }
    Ok(sum.digest())
}

#[cfg(test)]
mod tests;
