//! The key, in a file of 64 hexadecimal digits that nobody but its owner can read.

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use mend_messages::job::Secret;
use mend_wire::secret::{self, SecretError};
use sha2::Sha256;
use std::io;
use std::path::{Path, PathBuf};

/// A user's key for what is stored. Does not show itself.
#[derive(Clone)]
pub struct Key(Secret);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not readable.
    #[error("cannot read the encryption key {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Others can read it.
    #[error("the encryption key {} can be read by others (mode {mode:o})", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not 64 hexadecimal digits.
    #[error("the encryption key {} does not hold 64 hexadecimal digits", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

impl From<SecretError> for KeyError {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Io { path, source } => Self::Io { path, source },
            SecretError::Exposed { path, mode } => Self::Exposed { path, mode },
            SecretError::Malformed { path } => Self::Malformed { path },
        }
    }
}

impl KeyError {
    /// What a user can do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Exposed { path, .. } => format!("chmod 600 {}", path.display()),
            Self::Io { .. } => "the file must be on every node; `openssl rand -hex 32` makes a key".into(),
            Self::Malformed { .. } => "`openssl rand -hex 32` makes a key".into(),
        }
    }
}

impl Key {
    /// Reads it.
    ///
    /// # Errors
    /// [`KeyError`]: absent, readable for others, not a key.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        Ok(Self(secret::load(path)?))
    }

    /// From its bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Secret(bytes))
    }

    /// A code for a text that only holders of the key can make: HMAC-SHA256 with a key of its own, derived from this one.
    #[must_use]
    pub fn authenticate(&self, text: &[u8]) -> [u8; 32] {
        self.code(text).finalize().into_bytes().into()
    }

    /// Whether a code is that of this text. Takes as long whatever differs.
    #[must_use]
    pub fn confirms(&self, text: &[u8], code: &[u8; 32]) -> bool {
        self.code(text).verify_slice(code).is_ok()
    }

    fn code(&self, text: &[u8]) -> Hmac<Sha256> {
        // As long as a block of the hash.
        let mut own = [0; 64];
        // Fails only for more than 8160 bytes.
        let _ = Hkdf::<Sha256>::new(None, self.bytes()).expand(b"mend text code", &mut own);
        let mut code = Hmac::<Sha256>::new(&own.into());
        code.update(text);
        code
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Key(…)")
    }
}
