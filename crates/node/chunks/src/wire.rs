//! The connection to the other node: words as they come and go, without waiting.

use crate::CarryError;
use mend_messages::chunks::{WORD_BYTES, Word};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// Bytes of words that are read at a time.
const INBOX: usize = 64 * WORD_BYTES;

/// See the module.
pub struct Wire {
    pub socket: TcpStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    closed: bool,
}

impl Wire {
    /// Of a socket that does not block.
    pub fn new(socket: TcpStream) -> Self {
        Self { socket, inbox: Vec::new(), outbox: Vec::new(), closed: false }
    }

    /// Says a word, when there is room.
    pub fn say(&mut self, word: Word) {
        self.outbox.extend(word.encode());
    }

    /// Whether words wait for room.
    pub fn is_behind(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sends what there is room for.
    pub fn flush(&mut self) -> Result<(), CarryError> {
        while !self.outbox.is_empty() {
            match self.socket.write(&self.outbox) {
                Ok(written) => drop(self.outbox.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_end(error.kind()) => return Err(CarryError::Closed),
                Err(error) => return Err(CarryError::Connection(error)),
            }
        }
        Ok(())
    }

    /// The next word that has come. An error if the connection has ended instead.
    pub fn hear(&mut self) -> Result<Option<Word>, CarryError> {
        while self.inbox.len() < WORD_BYTES {
            if self.closed {
                return Err(CarryError::Closed);
            }
            let mut bytes = [0; INBOX];
            match self.socket.read(&mut bytes) {
                Ok(0) => self.closed = true,
                Ok(read) => self.inbox.extend(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_end(error.kind()) => self.closed = true,
                Err(error) => return Err(CarryError::Connection(error)),
            }
        }
        let word = self.inbox.first_chunk().and_then(Word::decode).ok_or(CarryError::Nonsense("a word that is none"))?;
        self.inbox.drain(..WORD_BYTES);
        Ok(Some(word))
    }
}

fn is_end(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe)
}
