//! The daemon's side of a supervisor.

use super::order::{Event, Instruction, Launch, MAX_FILES};
use mend_messages::frame;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

/// Why there is no supervisor.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// More descriptors than one message carries.
    #[error("{0} descriptors are more than the {MAX_FILES} a launch carries")]
    TooManyFiles(usize),
    /// The process could not be made.
    #[error("the process that watches the rank could not be started")]
    Process(#[source] io::Error),
    /// It could not be told what to do.
    #[error("the process that watches the rank could not be instructed")]
    Control(#[source] io::Error),
}

/// A running supervisor. When it is dropped its socket ends, and with that, soon, the supervisor and all its rank's processes. It is not killed: then
/// its reaper would be, too, and could end nothing.
#[derive(Debug)]
pub struct RankSupervisor {
    control: Option<OwnedWriteHalf>,
    process: Child,
}

/// What a supervisor says.
#[derive(Debug)]
pub struct SupervisorEvents(OwnedReadHalf);

/// Starts a supervisor and tells it to launch; `files` belong to the numbers in `launch`.
///
/// # Errors
/// See [`SpawnError`]. That the program itself cannot be started comes as [`Event::Failed`].
pub async fn spawn(launch: Launch, files: Vec<OwnedFd>) -> Result<(RankSupervisor, SupervisorEvents), SpawnError> {
    if files.len() > MAX_FILES {
        return Err(SpawnError::TooManyFiles(files.len()));
    }
    let (ours, process) = spawn_self("rank-supervisor", false).map_err(SpawnError::Process)?;
    send_files(&ours, &files).map_err(SpawnError::Control)?;
    drop(files);
    ours.set_nonblocking(true).map_err(SpawnError::Control)?;
    let (events, control) = UnixStream::from_std(ours).map_err(SpawnError::Control)?.into_split();
    let mut link = RankSupervisor { control: Some(control), process };
    link.instruct(&Instruction::Launch(Box::new(launch))).await.map_err(SpawnError::Control)?;
    Ok((link, SupervisorEvents(events)))
}

/// Starts one of this program's hidden subcommands, with the other end of the socket as its standard input. `killed`: when it is dropped.
pub(super) fn spawn_self(subcommand: &str, killed: bool) -> io::Result<(std::os::unix::net::UnixStream, Child)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    // The running file itself, also after an upgrade replaced the one at its path.
    let process = Command::new("/proc/self/exe")
        .arg0("mendd")
        .arg(subcommand)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .kill_on_drop(killed)
        .spawn()?;
    Ok((ours, process))
}

/// One byte on a new, empty socket with the descriptors: does not block.
///
/// # Errors
/// The kernel's, as for too many of them.
pub fn send_files(socket: &std::os::unix::net::UnixStream, files: &[OwnedFd]) -> io::Result<()> {
    let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl RankSupervisor {
    async fn instruct(&mut self, instruction: &Instruction) -> io::Result<()> {
        match &mut self.control {
            Some(control) => control.write_all(&frame::encode(instruction).map_err(io::Error::other)?).await,
            None => Ok(()),
        }
    }

    /// Sends a signal to the rank; one that is gone already is no error.
    pub async fn signal(&mut self, signal: i32) {
        // A supervisor that cannot be written to is dead, which its events tell.
        let _ = self.instruct(&Instruction::Signal(signal)).await;
    }

    /// Lets go of the rank: all its processes die. Returns when none is left.
    pub async fn release(&mut self) {
        self.control = None;
        // Fails only if somebody else reaped the supervisor, which then is gone all the same.
        let _ = self.process.wait().await;
    }
}

impl SupervisorEvents {
    /// The next event; `None` when the supervisor is gone. Not cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        let mut prefix = [0; 4];
        self.0.read_exact(&mut prefix).await.ok()?;
        let mut body = vec![0; frame::body_length(prefix).ok()?];
        self.0.read_exact(&mut body).await.ok()?;
        frame::decode(&body).ok()
    }
}
