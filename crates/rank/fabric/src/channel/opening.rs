//! The sender's side of opening a channel: connect, prove, say HELLO, wait for ACCEPT.
//!
//! Until ACCEPT no packet flows, so an opening can be dropped at any moment and begun again later.

use super::handshake::{ACCEPT, ACCEPT_LENGTH, Hello, Medium, REFUSE, Wire};
use super::memory::{allow_readers, open_own_memory};
use super::ofi::OfiOpening;
use super::ofi::contact::{CONTACT_LENGTH, Contact};
use super::ofi::port::SharedPort;
use super::ring::Ring;
use super::shm::ShmOutgoing;
use super::tcp::encrypted::{EncryptedWriter, Keys};
use super::tcp::outgoing::TcpOutgoing;
use super::tcp::tune;
use super::{ChannelError, Outgoing};
use mend_kernel::table::Placed;
use mend_messages::auth::{GREETING_LENGTH, Greeting, PROOF_LENGTH, Purpose, Side, prove, verify};
use mend_messages::job::{FabricAddress, Secret};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::time::Instant;

enum Stage {
    /// Greeting sent.
    Greeting,
    /// Proof sent.
    Proof(Greeting),
    /// HELLO sent; what the channel is made of, prepared.
    Hello(Prepared),
    /// An `ofi` channel is accepted, the receiver's contact is still to come.
    Contact(OfiOpening),
    /// The channel is open.
    Done,
}

enum Prepared {
    Tcp,
    Encrypted(Box<Keys>),
    /// The receiver has mapped it by now.
    Shm(Ring),
    Ofi(OfiOpening),
}

/// A channel that is being opened.
pub struct Opening {
    wire: Wire,
    stage: Stage,
    ours: Greeting,
    hello: Hello,
    encrypted: bool,
    port: Option<SharedPort>,
    /// When it began, or the peer answered last.
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

fn connect(address: &FabricAddress, shared: bool) -> Result<Placed, ChannelError> {
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
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

impl Opening {
    /// Starts to open a channel to the rank at `address`; over `port`, if that is what the HELLO says. `encrypted`: what leaves
    /// this node over it is.
    ///
    /// # Errors
    /// The connection cannot be started.
    pub fn start(address: &FabricAddress, hello: Hello, encrypted: bool, port: Option<SharedPort>) -> Result<Self, ChannelError> {
        let ours = Greeting::new(Purpose::of_ranks(encrypted), nonce()?);
        let mut wire = Wire::new(connect(address, hello.medium == Medium::Shm)?);
        wire.write(&ours.encode())?;
        Ok(Self { wire, stage: Stage::Greeting, ours, hello, encrypted, port, since: Instant::now() })
    }

    /// True if the peer's kernel has answered.
    pub fn connected(&self) -> bool {
        self.wire.sent()
    }

    /// Goes on as far as the peer's answers allow.
    ///
    /// # Errors
    /// The peer refused or is gone.
    pub fn advance(mut self: Box<Self>, secret: &Secret, wakeup: BorrowedFd<'_>) -> Result<Step, ChannelError> {
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
                    let theirs = *theirs;
                    let prepared = self.introduce(secret, &theirs, wakeup)?;
                    self.stage = Stage::Hello(prepared);
                }
                Stage::Hello(_) => {
                    let Some(answer) = self.wire.take::<ACCEPT_LENGTH>() else { break };
                    match std::mem::replace(&mut self.stage, Stage::Done) {
                        _ if answer == REFUSE => return Err(ChannelError::Refused),
                        _ if answer != ACCEPT => return Err(ChannelError::Protocol("not an ACCEPT".into())),
                        Stage::Hello(Prepared::Ofi(opening)) => self.stage = Stage::Contact(opening),
                        Stage::Hello(prepared) => return self.finish(prepared).map(Step::Open),
                        _ => break,
                    }
                }
                Stage::Contact(_) => {
                    let Some(bytes) = self.wire.take::<CONTACT_LENGTH>() else { break };
                    let theirs = Contact::decode(&bytes)?;
                    let Stage::Contact(opening) = std::mem::replace(&mut self.stage, Stage::Done) else { break };
                    let socket = self.into_socket()?;
                    return Ok(Step::Open(Box::new(opening.finish(socket, &theirs)?)));
                }
                Stage::Done => break,
            }
            self.since = Instant::now();
        }
        Ok(Step::Waiting(self))
    }

    /// Says who opens what kind of channel.
    fn introduce(&mut self, secret: &Secret, theirs: &Greeting, wakeup: BorrowedFd<'_>) -> Result<Prepared, ChannelError> {
        match (self.hello.medium, &self.port) {
            (Medium::Shm, _) => {
                let (ring, memory) = Ring::create()?;
                allow_readers();
                let own = open_own_memory();
                self.hello.readable = own.is_some();
                let mut descriptors = vec![memory.as_fd(), wakeup];
                descriptors.extend(own.as_ref().map(AsFd::as_fd));
                self.wire.write_with(&self.hello.encode(), &descriptors)?;
                Ok(Prepared::Shm(ring))
            }
            (Medium::Ofi, Some(port)) => {
                let opening = OfiOpening::begin(port)?;
                self.wire.write(&[&self.hello.encode()[..], &opening.contact().encode()?[..]].concat())?;
                Ok(Prepared::Ofi(opening))
            }
            (Medium::Ofi, None) => Err(ChannelError::Refused),
            (Medium::Tcp, _) => {
                let hello = self.hello.encode();
                self.wire.write(&hello)?;
                if !self.encrypted {
                    return Ok(Prepared::Tcp);
                }
                // Somebody on the way who changes the HELLO has other keys than ours at the other end.
                let keys = mend_cipher::initiator(secret, [&self.ours.nonce, &theirs.nonce], &hello);
                Ok(Prepared::Encrypted(Box::new(keys)))
            }
        }
    }

    fn finish(mut self: Box<Self>, prepared: Prepared) -> Result<Box<dyn Outgoing>, ChannelError> {
        let (wakeup, readable) = (self.wire.take_descriptor(), self.hello.readable);
        let socket = self.into_socket()?;
        match (prepared, wakeup) {
            (Prepared::Shm(ring), Some(wakeup)) => Ok(Box::new(ShmOutgoing::new(ring, socket, wakeup, readable))),
            (Prepared::Shm(_), None) => Err(ChannelError::Protocol("no wakeup socket".into())),
            (Prepared::Encrypted(keys), _) => Ok(Box::new(TcpOutgoing::over(EncryptedWriter::new(socket, *keys)))),
            _ => Ok(Box::new(TcpOutgoing::new(socket))),
        }
    }

    fn into_socket(self) -> Result<Placed, ChannelError> {
        if self.wire.has_more() { Err(ChannelError::Protocol("more than an ACCEPT".into())) } else { Ok(self.wire.into_parts().0) }
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
        std::mem::forget(self.stage);
        std::mem::forget(self.port);
    }
}
