//! A pending handshake, the receiver's side of opening a channel: a connection whose peer has not yet shown that it belongs to the job.

use super::handshake::{ACCEPT, HELLO_LENGTH, Hello, Medium, REFUSE, Wire};
use super::memory::allow_readers;
use super::ofi::OfiAdmission;
use super::ofi::contact::{CONTACT_LENGTH, Contact};
use super::ofi::port::SharedPort;
use super::opening::nonce;
use super::ring::Ring;
use super::shm::ShmIncoming;
use super::tcp::TcpIncoming;
use super::tcp::encrypted::{EncryptedSource, Keys};
use super::{ChannelError, Incoming};
use mend_kernel::table::Placed;
use mend_messages::auth::{GREETING_LENGTH, Greeting, PROOF_LENGTH, Purpose, Side, prove, verify};
use mend_messages::job::Secret;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

#[derive(Debug)]
enum Stage {
    /// Our greeting is sent when theirs has come.
    Greeting,
    /// Greetings exchanged.
    Proof(Greeting),
    /// They hold the secret.
    Hello(Greeting),
    /// They want an `ofi` channel and still have to say where they are.
    Contact(Hello),
    /// They said who they are; waits for the links to agree.
    Known(Hello, Means),
}

/// What a channel takes besides the HELLO.
#[derive(Debug)]
enum Means {
    Nothing,
    Contact(Contact),
    Keys(Box<Keys>),
}

/// A connection that is not yet a channel.
#[derive(Debug)]
pub struct PendingHandshake {
    wire: Wire,
    stage: Stage,
    ours: Greeting,
    encrypted: bool,
    /// Where it comes from; `None` within this node.
    pub origin: Option<IpAddr>,
    /// When it was accepted, or the peer said something last.
    pub since: Instant,
}

impl PendingHandshake {
    /// A connection just accepted. `encrypted`: what comes over it from another node is.
    ///
    /// # Errors
    /// No random numbers.
    pub fn new(socket: Placed, encrypted: bool) -> Result<Self, ChannelError> {
        let ours = Greeting::new(Purpose::of_ranks(encrypted), nonce()?);
        let origin = rustix::net::getpeername(&socket).ok().and_then(|peer| SocketAddr::try_from(peer?).ok());
        let origin = origin.map(|peer| peer.ip().to_canonical());
        Ok(Self { wire: Wire::new(socket), stage: Stage::Greeting, ours, encrypted, origin, since: Instant::now() })
    }

    /// True once it has shown that it holds the secret.
    pub fn proven(&self) -> bool {
        !matches!(self.stage, Stage::Greeting | Stage::Proof(_))
    }

    /// Goes on as far as the peer's messages allow; who it is when that is known.
    ///
    /// # Errors
    /// The peer is refused or gone.
    pub fn advance(&mut self, secret: &Secret) -> Result<Option<Hello>, ChannelError> {
        self.wire.flush()?;
        self.wire.fill()?;
        loop {
            match &self.stage {
                Stage::Greeting => {
                    let Some(bytes) = self.wire.take::<GREETING_LENGTH>() else { return Ok(None) };
                    // Ours goes out before theirs is judged, so that another release can say what is wrong.
                    self.wire.write(&self.ours.encode())?;
                    let theirs = Greeting::decode(&bytes, &self.ours).map_err(|error| ChannelError::Protocol(error.to_string()))?;
                    self.stage = Stage::Proof(theirs);
                }
                Stage::Proof(theirs) => {
                    let Some(proof) = self.wire.take::<PROOF_LENGTH>() else { return Ok(None) };
                    verify(secret, Side::Initiator, theirs, &self.ours, &proof)
                        .map_err(|error| ChannelError::Protocol(error.to_string()))?;
                    let answer = prove(secret, Side::Acceptor, theirs, &self.ours);
                    self.wire.write(&answer)?;
                    self.stage = Stage::Hello(*theirs);
                }
                Stage::Hello(theirs) => {
                    let theirs = *theirs;
                    let Some(bytes) = self.wire.take::<HELLO_LENGTH>() else { return Ok(None) };
                    let hello = Hello::decode(&bytes)?;
                    self.stage = match hello.medium {
                        Medium::Ofi => Stage::Contact(hello),
                        Medium::Tcp if self.encrypted => {
                            let keys = mend_cipher::acceptor(secret, [&theirs.nonce, &self.ours.nonce], &bytes);
                            self.known(hello, Means::Keys(Box::new(keys)))?
                        }
                        Medium::Tcp | Medium::Shm => self.known(hello, Means::Nothing)?,
                    };
                }
                Stage::Contact(hello) => {
                    let hello = *hello;
                    let Some(bytes) = self.wire.take::<CONTACT_LENGTH>() else { return Ok(None) };
                    self.stage = self.known(hello, Means::Contact(Contact::decode(&bytes)?))?;
                }
                Stage::Known(hello, _) => return Ok(Some(*hello)),
            }
            self.since = Instant::now();
        }
    }

    fn known(&self, hello: Hello, means: Means) -> Result<Stage, ChannelError> {
        if self.wire.has_more() {
            return Err(ChannelError::Protocol("packets before ACCEPT".into()));
        }
        Ok(Stage::Known(hello, means))
    }

    /// True if it wants an `ofi` channel and may have one: what goes over a core provider is not encrypted.
    pub fn wants_port(&self) -> bool {
        !self.encrypted && matches!(self.stage, Stage::Known(Hello { medium: Medium::Ofi, .. }, _))
    }

    /// Accepts: from here on packets flow. An `ofi` channel is refused if there is no port.
    ///
    /// # Errors
    /// What came with the HELLO is unusable, or the peer is gone.
    pub fn admit(self, wakeup: BorrowedFd<'_>, port: Option<&SharedPort>) -> Result<Box<dyn Incoming>, ChannelError> {
        let Stage::Known(hello, means) = self.stage else { return Err(ChannelError::Protocol("not yet known".into())) };
        let mut wire = self.wire;
        if let Means::Keys(keys) = means {
            wire.write(&ACCEPT)?;
            return Ok(Box::new(TcpIncoming::new(EncryptedSource::new(wire.into_parts().0, *keys))));
        }
        if hello.medium == Medium::Tcp {
            wire.write(&ACCEPT)?;
            return Ok(Box::new(TcpIncoming::new(wire.into_parts().0)));
        }
        if let Means::Contact(theirs) = means {
            let admission = port.ok_or(ChannelError::Refused).and_then(|port| OfiAdmission::begin(port, &theirs));
            let admission = match admission {
                Ok(admission) => admission,
                Err(error) => {
                    wire.write(&REFUSE)?;
                    return Err(error);
                }
            };
            wire.write(&[&ACCEPT[..], &admission.contact().encode()?[..]].concat())?;
            return Ok(Box::new(admission.finish(wire.into_parts().0)));
        }
        let readable = if hello.readable {
            Some(wire.take_descriptor().ok_or_else(|| ChannelError::Protocol("no memory to read".into()))?)
        } else {
            None
        };
        let (Some(theirs), Some(memory)) = (wire.take_descriptor(), wire.take_descriptor()) else {
            return Err(ChannelError::Protocol("no ring or no wakeup socket".into()));
        };
        let ring = Ring::open(&memory)?;
        allow_readers();
        wire.write_with(&ACCEPT, &[wakeup])?;
        Ok(Box::new(ShmIncoming::new(ring, wire.into_parts().0, theirs, readable)))
    }

    /// The socket to watch.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.wire.socket()
    }

    /// Descriptors that belong to it.
    pub fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.wire.socket().as_raw_fd());
    }

    /// Forgets descriptors without closing them.
    pub fn forget(self) {
        self.wire.forget();
    }
}
