//! What both mounts do to be mounted, to look like a directory, and to end.

use crate::failure::Failure;
use fuser::{
    Config, Errno, FileAttr, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, MountOption, ReplyAttr,
    ReplyDirectory, ReplyEntry, ReplyStatfs, Session, SessionACL,
};
use mend_settings::{PIPE_THREADS, PIPE_TIMEOUT, Setting};
use mend_streams::Trouble;
use mend_streams::message::MAX_NAME;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{SignalKind, signal};

/// Number of the first stream; the directory itself is 1.
pub const FIRST_STREAM: u64 = 2;
/// How often it is looked whether those who wait want to stop waiting.
const LOOK: Duration = Duration::from_millis(100);
/// Names change on the other node: nothing of them is remembered.
pub const REMEMBERED: Duration = Duration::ZERO;

/// How streams are opened: nothing is cached, and there is no place in them but the next one. The kernel refuses seeks with ESPIPE.
pub fn as_stream() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_STREAM | FopenFlags::FOPEN_NONSEEKABLE
}

pub fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The machines change as a whole, or the process ends.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of a setting.
pub fn number(setting: &Setting) -> Result<u64, Failure> {
    setting.number().map_err(|error| Failure::usage(error.to_string(), "see `mend settings`"))
}

/// How long the other mount may be silent.
pub fn patience() -> Result<Duration, Failure> {
    PIPE_TIMEOUT.milliseconds().map_err(|error| Failure::usage(error.to_string(), "see `mend settings`"))
}

/// The number that a tool gets.
pub fn errno(trouble: Trouble) -> Errno {
    match trouble {
        Trouble::Gone => Errno::ESTALE,
        Trouble::Busy => Errno::EBUSY,
        Trouble::Exists => Errno::EEXIST,
        Trouble::TooMany => Errno::ENFILE,
        Trouble::Closed => Errno::EPIPE,
        Trouble::Broken => Errno::EIO,
        Trouble::Interrupted => Errno::EINTR,
    }
}

/// What a mount shows of itself.
#[derive(Debug)]
pub struct Looks {
    /// Permissions of its streams.
    pub permissions: u16,
    /// Most bytes that a chunk has; the kernel reads and writes as many at once.
    pub chunk: u32,
    since: SystemTime,
    owner: (u32, u32),
}

impl Looks {
    pub fn new(permissions: u16, chunk: u32) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { permissions, chunk, since: SystemTime::now(), owner }
    }

    pub fn attributes(&self, number: INodeNo) -> FileAttr {
        let is_directory = number == INodeNo::ROOT;
        FileAttr {
            ino: number,
            size: 0,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: if is_directory { FileType::Directory } else { FileType::RegularFile },
            perm: if is_directory { 0o700 } else { self.permissions },
            nlink: if is_directory { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: self.chunk,
            flags: 0,
        }
    }

    /// What is agreed with the kernel at first.
    pub fn agree(&self, config: &mut KernelConfig) {
        // An older kernel lacks it, and asks for less at a time then.
        let _ = config.add_capabilities(InitFlags::FUSE_MAX_PAGES);
        let _ = config.set_max_write(self.chunk);
    }

    /// Answers a look for a name: the number of the stream that has it, if any has.
    pub fn found(&self, number: Result<Option<u64>, Errno>, reply: ReplyEntry) {
        match number {
            Ok(Some(number)) => reply.entry(&REMEMBERED, &self.attributes(INodeNo(number)), Generation(0)),
            Ok(None) => reply.error(Errno::ENOENT),
            Err(errno) => reply.error(errno),
        }
    }

    /// Shows the directory, or a stream if it `is_there`.
    pub fn show(&self, number: INodeNo, is_there: impl FnOnce() -> bool, reply: ReplyAttr) {
        if number == INodeNo::ROOT || is_there() {
            reply.attr(&REMEMBERED, &self.attributes(number));
        } else {
            reply.error(Errno::ESTALE);
        }
    }

    /// Lists the directory: these streams, by name and number.
    pub fn list(streams: Vec<(Vec<u8>, u64)>, offset: u64, mut reply: ReplyDirectory) {
        let dots = [(b".".to_vec(), 1, FileType::Directory), (b"..".to_vec(), 1, FileType::Directory)];
        let streams = streams.into_iter().map(|(name, number)| (name, number, FileType::RegularFile));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, number, kind)) in dots.into_iter().chain(streams).enumerate().skip(from) {
            if reply.add(INodeNo(number), place as u64 + 1, kind, OsStr::from_bytes(&name)) {
                break;
            }
        }
        reply.ok();
    }

    /// There is no room, as nothing is stored.
    pub fn room(&self, streams: usize, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, streams as u64, 0, self.chunk, MAX_NAME as u32, self.chunk);
    }
}

/// The name that a tool uses, if a stream can have it.
pub fn name(text: &OsStr) -> Result<Vec<u8>, Errno> {
    if text.len() > MAX_NAME { Err(Errno::ENAMETOOLONG) } else { Ok(text.as_bytes().to_vec()) }
}

/// That a directory can be mounted over: what is in it would be hidden. One that cannot be read is the kernel's to refuse.
pub fn empty(directory: &Path) -> Result<(), Failure> {
    if std::fs::metadata(directory).is_ok_and(|found| !found.is_dir()) {
        return Err(Failure::usage(format!("{} is no directory", directory.display()), "name an empty directory"));
    }
    match std::fs::read_dir(directory).ok().and_then(|mut entries| entries.next()) {
        Some(_) => {
            let hint = "name an empty directory: what is in it would be hidden";
            Err(Failure::usage(format!("{} is not empty", directory.display()), hint))
        }
        None => Ok(()),
    }
}

/// What a mount does besides answering the kernel.
pub trait Served: Send + Sync + 'static {
    /// Lets those go who wait and want to stop waiting.
    fn look_after_waiting(&self);
    /// Ends all well that can end well, before this process does.
    fn leave(&self);
}

/// Mounts, says `ready` and more on standard output, and serves until it is unmounted or told to end.
pub fn serve<F: Filesystem>(files: F, served: &Arc<impl Served>, chunk: u32, directory: &Path, ready: &str) -> Result<(), Failure> {
    let threads = number(&PIPE_THREADS)?;
    let mut config = Config::default();
    config.acl = SessionACL::Owner;
    config.n_threads = usize::try_from(threads).ok();
    config.clone_fd = true;
    config.mount_options = vec![
        MountOption::RW,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::DefaultPermissions,
        MountOption::FSName("mend-pipe".to_owned()),
        MountOption::Subtype("mend".to_owned()),
        MountOption::CUSTOM(format!("max_read={chunk}")),
    ];
    let mut session = Session::new(files, directory, &config).map_err(|error| {
        let hint = "it must be a directory; /dev/fuse must be there and open to you (`ls -l /dev/fuse`), and fusermount3 installed for who may not mount";
        Failure::new(format!("{} cannot be mounted: {error}", directory.display()), hint)
    })?;
    let mut unmounter = session.unmount_callable();
    let ending = served.clone();
    std::thread::spawn(move || {
        if wait_for_signal().is_ok() {
            // Who has something open there keeps the mount busy: it goes with this process.
            let _ = unmounter.unmount();
            ending.leave();
            std::process::exit(0);
        }
    });
    let looking = served.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK);
            looking.look_after_waiting();
        }
    });
    let mut out = io::stdout();
    // Nobody may read it: the mount is there all the same.
    let _ = writeln!(out, "{ready}").and_then(|()| out.flush());
    let ended = session.run();
    served.leave();
    ended.map_err(|error| Failure::new(format!("{}: the mount has ended: {error}", directory.display()), ""))
}

fn wait_for_signal() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate, mut hangup) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        Ok(())
    })
}
