//! Files and directories with what of them is durable, and what is not yet.
//!
//! The model promises no more than POSIX does: fsync of a file makes its content durable, but not its name; fsync of a
//! directory makes the names in it durable, but no content. A rename within one directory happens entirely or not at
//! all; one between two directories is two changes that know nothing of each other. Modes and owners are durable at
//! once: nothing here is about them.
//!
//! Invariants: `content` is what a program sees; applying all of `pending` to `durable` gives it. Inode numbers are
//! never used again.

use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

/// The root directory's inode.
pub const ROOT: u64 = 1;

/// A change of a file's content that is not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes from an offset; what lies between them and the end of the file is zero.
    Write {
        /// Where in the file it is written.
        at: u64,
        /// What was written.
        bytes: Vec<u8>,
    },
    /// A new length.
    Length(u64),
}

impl Change {
    /// Makes the change.
    pub fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => {
                let (at, end) = (*at as usize, *at as usize + bytes.len());
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[at..end].copy_from_slice(bytes);
            }
            Self::Length(length) => content.resize(*length as usize, 0),
        }
    }
}

/// A change of a directory that is not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The name leads to the inode.
    Add(OsString, u64),
    /// The name is gone.
    Remove(OsString),
    /// Both at once: a rename within the directory.
    Rename(OsString, OsString, u64),
}

impl Edit {
    /// Makes the change.
    pub fn apply(&self, entries: &mut BTreeMap<OsString, u64>) {
        match self {
            Self::Add(name, inode) => {
                entries.insert(name.clone(), *inode);
            }
            Self::Remove(name) => {
                entries.remove(name);
            }
            Self::Rename(from, to, inode) => {
                entries.remove(from);
                entries.insert(to.clone(), *inode);
            }
        }
    }
}

/// What an inode is.
#[derive(Clone, Debug)]
pub enum Body {
    /// A regular file.
    File {
        /// As programs see it.
        content: Vec<u8>,
        /// As the disk has it.
        durable: Vec<u8>,
        /// What leads from the one to the other, in order.
        pending: Vec<Change>,
    },
    /// A directory.
    Directory {
        /// As programs see it.
        entries: BTreeMap<OsString, u64>,
        /// As the disk has it.
        durable: BTreeMap<OsString, u64>,
        /// What leads from the one to the other, in order.
        pending: Vec<Edit>,
        /// Where `..` leads.
        parent: u64,
    },
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// What it is.
    pub body: Body,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Last change of content.
    pub changed: SystemTime,
}

impl Inode {
    /// Length of a file, bytes; of a directory, 0.
    #[must_use]
    pub fn length(&self) -> u64 {
        match &self.body {
            Body::File { content, .. } => content.len() as u64,
            Body::Directory { .. } => 0,
        }
    }

    /// True for a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }
}

/// The disk.
#[derive(Clone, Debug)]
pub struct Disk {
    pub(crate) inodes: HashMap<u64, Inode>,
    next: u64,
    /// Bytes that fit on it.
    pub capacity: u64,
}

type Done<T> = Result<T, Errno>;

impl Disk {
    /// An empty disk whose root belongs to `owner`.
    #[must_use]
    pub fn new(owner: (u32, u32), capacity: u64) -> Self {
        let root = Inode { body: directory(ROOT), mode: 0o755, owner, changed: SystemTime::now() };
        Self { inodes: HashMap::from([(ROOT, root)]), next: ROOT + 1, capacity }
    }

    /// An inode.
    ///
    /// # Errors
    /// `ESTALE` if there is none of this number.
    pub fn inode(&self, number: u64) -> Done<&Inode> {
        self.inodes.get(&number).ok_or(Errno::STALE)
    }

    /// An inode, to change mode or owner.
    ///
    /// # Errors
    /// `ESTALE` if there is none of this number.
    pub fn inode_mut(&mut self, number: u64) -> Done<&mut Inode> {
        self.inodes.get_mut(&number).ok_or(Errno::STALE)
    }

    /// The entries of a directory and where `..` leads.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`.
    pub fn entries(&self, number: u64) -> Done<(&BTreeMap<OsString, u64>, u64)> {
        match &self.inode(number)?.body {
            Body::Directory { entries, parent, .. } => Ok((entries, *parent)),
            Body::File { .. } => Err(Errno::NOTDIR),
        }
    }

    /// The inode of a name.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ESTALE`.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Done<u64> {
        self.entries(parent)?.0.get(name).copied().ok_or(Errno::NOENT)
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.inodes.values().map(Inode::length).sum()
    }

    /// Makes a file or directory.
    ///
    /// # Errors
    /// `EEXIST`, `ENOTDIR`, `ESTALE`.
    pub fn create(&mut self, parent: u64, name: &OsStr, as_directory: bool, mode: u32, owner: (u32, u32)) -> Done<u64> {
        if self.lookup(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        let number = self.next;
        let body =
            if as_directory { directory(parent) } else { Body::File { content: Vec::new(), durable: Vec::new(), pending: Vec::new() } };
        self.edit(parent, Edit::Add(name.to_owned(), number))?;
        self.next += 1;
        self.inodes.insert(number, Inode { body, mode, owner, changed: SystemTime::now() });
        Ok(number)
    }

    /// Removes a name; a directory must be empty. The inode stays: it may be open, or still be in its durable directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`.
    pub fn remove(&mut self, parent: u64, name: &OsStr, as_directory: bool) -> Done<()> {
        let number = self.lookup(parent, name)?;
        match (&self.inode(number)?.body, as_directory) {
            (Body::Directory { .. }, false) => return Err(Errno::ISDIR),
            (Body::File { .. }, true) => return Err(Errno::NOTDIR),
            (Body::Directory { entries, .. }, true) if !entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.edit(parent, Edit::Remove(name.to_owned()))
    }

    /// Renames, replacing a file or an empty directory unless `keep`.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`.
    pub fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), keep: bool) -> Done<()> {
        let number = self.lookup(from.0, from.1)?;
        if let Ok(old) = self.lookup(to.0, to.1) {
            if keep {
                return Err(Errno::EXIST);
            }
            if old == number {
                return Ok(());
            }
            match (&self.inode(number)?.body, &self.inode(old)?.body) {
                (Body::File { .. }, Body::Directory { .. }) => return Err(Errno::ISDIR),
                (Body::Directory { .. }, Body::File { .. }) => return Err(Errno::NOTDIR),
                (_, Body::Directory { entries, .. }) if !entries.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        if from.0 == to.0 {
            return self.edit(from.0, Edit::Rename(from.1.to_owned(), to.1.to_owned(), number));
        }
        self.edit(to.0, Edit::Add(to.1.to_owned(), number))?;
        self.edit(from.0, Edit::Remove(from.1.to_owned()))?;
        if let Body::Directory { parent, .. } = &mut self.inode_mut(number)?.body {
            *parent = to.0;
        }
        Ok(())
    }

    fn edit(&mut self, number: u64, edit: Edit) -> Done<()> {
        let inode = self.inode_mut(number)?;
        let Body::Directory { entries, pending, .. } = &mut inode.body else { return Err(Errno::NOTDIR) };
        edit.apply(entries);
        pending.push(edit);
        inode.changed = SystemTime::now();
        Ok(())
    }

    /// Bytes of a file.
    ///
    /// # Errors
    /// `EISDIR`, `ESTALE`.
    pub fn read(&self, number: u64, at: u64, length: usize) -> Done<&[u8]> {
        let Body::File { content, .. } = &self.inode(number)?.body else { return Err(Errno::ISDIR) };
        let start = content.len().min(usize::try_from(at).unwrap_or(usize::MAX));
        Ok(&content[start..content.len().min(start.saturating_add(length))])
    }

    /// Changes a file's content.
    ///
    /// # Errors
    /// `ENOSPC`, `EISDIR`, `ESTALE`.
    pub fn change(&mut self, number: u64, change: Change) -> Done<()> {
        let end = match &change {
            Change::Write { at, bytes } => at.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?,
            Change::Length(length) => *length,
        };
        let grows = end.saturating_sub(self.inode(number)?.length());
        if grows > self.capacity.saturating_sub(self.used()) {
            return Err(Errno::NOSPC);
        }
        let inode = self.inode_mut(number)?;
        let Body::File { content, pending, .. } = &mut inode.body else { return Err(Errno::ISDIR) };
        change.apply(content);
        pending.push(change);
        inode.changed = SystemTime::now();
        Ok(())
    }

    /// Makes what an inode holds durable: a file's content, a directory's names.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn sync(&mut self, number: u64) -> Done<()> {
        match &mut self.inode_mut(number)?.body {
            Body::File { durable, pending, .. } => pending.drain(..).for_each(|change| change.apply(durable)),
            Body::Directory { durable, pending, .. } => pending.drain(..).for_each(|edit| edit.apply(durable)),
        }
        Ok(())
    }

    /// Drops what no name leads to.
    pub(crate) fn sweep(&mut self) {
        let (mut reached, mut ahead) = (HashMap::from([(ROOT, ())]), vec![ROOT]);
        while let Some(number) = ahead.pop() {
            let Ok((entries, _)) = self.entries(number) else { continue };
            for &below in entries.values() {
                if reached.insert(below, ()).is_none() {
                    ahead.push(below);
                }
            }
        }
        self.inodes.retain(|number, _| reached.contains_key(number));
    }
}

fn directory(parent: u64) -> Body {
    Body::Directory { entries: BTreeMap::new(), durable: BTreeMap::new(), pending: Vec::new(), parent }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new((0, 0), 1 << 20)
    }

    #[test]
    fn what_a_program_sees_is_what_it_did() {
        let mut disk = disk();
        let a = disk.create(ROOT, OsStr::new("a"), true, 0o700, (0, 0)).unwrap();
        let file = disk.create(a, OsStr::new("f"), false, 0o600, (0, 0)).unwrap();
        disk.change(file, Change::Write { at: 4, bytes: b"data".to_vec() }).unwrap();
        assert_eq!(disk.read(file, 0, 100).unwrap(), b"\0\0\0\0data");
        assert_eq!(disk.remove(ROOT, OsStr::new("a"), true), Err(Errno::NOTEMPTY));
        disk.rename((a, OsStr::new("f")), (ROOT, OsStr::new("g")), true).unwrap();
        assert_eq!(disk.lookup(ROOT, OsStr::new("g")), Ok(file));
        disk.remove(ROOT, OsStr::new("a"), true).unwrap();
        assert_eq!(disk.lookup(ROOT, OsStr::new("a")), Err(Errno::NOENT));
    }

    #[test]
    fn a_full_disk_says_so() {
        let mut disk = Disk::new((0, 0), 10);
        let file = disk.create(ROOT, OsStr::new("f"), false, 0o600, (0, 0)).unwrap();
        disk.change(file, Change::Write { at: 0, bytes: vec![1; 8] }).unwrap();
        assert_eq!(disk.change(file, Change::Write { at: 8, bytes: vec![1; 8] }), Err(Errno::NOSPC));
        disk.change(file, Change::Write { at: 2, bytes: vec![1; 8] }).unwrap();
    }
}
