//! A connection between a client and a target: requests and answers, each with bytes behind it, one after the other.
//!
//! Invariant: whoever is at the other end has proven the user's secret, and every byte is encrypted with keys of this connection alone. Faults assumed: the other
//! side stops, dies, or lies about lengths, which are bounded before anything is allocated.

use mend_cipher::{Decryptor, EncryptedReader, EncryptedWriter, Encryptor};
use mend_data::space::target::{Answer, Failed, Request};
use mend_messages::frame;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Duration;

/// What is read from the socket at once, bytes: several records.
const READ_BUFFER: usize = 256 << 10;

/// Why something of a space cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The target cannot be reached, or the connection broke.
    #[error("target {target} cannot be reached: {why}")]
    Lost {
        /// Which one.
        target: String,
        /// What went wrong.
        why: String,
        /// What to do; may be empty.
        hint: String,
    },
    /// It answers that it cannot.
    #[error("target {target}: {why}")]
    Failed {
        /// Which one.
        target: String,
        /// What kind of failure.
        kind: Failed,
        /// What it said.
        why: String,
    },
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Fault {
    /// What to do; may be empty.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Lost { hint, .. } => hint,
            Self::Failed { kind: Failed::Full, .. } => "remove files (`mend data rm`), or make room on that node",
            Self::Failed { .. } | Self::Other(_) => "",
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    reader: EncryptedReader<TcpStream>,
    writer: EncryptedWriter<TcpStream>,
    stream: TcpStream,
}

impl Link {
    /// Over a stream whose ends have agreed on keys. A peer that is silent for longer than `patience`, if there is one, breaks it.
    pub fn new(stream: TcpStream, (encryptor, decryptor): (Encryptor, Decryptor), patience: Option<Duration>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(patience)?;
        stream.set_write_timeout(patience)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        let reader = EncryptedReader::buffered(stream.try_clone()?, decryptor, READ_BUFFER);
        Ok(Self { reader, writer: EncryptedWriter::new(stream.try_clone()?, encryptor), stream })
    }

    /// A peer that is silent for longer breaks it.
    pub fn wait_at_most(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))
    }

    /// Sends a message and the bytes behind it.
    pub fn send<M: Serialize>(&mut self, message: &M, payload: &[u8]) -> io::Result<()> {
        self.writer.write_parts(&[&frame::encode(message).map_err(io::Error::other)?, payload])
    }

    fn receive<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        let mut prefix = [0; 4];
        self.reader.read_exact(&mut prefix)?;
        let mut body = vec![0; frame::body_length(prefix).map_err(io::Error::other)?];
        self.reader.read_exact(&mut body)?;
        frame::decode(&body).map_err(io::Error::other)
    }

    fn payload(&mut self, length: Option<u32>) -> io::Result<Vec<u8>> {
        let length = length.ok_or_else(|| io::Error::other("more bytes are announced than any message has"))?;
        let mut payload = vec![0; length as usize];
        self.reader.read_exact(&mut payload)?;
        Ok(payload)
    }

    /// The next request, with its bytes.
    pub fn request(&mut self) -> io::Result<(Request, Vec<u8>)> {
        let request: Request = self.receive()?;
        let payload = self.payload(request.payload())?;
        Ok((request, payload))
    }

    /// The answer, with its bytes. `begun` is called when it begins to come: what is long takes its time.
    pub fn answer(&mut self, begun: &dyn Fn()) -> io::Result<(Answer, Vec<u8>)> {
        let answer: Answer = self.receive()?;
        begun();
        let payload = self.payload(answer.payload())?;
        Ok((answer, payload))
    }
}

/// What the keys of a connection are for, besides its secret and nonces.
pub(crate) fn context(space: &[u8; 16]) -> Vec<u8> {
    [&b"Mend: data space\0"[..], space].concat()
}
