//! Pipes within the rank: what is in them, and every open file description of either end.
//!
//! A pipe may be opened more than once, by `/proc/self/fd` or `/dev/fd`: its content is saved once, and each description
//! comes back as one of its own, with flags of its own.

use super::{DescriptorError, Descriptors, Open, What};
use crate::descriptors::attached;
use crate::descriptors::reopen_error::ReopenError;
use crate::descriptors::table::take;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

/// One description of an end of a pipe.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pipe {
    /// Of the pipe, which all its descriptions share.
    inode: u64,
    /// As of `O_ACCMODE`.
    access: i32,
    /// Content, at a description that reads.
    bytes: Vec<u8>,
    /// Bytes, a multiple of the page's.
    capacity: usize,
}

/// Why a pipe cannot be saved.
pub(crate) enum Refusal {
    /// What it holds has limits that a copy would not have (`O_DIRECT`).
    Packets,
    Failed(std::io::Error),
}

/// Looks at a description with these flags. While the program runs, `still` is false: what is in a pipe may be read meanwhile, and is not what would be saved.
pub(crate) fn examine(fd: BorrowedFd, inode: u64, flags: i32, still: bool) -> Result<Pipe, Refusal> {
    let access = flags & libc::O_ACCMODE;
    let bytes = match attached::peek_pipe(fd) {
        _ if access == libc::O_WRONLY => Vec::new(),
        Err(_) if !still => Vec::new(),
        peeked => peeked.map_err(Refusal::Failed)?.ok_or(Refusal::Packets)?,
    };
    // The flag is on the writing end.
    if flags & libc::O_DIRECT != 0 && rustix::io::ioctl_fionread(fd).unwrap_or(0) > 0 {
        return Err(Refusal::Packets);
    }
    Ok(Pipe { inode, access, bytes, capacity: fcntl_getpipe_size(fd).unwrap_or(65536) })
}

impl Pipe {
    #[cfg(test)]
    pub fn content(&self) -> &[u8] {
        &self.bytes
    }

    fn reads(&self) -> bool {
        self.access != libc::O_WRONLY
    }

    fn writes(&self) -> bool {
        self.access != libc::O_RDONLY
    }
}

fn of(open: &Open) -> Option<&Pipe> {
    if let What::Pipe(pipe) = &open.what { Some(pipe) } else { None }
}

/// Ends whose other one is another process's.
pub(crate) fn lonely(found: &Descriptors, errors: &mut Vec<DescriptorError>) {
    for descriptor in &found.descriptors {
        let Some(pipe) = of(&found.opens[descriptor.open]) else { continue };
        let other_end = |other: &Pipe| other.inode == pipe.inode && (pipe.reads() || other.reads()) && (pipe.writes() || other.writes());
        if !found.opens.iter().filter_map(of).any(other_end) && !nobody_else(descriptor.fd) {
            let what = if pipe.writes() { "pipe to another process" } else { "pipe from another process" };
            errors.push(DescriptorError::Unsupported {
                fd: descriptor.fd,
                what: what.to_string(),
                hint: "start the rank's program directly, not in a pipeline; if the program has a child at the other end (subprocess), save when that has ended",
            });
        }
    }
}

/// Pipes that were made again, until all their descriptions are.
#[derive(Default)]
pub(crate) struct Made {
    /// Inode that was, reading and writing end, out of the way.
    pipes: Vec<(u64, OwnedFd, OwnedFd)>,
}

impl Made {
    /// A new description of the end that was saved. Content comes with the first one that reads. `above`: lowest number that is
    /// nobody's.
    pub fn take(&mut self, fd: i32, saved: &Pipe, above: i32) -> Result<OwnedFd, ReopenError> {
        let failed = |errno| ReopenError::Make { fd, what: "pipe", errno };
        let known = self.pipes.iter().position(|(known, ..)| *known == saved.inode);
        let at = match known {
            Some(at) => at,
            None => {
                self.pipes.push(create(saved, above).map_err(failed)?);
                self.pipes.len() - 1
            }
        };
        let (_, reader, writer) = &self.pipes[at];
        if saved.reads() && !saved.bytes.is_empty() && rustix::io::ioctl_fionread(reader).map_err(failed)? == 0 {
            fill(writer, &saved.bytes).map_err(failed)?;
        }
        let end = if saved.access == libc::O_WRONLY { writer } else { reader };
        // Both ends are open, so none waits for the other.
        open(format!("/proc/self/fd/{}", end.as_raw_fd()), OFlags::from_bits_retain(saved.access as u32) | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)
    }
}

fn create(saved: &Pipe, above: i32) -> Result<(u64, OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let high = |end: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(end.as_fd(), above);
    let (reader, writer) = (high(&reader)?, high(&writer)?);
    // A user with very many pipes gets small ones, which need not be too small.
    let _ = fcntl_setpipe_size(&writer, saved.capacity);
    Ok((saved.inode, reader, writer))
}

/// Puts content into a new pipe, whose writing end does not wait.
fn fill(writer: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(writer, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Whether all other ends of a pipe are closed, whoever had them.
fn nobody_else(fd: i32) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let Ok(taken) = take(fd) else { return false };
    let wanted = &mut [PollFd::new(&taken, PollFlags::empty())];
    poll(wanted, Some(&now)).is_ok() && wanted[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_seen_from_the_end_that_reads() {
        let look = |reader: &OwnedFd| examine(reader.as_fd(), 1, libc::O_RDONLY, true).map(|pipe| pipe.bytes);
        for packets in [&["one", "two"][..], &["o", "t"], &["one"]] {
            let (reader, writer) = pipe_with(PipeFlags::DIRECT).unwrap();
            for packet in packets {
                rustix::io::write(&writer, packet.as_bytes()).unwrap();
            }
            drop(writer);
            assert!(matches!(look(&reader), Err(Refusal::Packets)), "{packets:?}");
        }
        let (reader, writer) = pipe_with(PipeFlags::empty()).unwrap();
        assert!(matches!(look(&reader), Ok(bytes) if bytes.is_empty()));
        let mut all = vec![b'x'; 30_000];
        rustix::io::write(&writer, &all).unwrap();
        rustix::io::write(&writer, b"y").unwrap();
        all.push(b'y');
        drop(writer);
        assert!(matches!(look(&reader), Ok(bytes) if bytes == all));
    }
}
