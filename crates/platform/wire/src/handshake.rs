//! The handshake of [`crate::session`] over a stream. [`connect`] and [`accept`] do all of it; a daemon whose secret depends on
//! what the initiator says first uses [`Greeted`].

use crate::session::{Handshake, MESSAGE_LENGTH};
use crate::{Connection, Stream, random_bytes};
use mend_messages::auth::{AuthError, GREETING_LENGTH, Greeting, Purpose};
use mend_messages::job::Secret;
use mend_patience::patiently;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Time a peer has for the whole handshake, as far as this process could look (see [`mend_patience`]).
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for a daemon that has been reached: its kernel has answered, so its node lives, and it may have to wait for a processor.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Pauses before what broke off is tried again, less up to half of each: those who come at once are not to come at once again.
const RETRY_PAUSES: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400)];

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// TCP could not connect.
    #[error("cannot connect to {address}")]
    Connect {
        /// The peer.
        address: SocketAddr,
        /// What went wrong.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection broke during the handshake")]
    Broken(#[source] io::Error),
    /// The peer closed when it saw our proof: in practice, another secret.
    #[error("the peer closed the connection when it saw our proof: it holds another secret, or is just ending")]
    Rejected,
    /// Nothing came in time.
    #[error("connected, but not answered in time")]
    TimedOut,
    /// Others took its place.
    #[error("others came, and it had not proven itself yet")]
    Displaced,
    /// The peer is not one of ours.
    #[error(transparent)]
    Auth(#[from] AuthError),
}

impl HandshakeError {
    /// What a user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Connect { .. } | Self::TimedOut => "is mendd running there? start it with `mendd` on that node, or check the firewall",
            Self::Rejected | Self::Auth(AuthError::WrongSecret) => {
                "give every node the same secret file ($MEND_HOME/secret, or MEND_SECRET_FILE)"
            }
            Self::Auth(AuthError::OtherVersion { .. }) => "install the same release of Mend on every node and restart mendd",
            Self::Auth(AuthError::NotMend | AuthError::OtherPurpose { .. } | AuthError::OtherEncryption { .. }) => {
                "another program listens on that port; give mendd and mend the same MEND_PORT"
            }
            Self::Broken(_) | Self::Displaced => "look at mendd's log on that node",
        }
    }
}

/// A connection on which greetings were exchanged and nothing is proven.
#[derive(Debug)]
pub struct Greeted {
    stream: Stream,
    purpose: Purpose,
    ours: Greeting,
    theirs: Greeting,
}

impl Greeted {
    /// Greets whom we connected to. Waits for its greeting.
    ///
    /// # Errors
    /// I/O errors, and [`AuthError`] if the peer is of another version or purpose.
    pub async fn opened(stream: impl Into<Stream>, purpose: Purpose) -> Result<Self, HandshakeError> {
        let mut stream = stream.into();
        stream.tune().map_err(HandshakeError::Broken)?;
        let ours = Greeting::new(purpose, random_bytes());
        stream.write_all(&ours.encode()).await.map_err(HandshakeError::Broken)?;
        let mut bytes = [0; GREETING_LENGTH];
        stream.read_exact(&mut bytes).await.map_err(HandshakeError::Broken)?;
        let theirs = Greeting::decode(&bytes, &ours)?;
        Ok(Self { stream, purpose, ours, theirs })
    }

    /// Waits for the greeting of a peer that connected to us, and answers: for the purpose that it has, if that is one of
    /// `purposes`, else for the first of these, so that it learns what is here.
    ///
    /// # Errors
    /// I/O errors, and [`AuthError`] if the peer is of another version or purpose.
    pub async fn accepted(stream: impl Into<Stream>, purposes: &[Purpose]) -> Result<Self, HandshakeError> {
        let mut stream = stream.into();
        stream.tune().map_err(HandshakeError::Broken)?;
        let mut bytes = [0; GREETING_LENGTH];
        stream.read_exact(&mut bytes).await.map_err(HandshakeError::Broken)?;
        let asked = Greeting::purpose_of(&bytes);
        let purpose = purposes.iter().copied().find(|purpose| *purpose as u32 == asked).unwrap_or(purposes[0]);
        let ours = Greeting::new(purpose, random_bytes());
        // Before theirs is judged: another release reads it, and says what is wrong.
        stream.write_all(&ours.encode()).await.map_err(HandshakeError::Broken)?;
        let theirs = Greeting::decode(&bytes, &ours)?;
        // Who is closed before it was heard sees a reset, and comes again; who is refused sees the end.
        stream.reset_when_closed(true).map_err(HandshakeError::Broken)?;
        Ok(Self { stream, purpose, ours, theirs })
    }

    /// What the connection is for.
    #[must_use]
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Says in the clear what the acceptor must know to find its secret; goes into the `context` of both.
    ///
    /// # Errors
    /// [`HandshakeError::Broken`].
    pub async fn say<const N: usize>(&mut self, word: &[u8; N]) -> Result<(), HandshakeError> {
        self.stream.write_all(word).await.map_err(HandshakeError::Broken)
    }

    /// Waits for what the initiator says in the clear.
    ///
    /// # Errors
    /// [`HandshakeError::Broken`].
    pub async fn hear<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let mut word = [0; N];
        self.stream.read_exact(&mut word).await.map_err(HandshakeError::Broken)?;
        Ok(word)
    }

    /// The initiator's half of the handshake.
    ///
    /// # Errors
    /// [`HandshakeError::Rejected`] if the peer hangs up, [`HandshakeError::Broken`] if it does so unheard, [`AuthError::WrongSecret`] if its answer
    /// is wrong.
    pub async fn prove_as_initiator(self, secret: &Secret, context: &[u8]) -> Result<Connection, HandshakeError> {
        let Self { mut stream, purpose, ours, theirs } = self;
        let mut handshake = Handshake::initiator(secret, purpose, &ours, &theirs, context);
        stream.write_all(&handshake.write()).await.map_err(HandshakeError::Broken)?;
        let mut answer = [0; MESSAGE_LENGTH];
        stream.read_exact(&mut answer).await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionReset => HandshakeError::Broken(error),
            _ => HandshakeError::Rejected,
        })?;
        handshake.read(&answer).map_err(|_| AuthError::WrongSecret)?;
        Ok(Connection::new(stream, handshake.finish()))
    }

    /// The acceptor's half of the handshake.
    ///
    /// # Errors
    /// [`AuthError::WrongSecret`] if the initiator's message is wrong: it is hung up on without a word.
    pub async fn prove_as_acceptor(self, secret: &Secret, context: &[u8]) -> Result<Connection, HandshakeError> {
        let Self { mut stream, purpose, ours, theirs } = self;
        let mut handshake = Handshake::acceptor(secret, purpose, &ours, &theirs, context);
        let mut message = [0; MESSAGE_LENGTH];
        stream.read_exact(&mut message).await.map_err(HandshakeError::Broken)?;
        stream.reset_when_closed(false).map_err(HandshakeError::Broken)?;
        handshake.read(&message).map_err(|_| AuthError::WrongSecret)?;
        stream.write_all(&handshake.write()).await.map_err(HandshakeError::Broken)?;
        Ok(Connection::new(stream, handshake.finish()))
    }
}

/// Tries again a few times what breaks off: others may have taken its place ([`crate::PendingHandshakes`]).
///
/// # Errors
/// The last one.
pub async fn again_if_broken<T, F>(attempt: impl Fn() -> F) -> Result<T, HandshakeError>
where
    F: Future<Output = Result<T, HandshakeError>>,
{
    for pause in RETRY_PAUSES {
        match attempt().await {
            Err(HandshakeError::Broken(_)) => {}
            done => return done,
        }
        let [share] = random_bytes::<1>();
        tokio::time::sleep(pause - pause / 2 * u32::from(share) / 255).await;
    }
    attempt().await
}

/// Connects to `address` and proves `secret`.
///
/// # Errors
/// See [`HandshakeError`].
pub async fn connect(address: SocketAddr, purpose: Purpose, secret: &Secret) -> Result<Connection, HandshakeError> {
    again_if_broken(|| connect_once(address, purpose, secret)).await
}

async fn connect_once(address: SocketAddr, purpose: Purpose, secret: &Secret) -> Result<Connection, HandshakeError> {
    let connecting =
        patiently(HANDSHAKE_TIMEOUT, TcpStream::connect(address)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = connecting.map_err(|source| HandshakeError::Connect { address, source })?;
    let shake = async { Greeted::opened(stream, purpose).await?.prove_as_initiator(secret, &[]).await };
    patiently(ANSWER_TIMEOUT, shake).await.map_err(|_| HandshakeError::TimedOut)?
}

/// As [`connect`], over a unix socket whose listener must be of this user: with another's no word is exchanged.
///
/// # Errors
/// See [`HandshakeError`].
pub async fn connect_locally(path: &Path, purpose: Purpose, secret: &Secret) -> Result<Connection, HandshakeError> {
    let shake = async {
        let stream = Stream::from(UnixStream::connect(path).await.map_err(HandshakeError::Broken)?);
        if !stream.peer().map_err(HandshakeError::Broken)?.may_enter() {
            return Err(AuthError::WrongSecret.into());
        }
        Greeted::opened(stream, purpose).await?.prove_as_initiator(secret, &[]).await
    };
    patiently(ANSWER_TIMEOUT, shake).await.map_err(|_| HandshakeError::TimedOut)?
}

/// Admits the peer on an accepted stream if it proves `secret`.
///
/// # Errors
/// See [`HandshakeError`].
pub async fn accept(stream: impl Into<Stream>, purpose: Purpose, secret: &Secret) -> Result<Connection, HandshakeError> {
    let shake = async { Greeted::accepted(stream, &[purpose]).await?.prove_as_acceptor(secret, &[]).await };
    patiently(HANDSHAKE_TIMEOUT, shake).await.map_err(|_| HandshakeError::TimedOut)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit_all;
    use tokio::net::TcpListener;

    const SECRET: Secret = Secret([1; 32]);

    /// It was told that the secret was wrong.
    #[tokio::test]
    async fn who_is_closed_unheard_is_not_told_of_secrets() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (greeted, accepted) = tokio::join!(Greeted::opened(stream, Purpose::Job), async {
            Greeted::accepted(listener.accept().await.unwrap().0, &[Purpose::Job]).await
        });
        drop(accepted.unwrap());
        let refused = greeted.unwrap().prove_as_initiator(&SECRET, &[]).await.unwrap_err();
        assert!(matches!(refused, HandshakeError::Broken(_)), "{refused}");
    }

    #[tokio::test]
    async fn who_loses_its_place_to_others_comes_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(admit_all(listener, |stream, _, slot| {
            slot.hold(async {
                // As a daemon that waits for a processor.
                tokio::time::sleep(Duration::from_millis(15)).await;
                accept(stream, Purpose::Job, &SECRET).await.map(drop)
            })
        }));
        let connecting: Vec<_> = (0..48).map(|_| tokio::spawn(connect(address, Purpose::Job, &SECRET))).collect();
        for connected in connecting {
            connected.await.unwrap().unwrap_or_else(|error| panic!("{error}"));
        }
        serving.abort();
    }
}
