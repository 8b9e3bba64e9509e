//! A connection between a writing mount and a reading one: messages, each with bytes behind it, in both directions at once.
//!
//! Invariant: whoever is at the other end has proven the user's secret, and every byte is encrypted with keys of this connection alone. Both sides say something several times within the time after
//! which silence means that the other is gone. Faults assumed: the other side stops, dies, or lies about lengths, which are bounded before anything is allocated.

use mend_cipher::{Decryptor, EncryptedReader, EncryptedWriter, Encryptor};
use mend_messages::auth::Purpose;
use mend_messages::frame;
use mend_messages::job::Secret;
use mend_patience::{Patience, patiently};
use mend_streams::{Hello, ToReader, Welcome};
use mend_wire::{Connection, Greeted, HANDSHAKE_TIMEOUT, HandshakeError, connect};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// What is read from the socket at once, bytes.
const READ_BUFFER: usize = 64 << 10;
/// Longest message without the bytes behind it.
const MAX_MESSAGE: usize = 4096;
/// What the keys of a connection are for, besides its secret and nonces.
const CONTEXT: &[u8] = b"Mend: pipe\0";
/// How often each side says something within the time that the other waits, and within its own.
const BEATS: u32 = 5;

/// A socket whose peer may be silent for so long, and no longer. Time in which this process could not run does not count.
#[derive(Debug)]
struct PatientStream {
    stream: TcpStream,
    patience: Duration,
}

impl PatientStream {
    fn patiently(&mut self, mut attempt: impl FnMut(&mut TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        let mut patience = Patience::new(self.patience);
        loop {
            match attempt(&mut self.stream) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if patience.is_over() {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it was silent for {} ms", self.patience.as_millis())));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl Read for PatientStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.read(buffer))
    }
}

impl Write for PatientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is heard.
#[derive(Debug)]
pub struct Listening(EncryptedReader<PatientStream>);

/// What is said.
#[derive(Debug)]
pub struct Speaking {
    writer: EncryptedWriter<PatientStream>,
    /// How long to be silent at most, that neither side loses patience.
    pub beat: Duration,
}

/// Ends a connection, for both of its halves and at both of its ends.
#[derive(Debug)]
pub struct Hook(TcpStream);

/// Both halves of a connection, and what ends it.
pub type Link = (Listening, Speaking, Hook);

impl Listening {
    fn message<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        let mut prefix = [0; 4];
        self.0.read_exact(&mut prefix)?;
        let length = frame::body_length(prefix).map_err(io::Error::other)?;
        if length > MAX_MESSAGE {
            return Err(io::Error::other("it announces a message that is longer than any"));
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        frame::decode(&body).map_err(io::Error::other)
    }

    /// The next message that no bytes follow.
    pub fn next<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        self.message()
    }

    /// The next message of a writing mount, with its bytes.
    pub fn next_with_bytes(&mut self) -> io::Result<(ToReader, Vec<u8>)> {
        let message: ToReader = self.message()?;
        let length = message.payload().ok_or_else(|| io::Error::other("it announces a chunk that is longer than any"))?;
        let mut bytes = vec![0; length as usize];
        self.0.read_exact(&mut bytes)?;
        Ok((message, bytes))
    }
}

impl Speaking {
    /// Sends a message and the bytes behind it.
    pub fn say<M: Serialize>(&mut self, message: &M, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_parts(&[&frame::encode(message).map_err(io::Error::other)?, bytes])
    }
}

impl Hook {
    /// Nothing is heard and said any more.
    pub fn end(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// Nothing more is said; the other side reads what was, and ends.
    pub fn end_speaking(&self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// `theirs_ms`: the other side's patience.
fn link(stream: TcpStream, (encryptor, decryptor): (Encryptor, Decryptor), patience: Duration, theirs_ms: u64) -> io::Result<Link> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let look = Patience::new(patience).pause();
    stream.set_read_timeout(Some(look))?;
    stream.set_write_timeout(Some(look))?;
    let half = || Ok::<_, io::Error>(PatientStream { stream: stream.try_clone()?, patience });
    let listening = Listening(EncryptedReader::buffered(half()?, decryptor, READ_BUFFER));
    // One that says that it has none is no reason to send without a pause.
    let beat = patience.min(Duration::from_millis(theirs_ms)).max(Duration::from_millis(1)) / BEATS;
    Ok((listening, Speaking { writer: EncryptedWriter::new(half()?, encryptor), beat }, Hook(stream)))
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> HandshakeError {
    HandshakeError::Broken(io::Error::other(error))
}

/// The stream under a connection of which all was read.
fn bare(connection: Connection) -> Result<TcpStream, HandshakeError> {
    let stream =
        connection.into_tcp().ok_or_else(|| HandshakeError::Broken(io::Error::other("the other side said more than it was asked")))?;
    stream.into_std().map_err(HandshakeError::Broken)
}

/// Connects to a reading mount. Returns the connection, and how long chunks may be, bytes.
///
/// # Errors
/// [`HandshakeError`].
pub async fn open(address: SocketAddr, secret: &Secret, patience: Duration) -> Result<(Link, u32), HandshakeError> {
    welcomed(connect(address, Purpose::Pipe, secret).await?, secret, patience, HANDSHAKE_TIMEOUT).await
}

/// Goes on after the proofs. The other side has so long for its welcome: its process may be stopped at any moment.
async fn welcomed(mut connection: Connection, secret: &Secret, patience: Duration, limit: Duration) -> Result<(Link, u32), HandshakeError> {
    let ours = mend_wire::random_bytes();
    let answered = patiently(limit, async {
        connection.sender.send(&Hello { nonce: ours, patience_ms: milliseconds(patience) }).await.map_err(broken)?;
        connection.receiver.receive::<Welcome>().await.map_err(broken)
    });
    let welcome = answered.await.map_err(|_| {
        let why = format!("the other side let us in, and was silent for {} ms then", limit.as_millis());
        HandshakeError::Broken(io::Error::new(io::ErrorKind::TimedOut, why))
    })??;
    let keys = mend_cipher::initiator(secret, [&ours, &welcome.nonce], CONTEXT);
    let link = link(bare(connection)?, keys, patience, welcome.patience_ms).map_err(HandshakeError::Broken)?;
    Ok((link, welcome.chunk))
}

/// Lets a writing mount in that proves the secret.
///
/// # Errors
/// [`HandshakeError`].
pub async fn accept(stream: tokio::net::TcpStream, secret: &Secret, chunk: u32, patience: Duration) -> Result<Link, HandshakeError> {
    let meeting = async {
        let mut connection = Greeted::accepted(stream, &[Purpose::Pipe]).await?.prove_as_acceptor(secret, &[]).await?;
        let hello: Hello = connection.receiver.receive().await.map_err(broken)?;
        let nonce = mend_wire::random_bytes();
        connection.sender.send(&Welcome { nonce, chunk, patience_ms: milliseconds(patience) }).await.map_err(broken)?;
        let keys = mend_cipher::acceptor(secret, [&hello.nonce, &nonce], CONTEXT);
        link(bare(connection)?, keys, patience, hello.patience_ms).map_err(HandshakeError::Broken)
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, meeting).await.map_err(|_| HandshakeError::TimedOut)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_lets_us_in_and_is_stopped_then_is_given_up() {
        let secret = Secret([7; 32]);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let own = secret.clone();
        let stopped = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let greeted = Greeted::accepted(stream, &[Purpose::Pipe]).await.unwrap();
            let _open = greeted.prove_as_acceptor(&own, &[]).await.unwrap();
            std::future::pending::<()>().await;
        });
        let connection = connect(address, Purpose::Pipe, &secret).await.unwrap();
        let error = welcomed(connection, &secret, Duration::from_secs(60), Duration::from_millis(100)).await.unwrap_err();
        stopped.abort();
        assert!(mend_report::with_causes(&error).ends_with("the other side let us in, and was silent for 100 ms then"), "{error:?}");
        let HandshakeError::Broken(why) = error else { panic!("{error:?}") };
        assert_eq!(why.kind(), io::ErrorKind::TimedOut);
    }
}
