//! What the two mounts of the pipe say to each other, once both have proven the user's secret.

use serde::{Deserialize, Serialize};

/// Longest name of a stream, bytes.
pub const MAX_NAME: usize = 255;
/// Largest chunk, bytes.
pub const MAX_CHUNK: u32 = 1 << 20;

/// The writing mount's first word, before the bulk connection is made of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its half of what keys are derived from.
    pub nonce: [u8; 32],
    /// For how long the reading mount may be silent, milliseconds.
    pub patience_ms: u64,
}

/// What the reading mount answers to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The reading mount's half.
    pub nonce: [u8; 32],
    /// Bytes of a chunk, at most.
    pub chunk: u32,
    /// For how long the writing mount may be silent, milliseconds.
    pub patience_ms: u64,
}

/// From the writing mount to the reading one. The writing mount numbers streams; it uses no number twice on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToReader {
    /// A stream begins.
    Open {
        /// Its number.
        stream: u64,
        /// The file's name.
        name: Vec<u8>,
    },
    /// A part of it; the bytes follow.
    Chunk {
        /// Number of the stream.
        stream: u64,
        /// Bytes of the stream before it.
        offset: u64,
        /// How many bytes follow.
        length: u32,
        /// Their checksum, [`crate::checksum`].
        checksum: u64,
    },
    /// There will be no more of it.
    End {
        /// Number of the stream.
        stream: u64,
        /// Its length, bytes.
        length: u64,
        /// False if its writer was killed.
        whole: bool,
    },
    /// Nothing, but that this side lives.
    Alive,
}

impl ToReader {
    /// How many bytes follow; `None`: more than any message has.
    #[must_use]
    pub fn payload(&self) -> Option<u32> {
        match self {
            Self::Chunk { length, .. } => (*length <= MAX_CHUNK).then_some(*length),
            _ => Some(0),
        }
    }
}

/// Why a stream cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// There is one of that name.
    Exists,
    /// There are as many as there may be.
    TooMany,
}

/// From the reading mount to the writing one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWriter {
    /// The stream is there.
    Opened {
        /// Its number.
        stream: u64,
    },
    /// It cannot be.
    Refused {
        /// Its number.
        stream: u64,
        /// Why it cannot.
        why: Refusal,
    },
    /// So many more chunks of it may be sent.
    Credits {
        /// Number of the stream.
        stream: u64,
        /// How many.
        more: u32,
    },
    /// All of it up to here is on the reader's node.
    Taken {
        /// Number of the stream.
        stream: u64,
        /// Bytes of the stream up to there.
        through: u64,
    },
    /// Nobody reads it any more.
    Closed {
        /// Its number.
        stream: u64,
    },
    /// Nothing, but that this side lives.
    Alive,
}

/// True if a file may be called so.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.contains(&b'/') && !name.contains(&0) && name != b"." && name != b".."
}
