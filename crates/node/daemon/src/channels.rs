//! The pipes and the PMI socket between the daemon and one rank, made anew for each process of it.

use mend_image::launch::Role;
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::OwnedFd;

/// Our ends, non-blocking.
#[derive(Debug)]
pub struct OurEnds {
    /// Writes standard input; `None` if the rank reads end of file.
    pub stdin: Option<OwnedFd>,
    /// Reads standard output.
    pub stdout: OwnedFd,
    /// Reads standard error.
    pub stderr: OwnedFd,
    /// PMI, both ways.
    pub pmi: OwnedFd,
}

/// The rank's ends, blocking, in the order of [`mend_image::launch::ROLES`].
pub type RankEnds = [(Role, OwnedFd); 4];

/// Makes them. Without `fed` the rank's standard input is `/dev/null`.
///
/// # Errors
/// When descriptors run out.
pub fn open_channels(fed: bool) -> io::Result<(OurEnds, RankEnds)> {
    let (stdin_read, stdin_write) = if fed {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        (read, Some(non_blocking(write)?))
    } else {
        (open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?, None)
    };
    let (stdout_read, stdout_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr_read, stderr_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (pmi, rank_pmi) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let ours =
        OurEnds { stdin: stdin_write, stdout: non_blocking(stdout_read)?, stderr: non_blocking(stderr_read)?, pmi: non_blocking(pmi)? };
    let theirs = [(Role::Stdin, stdin_read), (Role::Stdout, stdout_write), (Role::Stderr, stderr_write), (Role::Pmi, rank_pmi)];
    Ok((ours, theirs))
}

/// Each end has its own file status flags, so this does not change the rank's.
fn non_blocking(file: OwnedFd) -> io::Result<OwnedFd> {
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
    Ok(file)
}
