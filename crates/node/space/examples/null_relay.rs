//! A file system that does nothing with bytes: what Mend's mount is compared with (`benches/data.py`).
//!
//! ```text
//! null_relay serve PORT MIB               keeps so much memory, and gives and takes its bytes over TCP
//! null_relay mount DIR HOST:PORT MIB      mounts one file, `data`, whose bytes are there
//! null_relay over DIR FILE                mounts one file, `data`, whose bytes are those of FILE, in this machine
//! ```
//! `serve` prints `ready` once it listens, `mount` and `over` once the mount is there; they end with it. The kernel is told the same as by Mend's mount, so the same requests come.
//! There are no names, checksums, caches, copies or keys.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, SessionACL, TimeOrNow,
    WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Largest request, bytes: as of Mend's mount.
const MAX_REQUEST_BYTES: u32 = 1 << 20;
/// Requests that the kernel has under way on its own account.
const BACKGROUND: u16 = 64;
/// Threads that serve a mount.
const THREADS: usize = 4;
const FOR_LONG: Duration = Duration::from_secs(3600);
const DATA: INodeNo = INodeNo(2);

/// Where the bytes are.
enum Bytes {
    /// At a server; connections that nobody uses now.
    Far(String, Mutex<Vec<TcpStream>>),
    /// In a file.
    Near(File),
}

/// Header of a request: whether bytes follow, where, how many. Of an answer there is none.
fn header(writes: bool, offset: u64, length: u32) -> [u8; 13] {
    let mut header = [0; 13];
    header[0] = u8::from(writes);
    header[1..9].copy_from_slice(&offset.to_le_bytes());
    header[9..].copy_from_slice(&length.to_le_bytes());
    header
}

impl Bytes {
    fn asked(&self, work: impl FnOnce(&mut TcpStream) -> io::Result<()>) -> io::Result<()> {
        let Self::Far(server, idle) = self else { return Ok(()) };
        let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match kept {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(server)?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        work(&mut stream)?;
        idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Near(file) => file.read_exact_at(into, offset),
            Self::Far(..) => self.asked(|stream| {
                stream.write_all(&header(false, offset, into.len() as u32))?;
                stream.read_exact(into)
            }),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Near(file) => file.write_all_at(bytes, offset),
            Self::Far(..) => self.asked(|stream| {
                stream.write_all(&header(true, offset, bytes.len() as u32))?;
                stream.write_all(bytes)?;
                stream.read_exact(&mut [0])
            }),
        }
    }
}

struct Relay {
    bytes: Bytes,
    size: u64,
    /// Written files bypass the kernel's cache in Mend's mount, staged ones do not.
    direct: bool,
}

impl Relay {
    fn attributes(&self, number: INodeNo) -> FileAttr {
        let (kind, perm, size) =
            if number == INodeNo::ROOT { (FileType::Directory, 0o755, 0) } else { (FileType::RegularFile, 0o644, self.size) };
        FileAttr {
            ino: number,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 64 << 10,
            flags: 0,
        }
    }
}

impl Filesystem for Relay {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_READ | InitFlags::FUSE_MAX_PAGES | InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.set_max_write(MAX_REQUEST_BYTES);
        let _ = config.set_max_readahead(MAX_REQUEST_BYTES);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "data" { reply.entry(&FOR_LONG, &self.attributes(DATA), Generation(0)) } else { reply.error(Errno::ENOENT) }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_LONG, &self.attributes(number));
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _time: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // It keeps its length, whoever cuts it.
        reply.attr(&FOR_LONG, &self.attributes(number));
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let how = if self.direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH };
        reply.opened(FileHandle(1), how);
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; u64::from(size).min(self.size.saturating_sub(offset)) as usize];
        match self.bytes.read(offset, &mut bytes) {
            Ok(()) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.bytes.write(offset, data) {
            _ if offset + data.len() as u64 > self.size => reply.error(Errno::ENOSPC),
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _request: &Request, _number: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _number: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

fn serve(port: u16, size: usize) -> io::Result<()> {
    let memory = Arc::new(RwLock::new(vec![7; size]));
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    println!("ready");
    for stream in listener.incoming() {
        let (mut stream, memory) = (stream?, memory.clone());
        stream.set_nodelay(true)?;
        // A client that has ended ends its thread.
        std::thread::spawn(move || answer(&mut stream, &memory));
    }
    Ok(())
}

fn answer(stream: &mut TcpStream, memory: &RwLock<Vec<u8>>) -> io::Result<()> {
    let mut written = vec![0; MAX_REQUEST_BYTES as usize];
    loop {
        let mut header = [0; 13];
        stream.read_exact(&mut header)?;
        let [writes, rest @ ..] = header;
        let (offset, length) = rest.split_at(8);
        let offset = u64::from_le_bytes(offset.try_into().unwrap_or_default()) as usize;
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
        if writes == 1 {
            // Several clients write at once; a lock around a copy alone is as good as none.
            stream.read_exact(&mut written[..length])?;
            memory.write().unwrap_or_else(PoisonError::into_inner)[offset..offset + length].copy_from_slice(&written[..length]);
            stream.write_all(&[0])?;
        } else {
            stream.write_all(&memory.read().unwrap_or_else(PoisonError::into_inner)[offset..offset + length])?;
        }
    }
}

fn mount(directory: &Path, bytes: Bytes, size: u64, direct: bool) -> io::Result<()> {
    let mut config = Config::default();
    config.acl = SessionACL::Owner;
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    config.mount_options = vec![MountOption::FSName("null-relay".to_owned()), MountOption::CUSTOM(format!("max_read={MAX_REQUEST_BYTES}"))];
    let session = Session::new(Relay { bytes, size, direct }, directory, &config)?;
    println!("ready");
    session.run()
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().map_err(io::Error::other);
    match words[..] {
        ["serve", port, mib] => serve(number(port)? as u16, (number(mib)? << 20) as usize),
        ["mount", directory, server, mib, ref how @ ..] => {
            mount(Path::new(directory), Bytes::Far(server.to_owned(), Mutex::default()), number(mib)? << 20, how == ["direct"])
        }
        ["over", directory, file, ref how @ ..] => {
            let file = File::options().read(true).write(true).open(file)?;
            let size = file.metadata()?.len();
            mount(Path::new(directory), Bytes::Near(file), size, how == ["direct"])
        }
        _ => Err(io::Error::other("usage: null_relay serve PORT MIB | mount DIR HOST:PORT MIB [direct] | over DIR FILE [direct]")),
    }
}
