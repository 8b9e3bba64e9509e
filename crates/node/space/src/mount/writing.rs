//! What the kernel asks of files that ranks write.
//!
//! Where ranks may write, nothing of such a file stays in the kernel's cache: each read and write comes here, so what one rank wrote another one reads, on any node. Maps
//! that are shared would bypass that, and are refused (ENODEV); private ones show the file as it was when it was mapped. Where ranks only read, the kernel keeps pages, and
//! looks whether the file has changed before each read.

use super::view::{Files, Handle, MAX_READ, below};
use crate::client::{Refused, Seen, Writer, as_it_is_now};
use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use mend_data::space::{BLOCK, Entry, Id, MAX_NAME, is_path};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What is to be changed of a file.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub mode: Option<u32>,
    pub owner: (Option<u32>, Option<u32>),
    pub size: Option<u64>,
    pub time: Option<TimeOrNow>,
}

impl Files {
    /// What writes to the space.
    pub(super) fn writer(&self) -> &Arc<Writer> {
        &self.shared.writer
    }

    /// Says what a program cannot know from a number.
    fn told(&self, path: &str, refused: &Refused) -> Errno {
        if let Refused::Staged | Refused::Bucket | Refused::Appending | Refused::NoPlace(_) | Refused::Fault(_) = refused {
            mend_report::tell!("mend data: {}:{path}: {refused}", self.shared.client.space.name);
        }
        Errno::from_i32(refused.errno())
    }

    fn path_of(&self, file: &Id) -> String {
        self.shared.client.names().entry(file).map(|entry| entry.path.clone()).unwrap_or_default()
    }

    fn place(&self, parent: INodeNo, name: &OsStr) -> Result<String, Errno> {
        if !self.writable {
            return Err(Errno::EROFS);
        }
        if name.len() > MAX_NAME {
            return Err(Errno::ENAMETOOLONG);
        }
        let directory = self.directory(parent).ok_or(Errno::ESTALE)?;
        below(&directory, name).filter(|path| is_path(path)).ok_or(Errno::EINVAL)
    }

    /// The file that ranks write, of a number.
    pub(super) fn written(&self, number: INodeNo) -> Option<Arc<Entry>> {
        self.entry(number).filter(|entry| entry.written().is_some())
    }

    /// What is known of a file now; as long as its targets say.
    pub(super) fn written_attributes(&self, number: u64, entry: &Entry) -> Result<FileAttr, Errno> {
        let now = self.shared.client.names().entry(&entry.id).cloned();
        let entry = now.ok_or(Errno::ESTALE)?;
        if self.writer().known_shape(&entry.id).is_none() {
            self.writer().until_made(&entry);
        }
        match self.writer().shape(&entry) {
            Ok(shape) => Ok(self.attributes_of(number, &entry, shape)),
            Err(fault) => Err(if self.has_gone(&entry) { Errno::ESTALE } else { self.told(&entry.path, &fault.into()) }),
        }
    }

    /// Whether somebody has just removed a file of which a target does not say what it has.
    fn has_gone(&self, entry: &Entry) -> bool {
        self.shared.client.refresh_since(Instant::now());
        self.is_gone(entry)
    }

    pub(super) fn is_gone(&self, entry: &Entry) -> bool {
        self.shared.client.names().entry(&entry.id).is_none()
    }

    /// Does something with what is at a path. If a file is removed meanwhile, or another one takes its name, it is done with what is there then.
    pub(super) fn as_it_is_now<T>(work: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        as_it_is_now(|error| matches!(error, &Errno::ESTALE), work)
    }

    /// What is known of a file that was made just now.
    pub(super) fn attributes_made(&self, number: u64, entry: &Entry) -> FileAttr {
        self.attributes_of(number, entry, (0, entry.made_ns))
    }

    fn attributes_of(&self, number: u64, entry: &Entry, (size, changed_ns): (u64, i64)) -> FileAttr {
        let changed = match u64::try_from(changed_ns) {
            Ok(ns) => UNIX_EPOCH + Duration::from_nanos(ns),
            Err(_) => UNIX_EPOCH - Duration::from_nanos(changed_ns.unsigned_abs()),
        };
        let mode = entry.written().map_or(0, |file| file.mode);
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: changed,
            mtime: changed,
            ctime: changed,
            crtime: changed,
            kind: FileType::RegularFile,
            perm: mode as u16,
            nlink: 1,
            uid: self.shared.owner.0,
            gid: self.shared.owner.1,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        }
    }

    /// Makes a file, or finds one that another rank has made meanwhile; true if it was made.
    pub(super) fn make_file(&self, parent: INodeNo, name: &OsStr, mode: u32, exclusive: bool) -> Result<(Entry, bool), Errno> {
        let path = self.place(parent, name)?;
        let (entry, made) = self.writer().create(&path, mode, exclusive).map_err(|refused| self.told(&path, &refused))?;
        if entry.written().is_none() {
            return Err(self.told(&path, &Refused::Staged));
        }
        Ok((entry, made))
    }

    pub(super) fn open_written(&self, entry: &Entry, writes: bool) -> Handle {
        self.writer().opened(&entry.id);
        Handle { id: entry.id, writes }
    }

    /// Opening a file that was staged in order to write it.
    pub(super) fn refuse_staged(&self, entry: &Entry) -> Errno {
        self.told(&entry.path, &Refused::Staged)
    }

    pub(super) fn read_written(&self, handle: Handle, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let begun = Instant::now();
        let content =
            self.writer().read(&handle.id, offset, size.min(MAX_READ)).map_err(|refused| self.told(&self.path_of(&handle.id), &refused))?;
        self.note(&handle.id, offset, &Seen::Read(&content.fetched, begun.elapsed()));
        Ok(content.bytes)
    }

    /// Targets are told who reads and writes what.
    fn note(&self, file: &Id, offset: u64, seen: &Seen<'_>) {
        if let Some(entry) = self.shared.client.names().entry(file) {
            self.shared.touches.note(&self.who, entry, offset, seen);
        }
    }

    pub(super) fn write_file(&self, file: &Id, offset: u64, bytes: &[u8], appends: bool) -> Result<u32, Errno> {
        if !self.writable {
            return Err(Errno::EROFS);
        }
        let end = offset.checked_add(bytes.len() as u64).filter(|end| i64::try_from(*end).is_ok());
        let written = match (appends, end) {
            (true, _) => self.writer().append(file, bytes),
            (false, Some(_)) => self.writer().write(file, offset, bytes).map(|()| (offset, bytes.len())),
            (false, None) => return Err(Errno::EFBIG),
        };
        let (at, length) = written.map_err(|refused| self.told(&self.path_of(file), &refused))?;
        self.note(file, at, &Seen::Written(length as u64));
        Ok(length as u32)
    }

    pub(super) fn sync_file(&self, file: &Id) -> Result<(), Errno> {
        self.writer().sync(file).map_err(|refused| match refused {
            // Nobody can read it any more.
            Refused::Removed => Errno::ESTALE,
            refused => self.told(&self.path_of(file), &refused),
        })
    }

    pub(super) fn close_file(&self, handle: Handle) {
        self.writer().closed(&handle.id);
        self.was_closed(handle);
    }

    pub(super) fn change(&self, number: INodeNo, changed: &Changed) -> Result<FileAttr, Errno> {
        if !self.writable {
            return Err(Errno::EROFS);
        }
        let Some(entry) = self.entry(number) else {
            // Directories have neither times nor permissions of their own.
            return Err(if self.directory(number).is_some() { Errno::EPERM } else { Errno::ESTALE });
        };
        if entry.written().is_none() {
            return Err(self.told(&entry.path, &Refused::Staged));
        }
        let (user, group) = self.shared.owner;
        if changed.owner.0.is_some_and(|uid| uid != user) || changed.owner.1.is_some_and(|gid| gid != group) {
            return Err(Errno::EPERM);
        }
        let done = || -> Result<(), Refused> {
            if let Some(size) = changed.size {
                self.writer().cut(&entry.id, size)?;
                if !self.writer().is_open(&entry.id) {
                    // By its name: nobody closes it.
                    self.writer().sync(&entry.id)?;
                }
            }
            if let Some(mode) = changed.mode {
                self.writer().set_mode(&entry.id, mode)?;
            }
            if let Some(time) = changed.time {
                self.writer().stamp(&entry.id, nanoseconds(time))?;
            }
            Ok(())
        };
        done().map_err(|refused| self.told(&entry.path, &refused))?;
        self.written_attributes(number.0, &entry)
    }

    pub(super) fn remove_file(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let path = self.place(parent, name)?;
        self.writer().unlink(&path).map_err(|refused| self.told(&path, &refused))
    }

    pub(super) fn make_directory(&self, parent: INodeNo, name: &OsStr) -> Result<String, Errno> {
        let path = self.place(parent, name)?;
        self.writer().make_directory(&path).map_err(|refused| self.told(&path, &refused))?;
        Ok(path)
    }

    pub(super) fn remove_directory(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let path = self.place(parent, name)?;
        self.writer().remove_directory(&path).map_err(|refused| self.told(&path, &refused))
    }

    pub(super) fn rename_file(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), replace: bool) -> Result<(), Errno> {
        let (from, to) = (self.place(from.0, from.1)?, self.place(to.0, to.1)?);
        self.writer().rename(&from, &to, replace).map_err(|refused| self.told(&from, &refused))
    }
}

fn nanoseconds(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    let ns = |since: Duration| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    time.duration_since(UNIX_EPOCH).map_or_else(|before| -ns(before.duration()), ns)
}
