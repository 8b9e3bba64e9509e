//! The unix socket on which the agents of one job's ranks speak with the daemon.
//!
//! The socket is abstract, with a name that cannot be guessed, and admits processes of the daemon's own user only: such
//! a process could read the job's secret from memory anyway.
//! Faults assumed: an unproven peer connects and says nothing, or garbage; an agent dies in the middle of a message.

use mend_messages::agent::{FromAgent, Request, RollbackOrder, ToAgent};
use mend_messages::frame;
use mend_node_job::event::AgentId;
use mend_patience::patiently;
use mend_wire::{Peer, Refusals};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Time to the first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Agents of one job on this node at once.
const MAX_AGENTS: usize = 4096;
/// Messages of agents that the job has not looked at.
const EVENT_QUEUE_LENGTH: usize = 64;

/// The only question that an agent is asked which takes its rank back.
const ROLLBACK_SEQ: u64 = u64::MAX;

/// A connection's voice. Dropping it ends the connection once everything is sent.
#[derive(Clone, Debug)]
pub struct AgentLink(mpsc::UnboundedSender<(Vec<u8>, Option<OwnedFd>)>);

impl AgentLink {
    /// Queues a message, with a descriptor if it needs one. To an agent that is gone: dropped, the job will hear of it.
    pub fn send(&self, message: &ToAgent, file: Option<OwnedFd>) {
        match frame::encode(message) {
            Ok(bytes) => drop(self.0.send((bytes, file))),
            Err(error) => tracing::error!(%error, "a message to an agent does not fit a frame"),
        }
    }
}

/// The request that takes a rank back; its descriptors come with it.
pub fn rollback_request(order: RollbackOrder) -> ToAgent {
    ToAgent::Request { seq: ROLLBACK_SEQ, request: Request::RollBack(order) }
}

/// What comes from agents.
#[derive(Debug)]
pub enum AgentEvent {
    /// A message; the first of a connection brings the way to answer.
    Message {
        /// From which connection.
        id: AgentId,
        /// Present with the first message only.
        link: Option<AgentLink>,
        /// What it says.
        message: Box<FromAgent>,
    },
    /// The connection ended.
    Gone {
        /// The id that this is about.
        id: AgentId,
    },
}

/// The socket at which the agents of a job arrive.
#[derive(Debug)]
pub struct AgentSocket {
    name: String,
    connections: AgentConnections,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct AgentConnections {
    events: mpsc::Sender<AgentEvent>,
    next: Arc<AtomicU64>,
}

impl AgentSocket {
    /// Opens it. Events arrive at the returned receiver.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn open() -> io::Result<(Self, mpsc::Receiver<AgentEvent>)> {
        let name = format!("mend-{}", mend_wire::secret::to_hex(&mend_wire::random_bytes::<16>()));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
        let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let (events, arrivals) = mpsc::channel(EVENT_QUEUE_LENGTH);
        let connections = AgentConnections { events, next: Arc::new(AtomicU64::new(0)) };
        let accepting = tokio::spawn(accept(listener, connections.clone()));
        Ok((Self { name, connections, accepting }, arrivals))
    }

    /// Name of the abstract socket, without the leading NUL.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes over the daemon's end of a socket whose other end a restored process inherits.
    ///
    /// # Errors
    /// If the socket cannot be waited for.
    pub fn adopt(&self, socket: OwnedFd) -> io::Result<AgentId> {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        // A restored agent speaks when its image is read, which takes as long as it takes.
        Ok(self.connections.serve(UnixStream::from_std(socket)?, None, None))
    }
}

impl Drop for AgentSocket {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: UnixListener, connections: AgentConnections) {
    let places = Arc::new(Semaphore::new(MAX_AGENTS));
    let (user, refusals) = (rustix::process::geteuid().as_raw(), Arc::new(Refusals::default()));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Out of descriptors: others may be closed soon.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        match socket.peer_cred() {
            Ok(peer) if peer.uid() == user => {}
            Ok(peer) => {
                refusals.tell(Peer::User(peer.uid()), &io::Error::from(io::ErrorKind::PermissionDenied));
                continue;
            }
            Err(_) => continue,
        }
        match places.clone().try_acquire_owned() {
            Ok(place) => drop(connections.serve(socket, Some(HELLO_TIMEOUT), Some(place))),
            Err(_) => refusals.tell(Peer::User(user), &io::Error::other(format!("more than {MAX_AGENTS} agents at a job's socket"))),
        }
    }
}

impl AgentConnections {
    fn serve(&self, socket: UnixStream, hurry: Option<Duration>, place: Option<tokio::sync::OwnedSemaphorePermit>) -> AgentId {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reader, writer) = socket.into_split();
        let (sender, outgoing) = mpsc::unbounded_channel();
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = listen(id, reader, AgentLink(sender), hurry, &events) => {}
                () = speak(writer, outgoing) => {}
            }
            drop(place);
            // The job may have ended before its agents.
            let _ = events.send(AgentEvent::Gone { id }).await;
        });
        id
    }
}

async fn listen(id: AgentId, mut reader: OwnedReadHalf, link: AgentLink, hurry: Option<Duration>, events: &mpsc::Sender<AgentEvent>) {
    let first = match hurry {
        Some(time) => patiently(time, receive(&mut reader)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        None => receive(&mut reader).await,
    };
    let mut link = Some(link);
    let mut next = first;
    loop {
        match next {
            Ok(message) => {
                if events.send(AgentEvent::Message { id, link: link.take(), message: Box::new(message) }).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                // A process that is killed resets its connection if it had not read everything.
                if !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) {
                    tracing::warn!(%error, "an agent's connection is dropped");
                }
                return;
            }
        }
        next = receive(&mut reader).await;
    }
}

async fn receive(reader: &mut OwnedReadHalf) -> io::Result<FromAgent> {
    let mut prefix = [0; 4];
    reader.read_exact(&mut prefix).await?;
    let mut body = vec![0; frame::body_length(prefix).map_err(io::Error::other)?];
    reader.read_exact(&mut body).await?;
    frame::decode(&body).map_err(io::Error::other)
}

async fn speak(mut writer: OwnedWriteHalf, mut outgoing: mpsc::UnboundedReceiver<(Vec<u8>, Option<OwnedFd>)>) {
    while let Some((bytes, file)) = outgoing.recv().await {
        let sent = match file {
            None => 0,
            Some(file) => match send_with_file(writer.as_ref(), &bytes, &file).await {
                Ok(sent) => sent,
                Err(_) => return,
            },
        };
        if writer.write_all(&bytes[sent..]).await.is_err() {
            return;
        }
    }
}

/// Sends as much as fits with the descriptor; it travels with the first byte.
async fn send_with_file(socket: &UnixStream, bytes: &[u8], file: &OwnedFd) -> io::Result<usize> {
    socket
        .async_io(Interest::WRITABLE, || {
            let files = [file.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
            Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
        })
        .await
}
