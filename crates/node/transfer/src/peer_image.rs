//! An image on its way to or from another node: in the clear, or in records of `mend_cipher` if the job encrypts its data.
//!
//! Agent and restorer write and read a stream either way. Where it is encrypted, that is a socket to a thread of the daemon, with a
//! pipeline:
//!
//! ```text
//! agent ══ plain ══► thread: encrypts ══ records, TCP ══► thread: decrypts ══ plain ══► restorer
//! ```
//! So neither of them holds a key, the restorer needs no cipher without libc, and encrypting, sending and decrypting happen at the same
//! time. A thread's memory is a piece, a record and the sockets' buffers.
//! Faults assumed: either end of a stream goes away at any moment; what comes from the network is anybody's.

use crate::TransferError;
use crate::pipeline::{Source, Target, run};
use crate::progress::Progress;
use mend_cipher::{EncryptedReader, EncryptedWriter};
use mend_messages::job::Secret;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

/// What the keys are for, besides the connection.
const CONTEXT: &[u8] = b"image";

/// Where an image is written that another node takes.
#[derive(Debug)]
pub struct OutgoingImage {
    out: Way<TcpStream, EncryptedWriter<TcpStream>>,
    bytes: u64,
}

/// Where an image is read that another node gives.
#[derive(Debug)]
pub struct IncomingImage {
    input: Way<TcpStream, EncryptedReader<TcpStream>>,
    node: IpAddr,
}

#[derive(Debug)]
enum Way<P, E> {
    Plain(P),
    Encrypted(Box<E>),
}

impl OutgoingImage {
    /// In the clear.
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self { out: Way::Plain(socket), bytes: 0 }
    }

    /// With keys of these nonces, the source's first.
    pub(crate) fn encrypted(socket: TcpStream, secret: &Secret, nonces: [&[u8; 32]; 2]) -> Self {
        let (encryptor, _) = mend_cipher::initiator(secret, nonces, CONTEXT);
        Self { out: Way::Encrypted(Box::new(EncryptedWriter::new(socket, encryptor))), bytes: 0 }
    }

    /// No more is written: waits until the other node has closed the transfer, or says nothing for as long as it may. Blocks.
    pub(crate) fn wait_until_closed(self) {
        let Way::Plain(mut socket) = self.out else { return };
        let _ = socket.shutdown(Shutdown::Write);
        while matches!(socket.read(&mut [0; 64]), Ok(1..)) {}
    }

    /// A stream that an agent can write to. It ends the image by closing it.
    ///
    /// # Errors
    /// Those of making a socket or a thread.
    pub fn into_descriptor(self, progress: Arc<Progress>) -> io::Result<OwnedFd> {
        if let Way::Plain(socket) = self.out {
            return Ok(socket.into());
        }
        let (mut ours, theirs) = UnixStream::pair()?;
        // The agent notices a stream that breaks by itself, and says so; the target, one without an end.
        let pass_on = move || drop(run(&mut ours, Vec::new(), self, &progress));
        thread::Builder::new().name("encrypt".into()).spawn(pass_on)?;
        Ok(theirs.into())
    }
}

impl Target for OutgoingImage {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        let written = match &mut self.out {
            Way::Plain(socket) => socket.write_all(bytes),
            Way::Encrypted(writer) => writer.write_all(bytes),
        };
        self.bytes += bytes.len() as u64;
        written.map_err(failed)
    }

    fn commit(self) -> Result<u64, TransferError> {
        match self.out {
            Way::Plain(_) => {}
            Way::Encrypted(writer) => drop(writer.finish().map_err(failed)?),
        }
        Ok(self.bytes)
    }
}

fn failed(source: io::Error) -> TransferError {
    TransferError::Target { place: "the other node".into(), source }
}

impl IncomingImage {
    /// In the clear.
    pub(crate) fn plain(socket: TcpStream) -> io::Result<Self> {
        Ok(Self { node: node(&socket)?, input: Way::Plain(socket) })
    }

    /// With keys of these nonces, the source's first.
    pub(crate) fn encrypted(socket: TcpStream, secret: &Secret, nonces: [&[u8; 32]; 2]) -> io::Result<Self> {
        let (_, decryptor) = mend_cipher::acceptor(secret, nonces, CONTEXT);
        Ok(Self { node: node(&socket)?, input: Way::Encrypted(Box::new(EncryptedReader::new(socket, decryptor))) })
    }
}

fn node(socket: &TcpStream) -> io::Result<IpAddr> {
    Ok(socket.peer_addr()?.ip().to_canonical())
}

impl Read for IncomingImage {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.input {
            Way::Plain(socket) => socket.read(buffer),
            Way::Encrypted(reader) => reader.read(buffer),
        }
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => io::Error::new(error.kind(), format!("from the node at {}: {error}", self.node)),
            io::ErrorKind::WouldBlock => io::Error::new(error.kind(), format!("nothing came from the node at {} in time", self.node)),
            _ => error,
        })
    }
}

impl Source for IncomingImage {}
