//! What the kernel asks of the file system (linux/fuse.h, `fuse_lowlevel` of libfuse).
//!
//! Files that were staged never change, so their pages stay in the kernel's cache between opens, and their attributes for long. Names may: they are looked up anew after
//! a second, and what targets came to know is heard as often. Numbers of files are the same on every node: a rank that moves finds its open files again.
//!
//! Faults assumed: targets are lost (reads wait for the source, or fail with EIO, and the log says why); a file that is removed while it is open gives EIO for what is not in
//! the cache.

use super::listings::Listed;
use super::view::{Files, Handle, MAX_READ, below, held, number_of_directory};
use super::writing::Changed;
use crate::client::Seen;
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use mend_data::space::catalogue::Node;
use mend_data::space::{BLOCK, MAX_NAME};
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// Requests that the kernel has under way on its own account (read-ahead).
const BACKGROUND: u16 = 64;
/// Attribute with the addresses that a file came from, one a line.
const SOURCE: &str = "user.mend.uri";

impl Files {
    fn synced(&self, handle: FileHandle, reply: ReplyEmpty) {
        // Of what was staged nothing is to be synced.
        answered(self.handle(handle).map_or(Ok(()), |handle| self.sync_file(&handle.id)), reply);
    }

    /// What is in a directory now.
    fn listed(&self, number: INodeNo, directory: &str) -> Vec<Listed> {
        self.hear();
        let above = directory.rsplit_once('/').map_or("", |(above, _)| above);
        let dots = [(number.0, FileType::Directory, ".".to_owned()), (number_of_directory(above), FileType::Directory, "..".to_owned())];
        let names = self.shared.client.names();
        let listed = names.list(directory).into_iter().filter_map(|(name, node)| {
            let kind = if let Node::File(_) = node { FileType::RegularFile } else { FileType::Directory };
            Some((self.number(&below(directory, OsStr::new(&name))?, node), kind, name))
        });
        dots.into_iter().chain(listed).collect()
    }
}

impl Filesystem for Files {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // An older kernel may lack any of these, and is slower then.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_READ | InitFlags::FUSE_MAX_PAGES | InitFlags::FUSE_PARALLEL_DIROPS);
        // Locks would be each mount's own: they are refused where ranks write.
        if self.writable {
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS);
        } else {
            let _ = config.add_capabilities(InitFlags::FUSE_AUTO_INVAL_DATA);
        }
        let _ = config.set_max_write(MAX_READ);
        let _ = config.set_max_readahead(MAX_READ);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(directory) = self.directory(parent) else { return reply.error(Errno::ESTALE) };
        if name.len() > MAX_NAME {
            return reply.error(Errno::ENAMETOOLONG);
        }
        let Some(path) = below(&directory, name) else { return reply.error(Errno::ENOENT) };
        self.hear();
        let found = Self::as_it_is_now(|| {
            let (number, entry) = {
                let names = self.shared.client.names();
                let node = names.look(&path).ok_or(Errno::ENOENT)?;
                (self.number(&path, node), if let Node::File(entry) = node { Some(entry.clone()) } else { None })
            };
            self.shown(number, entry.as_ref())
        });
        match found {
            Ok((_, attributes)) => reply.entry(&self.names_for(), &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let entry = self.entry(number);
        if entry.is_none() && self.directory(number).is_none() {
            return reply.error(Errno::ESTALE);
        }
        match self.shown(number.0, entry.as_deref()) {
            Ok((good_for, attributes)) => reply.attr(&good_for, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Some(entry) = self.entry(number) else { return reply.error(Errno::ESTALE) };
        if entry.written().is_some() {
            if self.is_gone(&entry) {
                // The kernel looks the path up anew.
                return reply.error(Errno::ESTALE);
            }
            let writes = self.writable && flags.acc_mode() != OpenAccMode::O_RDONLY;
            let (handle, how) = self.opened(&entry, writes);
            return reply.opened(handle, how);
        }
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(self.refuse_staged(&entry));
        }
        let handle = self.shared.next.fetch_add(1, Ordering::Relaxed);
        held(&self.shared.open).insert(handle, (entry, Arc::default()));
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(handle) = self.handle(handle) {
            return match self.read_written(handle, offset, size) {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            };
        }
        let Some((entry, pattern)) = held(&self.shared.open).get(&handle.0).cloned() else { return reply.error(Errno::EBADF) };
        let begun = Instant::now();
        match self.shared.reader.read(&entry, offset, size, &pattern) {
            Ok(content) => {
                reply.data(&content.bytes);
                self.shared.touches.note(&self.who, &entry, offset, &Seen::Read(&content.fetched, begun.elapsed()));
            }
            Err(fault) => {
                mend_report::tell!("mend data: {fault}");
                reply.error(Errno::EIO);
            }
        }
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        held(&self.shared.open).remove(&handle.0);
        let written = held(&self.shared.writing).remove(&handle.0);
        if let Some((handle, _)) = written {
            self.close_file(handle);
        }
        reply.ok();
    }

    fn create(&self, _request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, flags: i32, reply: ReplyCreate) {
        let exclusive = flags & rustix::fs::OFlags::EXCL.bits() as i32 != 0;
        let made = Self::as_it_is_now(|| {
            let (entry, made) = self.make_file(parent, name, mode, exclusive)?;
            let number = self.number(&entry.path, Node::File(&entry));
            // One that was just made has nothing in it, and the kernel asks again before it tells anybody.
            let attributes = if made { self.attributes_made(number, &entry) } else { self.written_attributes(number, &entry)? };
            Ok((attributes, entry))
        });
        match made {
            Ok((attributes, entry)) => {
                let writes = OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY;
                let (handle, how) = self.opened(&entry, writes);
                reply.created(&self.names_for(), &attributes, Generation(0), handle, how);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(handle) = self.handle(handle) else { return reply.error(Errno::EBADF) };
        let appends = flags.0 & rustix::fs::OFlags::APPEND.bits() as i32 != 0;
        match self.write_file(&handle.id, offset, data, appends) {
            Ok(length) => reply.written(length),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _request: &Request, _number: INodeNo, handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        match self.handle(handle) {
            // Who only read has nothing to lose.
            Some(Handle { writes: false, .. }) => reply.ok(),
            _ => self.synced(handle, reply),
        }
    }

    fn fsync(&self, _request: &Request, _number: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.synced(handle, reply);
    }

    fn fsyncdir(&self, _request: &Request, _number: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        // Names are durable when they are made.
        reply.ok();
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        time: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.change(number, &Changed { mode, owner: (uid, gid), size, time }) {
            Ok(attributes) => reply.attr(&Duration::ZERO, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        match self.make_directory(parent, name) {
            Ok(path) => {
                let number = self.number(&path, Node::Directory);
                reply.entry(&self.names_for(), &self.attributes(number, None), Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answered(self.remove_file(parent, name), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answered(self.remove_directory(parent, name), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        answered(self.rename_file((parent, name), (new_parent, new_name), replace), reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EOPNOTSUPP);
    }

    fn getlk(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        _start: u64,
        _end: u64,
        _typ: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        reply.error(Errno::ENOLCK);
    }

    fn setlk(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        _start: u64,
        _end: u64,
        typ: i32,
        _pid: u32,
        _sleep: bool,
        reply: ReplyEmpty,
    ) {
        // Nobody can hold a lock, so there is none to give back; and who reads what was staged excludes nobody.
        let unlocks = typ == libc::F_UNLCK;
        if unlocks || self.written(number).is_none() { reply.ok() } else { reply.error(Errno::ENOLCK) }
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.directory(number).is_none() {
            return reply.error(Errno::ENOTDIR);
        }
        let handle = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.shared.listings.open(handle, self.mount);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(&self, _request: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(directory) = self.directory(number) else { return reply.error(Errno::ENOTDIR) };
        let listed = self.shared.listings.of(handle.0, offset == 0, || self.listed(number, &directory));
        let left = listed.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX));
        for (place, (number, kind, name)) in left {
            if reply.add(INodeNo(*number), place as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _request: &Request, _number: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.shared.listings.close(handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        let rooms: Vec<_> = self.shared.client.rooms().into_iter().flatten().collect();
        let blocks = |bytes: u64| bytes / BLOCK;
        let free = blocks(rooms.iter().map(|room| room.free).sum());
        let (files, _) = self.shared.client.names().total();
        reply.statfs(blocks(rooms.iter().map(|room| room.total).sum()), free, free, files, 0, BLOCK as u32, MAX_NAME as u32, BLOCK as u32);
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let entry = self.entry(number).filter(|_| name == SOURCE);
        let Some(file) = entry.as_ref().and_then(|entry| entry.file()) else { return reply.error(Errno::ENODATA) };
        attribute(file.sources.iter().map(|source| source.uri.as_str()).collect::<Vec<_>>().join("\n").as_bytes(), size, reply);
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let names = if self.entry(number).is_some_and(|entry| entry.file().is_some()) { format!("{SOURCE}\0") } else { String::new() };
        attribute(names.as_bytes(), size, reply);
    }
}

fn answered(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn attribute(value: &[u8], size: u32, reply: ReplyXattr) {
    match size {
        0 => reply.size(value.len() as u32),
        size if value.len() > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
