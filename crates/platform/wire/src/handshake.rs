//! The keyed handshake over a TCP stream. [`connect`] and [`accept`] do all of it; a daemon whose secret depends on
//! what the initiator says first uses [`greet`] and the two `prove_as_…` halves.

use mend_messages::auth::{self, AuthError, Greeting, Purpose, Side};
use mend_messages::job::Secret;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Connection, random_bytes};

/// Time a peer has for the whole handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// TCP could not connect.
    #[error("cannot connect to {address}")]
    Connect {
        /// The peer.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection broke during the handshake")]
    Broken(#[source] io::Error),
    /// The peer closed when it saw our proof: in practice, another secret.
    #[error("the peer closed the connection when it saw our proof: it holds another secret")]
    Rejected,
    /// Nothing came in time.
    #[error("no answer within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    TimedOut,
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
            Self::Auth(AuthError::NotMend | AuthError::OtherPurpose { .. }) => {
                "another program listens on that port; give mendd and mend the same MEND_PORT"
            }
            Self::Broken(_) => "look at mendd's log on that node",
        }
    }
}

/// Exchanges greetings. Returns ours and the peer's.
///
/// # Errors
/// I/O errors, and [`AuthError`] if the peer is of another version or purpose.
pub async fn greet(stream: &mut TcpStream, purpose: Purpose) -> Result<(Greeting, Greeting), HandshakeError> {
    stream.set_nodelay(true).map_err(HandshakeError::Broken)?;
    let ours = Greeting::new(purpose, random_bytes());
    stream.write_all(&ours.encode()).await.map_err(HandshakeError::Broken)?;
    let mut bytes = [0; auth::GREETING_LENGTH];
    stream.read_exact(&mut bytes).await.map_err(HandshakeError::Broken)?;
    let theirs = Greeting::decode(&bytes, &ours)?;
    Ok((ours, theirs))
}

/// The initiator's half after [`greet`].
///
/// # Errors
/// [`HandshakeError::Rejected`] if the peer hangs up, [`AuthError::WrongSecret`] if its proof is wrong.
pub async fn prove_as_initiator(stream: &mut TcpStream, secret: &Secret, ours: &Greeting, theirs: &Greeting) -> Result<(), HandshakeError> {
    stream.write_all(&auth::prove(secret, Side::Initiator, ours, theirs)).await.map_err(HandshakeError::Broken)?;
    let mut proof = [0; auth::PROOF_LENGTH];
    stream.read_exact(&mut proof).await.map_err(|_| HandshakeError::Rejected)?;
    auth::verify(secret, Side::Acceptor, ours, theirs, &proof)?;
    Ok(())
}

/// The acceptor's half after [`greet`].
///
/// # Errors
/// [`AuthError::WrongSecret`] if the initiator's proof is wrong; the caller drops the stream.
pub async fn prove_as_acceptor(stream: &mut TcpStream, secret: &Secret, ours: &Greeting, theirs: &Greeting) -> Result<(), HandshakeError> {
    let mut proof = [0; auth::PROOF_LENGTH];
    stream.read_exact(&mut proof).await.map_err(HandshakeError::Broken)?;
    auth::verify(secret, Side::Initiator, theirs, ours, &proof)?;
    stream.write_all(&auth::prove(secret, Side::Acceptor, theirs, ours)).await.map_err(HandshakeError::Broken)?;
    Ok(())
}

/// Connects to `address` and proves `secret`.
///
/// # Errors
/// See [`HandshakeError`].
pub async fn connect(address: SocketAddr, purpose: Purpose, secret: &Secret) -> Result<Connection, HandshakeError> {
    let shake = async {
        let mut stream = TcpStream::connect(address).await.map_err(|source| HandshakeError::Connect { address, source })?;
        let (ours, theirs) = greet(&mut stream, purpose).await?;
        prove_as_initiator(&mut stream, secret, &ours, &theirs).await?;
        Ok(Connection::new(stream))
    };
    timeout(HANDSHAKE_TIMEOUT, shake).await.map_err(|_| HandshakeError::TimedOut)?
}

/// Admits the peer on an accepted stream if it proves `secret`.
///
/// # Errors
/// See [`HandshakeError`].
pub async fn accept(mut stream: TcpStream, purpose: Purpose, secret: &Secret) -> Result<Connection, HandshakeError> {
    let shake = async {
        let (ours, theirs) = greet(&mut stream, purpose).await?;
        prove_as_acceptor(&mut stream, secret, &ours, &theirs).await?;
        Ok(Connection::new(stream))
    };
    timeout(HANDSHAKE_TIMEOUT, shake).await.map_err(|_| HandshakeError::TimedOut)?
}
