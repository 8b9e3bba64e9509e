//! The disk as the kernel sees it (FUSE). One request at a time; nothing is cached by the kernel, neither content nor names,
//! so that every operation of a program arrives here, and a write may come back short.

use crate::disk::{Change, Disk, Inode};
use crate::faults::{Faults, Kind};
use fuser::{
    BackgroundSession, BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

const CACHE_TIME: Duration = Duration::ZERO;
const BLOCK_BYTES: u64 = 4096;

/// Disk and faults, shared with whoever gives the orders.
#[derive(Debug)]
pub struct State {
    /// What is stored.
    pub disk: Disk,
    /// What is to fail.
    pub faults: Faults,
}

/// A shared [`State`].
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// Around this disk.
    #[must_use]
    pub fn new(disk: Disk) -> Self {
        Self(Arc::new(Mutex::new(State { disk, faults: Faults::default() })))
    }

    /// Alone with it.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mounts it. The mount ends when the session is dropped or joined.
    ///
    /// # Errors
    /// The kernel's: no `/dev/fuse`, no right to mount.
    pub fn mount(&self, place: &Path) -> io::Result<BackgroundSession> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("powerloss".into()), MountOption::DefaultPermissions];
        fuser::spawn_mount(Session(self.clone()), place, &config)
    }
}

struct Session(Shared);

impl Session {
    /// Something that only looks.
    fn look<T>(&self, work: impl FnOnce(&Disk) -> Result<T, Errno>) -> Result<T, fuser::Errno> {
        let state = self.0.lock();
        state.faults.alive().and_then(|()| work(&state.disk)).map_err(errno)
    }

    /// Something that changes the disk, or makes it durable.
    fn act<T>(&self, kind: Kind, work: impl FnOnce(&mut Disk) -> Result<T, Errno>) -> Result<T, fuser::Errno> {
        let mut state = self.0.lock();
        state.faults.admit(kind).and_then(|()| work(&mut state.disk)).map_err(errno)
    }
}

/// fsync of whatever it is.
fn sync(session: &Session, number: INodeNo, reply: ReplyEmpty) {
    let lie = session.0.lock().faults.lie;
    finish(reply, session.act(Kind::Sync, |disk| if lie { Ok(()) } else { disk.sync(number.0) }));
}

fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

fn attributes(number: u64, inode: &Inode) -> FileAttr {
    let directory = inode.is_directory();
    FileAttr {
        ino: INodeNo(number),
        size: inode.length(),
        blocks: inode.length().div_ceil(512),
        atime: inode.changed,
        mtime: inode.changed,
        ctime: inode.changed,
        crtime: inode.changed,
        kind: if directory { FileType::Directory } else { FileType::RegularFile },
        perm: inode.mode as u16,
        nlink: if directory { 2 } else { 1 },
        uid: inode.owner.0,
        gid: inode.owner.1,
        rdev: 0,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

fn attributes_of(disk: &Disk, number: u64) -> Result<FileAttr, Errno> {
    disk.inode(number).map(|inode| attributes(number, inode))
}

/// Makes a name and gives what it leads to.
fn create(disk: &mut Disk, request: &Request, parent: INodeNo, name: &OsStr, directory: bool, mode: u32) -> Result<FileAttr, Errno> {
    let number = disk.create(parent.0, name, directory, mode & 0o7777, (request.uid(), request.gid()))?;
    attributes_of(disk, number)
}

fn finish(reply: ReplyEmpty, result: Result<(), fuser::Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn finish_entry(reply: ReplyEntry, result: Result<FileAttr, fuser::Errno>) {
    match result {
        Ok(found) => reply.entry(&CACHE_TIME, &found, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for Session {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        finish_entry(reply, self.look(|disk| disk.lookup(parent.0, name).and_then(|number| attributes_of(disk, number))));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.look(|disk| attributes_of(disk, ino.0)) {
            Ok(found) => reply.attr(&CACHE_TIME, &found),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let work = |disk: &mut Disk| {
            if let Some(size) = size {
                disk.change(ino.0, Change::Length(size))?;
            }
            let inode = disk.inode_mut(ino.0)?;
            inode.mode = mode.map_or(inode.mode, |mode| mode & 0o7777);
            inode.owner = (uid.unwrap_or(inode.owner.0), gid.unwrap_or(inode.owner.1));
            match mtime {
                Some(TimeOrNow::SpecificTime(time)) => inode.changed = time,
                Some(TimeOrNow::Now) => inode.changed = SystemTime::now(),
                None => {}
            }
            attributes_of(disk, ino.0)
        };
        match self.act(Kind::Name, work) {
            Ok(found) => reply.attr(&CACHE_TIME, &found),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        finish_entry(reply, self.act(Kind::Name, |disk| create(disk, request, parent, name, true, mode & !umask)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(reply, self.act(Kind::Name, |disk| disk.remove(parent.0, name, false)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(reply, self.act(Kind::Name, |disk| disk.remove(parent.0, name, true)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let work = |disk: &mut Disk| {
            if flags.intersects(!RenameFlags::RENAME_NOREPLACE) {
                return Err(Errno::INVAL);
            }
            disk.rename((parent.0, name), (newparent.0, newname), flags.contains(RenameFlags::RENAME_NOREPLACE))
        };
        finish(reply, self.act(Kind::Name, work));
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.look(|disk| disk.inode(ino.0).map(|_| ())) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: i32, reply: ReplyCreate) {
        match self.act(Kind::Name, |disk| create(disk, request, parent, name, false, mode & !umask)) {
            Ok(made) => reply.created(&CACHE_TIME, &made, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, size: u32, _: OpenFlags, _: Option<LockOwner>, reply: ReplyData) {
        match self.look(|disk| disk.read(ino.0, offset, size as usize).map(<[u8]>::to_vec)) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let short = self.0.lock().faults.short as usize;
        let data = if short > 0 { &data[..data.len().min(short)] } else { data };
        match self.act(Kind::Write, |disk| disk.change(ino.0, Change::Write { at: offset, bytes: data.to_vec() })) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        finish(reply, self.look(|_| Ok(())));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        sync(self, ino, reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        sync(self, ino, reply);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = |disk: &Disk| {
            let (entries, parent) = disk.entries(ino.0)?;
            let kind = |number| disk.inode(number).map_or(FileType::RegularFile, |inode| attributes(number, inode).kind);
            let own = [(".".into(), ino.0, FileType::Directory), ("..".into(), parent, FileType::Directory)];
            Ok(own.into_iter().chain(entries.iter().map(|(name, &number)| (name.clone(), number, kind(number)))).collect::<Vec<_>>())
        };
        match self.look(list) {
            Ok(entries) => {
                for (at, (name, number, kind)) in entries.into_iter().enumerate().skip(offset as usize) {
                    if reply.add(INodeNo(number), at as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let state = self.0.lock();
        let (all, free) = (state.disk.capacity / BLOCK_BYTES, state.disk.capacity.saturating_sub(state.disk.used()) / BLOCK_BYTES);
        reply.statfs(all, free, free, 1 << 20, 1 << 20, BLOCK_BYTES as u32, 255, BLOCK_BYTES as u32);
    }
}
