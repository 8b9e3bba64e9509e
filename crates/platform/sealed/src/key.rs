//! The key, in a file of 64 hexadecimal digits that nobody but its owner can read.

use mend_messages::job::Secret;
use mend_wire::secret::{self, SecretError};
use std::path::Path;

/// A user's key for what is stored. Does not show itself.
#[derive(Clone)]
pub struct Key(Secret);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[error("no encryption key")]
pub struct KeyError(#[from] SecretError);

impl KeyError {
    /// What a user can do.
    #[must_use]
    pub fn hint(&self) -> String {
        match &self.0 {
            SecretError::Exposed { path, .. } => format!("chmod 600 {}", path.display()),
            SecretError::Io { .. } => "the file must be on every node; `openssl rand -hex 32` makes a key".into(),
            SecretError::Malformed { .. } => "`openssl rand -hex 32` makes a key".into(),
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

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Key(…)")
    }
}
