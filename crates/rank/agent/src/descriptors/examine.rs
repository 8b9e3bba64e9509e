//! Examines the descriptors of the program: finds all of them, and tells of each what it is and whether it can be saved.

use super::attached::Attached;
use super::data_calls;
use super::epoll::{self, Target};
use super::file_systems::magic_of;
use super::locks::{self, Kind};
use super::sharing::Known;
use super::sockets::{self, Refusal, Socket};
use super::table::take;
use super::{
    Descriptor, DescriptorError, Descriptors, Open, PathKind, What, eventfd, fdinfo, map_identity, paths, pipes, signalfd, timerfd,
    unopenable, unreachable, watches,
};
use crate::memory::maps::{JVM_COUNTERS, NODE_MEMORY};
use crate::park::{self, Parked};
use crate::process::tasks::numbers_in;
use mend_freestanding::{check, syscall};
use mend_image::handoff::MAX_KEPT;
use mend_image::launch::Role;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{FileType, Stat, fstat};
use std::collections::HashSet;
use std::io;

/// Largest unlinked file that is saved, bytes.
const MAX_UNLINKED_BYTES: u64 = 256 << 20;

const SOCKETS: &str = "close connections of the program's own before a checkpoint";

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
    if data_calls::are_in_progress() {
        errors.push(DescriptorError::DataCall);
        return found;
    }
    let numbers = match numbers_in("/proc/self/fd") {
        Ok(numbers) => numbers,
        Err(error) => {
            errors.push(DescriptorError::List(error));
            return found;
        }
    };
    let mut known = Known::new(park::threads_are_parked());
    for fd in numbers {
        if own.contains(&fd) {
            continue;
        }
        let Ok(taken) = take(fd) else { continue };
        let Ok(stat) = fstat(&taken) else { continue };
        found.top = found.top.max(fd as u32);
        match examine(fd, taken.as_fd(), &stat, attached) {
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
    let memory = found.opens.iter().filter_map(|open| if let What::Memory { identity, .. } = open.what { Some(identity) } else { None });
    if memory.collect::<HashSet<_>>().len() > MAX_KEPT {
        errors.push(DescriptorError::ManyMemoryFiles);
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

type Examined = (Open, bool, String, String);

fn examine(fd: i32, borrowed: BorrowedFd, stat: &Stat, attached: &Attached) -> Result<Examined, DescriptorError> {
    let failed = |source: io::Error| DescriptorError::Examine { fd, source };
    let link = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).map_err(|errno| failed(errno.into()))?;
    if let Some(found) = unreachable::nameless(link.as_bytes()) {
        return Err(DescriptorError::Unsupported { fd, what: format!("file {found}"), hint: unreachable::NAMELESS_HINT });
    }
    let link = String::from_utf8_lossy(link.as_bytes()).into_owned();
    let read = || std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
    let info = read().map_err(failed)?;
    let info = match link.as_str() {
        "anon_inode:[timerfd]" => timerfd::look(borrowed, info, park::threads_are_parked(), read).map_err(failed)?,
        _ => info,
    };
    // SAFETY: F_GETFL and F_GET_SEALS only read.
    let control = |command: i32| check(unsafe { syscall(libc::SYS_fcntl, [borrowed.as_raw_fd() as usize, command as usize, 0, 0, 0, 0]) });
    let flags = control(libc::F_GETFL).map_err(|errno| failed(io::Error::from_raw_os_error(errno)))? as i32;
    // The flag is the number's, and this may be a duplicate.
    let close_on_exec = fdinfo::flags(&info) & libc::O_CLOEXEC != 0;
    let unsupported = |what: String, hint| Err(DescriptorError::Unsupported { fd, what, hint });
    let identity = (stat.st_dev, stat.st_ino);
    let unopenable = || unopenable::obstacle(borrowed, stat, &link).or_else(|| paths::denied(&link, stat, flags));
    let unopenable = || unopenable().filter(|_| flags & libc::O_PATH == 0);
    if let Some((what, hint)) = unreachable::descriptor(&link, stat).or_else(unopenable) {
        return unsupported(what, hint);
    }
    let unlinked = || stat.st_nlink == 0 || unreachable::is_removed_on_nfs(&link, || magic_of(borrowed));
    let what = match FileType::from_raw_mode(stat.st_mode) {
        _ if flags & libc::O_PATH != 0 && !link.ends_with(" (deleted)") => {
            What::Path { path: paths::lasting(link.clone()), kind: PathKind::Place, size: 0 }
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
        FileType::Fifo => match pipes::examine(borrowed, stat.st_ino, flags, park::threads_are_parked()) {
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
        FileType::RegularFile if unlinked() && stat.st_size as u64 <= MAX_UNLINKED_BYTES => What::Memory {
            // Nobody can open it by name any more: its content in memory serves as well.
            identity: map_identity(identity),
            name: "unlinked".to_string(),
            size: stat.st_size as u64,
            seals: 0,
            object: None,
        },
        FileType::RegularFile if unlinked() => {
            return unsupported(format!("deleted file {link}"), "keep large files that are open until they are closed");
        }
        FileType::RegularFile if unreachable::is_deleted(&link, stat) => {
            return unsupported(format!("file {link}, which has another name"), "let the program open it by the name that it has");
        }
        FileType::RegularFile => What::Path { path: paths::lasting(link.clone()), kind: PathKind::File, size: stat.st_size as u64 },
        FileType::Directory => What::Path { path: paths::lasting(link.clone()), kind: PathKind::Directory, size: 0 },
        FileType::CharacterDevice if paths::is_harmless(&link) => What::Path { path: link.clone(), kind: PathKind::Device, size: 0 },
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
    let offset = fdinfo::field(&info, "pos:").and_then(|text| text.parse().ok()).unwrap_or(0);
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

/// Kernel objects without a path that can be made anew.
fn anonymous(link: &str, info: &str) -> Option<What> {
    match link {
        "anon_inode:[eventfd]" => eventfd::parse(info),
        "anon_inode:[timerfd]" => timerfd::parse(info),
        "anon_inode:inotify" => Some(What::Inotify { watches: Vec::new() }),
        "anon_inode:[signalfd]" => signalfd::parse(info),
        "anon_inode:[eventpoll]" => Some(What::Epoll { targets: info.lines().filter_map(Target::parse).collect() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn lines_of_fdinfo() {
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
