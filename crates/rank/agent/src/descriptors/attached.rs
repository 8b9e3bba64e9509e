//! Descriptors that outlive the process: the standard streams and the PMI socket that its daemon holds the other ends of.

use crate::descriptors::table::{Taken, take};
use mend_image::launch::{ROLES, Role};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, fstat};
use rustix::io::ioctl_fionread;
use rustix::net::RecvFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};
use std::io;
use std::time::{Duration, Instant};

/// Which pipe or socket has which role, by device and inode, as it was when the program started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attached {
    identities: [Option<(u64, u64)>; 4],
}

impl Attached {
    /// Looks at descriptors 0, 1, 2 and the PMI socket.
    pub fn find(pmi: Option<i32>) -> Self {
        Self::behind([Some(0), Some(1), Some(2), pmi])
    }

    /// Looks at one descriptor per role.
    pub fn behind(descriptors: [Option<i32>; 4]) -> Self {
        let mut attached = Self::default();
        for (identity, fd) in attached.identities.iter_mut().zip(descriptors) {
            let Some(fd) = fd else { continue };
            let Ok(stat) = take(fd).and_then(fstat) else { continue };
            if matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket) {
                *identity = Some((stat.st_dev, stat.st_ino));
            }
        }
        attached
    }

    /// The role of a pipe or socket.
    pub fn role(&self, identity: (u64, u64)) -> Option<Role> {
        ROLES.into_iter().find(|role| self.identities[*role as usize] == Some(identity))
    }
}

/// What has arrived for the program and was not read yet. It stays where it is.
///
/// # Errors
/// The descriptor does not behave like the pipe or socket it was.
pub(crate) fn unread(role: Role, fd: BorrowedFd) -> io::Result<Vec<u8>> {
    match role {
        Role::Stdout | Role::Stderr => Ok(Vec::new()),
        Role::Stdin if FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::Fifo => {
            peek_pipe(fd)?.ok_or_else(|| io::Error::other("unread standard input is in packets (O_DIRECT)"))
        }
        Role::Stdin | Role::Pmi => {
            let mut bytes = vec![0; ioctl_fionread(fd)? as usize];
            if bytes.is_empty() {
                return Ok(bytes);
            }
            let (length, _) = rustix::net::recv(fd, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
            bytes.truncate(length);
            Ok(bytes)
        }
    }
}

/// Longest packet, bytes.
const PIPE_BUF: usize = 4096;

/// What is in a pipe, where it stays. `None`: packets (`O_DIRECT`, pipe(2)). A read ends with a packet, and what it leaves of one is gone. Nothing else
/// tells of them when the end that they came from is closed.
///
/// # Errors
/// The kernel does not let it be looked at.
pub(crate) fn peek_pipe(fd: BorrowedFd) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let waiting = ioctl_fionread(fd)? as usize;
    if waiting == 0 {
        return Ok(Some(bytes));
    }
    // As many buffers as the other pipe has, or tee would copy only a part.
    let size = rustix::pipe::fcntl_getpipe_size(fd)?;
    let copy = || -> io::Result<_> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, size);
        match tee(fd, &writer, waiting, SpliceFlags::NONBLOCK)? {
            copied if copied < waiting => Err(io::Error::other("what is unread in it could not be copied whole")),
            _ => Ok(reader),
        }
    };
    bytes.resize(waiting, 0);
    if rustix::io::read(copy()?, &mut bytes)? < waiting {
        return Ok(None);
    }
    // It may be one packet.
    if (2..=PIPE_BUF).contains(&waiting) {
        let reader = copy()?;
        rustix::io::read(&reader, &mut [0])?;
        if ioctl_fionread(&reader)? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(bytes))
}

/// Waits until the daemon has taken what the program wrote, at most `limit`: what is in a pipe when its rank dies is lost
/// to a restart. Gives up silently, a stuck terminal must not keep a job from being saved.
pub(crate) fn await_drained(outputs: &[Taken], limit: Duration) {
    let deadline = Instant::now() + limit;
    for output in outputs {
        while ioctl_fionread(output).unwrap_or(0) != 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn unread_bytes_stay_unread() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(unread(Role::Stdin, reader.as_fd()).unwrap(), b"");
        rustix::io::write(&writer, b"abc").unwrap();
        rustix::io::write(&writer, b"def").unwrap();
        for _ in 0..2 {
            assert_eq!(unread(Role::Stdin, reader.as_fd()).unwrap(), b"abcdef");
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        rustix::io::write(&theirs, b"cmd=x\n").unwrap();
        for _ in 0..2 {
            assert_eq!(unread(Role::Pmi, ours.as_fd()).unwrap(), b"cmd=x\n");
        }
    }
}
