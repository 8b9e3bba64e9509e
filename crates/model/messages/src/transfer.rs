//! Daemon ⇄ daemon, before an image follows on the same connection: what the source says, and what the target answers. Both are sealed.

use crate::chunks::OfferedChunks;
use serde::{Deserialize, Serialize};

/// The source has an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Which transfer: the controller gave it to both.
    pub token: [u8; 16],
    /// The source's part of the keys that the image is encrypted with; `None`: it is not.
    pub nonce: Option<[u8; 32]>,
    /// The image is to go in chunks of registered memory; `None`: on this connection.
    pub chunks: Option<OfferedChunks>,
}

/// The target wants it, or says why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is waited for, and follows.
    Wanted {
        /// The target's part of the keys.
        nonce: Option<[u8; 32]>,
    },
    /// The target was told that the job encrypts its data, or that it does not, and the source the other.
    OtherEncryption,
    /// It is waited for, and comes in chunks; on this connection what is said of them follows.
    WantedInChunks {
        /// Where the target's endpoint is.
        address: Vec<u8>,
    },
    /// The target cannot take it in chunks.
    NoChunks {
        /// What is in the way.
        why: String,
    },
}
