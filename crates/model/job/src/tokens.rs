//! Tokens that two nodes are told so that one recognises the other's transfer: each is used once and cannot be guessed, and the same
//! events give the same tokens.

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Draws tokens: the first half of HMAC-SHA256(key, count).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    key: [u8; 32],
    drawn: u64,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Tokens({} drawn)", self.drawn)
    }
}

impl Tokens {
    /// `key`: random, for this life of the job alone.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self { key, drawn: 0 }
    }

    /// The next one.
    pub fn draw(&mut self) -> [u8; 16] {
        self.drawn += 1;
        // The key has the digest's own length or less, which HMAC takes as it is.
        let Ok(mut code) = Hmac::<Sha256>::new_from_slice(&self.key) else { return [0; 16] };
        code.update(&self.drawn.to_le_bytes());
        let code: [u8; 32] = code.finalize().into_bytes().into();
        code.first_chunk().copied().unwrap_or_default()
    }
}
