//! Bulk data on its way between nodes, encrypted and authenticated: AES-256-GCM with keys of a handshake.
//!
//! ```text
//! keys:    HKDF-SHA256(secret, salt = both nonces, info = direction ‖ context)  ─► one chain of keys per direction
//! record:  length, last? (4 bytes, in the clear) │ ciphertext (at most MAX_PLAIN bytes) │ tag (16 bytes)
//! ```
//! Whoever calls this has proven the secret to the peer and knows the nonces of both; `context` is what else both must mean. A record's
//! number is its nonce and is not sent: a record that was changed, left out, repeated or put elsewhere has the wrong tag.
//! Its length is authenticated with it and bounded before that, so a lie costs a record's memory at most. After
//! [`RECORDS_PER_KEY`] records a direction goes on to the next key, from which the one before cannot be computed.
//!
//! What is not protected: somebody on the way can end or delay a connection, and sees how much is sent and when. A stream whose end matters
//! has a last record ([`EncryptedWriter::finish`]); one that is cut before it is told from one that has ended. Whoever learns the secret later can read what
//! was recorded, unless the nonces were secret, too.
//!
//! A process that continues from an image must not continue a connection of the process that the image was taken of: numbers would be
//! used twice. The fabric forgets its channels then, and makes new ones with new nonces.

mod stream;
#[cfg(test)]
mod tests;

pub use stream::{EncryptedReader, EncryptedWriter};

use hkdf::Hkdf;
use mend_messages::job::Secret;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sha2::Sha256;

/// Bytes before the ciphertext: its length, and whether the record is the last.
pub const HEAD: usize = 4;
/// Bytes after it.
pub const TAG: usize = 16;
/// What fits into a record, bytes: a packet of 64 KiB with its header. All of a record is received before any of it can be used.
pub const MAX_PLAIN: usize = 65 * 1024;
/// Longest record, bytes.
pub const MAX_RECORD: usize = HEAD + MAX_PLAIN + TAG;
/// Records after which a direction goes on to its next key. GCM is good for more; with this it never matters how long a job runs.
pub const RECORDS_PER_KEY: u64 = 1 << 20;

const LAST: u32 = 1 << 31;

/// Why a record is not taken. The connection is useless from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CipherError {
    /// It says that it is longer than records are.
    #[error("encrypted record {number} claims {length} bytes, more than any has")]
    TooLong {
        /// Which, counted from 0.
        number: u64,
        /// What it says.
        length: u32,
    },
    /// It does not have the right tag.
    #[error("encrypted record {number} is not what the peer sent: it was changed on its way, or comes out of turn")]
    Altered {
        /// Which, counted from 0.
        number: u64,
    },
    /// The stream ended in it, or before the last one.
    #[error("the stream was cut at encrypted record {number}")]
    Cut {
        /// Which, counted from 0.
        number: u64,
    },
    /// Something comes after the last one.
    #[error("the stream goes on after its last encrypted record")]
    AfterLast,
}

impl From<CipherError> for std::io::Error {
    fn from(error: CipherError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Makes records of one direction.
pub struct Encryptor(Direction);

/// Opens records of one direction, in the order in which they were made.
pub struct Decryptor {
    direction: Direction,
    ended: bool,
}

/// What a record holds: the first `length` bytes after its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Plain bytes.
    pub length: usize,
    /// None follows.
    pub last: bool,
}

/// The side that opened the connection: what it sends with, and what it receives with.
#[must_use]
pub fn initiator(secret: &Secret, nonces: [&[u8; 32]; 2], context: &[u8]) -> (Encryptor, Decryptor) {
    let [there, back] = directions(secret, nonces, context);
    (Encryptor(there), Decryptor { direction: back, ended: false })
}

/// The side that accepted it. The initiator's nonce comes first on both sides.
#[must_use]
pub fn acceptor(secret: &Secret, nonces: [&[u8; 32]; 2], context: &[u8]) -> (Encryptor, Decryptor) {
    let [there, back] = directions(secret, nonces, context);
    (Encryptor(back), Decryptor { direction: there, ended: false })
}

fn directions(secret: &Secret, [initiator, acceptor]: [&[u8; 32]; 2], context: &[u8]) -> [Direction; 2] {
    let derived = Hkdf::<Sha256>::new(Some(&[&initiator[..], &acceptor[..]].concat()), &secret.0);
    [&b"Mend: bulk data to the acceptor\0"[..], b"Mend: bulk data to the initiator\0"].map(|label| {
        let mut chain = [0; 32];
        // Fails only for more than 8160 bytes.
        let _ = derived.expand_multi_info(&[label, context], &mut chain);
        Direction::new(chain)
    })
}

struct Direction {
    cipher: LessSafeKey,
    /// What the next key comes from.
    chain: [u8; 32],
    /// Of the next record. 2⁶⁴ of them cannot be made.
    number: u64,
}

impl Direction {
    fn new(chain: [u8; 32]) -> Self {
        let (cipher, chain) = Self::step(&chain);
        Self { cipher, chain, number: 0 }
    }

    fn step(chain: &[u8; 32]) -> (LessSafeKey, [u8; 32]) {
        let derived = Hkdf::<Sha256>::new(None, chain);
        let (mut key, mut next) = ([0; 32], [0; 32]);
        // Fails only for more than 8160 bytes.
        let _ = derived.expand(b"key", &mut key);
        let _ = derived.expand(b"next", &mut next);
        let unbound = UnboundKey::new(&AES_256_GCM, &key).expect("a key of AES-256 has 32 bytes");
        (LessSafeKey::new(unbound), next)
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn advance(&mut self) {
        self.number += 1;
        if self.number.is_multiple_of(RECORDS_PER_KEY) {
            (self.cipher, self.chain) = Self::step(&self.chain);
        }
    }
}

impl Encryptor {
    /// Makes a record in place: of room for a head, at most [`MAX_PLAIN`] plain bytes, and room for a tag.
    ///
    /// # Panics
    /// If it is shorter than a head and a tag, or longer than [`MAX_RECORD`].
    pub fn seal(&mut self, record: &mut [u8], last: bool) {
        assert!((HEAD + TAG..=MAX_RECORD).contains(&record.len()), "the caller cuts what it sends into records");
        let (head, rest) = record.split_at_mut(HEAD);
        let (body, tag) = rest.split_at_mut(rest.len() - TAG);
        head.copy_from_slice(&(body.len() as u32 | if last { LAST } else { 0 }).to_le_bytes());
        let made = self.0.cipher.seal_in_place_separate_tag(self.0.nonce(), Aad::from(head), body);
        tag.copy_from_slice(made.expect("AES-GCM takes 64 GiB at once").as_ref());
        self.0.advance();
    }

    /// Makes a record of the end of a buffer, from `start` on: room for a head, then plain bytes. The tag is appended.
    ///
    /// # Panics
    /// As [`Encryptor::seal`].
    pub fn seal_end(&mut self, buffer: &mut Vec<u8>, start: usize) {
        buffer.resize(buffer.len() + TAG, 0);
        self.seal(&mut buffer[start..], false);
    }
}

impl Decryptor {
    /// Length of the record that begins so, all of it.
    ///
    /// # Errors
    /// [`CipherError::TooLong`], [`CipherError::AfterLast`].
    pub fn length(&self, head: [u8; HEAD]) -> Result<usize, CipherError> {
        let length = u32::from_le_bytes(head) & !LAST;
        match length as usize {
            _ if self.ended => Err(CipherError::AfterLast),
            length @ 0..=MAX_PLAIN => Ok(HEAD + length + TAG),
            _ => Err(CipherError::TooLong { number: self.direction.number, length }),
        }
    }

    /// Opens a whole record in place.
    ///
    /// # Errors
    /// As [`Decryptor::length`], and [`CipherError::Altered`]: nothing of it may be used.
    pub fn open(&mut self, record: &mut [u8]) -> Result<Opened, CipherError> {
        let altered = CipherError::Altered { number: self.direction.number };
        let (head, rest) = record.split_first_chunk_mut::<HEAD>().ok_or(altered)?;
        if self.length(*head)? != HEAD + rest.len() {
            return Err(altered);
        }
        let nonce = self.direction.nonce();
        let length = self.direction.cipher.open_in_place(nonce, Aad::from(&*head), rest).map_err(|_| altered)?.len();
        self.direction.advance();
        self.ended = u32::from_le_bytes(*head) & LAST != 0;
        Ok(Opened { length, last: self.ended })
    }

    /// What is wrong if the stream ends within the next record.
    #[must_use]
    pub fn cut(&self) -> CipherError {
        CipherError::Cut { number: self.direction.number }
    }
}

impl std::fmt::Debug for Encryptor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Encryptor({})", self.0.number)
    }
}

impl std::fmt::Debug for Decryptor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Decryptor({})", self.direction.number)
    }
}
