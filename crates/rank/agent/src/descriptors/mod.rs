//! The program's descriptors: what each is, and what of it is saved.
//!
//! Descriptors that share an open file description (dup, inheritance) share it again after a restore. What is behind
//! a number is told by `/proc/self/fd` and `/proc/self/fdinfo` (proc(5)). What cannot be saved is named; the same code answers
//! `explain` and refuses a save.

pub(crate) mod attached;
mod epoll;
pub(crate) mod file_attributes;
pub(crate) mod kept_files;
pub(crate) mod locks;
pub(crate) mod node_files;
mod pipes;
pub(crate) mod reopen;
mod sharing;
mod socket_options;
mod sockets;
pub(crate) mod table;
pub(crate) mod transient;
mod unopenable;
pub(crate) mod unreachable;
mod watches;

pub(crate) use epoll::{Target, restore as restore_epolls};
pub(crate) use pipes::{Made as MadePipes, Pipe};

use crate::memory::layout::Layout;
use crate::memory::maps::{JVM_COUNTERS, NODE_MEMORY};
use crate::park::{self, Parked};
use crate::process::tasks::numbers_in;
use attached::Attached;
use locks::{Kind, Lock};
use mend_image::launch::Role;
use mend_image::record::object;
use mend_kernel::raw::{check, syscall};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Stat, fstat};
use sharing::Known;
use sockets::{Refusal, Socket};
use std::io;
use table::{Taken, take};
use watches::Watch;

/// Largest unlinked file that is saved, bytes.
const UNLINKED_LIMIT: u64 = 256 << 20;

/// What is behind a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// A stream of the daemon's.
    Attached(Role),
    /// A regular file, directory or harmless device, found again by its path.
    Path { path: String, kind: PathKind, size: u64 },
    /// A counter.
    Event { count: u64, semaphore: bool },
    /// A timer: clock, time left (or, if `absolute`, the time of that clock) and interval in (s, ns), expirations not read yet.
    Timer { clock: i32, value: (u64, u64), interval: (u64, u64), ticks: u64, absolute: bool },
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
            DescriptorError::Examine { source, .. } | DescriptorError::List(source) => mend_report::proc_hint(source),
        }
    }

    /// It is likely to be gone in a moment.
    pub fn is_transient(&self) -> bool {
        matches!(self, DescriptorError::Netlink { .. })
    }
}

/// Examines everything, while the program stands still with these threads. `own` are the agent's and the fabric's.
pub(crate) fn capture(attached: &Attached, own: &[i32], parked: &Parked) -> Result<Descriptors, DescriptorError> {
    let mut errors = Vec::new();
    let mut found = examine_all(attached, own, &mut errors);
    epoll::complete(&mut found, Some(parked));
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(found),
    }
}

/// As [`capture`], but goes on after what it cannot save.
pub(crate) fn examine_all(attached: &Attached, own: &[i32], errors: &mut Vec<DescriptorError>) -> Descriptors {
    let mut found = Descriptors::default();
    let numbers = match numbers_in("/proc/self/fd") {
        Ok(numbers) => numbers,
        Err(error) => {
            errors.push(DescriptorError::List(error));
            return found;
        }
    };
    let mut known = Known::default();
    for fd in numbers {
        if own.contains(&fd) {
            continue;
        }
        let Ok(taken) = take(fd) else { continue };
        let Ok(stat) = fstat(&taken) else { continue };
        found.top = found.top.max(fd as u32);
        match look(fd, taken.as_fd(), &stat, attached) {
            Ok((open, close_on_exec, link, info)) => {
                let opens = &mut found.opens;
                let index = known.find(fd, link, info, || {
                    opens.push(open);
                    opens.len() - 1
                });
                found.descriptors.push(Descriptor { fd, close_on_exec, open: index });
            }
            // Threads that still run may have closed it meanwhile, and then it is no obstacle.
            Err(error) if take(fd).and_then(fstat).is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino)) => {
                errors.push(error)
            }
            Err(_) => {}
        }
    }
    inotify_watches(&mut found, errors);
    pipes::lonely(&found, errors);
    lonely_sockets(&found, errors);
    found
}

/// Looked for when the open files are known: their directories are likely places.
fn inotify_watches(found: &mut Descriptors, errors: &mut Vec<DescriptorError>) {
    let paths: Vec<String> = found
        .opens
        .iter()
        .filter_map(|open| match &open.what {
            What::Path { path, kind: PathKind::File | PathKind::Directory, .. } => Some(path.clone()),
            _ => None,
        })
        .collect();
    for index in 0..found.opens.len() {
        let Some(fd) = found.number_of(index) else { continue };
        let What::Inotify { watches } = &mut found.opens[index].what else { continue };
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        match watches::find(&info, &paths) {
            Ok(found) => *watches = found,
            Err(what) => errors.push(DescriptorError::Unsupported {
                fd,
                what: what.to_string(),
                hint: "watch files in the working directory, beside open files or in /tmp, or save before the watches are made",
            }),
        }
    }
}

fn lonely_sockets(found: &Descriptors, errors: &mut Vec<DescriptorError>) {
    let sockets: Vec<&Socket> = found.sockets().collect();
    for descriptor in &found.descriptors {
        let What::Socket(socket) = &found.opens[descriptor.open].what else { continue };
        let Some(peer) = socket.peer.filter(|peer| *peer != 0) else { continue };
        if !sockets.iter().any(|other| other.inode == peer && other.peer == Some(socket.inode)) {
            errors.push(DescriptorError::Unsupported {
                fd: descriptor.fd,
                what: "socket to another process (unix socket)".to_string(),
                hint: SOCKETS,
            });
        }
    }
}

const SOCKETS: &str = "close connections of the program's own before a checkpoint";

/// Whether all other ends of a pipe are closed, whoever had them.
fn nobody_else(fd: i32) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let Ok(taken) = take(fd) else { return false };
    let wanted = &mut [PollFd::new(&taken, PollFlags::empty())];
    poll(wanted, Some(&now)).is_ok() && wanted[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

type Looked = (Open, bool, String, String);

fn look(fd: i32, borrowed: BorrowedFd, stat: &Stat, attached: &Attached) -> Result<Looked, DescriptorError> {
    let failed = |source: io::Error| DescriptorError::Examine { fd, source };
    let link = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).map_err(|errno| failed(errno.into()))?;
    let link = String::from_utf8_lossy(link.as_bytes()).into_owned();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).map_err(failed)?;
    // SAFETY: F_GETFL and F_GET_SEALS only read.
    let control = |command: i32| check(unsafe { syscall(libc::SYS_fcntl, [borrowed.as_raw_fd() as usize, command as usize, 0, 0, 0, 0]) });
    let flags = control(libc::F_GETFL).map_err(|errno| failed(io::Error::from_raw_os_error(errno)))? as i32;
    // The flag is the number's, and this may be a duplicate.
    let shown = info_field(&info, "flags:").and_then(|text| i32::from_str_radix(text, 8).ok()).unwrap_or(0);
    let close_on_exec = shown & libc::O_CLOEXEC != 0;
    let unsupported = |what: String, hint| Err(DescriptorError::Unsupported { fd, what, hint });
    let identity = (stat.st_dev, stat.st_ino);
    let unopenable = || unopenable::obstacle(borrowed, stat, &link).filter(|_| flags & libc::O_PATH == 0);
    if let Some((what, hint)) = unreachable::descriptor(&link, stat).or_else(unopenable) {
        return unsupported(what, hint);
    }
    let what = match FileType::from_raw_mode(stat.st_mode) {
        _ if flags & libc::O_PATH != 0 && !link.ends_with(" (deleted)") => {
            What::Path { path: own_proc(link.clone()), kind: PathKind::Place, size: 0 }
        }
        FileType::Fifo | FileType::Socket if attached.role(identity).is_some() => {
            What::Attached(attached.role(identity).unwrap_or(Role::Stdin))
        }
        FileType::Socket => match sockets::examine(borrowed, stat.st_ino, park::threads_are_parked()) {
            Ok(socket) => What::Socket(socket),
            Err(Refusal::Outside(name)) => return unsupported(name, SOCKETS),
            Err(Refusal::Netlink) => return Err(DescriptorError::Netlink { fd }),
            Err(Refusal::Other(why)) => {
                return unsupported(format!("unix socket: {why}"), "let the program read what was sent, then try again");
            }
            Err(Refusal::Failed(error)) => return Err(failed(error)),
        },
        FileType::Fifo if !link.starts_with("pipe:") => return unsupported(format!("named pipe {link}"), "use regular files"),
        FileType::Fifo => match pipes::examine(borrowed, stat.st_ino, flags) {
            Ok(pipe) => What::Pipe(pipe),
            Err(pipes::Refusal::Packets) => {
                return unsupported("pipe with unread packets (O_DIRECT)".to_string(), "let the program read them, then try again");
            }
            Err(pipes::Refusal::Failed(error)) => return Err(failed(error)),
        },
        FileType::RegularFile if link.starts_with("/memfd:") => What::Memory {
            identity: map_identity(identity),
            name: link.trim_start_matches("/memfd:").trim_end_matches(" (deleted)").to_string(),
            size: stat.st_size as u64,
            seals: control(libc::F_GET_SEALS).unwrap_or(0) as u32,
            object: None,
        },
        // POSIX shared memory: its name is this node's, so it comes back without one (see `Area::is_shared_memory`).
        FileType::RegularFile if link.starts_with(NODE_MEMORY) || link.starts_with(JVM_COUNTERS) => What::Memory {
            identity: map_identity(identity),
            name: link.trim_start_matches(NODE_MEMORY).trim_end_matches(" (deleted)").to_string(),
            size: stat.st_size as u64,
            seals: 0,
            object: None,
        },
        FileType::RegularFile if stat.st_nlink == 0 && stat.st_size as u64 <= UNLINKED_LIMIT => What::Memory {
            // Nobody can open it by name any more: its content in memory serves as well.
            identity: map_identity(identity),
            name: "unlinked".to_string(),
            size: stat.st_size as u64,
            seals: 0,
            object: None,
        },
        FileType::RegularFile if stat.st_nlink == 0 || link.ends_with(" (deleted)") => {
            return unsupported(format!("deleted file {link}"), "keep large files that are open until they are closed");
        }
        FileType::RegularFile => What::Path { path: own_proc(link.clone()), kind: PathKind::File, size: stat.st_size as u64 },
        FileType::Directory => What::Path { path: own_proc(link.clone()), kind: PathKind::Directory, size: 0 },
        FileType::CharacterDevice if harmless(&link) => What::Path { path: link.clone(), kind: PathKind::Device, size: 0 },
        FileType::CharacterDevice | FileType::BlockDevice => {
            // Also after a library closed all that it had there (librdmacm).
            let hint = match link.starts_with("/dev/infiniband/") {
                true => "let messages go another way: MEND_CHANNELS=shm,tcp",
                false => "use a build of the program without this device",
            };
            return unsupported(format!("device {link}"), hint);
        }
        _ if link == "anon_inode:inotify" && rustix::io::ioctl_fionread(borrowed).unwrap_or(0) > 0 => {
            return unsupported("inotify descriptor with unread events".to_string(), "let the program read them, then try again");
        }
        _ => match anonymous(&link, &info) {
            Some(what) => what,
            None => return unsupported(link, "this kind of descriptor cannot be saved yet"),
        },
    };
    let offset = info_field(&info, "pos:").and_then(|text| text.parse().ok()).unwrap_or(0);
    let locks = match locks::parse(&info) {
        Ok(locks) => locks,
        Err(what) => return unsupported(format!("{what} {link}"), "let the program give it up before a checkpoint"),
    };
    if matches!(what, What::Memory { .. }) && locks.iter().any(|lock| lock.kind == Kind::Posix) {
        // Reading it by a descriptor of the agent's would give up the lock.
        return unsupported(format!("POSIX lock on memory {link}"), "use flock or an open file description lock (F_OFD_SETLK)");
    }
    Ok((Open { what, flags, offset, locks, told: told(borrowed) }, close_on_exec, link, info))
}

/// Who is told of input by a signal, if anybody.
fn told(fd: BorrowedFd) -> Option<([i32; 2], i32)> {
    const F_GETSIG: usize = 11;
    const F_GETOWN_EX: usize = 16;
    let (fd, mut owner) = (fd.as_raw_fd(), [0i32; 2]);
    // SAFETY: F_GETOWN_EX writes two words into `owner`, F_GETSIG returns a number.
    let (known, signal) = unsafe {
        let known = check(syscall(libc::SYS_fcntl, [fd as usize, F_GETOWN_EX, owner.as_mut_ptr() as usize, 0, 0, 0]));
        (known, check(syscall(libc::SYS_fcntl, [fd as usize, F_GETSIG, 0, 0, 0, 0])).unwrap_or(0) as i32)
    };
    (known.is_ok() && (owner[1] != 0 || signal != 0)).then_some((owner, signal))
}

/// As `/proc/self/maps` writes device and inode.
pub(crate) fn map_identity((device, inode): (u64, u64)) -> (u64, u64) {
    (u64::from(rustix::fs::major(device)) << 32 | u64::from(rustix::fs::minor(device)), inode)
}

/// Files of this process in `/proc` by a name that stays true: the number there may be another in the next process.
fn own_proc(path: String) -> String {
    let own = rustix::fs::readlink("/proc/self", Vec::new()).ok().and_then(|link| link.into_string().ok());
    match own.and_then(|own| path.strip_prefix(&format!("/proc/{own}/")).map(|rest| format!("/proc/self/{rest}"))) {
        Some(path) => path,
        None => path,
    }
}

fn harmless(path: &str) -> bool {
    const DEVICES: [&str; 8] =
        ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console", "/dev/ptmx"];
    DEVICES[..7].contains(&path) || path.starts_with("/dev/pts/")
}

fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Kernel objects without a path that can be made anew.
fn anonymous(link: &str, info: &str) -> Option<What> {
    match link {
        "anon_inode:[eventfd]" => Some(What::Event {
            count: u64::from_str_radix(info_field(info, "eventfd-count:")?, 16).ok()?,
            semaphore: info_field(info, "eventfd-semaphore:").is_some_and(|text| text != "0"),
        }),
        "anon_inode:[timerfd]" => timer(info),
        "anon_inode:inotify" => Some(What::Inotify { watches: Vec::new() }),
        "anon_inode:[signalfd]" => Some(What::Signals { mask: u64::from_str_radix(info_field(info, "sigmask:")?, 16).ok()? }),
        "anon_inode:[eventpoll]" => Some(What::Epoll { targets: info.lines().filter_map(Target::parse).collect() }),
        _ => None,
    }
}

fn timer(info: &str) -> Option<What> {
    let clock: i32 = info_field(info, "clockid:")?.parse().ok()?;
    let mut value = pair(info_field(info, "it_value:")?)?;
    // The time of day goes on while a process rests in its image.
    let absolute = clock == libc::CLOCK_REALTIME && info_field(info, "settime flags:")?.ends_with(['1', '3']) && value != (0, 0);
    if absolute {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let nanoseconds = now.tv_nsec as u64 + value.1;
        value = (now.tv_sec as u64 + value.0 + nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    }
    let (interval, ticks) = (pair(info_field(info, "it_interval:")?)?, info_field(info, "ticks:")?.parse().ok()?);
    Some(What::Timer { clock, value, interval, ticks, absolute })
}

/// "(1, 500)"
fn pair(text: &str) -> Option<(u64, u64)> {
    let (seconds, nanoseconds) = text.trim_matches(['(', ')']).split_once(", ")?;
    Some((seconds.parse().ok()?, nanoseconds.parse().ok()?))
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
                let file = std::fs::File::open(format!("/proc/self/fd/{fd}")).map_err(|source| DescriptorError::Examine { fd, source })?;
                held.push((*object, file.into(), *size));
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn lines_of_fdinfo() {
        assert_eq!(pair("(3, 999)"), Some((3, 999)));
        let info = "pos:\t0\nflags:\t02\neventfd-count:               2a\neventfd-id: 3\neventfd-semaphore: 1\n";
        assert_eq!(anonymous("anon_inode:[eventfd]", info), Some(What::Event { count: 42, semaphore: true }));
        assert_eq!(anonymous("anon_inode:[io_uring]", info), None);
    }

    #[test]
    fn this_process_is_described() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let twin = file.as_file().try_clone().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"hello").unwrap();
        let mut errors = Vec::new();
        let found = examine_all(&Attached::default(), &[], &mut errors);
        let open_of = |fd: BorrowedFd| {
            let number = rustix::fd::AsRawFd::as_raw_fd(&fd);
            found.descriptors.iter().find(|descriptor| descriptor.fd == number).map(|descriptor| descriptor.open)
        };
        assert_eq!(open_of(file.as_file().as_fd()), open_of(twin.as_fd()));
        let what = |fd: BorrowedFd| found.opens[open_of(fd).unwrap()].what.clone();
        assert!(matches!(what(reader.as_fd()), What::Pipe(pipe) if pipe.content() == b"hello"));
        assert!(matches!(what(writer.as_fd()), What::Pipe(pipe) if pipe.content() == b""));
    }
}
