//! The sender's side of opening a channel: connect, prove, say HELLO, wait for ACCEPT.
//!
//! Until ACCEPT no packet flows, so an opening can be dropped at any moment and begun again later.

use super::handshake::{ACCEPT, ACCEPT_LENGTH, Hello, Wire};
use super::ring::Ring;
use super::shm::{ShmOutgoing, open_own_memory};
use super::tcp::{TcpOutgoing, tune};
use super::{ChannelError, Outgoing};
use mend_messages::auth::{GREETING_LENGTH, Greeting, PROOF_LENGTH, Purpose, Side, prove, verify};
use mend_messages::job::{FabricAddress, Secret};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::time::Instant;

#[derive(Debug)]
enum Stage {
    /// Greeting sent.
    Greeting,
    /// Proof sent.
    Proof(Greeting),
    /// HELLO sent; the ring that the receiver has mapped by now.
    Hello(Option<Ring>),
}

/// A channel that is being opened.
#[derive(Debug)]
pub struct Opening {
    wire: Wire,
    stage: Stage,
    ours: Greeting,
    hello: Hello,
    /// When it began.
    pub since: Instant,
}

/// What became of an opening.
pub enum Step {
    /// The peer has not answered yet.
    Waiting(Box<Opening>),
    /// Packets may flow.
    Open(Box<dyn Outgoing>),
}

/// 32 bytes nobody can guess.
pub fn nonce() -> Result<[u8; 32], ChannelError> {
    let mut bytes = [0; 32];
    let mut have = 0;
    while have < bytes.len() {
        have += rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

fn connect(address: &FabricAddress, shared: bool) -> Result<OwnedFd, ChannelError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, connected) = if shared {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let name = SocketAddrUnix::new_abstract_name(address.unix.as_bytes())?;
        let connected = rustix::net::connect(&socket, &name);
        (socket, connected)
    } else {
        let family = if address.tcp.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        tune(socket.as_fd())?;
        let connected = rustix::net::connect(&socket, &address.tcp);
        (socket, connected)
    };
    match connected {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

impl Opening {
    /// Starts to open a channel to the rank at `address`.
    ///
    /// # Errors
    /// The connection cannot be started.
    pub fn start(address: &FabricAddress, hello: Hello) -> Result<Self, ChannelError> {
        let ours = Greeting::new(Purpose::Fabric, nonce()?);
        let mut wire = Wire::new(connect(address, hello.shared)?);
        wire.write(&ours.encode())?;
        Ok(Self { wire, stage: Stage::Greeting, ours, hello, since: Instant::now() })
    }

    /// Goes on as far as the peer's answers allow.
    ///
    /// # Errors
    /// The peer refused or is gone.
    pub fn advance(mut self: Box<Self>, secret: &Secret, bell: BorrowedFd<'_>) -> Result<Step, ChannelError> {
        self.wire.flush()?;
        self.wire.fill()?;
        loop {
            match &mut self.stage {
                Stage::Greeting => {
                    let Some(bytes) = self.wire.take::<GREETING_LENGTH>() else { break };
                    let theirs = Greeting::decode(&bytes, &self.ours).map_err(|error| ChannelError::Protocol(error.to_string()))?;
                    self.wire.write(&prove(secret, Side::Initiator, &self.ours, &theirs))?;
                    self.stage = Stage::Proof(theirs);
                }
                Stage::Proof(theirs) => {
                    let Some(proof) = self.wire.take::<PROOF_LENGTH>() else { break };
                    verify(secret, Side::Acceptor, &self.ours, theirs, &proof)
                        .map_err(|error| ChannelError::Protocol(error.to_string()))?;
                    if self.hello.shared {
                        let (ring, memory) = Ring::create()?;
                        let own = open_own_memory();
                        self.hello.readable = own.is_some();
                        let mut descriptors = vec![memory.as_fd(), bell];
                        descriptors.extend(own.as_ref().map(AsFd::as_fd));
                        self.wire.write_with(&self.hello.encode(), &descriptors)?;
                        self.stage = Stage::Hello(Some(ring));
                    } else {
                        self.wire.write(&self.hello.encode())?;
                        self.stage = Stage::Hello(None);
                    }
                }
                Stage::Hello(ring) => {
                    let Some(answer) = self.wire.take::<ACCEPT_LENGTH>() else { break };
                    if answer != ACCEPT || self.wire.has_more() {
                        return Err(ChannelError::Protocol("not an ACCEPT".into()));
                    }
                    let ring = ring.take();
                    return self.finish(ring).map(Step::Open);
                }
            }
        }
        Ok(Step::Waiting(self))
    }

    fn finish(mut self: Box<Self>, ring: Option<Ring>) -> Result<Box<dyn Outgoing>, ChannelError> {
        let bell = self.wire.take_descriptor();
        let (socket, _) = self.wire.into_parts();
        match (ring, bell) {
            (None, _) => Ok(Box::new(TcpOutgoing::new(socket))),
            (Some(ring), Some(bell)) => Ok(Box::new(ShmOutgoing::new(ring, socket, bell, self.hello.readable))),
            (Some(_), None) => Err(ChannelError::Protocol("no doorbell".into())),
        }
    }

    /// The socket to watch.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.wire.socket()
    }

    /// Descriptors that belong to it.
    pub fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.wire.socket().as_raw_fd());
    }

    /// Forgets descriptors and mappings without touching them.
    pub fn forget(self: Box<Self>) {
        self.wire.forget();
        if let Stage::Hello(Some(ring)) = self.stage {
            std::mem::forget(ring);
        }
    }
}
