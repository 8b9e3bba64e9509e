//! The program's descriptors: what each is, and what of it is saved.
//!
//! Descriptors that share an open file description (dup, inheritance) share it again after a restore. What is behind
//! a number is told by `/proc/self/fd` and `/proc/self/fdinfo` (proc(5)). What cannot be saved is named; the same code answers
//! `explain` and refuses a save.

pub(crate) mod attached;
mod calls;
pub mod data_calls;
mod epoll;
mod eventfd;
mod examine;
pub(crate) mod fdinfo;
pub(crate) mod file_attributes;
pub(crate) mod file_systems;
pub(crate) mod inherited;
pub(crate) mod kept_files;
pub(crate) mod locks;
mod memory_files;
pub(crate) mod node_files;
mod paths;
mod pipes;
pub(crate) mod reopen;
pub(crate) mod reopen_error;
mod sharing;
mod signalfd;
mod socket_options;
mod sockets;
pub(crate) mod table;
mod timerfd;
pub(crate) mod transient;
mod unopenable;
pub(crate) mod unreachable;
mod watches;

use crate::memory::layout::Layout;
use attached::Attached;
use locks::{Kind, Lock};
use mend_image::handoff::MAX_KEPT;
use mend_image::launch::Role;
use mend_image::record::object;
use paths::open_anyway;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{OFlags, fstat};
use sockets::Socket;
use std::io;
use table::{Taken, take};
use watches::Watch;

pub(crate) use epoll::{Target, restore as restore_epolls};
pub(crate) use examine::{capture, examine_all};
pub(crate) use pipes::{Made as MadePipes, Pipe};

/// What is behind a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// A stream of the daemon's.
    Attached(Role),
    /// A regular file, directory or harmless device, found again by its path.
    Path { path: String, kind: PathKind, size: u64 },
    /// A counter.
    Event { count: u64, semaphore: bool },
    /// A timer: clock, time left (or, if the `flags` of timerfd_settime(2) say so, the time of that clock) and interval in (s, ns), expirations
    /// not read yet.
    Timer { clock: i32, value: (u64, u64), interval: (u64, u64), ticks: u64, flags: i32 },
    /// Signals by descriptor.
    Signals { mask: u64 },
    /// Watched files.
    Inotify { watches: Vec<Watch> },
    /// A socket without anybody outside the rank.
    Socket(Socket),
    /// Watched descriptors.
    Epoll { targets: Vec<Target> },
    /// A memfd.
    Memory { identity: (u64, u64), name: String, size: u64, seals: u32, object: Option<u32> },
    /// One end of a pipe whose other end is here too.
    Pipe(Pipe),
}

/// Kinds of things with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathKind {
    File,
    Directory,
    Device,
    /// A descriptor that only names a place (`O_PATH`).
    Place,
}

/// An open file description.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub what: What,
    /// `O_` flags as of fcntl(F_GETFL).
    pub flags: i32,
    pub offset: u64,
    pub locks: Vec<Lock>,
    /// Who is told of input by a signal, and by which: type and id of fcntl(F_GETOWN_EX), number of F_GETSIG.
    pub told: Option<([i32; 2], i32)>,
}

/// A number and the description it refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub fd: i32,
    pub close_on_exec: bool,
    pub open: usize,
}

/// All of the program's descriptors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Descriptors {
    pub opens: Vec<Open>,
    pub descriptors: Vec<Descriptor>,
    top: u32,
}

/// A descriptor that stands in the way.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DescriptorError {
    #[error("{what} (fd {fd})")]
    Unsupported { fd: i32, what: String, hint: &'static str },
    #[error("netlink socket (fd {fd})")]
    Netlink { fd: i32 },
    #[error("more than {MAX_KEPT} files that are memory (memfd, shared memory, unlinked files)")]
    ManyMemoryFiles,
    #[error("a call of libmend-data is in progress")]
    DataCall,
    #[error("descriptor {fd} cannot be examined: {source}")]
    Examine { fd: i32, source: io::Error },
    #[error("the list of descriptors cannot be read: {0}")]
    List(io::Error),
}

impl DescriptorError {
    pub fn hint(&self) -> &'static str {
        match self {
            DescriptorError::Unsupported { hint, .. } => hint,
            DescriptorError::Netlink { .. } => "it stayed open for long: close it before a checkpoint",
            DescriptorError::ManyMemoryFiles => "keep fewer of them open, or in fewer files",
            DescriptorError::DataCall => "it waits for a target or a source of a data space: try again",
            DescriptorError::Examine { source, .. } | DescriptorError::List(source) => mend_report::proc_hint(source),
        }
    }

    /// It is likely to be gone in a moment: the program has the descriptor for a moment only, or was just closing and opening it.
    pub fn is_transient(&self) -> bool {
        match self {
            DescriptorError::Netlink { .. } | DescriptorError::DataCall => true,
            DescriptorError::Examine { source, .. } => matches!(source.raw_os_error(), Some(libc::ENOENT | libc::EBADF)),
            DescriptorError::Unsupported { .. } | DescriptorError::ManyMemoryFiles | DescriptorError::List(_) => false,
        }
    }
}

/// As `/proc/self/maps` writes device and inode.
pub(crate) fn map_identity((device, inode): (u64, u64)) -> (u64, u64) {
    (u64::from(rustix::fs::major(device)) << 32 | u64::from(rustix::fs::minor(device)), inode)
}

/// Writes what is in the files with these numbers through to the disk.
pub(crate) fn sync(files: &[i32]) {
    for fd in files {
        // If it was closed meanwhile, or is another one by now, this does no harm.
        let _ = take(*fd).and_then(rustix::fs::fdatasync);
    }
}

impl Descriptors {
    /// Highest number that the program uses.
    pub fn top(&self) -> u32 {
        self.top
    }

    /// Bit per role.
    pub fn roles(&self) -> u32 {
        self.opens.iter().fold(0, |bits, open| if let What::Attached(role) = open.what { bits | 1 << role as u32 } else { bits })
    }

    /// Sockets within the rank.
    pub fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.opens.iter().filter_map(|open| if let What::Socket(socket) = &open.what { Some(socket) } else { None })
    }

    /// Files with POSIX locks, which closing any descriptor of them would give up: device and inode, and a descriptor.
    pub fn locked_files(&self) -> Vec<((u64, u64), i32)> {
        let locked = |open: &Open| open.locks.iter().any(|lock| lock.kind == Kind::Posix);
        let numbers = self.opens.iter().enumerate().filter(|(_, open)| locked(open)).filter_map(|(index, _)| self.number_of(index));
        numbers.filter_map(|fd| take(fd).and_then(fstat).ok().map(|stat| ((stat.st_dev, stat.st_ino), fd))).collect()
    }

    /// One of the numbers of an open file description.
    pub fn number_of(&self, open: usize) -> Option<i32> {
        self.descriptors.iter().find(|descriptor| descriptor.open == open).map(|descriptor| descriptor.fd)
    }

    /// One descriptor per attached role.
    fn by_role(&self) -> impl Iterator<Item = (Role, i32)> {
        self.opens.iter().enumerate().filter_map(|(index, open)| match open.what {
            What::Attached(role) => Some((role, self.number_of(index)?)),
            _ => None,
        })
    }

    /// Streams on which the program writes.
    pub fn outputs(&self) -> Vec<Taken> {
        self.by_role().filter(|(role, _)| matches!(role, Role::Stdout | Role::Stderr)).filter_map(|(_, fd)| take(fd).ok()).collect()
    }

    /// Input that has arrived and was not read, by role.
    pub fn unread(&self, attached: &Attached) -> Result<Vec<(Role, Vec<u8>)>, DescriptorError> {
        let _ = attached;
        let mut unread: Vec<(Role, Vec<u8>)> = Vec::new();
        for (role, fd) in self.by_role() {
            if unread.iter().any(|(known, _)| *known == role) {
                continue;
            }
            let bytes = take(fd)
                .map_err(io::Error::from)
                .and_then(|taken| attached::unread(role, taken.as_fd()))
                .map_err(|source| DescriptorError::Examine { fd, source })?;
            if !bytes.is_empty() {
                unread.push((role, bytes));
            }
        }
        Ok(unread)
    }

    /// Tells the layout which memory objects have descriptors, and remembers their indices.
    pub fn link_objects(&mut self, layout: &mut Layout) {
        for index in 0..self.opens.len() {
            if let What::Memory { identity, name, size, object, .. } = &mut self.opens[index].what {
                let index = layout.memory(*identity, name, *size);
                // Its length is the file's, even where a mapping reaches beyond it.
                layout.objects[index as usize].size = *size;
                layout.objects[index as usize].flags |= object::KEEP;
                *object = Some(index);
            }
        }
    }

    /// Memory objects that are read from their descriptor: index, a descriptor with an offset of its own, size.
    pub fn held(&self) -> Result<Vec<(u32, OwnedFd, u64)>, DescriptorError> {
        let mut held: Vec<(u32, OwnedFd, u64)> = Vec::new();
        for (index, open) in self.opens.iter().enumerate() {
            if let (What::Memory { size, object: Some(object), .. }, Some(fd)) = (&open.what, self.number_of(index)) {
                if held.iter().any(|(known, ..)| known == object) {
                    continue;
                }
                let opened = open_anyway(format!("/proc/self/fd/{fd}").as_str(), OFlags::RDONLY | OFlags::CLOEXEC);
                held.push((*object, opened.map_err(|errno| DescriptorError::Examine { fd, source: errno.into() })?, *size));
            }
        }
        Ok(held)
    }

    /// Numbers of the files that the program writes to.
    pub fn written_files(&self) -> Vec<i32> {
        let written =
            |open: &Open| matches!(open.what, What::Path { kind: PathKind::File, .. }) && open.flags & libc::O_ACCMODE != libc::O_RDONLY;
        (0..self.opens.len()).filter(|index| written(&self.opens[*index])).filter_map(|index| self.number_of(index)).collect()
    }

    /// Writes what the program wrote to its files through to the disk: a restart after a node's death needs it there.
    pub fn sync(&self) {
        sync(&self.written_files());
    }

    pub fn describe(&self) -> Vec<String> {
        self.descriptors.iter().map(|descriptor| format!("{}: {}", descriptor.fd, self.opens[descriptor.open].what.name())).collect()
    }
}

impl What {
    /// For people.
    pub fn name(&self) -> String {
        match self {
            What::Attached(role) => role.name().to_string(),
            What::Path { path, .. } => path.clone(),
            What::Event { .. } => "eventfd".to_string(),
            What::Timer { .. } => "timerfd".to_string(),
            What::Signals { .. } => "signalfd".to_string(),
            What::Inotify { watches } => format!("inotify of {}", watches.len()),
            What::Socket(_) => "socket".to_string(),
            What::Epoll { targets } => format!("epoll of {}", targets.len()),
            What::Memory { name, .. } => format!("memfd {name}"),
            What::Pipe(_) => "pipe".to_string(),
        }
    }
}
