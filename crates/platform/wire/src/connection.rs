//! Frames over an authenticated stream.

use mend_messages::frame::{self, FrameError};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Both directions of one connection.
#[derive(Debug)]
pub struct Connection {
    /// Outgoing frames.
    pub sender: Sender,
    /// Incoming frames.
    pub receiver: Receiver,
}

/// Writes frames.
#[derive(Debug)]
pub struct Sender(OwnedWriteHalf);

/// Reads frames. Not cancel safe: read in a task of its own, or to the end of a frame.
#[derive(Debug)]
pub struct Receiver(BufReader<OwnedReadHalf>);

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Too large.
    #[error(transparent)]
    Frame(#[from] FrameError),
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
    /// The peer sent something else.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let (read, write) = stream.into_split();
        Self { sender: Sender(write), receiver: Receiver(BufReader::new(read)) }
    }

    /// Address of this side.
    ///
    /// # Errors
    /// If the socket is gone.
    pub fn local_address(&self) -> io::Result<std::net::SocketAddr> {
        self.sender.0.local_addr()
    }

    /// Address of the peer.
    ///
    /// # Errors
    /// If the socket is gone.
    pub fn peer_address(&self) -> io::Result<std::net::SocketAddr> {
        self.sender.0.peer_addr()
    }
}

impl Sender {
    /// Sends one message in one write.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send<M: Serialize>(&mut self, message: &M) -> Result<(), SendError> {
        let bytes = frame::encode(message)?;
        self.0.write_all(&bytes).await.map_err(SendError::Gone)
    }
}

impl Receiver {
    /// Waits for one message.
    ///
    /// # Errors
    /// [`ReceiveError::Closed`] at the end, others when the stream is unusable.
    pub async fn receive<M: DeserializeOwned>(&mut self) -> Result<M, ReceiveError> {
        let mut prefix = [0; 4];
        match self.0.read_exact(&mut prefix).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(ReceiveError::Closed),
            Err(error) => return Err(ReceiveError::Broken(error)),
        }
        let mut body = vec![0; frame::body_length(prefix)?];
        self.0.read_exact(&mut body).await.map_err(ReceiveError::Broken)?;
        Ok(frame::decode(&body)?)
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
        a.sender.send(&ToDaemon::Ping).await.unwrap();
        assert_eq!(b.receiver.receive::<ToDaemon>().await.unwrap(), ToDaemon::Ping);
    }

    #[tokio::test]
    async fn another_secret_is_refused_on_both_sides() {
        let (a, b) = pair([1; 32], [2; 32]).await;
        assert!(matches!(a.unwrap_err(), HandshakeError::Rejected));
        assert!(matches!(b.unwrap_err(), HandshakeError::Auth(AuthError::WrongSecret)));
    }
}
