//! A running lab as other programs see it: find it, describe it, kill a node, end it.
//!
//! Invariants: a lab is only believed when the user who serves it is the one who asks; abstract socket names can be
//! taken by anybody.
//! Faults assumed: a holder that is stopped or dies while it is asked.

use std::env;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mend_kernel::namespaces::peer_of;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

use crate::error::LabError;
use crate::plan::{LabName, inner_socket};
use crate::protocol::{Asked, LabConnection, LabStatus, Reply, Request, VERSION, ready};

/// How long a holder may take to answer; killing a node may take it five seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a lab is asked.
#[derive(Clone, Debug)]
enum LabAddress {
    /// From outside: by name in the machine's network namespace.
    Outside,
    /// From a process in the lab: by a path in the lab's own files.
    Inside(PathBuf),
}

/// A lab that is up (or was, when it was found).
#[derive(Clone, Debug)]
pub struct Lab {
    name: LabName,
    address: LabAddress,
    /// Its process, if it is in a PID namespace that can be seen from here.
    holder: Option<Pid>,
}

impl Lab {
    /// Finds the calling user's lab of this name, from outside or from one of its own nodes.
    ///
    /// # Errors
    /// `NoSuchLab`; `OtherUser` when another user has taken the socket's name.
    pub fn find(name: &LabName) -> Result<Lab, LabError> {
        let mut addresses = vec![LabAddress::Outside];
        addresses.extend(inner_address(name).map(LabAddress::Inside));
        for address in addresses {
            match open(name, &address) {
                Ok((_, holder)) => {
                    let name = name.clone();
                    return Ok(Lab { name, address, holder });
                }
                Err(LabError::NoSuchLab(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(LabError::NoSuchLab(name.to_string()))
    }

    /// All labs of the calling user that can be reached from here.
    ///
    /// # Errors
    /// Failing to read `/proc/net/unix`.
    pub fn all() -> Result<Vec<Lab>, LabError> {
        let table = fs::read_to_string("/proc/net/unix").map_err(crate::error::doing("read /proc/net/unix"))?;
        let prefix = format!("@{}", LabName::socket_prefix(geteuid().as_raw()));
        let mut names: Vec<&str> = table.lines().filter_map(|line| line.split_ascii_whitespace().last()?.strip_prefix(&prefix)).collect();
        let own = env::var("MEND_LAB").unwrap_or_default();
        names.push(&own);
        names.sort_unstable();
        names.dedup();
        let labs = names.iter().filter_map(|name| Lab::find(&name.parse().ok()?).ok());
        Ok(labs.collect())
    }

    /// The lab's name.
    pub fn name(&self) -> &LabName {
        &self.name
    }

    /// Whether the calling process is in the lab.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.address, LabAddress::Inside(_))
    }

    /// Describes the lab and its nodes.
    ///
    /// # Errors
    /// `NoSuchLab` when it ended meanwhile; `Connection`; `OtherVersion`.
    pub fn status(&self) -> Result<LabStatus, LabError> {
        let (reply, _) = self.ask(Request::Status, &[])?;
        match reply {
            Reply::Status(mut status) => {
                status.holder = self.holder.map_or(0, |pid| pid.as_raw_nonzero().get());
                Ok(status)
            }
            other => Err(self.refusal(other, "")),
        }
    }

    /// Makes a node dead: first its link goes down, then all its processes are killed. Returns when they are gone.
    ///
    /// # Errors
    /// `NoSuchNode`; `NodeDead` when it was already; and those of `status`.
    pub fn kill(&self, node: &str) -> Result<(), LabError> {
        let request = Request::Kill { node: node.to_owned() };
        match self.ask(request, &[])?.0 {
            Reply::Done => Ok(()),
            other => Err(self.refusal(other, node)),
        }
    }

    /// Ends the lab and everything in it, and returns when it is gone; by force if its holder does not answer.
    ///
    /// # Errors
    /// `StillUp` if even that does not end it.
    pub fn down(&self) -> Result<(), LabError> {
        let Some(holder) = self.holder else {
            // The caller is in the lab and ends with it; nobody is left to hear an error.
            return self.ask(Request::Down, &[]).map(|_| ());
        };
        // By a descriptor rather than the number, which might be another process's by the time it is used.
        let holder = match pidfd_open(holder, PidfdFlags::empty()) {
            Ok(holder) => holder,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => {
                return Err(LabError::Connection { lab: self.name.to_string(), source: error.into() });
            }
        };
        let gone = || matches!(ready(&[holder.as_fd()], Some(ANSWER_TIMEOUT)), Ok(woken) if woken[0]);
        let asked = self.ask(Request::Down, &[]);
        if asked.is_ok() && gone() {
            return Ok(());
        }
        let _ = pidfd_send_signal(&holder, Signal::KILL);
        match gone() {
            true => Ok(()),
            false => Err(LabError::StillUp(self.name.to_string())),
        }
    }

    /// Sends a request with `files` and waits for the answer.
    pub(crate) fn ask(&self, request: Request, files: &[BorrowedFd<'_>]) -> Result<(Reply, Answer), LabError> {
        let (connection, _) = open(&self.name, &self.address)?;
        let asked = Asked { version: VERSION, request };
        let failed = |source| LabError::Connection { lab: self.name.to_string(), source };
        connection.send(&asked, files).map_err(failed)?;
        match connection.receive_within::<Reply>(ANSWER_TIMEOUT) {
            Ok(Some((Reply::OtherVersion, _))) => Err(LabError::OtherVersion(self.name.to_string())),
            Ok(Some((reply, files))) => Ok((reply, Answer { connection, files })),
            Ok(None) => Err(failed(io::Error::from(io::ErrorKind::UnexpectedEof))),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(LabError::OtherVersion(self.name.to_string())),
            Err(error) => Err(failed(error)),
        }
    }

    /// The error behind an answer that is not the one hoped for.
    pub(crate) fn refusal(&self, reply: Reply, node: &str) -> LabError {
        let (lab, node) = (self.name.to_string(), node.to_owned());
        match reply {
            Reply::NoSuchNode { known } => LabError::NoSuchNode { lab, node, known },
            Reply::NodeDead => LabError::NodeDead { lab, node },
            Reply::Failed { message } => LabError::Connection { lab, source: io::Error::other(message) },
            Reply::Status(_) | Reply::Joined(_) | Reply::Done | Reply::OtherVersion => LabError::OtherVersion(lab),
        }
    }
}

/// What comes with a reply: files, and the connection for what follows.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) connection: LabConnection,
    pub(crate) files: Vec<OwnedFd>,
}

/// The inner socket of the lab that the calling process is in, if it is the one of this name.
fn inner_address(name: &LabName) -> Option<PathBuf> {
    let named = env::var_os("MEND_LAB")?;
    let shared = PathBuf::from(env::var_os("MEND_SHARED")?);
    let own = named == name.as_str();
    own.then(|| inner_socket(shared.parent().unwrap_or(Path::new("/"))))
}

fn open(name: &LabName, address: &LabAddress) -> Result<(LabConnection, Option<Pid>), LabError> {
    let uid = geteuid();
    let connected = || -> io::Result<OwnedFd> {
        let address = match address {
            LabAddress::Outside => SocketAddrUnix::new_abstract_name(&name.socket(uid.as_raw()))?,
            LabAddress::Inside(path) => SocketAddrUnix::new(path)?,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &address)?;
        Ok(socket)
    };
    let failed = |source| LabError::Connection { lab: name.to_string(), source };
    let socket = connected().map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => LabError::NoSuchLab(name.to_string()),
        _ => failed(error),
    })?;
    let (peer, holder) = peer_of(socket.as_fd()).map_err(failed)?;
    if peer != uid.as_raw() {
        return Err(LabError::OtherUser { lab: name.to_string(), uid: peer });
    }
    Ok((LabConnection::new(socket), holder))
}
