//! Frames, sealed, over a stream.

use crate::session::{LENGTH_RECORD, OpenError, Opening, Sealing, SessionError, sealed_length};
use crate::stream::{ReadHalf, Stream, WriteHalf};
use mend_messages::frame::{self, FrameError};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Both directions of one connection.
#[derive(Debug)]
pub struct Connection {
    /// Outgoing frames.
    pub sender: Sender,
    /// Incoming frames.
    pub receiver: Receiver,
}

/// Seals and writes frames.
#[derive(Debug)]
pub struct Sender {
    stream: WriteHalf,
    sealing: Sealing,
}

/// Reads and opens frames. Not cancel safe: read in a task of its own, or to the end of a frame.
#[derive(Debug)]
pub struct Receiver {
    stream: BufReader<ReadHalf>,
    opening: Opening,
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Too large.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// No more can be sealed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The connection is gone.
    #[error("the connection is gone")]
    Gone(#[source] io::Error),
}

/// Why no message came.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The peer closed between two frames.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    /// Somebody else sent something.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The peer sent something else.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl From<OpenError> for ReceiveError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Session(error) => Self::Session(error),
            OpenError::Frame(error) => Self::Frame(error),
        }
    }
}

impl Connection {
    pub(crate) fn new(stream: Stream, (sealing, opening): (Sealing, Opening)) -> Self {
        let (read, write) = stream.split();
        Self { sender: Sender { stream: write, sealing }, receiver: Receiver { stream: BufReader::new(read), opening } }
    }

    /// What the peer has not had when this side drops the connection, it never gets: the kernel does not go on to send it (SO_LINGER of
    /// zero, socket(7)), however long the network was cut. Nothing to do within the machine.
    ///
    /// # Errors
    /// If the socket is gone.
    pub fn forget_when_dropped(&self) -> io::Result<()> {
        match &self.sender.stream {
            WriteHalf::Tcp(stream) => stream.as_ref().set_zero_linger(),
            WriteHalf::Unix(_) => Ok(()),
        }
    }

    /// Address of this side; `None` within the machine.
    ///
    /// # Errors
    /// If the socket is gone.
    pub fn local_address(&self) -> io::Result<Option<SocketAddr>> {
        match &self.sender.stream {
            WriteHalf::Tcp(stream) => stream.local_addr().map(Some),
            WriteHalf::Unix(_) => Ok(None),
        }
    }

    /// Address of the other side.
    ///
    /// # Errors
    /// If the socket is gone; within the machine there is none.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        match &self.sender.stream {
            WriteHalf::Tcp(stream) => stream.peer_addr(),
            WriteHalf::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The TCP stream beneath, for what both sides have agreed to send without frames. `None` if there is none, or if the peer
    /// did not wait for the agreement.
    #[must_use]
    pub fn into_tcp(self) -> Option<TcpStream> {
        if !self.receiver.stream.buffer().is_empty() {
            return None;
        }
        match (self.receiver.stream.into_inner(), self.sender.stream) {
            (ReadHalf::Tcp(read), WriteHalf::Tcp(write)) => read.reunite(write).ok(),
            _ => None,
        }
    }
}

impl Sender {
    /// Sends one message in one write.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send<M: Serialize>(&mut self, message: &M) -> Result<(), SendError> {
        let sealed = self.sealing.seal(&frame::encode(message)?)?;
        self.stream.write_all(&sealed).await.map_err(SendError::Gone)
    }
}

impl Receiver {
    /// Waits for one message.
    ///
    /// # Errors
    /// [`ReceiveError::Closed`] at the end, others when the stream is unusable.
    pub async fn receive<M: DeserializeOwned>(&mut self) -> Result<M, ReceiveError> {
        let mut record = [0; LENGTH_RECORD];
        match self.stream.read(&mut record).await {
            Ok(0) => return Err(ReceiveError::Closed),
            Ok(read) => self.stream.read_exact(&mut record[read..]).await.map_err(ReceiveError::Broken)?,
            Err(error) => return Err(ReceiveError::Broken(error)),
        };
        let length = self.opening.length(&record)?;
        let mut sealed = vec![0; sealed_length(length)];
        self.stream.read_exact(&mut sealed).await.map_err(ReceiveError::Broken)?;
        Ok(frame::decode(&self.opening.body(&sealed, length)?)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::{HandshakeError, accept, connect};
    use mend_messages::auth::{AuthError, Purpose};
    use mend_messages::daemon::ToDaemon;
    use mend_messages::job::Secret;
    use tokio::net::TcpListener;

    async fn pair(
        ours: [u8; 32],
        theirs: [u8; 32],
    ) -> (Result<crate::Connection, HandshakeError>, Result<crate::Connection, HandshakeError>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = async { accept(listener.accept().await.unwrap().0, Purpose::Job, &Secret(theirs)).await };
        let secret = Secret(ours);
        tokio::join!(connect(address, Purpose::Job, &secret), accepting)
    }

    #[tokio::test]
    async fn messages_arrive_between_holders_of_one_secret() {
        let (a, b) = pair([1; 32], [1; 32]).await;
        let (mut a, mut b) = (a.unwrap(), b.unwrap());
        a.sender.send(&ToDaemon::Ping { at_us: 7 }).await.unwrap();
        assert_eq!(b.receiver.receive::<ToDaemon>().await.unwrap(), ToDaemon::Ping { at_us: 7 });
    }

    #[tokio::test]
    async fn another_secret_is_refused_on_both_sides() {
        let (a, b) = pair([1; 32], [2; 32]).await;
        assert!(matches!(a.unwrap_err(), HandshakeError::Rejected));
        assert!(matches!(b.unwrap_err(), HandshakeError::Auth(AuthError::WrongSecret)));
    }
}
