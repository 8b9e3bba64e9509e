//! What is said to a running lab: one JSON message per packet of a sequential unix socket, files as ancillary data.
//!
//! Invariants: a packet holds at most `MAX_PACKET_BYTES` bytes and `MAX_FILES` files; longer ones are refused, not cut. A
//! client sends one request per connection. Every request carries the protocol's version.
//! Faults assumed: a peer that sends garbage, too much, too many files, or nothing.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::plan::Bandwidth;

/// Version of the messages below; raised with every change of them.
pub(crate) const VERSION: u32 = 2;

const MAX_PACKET_BYTES: usize = 64 * 1024;
const MAX_FILES: usize = 8;

/// A request and the version its sender speaks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) version: u32,
    pub(crate) request: Request,
}

/// What a client asks of the holder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Describe the lab.
    Status,
    /// Hand over the node's namespaces: answered by `Reply::Joined` and their files in `JOIN_ORDER`.
    Join { node: String },
    /// Run a command in the node for a client that cannot join it. Comes with four files: standard input, output
    /// and error, and a memory file with a `Spawn`. Answered by `Reply::Done`, then a `RunEvent`.
    Run { node: String },
    /// Cut the node's link, then kill all its processes.
    Kill { node: String },
    /// End the lab.
    Down,
}

/// What the holder answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Status(LabStatus),
    Joined(Joined),
    Done,
    NoSuchNode { known: Vec<String> },
    NodeDead,
    OtherVersion,
    Failed { message: String },
}

/// What a client must know to run something in a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Joined {
    pub(crate) base: PathBuf,
    pub(crate) home: PathBuf,
    /// Whether the first of the files is a user namespace.
    pub(crate) user_namespace: bool,
}

/// Names below `/proc/PID/ns` in the order in which they are joined: the user namespace first, for it gives the right
/// to join the others, and the mount namespace last, for it moves the working directory.
pub(crate) const JOIN_ORDER: [&str; 6] = ["user", "pid", "ipc", "uts", "net", "mnt"];

/// A command for a node to run; bytes, because neither arguments nor paths need be text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spawn {
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) directory: Vec<u8>,
}

/// How a command that a node runs for a client ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RunEvent {
    /// With this exit code, 128 + n for signal n.
    Exited(i32),
    /// It could not be started: errno(3).
    NotStarted(i32),
    /// The directory is not there: errno(3).
    NoDirectory(i32),
}

/// A signal for a command that a node runs for a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunSignal(pub(crate) i32);

/// From the holder to a node's pid 1.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The link is there: set it up.
    Network,
    /// Start the daemon and wait until it answers.
    Daemon,
    /// Run a command; the client's connection, then the four files of `Request::Run`.
    Run,
}

/// From a node's pid 1 to the holder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NodeSays {
    /// The last order (or the start) is done.
    Ready,
    /// The node could not do it.
    Failed(Failure),
}

/// From the holder to `mend lab up`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Progress {
    Up,
    Failed(Failure),
}

/// Why a lab did not come up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None }
    }

    pub(crate) fn hinting(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: Some(hint.into()) }
    }
}

/// From `mend lab up` to the holder: live on without me.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Detach;

/// A lab as `mend lab ls` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabStatus {
    /// The name of the lab.
    pub name: String,
    /// Version of Mend that started it.
    pub mend: String,
    /// Pid of the holder as the asking process sees it; 0 from inside the lab.
    pub holder: i32,
    /// Directory that all nodes share, as seen in the nodes.
    pub shared: PathBuf,
    /// Directory that every node has for itself, as seen in the nodes.
    pub scratch: PathBuf,
    /// `MEND_HOME` in the lab.
    pub home: PathBuf,
    /// What each link carries, if it is limited.
    pub bandwidth: Option<Bandwidth>,
    /// `head` first.
    pub nodes: Vec<NodeStatus>,
}

/// What is known about a node of the lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// `head` or `nodeK`.
    pub name: String,
    /// Address on the bridge.
    pub address: Ipv4Addr,
    /// Whether it runs.
    pub state: NodeState,
    /// Whether a node daemon was started there.
    pub daemon: bool,
    /// Whether it listens.
    pub listens: bool,
}

/// Whether a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Its processes run and its link is up.
    Up,
    /// Killed, or its pid 1 died.
    Dead,
}

/// One end of a connection within a lab.
#[derive(Debug)]
pub(crate) struct LabConnection {
    socket: OwnedFd,
}

impl LabConnection {
    pub(crate) fn new(socket: OwnedFd) -> LabConnection {
        LabConnection { socket }
    }

    pub(crate) fn pair() -> io::Result<(LabConnection, LabConnection)> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((LabConnection::new(one), LabConnection::new(other)))
    }

    pub(crate) fn into_file(self) -> OwnedFd {
        self.socket
    }

    /// Sends one message with `files`.
    pub(crate) fn send<T: Serialize>(&self, message: &T, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let packet = serde_json::to_vec(message)?;
        if packet.len() > MAX_PACKET_BYTES || files.len() > MAX_FILES {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let parts = [IoSlice::new(&packet)];
        rustix::io::retry_on_intr(|| sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for one message; `None` when the peer has closed.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut parts = [IoSliceMut::new(&mut packet)];
            match recvmsg(&self.socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                // A peer that died with our message unread: it has closed as well.
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                other => break other?,
            }
        };
        let files = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
        }
        if got.bytes == 0 {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&packet[..got.bytes])?, files)))
    }

    /// Like `receive`, but gives up after `patience` with `TimedOut`.
    pub(crate) fn receive_within<T: DeserializeOwned>(&self, patience: Duration) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        match ready(&[self.as_fd()], Some(patience))?.first() {
            Some(true) => self.receive(),
            _ => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    /// Whether the peer has closed its end.
    pub(crate) fn hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut polled, Some(&now)), Ok(1..))
    }
}

impl AsFd for LabConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until one of `files` can be read or is hung up, at most `patience`; says which. None after the time.
pub(crate) fn ready(files: &[BorrowedFd<'_>], patience: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    let patience = patience.map(|patience| Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() });
    match poll(&mut polled, patience.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(polled.iter().map(|file| !file.revents().is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_files_arrive() {
        let (one, other) = LabConnection::pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        one.send(&Order::Run, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (order, files) = other.receive::<Order>().unwrap().unwrap();
        assert!(matches!(order, Order::Run));
        rustix::io::write(&files[0], b"x").unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(reader, &mut byte).unwrap(), 1);
        assert!(!one.hung_up());
        drop(other);
        assert!(one.hung_up());
        assert!(one.receive::<Order>().unwrap().is_none());
    }

    #[test]
    fn long_messages_and_garbage_are_errors() {
        let (one, other) = LabConnection::pair().unwrap();
        assert!(one.send(&vec![0u8; MAX_PACKET_BYTES], &[]).is_err());
        rustix::net::send(&one, &vec![b' '; MAX_PACKET_BYTES + 1], SendFlags::empty()).unwrap();
        assert!(other.receive::<Order>().is_err());
        rustix::net::send(&one, b"{\"Kill\":", SendFlags::empty()).unwrap();
        assert!(other.receive::<Request>().is_err());
    }

    #[test]
    fn patience_ends() {
        let (one, _other) = LabConnection::pair().unwrap();
        let error = one.receive_within::<Order>(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
