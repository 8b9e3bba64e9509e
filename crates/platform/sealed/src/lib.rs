//! Files encrypted at rest.
//!
//! ```text
//! "MENDSEAL" │ version │ chunk size │ salt, 32 bytes │ check, 16 bytes    the head, 64 bytes
//! chunk of ciphertext │ tag, 16 bytes                                     any number, all but the last full
//! ```
//! AES-256-GCM in the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár, "Online Authenticated-Encryption and its
//! Nonce-Reuse Misuse-Resistance", 2015): a chunk's nonce holds its number and whether it is the last. So a chunk that is changed,
//! moved, repeated, left out or cut off is noticed when it is read, before any of its bytes is given out. Key, nonce and
//! check of a file come from the user's key and the file's random salt by HKDF-SHA256: no two files share a key. The
//! head is authenticated with every chunk.
//!
//! Invariants: nothing of a chunk is given out before its tag was found right; the end of a file is given out only after the
//! chunk that says it is the last. Faults assumed: the file is anybody's, of any length.

mod key;
mod opening;
mod sealing;

pub use key::{Key, KeyError};
pub use opening::{Opener, PieceOpener};
pub use sealing::Sealer;

use aead_stream::{NewStream, StreamBE32};
use aes_gcm::Aes256Gcm;
use hkdf::Hkdf;
use sha2::Sha256;

/// Bytes of a file's head.
pub const HEAD: usize = 64;
/// Plain bytes of a chunk.
pub const CHUNK: usize = 128 << 10;
const TAG_BYTES: usize = 16;
const MAGIC: [u8; 8] = *b"MENDSEAL";
const VERSION: u32 = 1;

/// Why a file cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It has no head of ours.
    #[error("it is not encrypted")]
    Plain,
    /// It is encrypted, and no key was named.
    #[error("it is encrypted")]
    NoKey,
    /// Written by another release.
    #[error("it is encrypted in version {0}, this release reads version 1")]
    Version(u32),
    /// Not with this key.
    #[error("it was encrypted with another key")]
    Key,
    /// A chunk is not what was written, or not where it was written; or the file was cut.
    #[error("it is damaged or was changed, {at} bytes from its beginning")]
    Damaged {
        /// Where the chunk begins.
        at: u64,
    },
}

impl SealError {
    /// What a user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Plain => "leave out --encryption-key (MEND_ENCRYPTION_KEY) for checkpoints that were written without",
            Self::NoKey => "name the file with its key: --encryption-key FILE, or MEND_ENCRYPTION_KEY",
            Self::Version(_) => "use the release of Mend that wrote it",
            Self::Key => "name the key that the job was started with",
            Self::Damaged { .. } => "use another checkpoint; `mend checkpoints` lists them",
        }
    }
}

/// True if a file that begins like this is encrypted.
#[must_use]
pub fn is_sealed(beginning: &[u8]) -> bool {
    beginning.starts_with(&MAGIC)
}

/// What opens a file that begins like this: nothing, if it is not encrypted and there is no key. With a key it must be, without
/// one it must not.
///
/// # Errors
/// [`SealError::Plain`], [`SealError::NoKey`].
pub fn opened_by<'a>(beginning: &[u8], key: Option<&'a Key>) -> Result<Option<&'a Key>, SealError> {
    match (key, is_sealed(beginning)) {
        (Some(_), false) => Err(SealError::Plain),
        (None, true) => Err(SealError::NoKey),
        (key, _) => Ok(key),
    }
}

impl From<SealError> for std::io::Error {
    fn from(error: SealError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

type Stream = StreamBE32<Aes256Gcm>;

/// What belongs to one file.
struct FileKeys {
    head: [u8; HEAD],
    stream: Stream,
}

impl FileKeys {
    /// Of the file that begins like this, if this key opens it.
    fn of(key: &Key, beginning: &[u8]) -> Result<Self, SealError> {
        if !is_sealed(beginning) {
            return Err(SealError::Plain);
        }
        let head: &[u8; HEAD] = beginning.first_chunk().ok_or(SealError::Damaged { at: 0 })?;
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if version != VERSION {
            return Err(SealError::Version(version));
        }
        let keys = Self::derive(key, &head[16..48]);
        if keys.head[48..] != head[48..] {
            return Err(SealError::Key);
        }
        if keys.head != *head {
            return Err(SealError::Damaged { at: 0 });
        }
        Ok(keys)
    }

    fn derive(key: &Key, salt: &[u8]) -> Self {
        let derived = Hkdf::<Sha256>::new(Some(salt), key.bytes());
        let (mut own, mut nonce, mut check) = ([0; 32], [0; 7], [0; 16]);
        for (purpose, bytes) in [("mend image key", &mut own[..]), ("mend image nonce", &mut nonce), ("mend image check", &mut check)] {
            // Fails only for more than 8160 bytes.
            let _ = derived.expand(purpose.as_bytes(), bytes);
        }
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&(CHUNK as u32).to_le_bytes());
        head[16..48].copy_from_slice(salt);
        head[48..].copy_from_slice(&check);
        Self { head, stream: Stream::new(&own.into(), &nonce.into()) }
    }
}

#[cfg(test)]
mod tests;
