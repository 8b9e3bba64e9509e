//! Chunks of an image in registered memory: what a job is told of them, what daemons ask of `mend-chunks`, and the words that two of these
//! say to each other about each chunk. The bytes of chunks are in none of them: one side reads them from, or writes them to, the other's memory.
//!
//! ```text
//! read:   source ── Chunk ──► target: fi_read, checksum ── Arrived ──► source: the chunk is free
//! write:  source ── Chunk ──► target ── Granted ──► source: fi_write ── Written ──► target: checksum ── Arrived ──► source: free
//! ```

use crate::job::Rank;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// Bytes of a chunk, least and most.
pub const CHUNK_BYTES: (u32, u32) = (4 << 10, 16 << 20);
/// Chunks of a pool, least and most: fewer could not be lent to both directions.
pub const CHUNKS: (u64, u64) = (4, 1 << 16);
/// Longest address of an endpoint, bytes.
pub const LONGEST_ADDRESS: usize = 64;
/// Longest order or answer, bytes.
pub const LONGEST_ORDER: usize = 16 << 10;

/// By what the image of a rank that moves goes to the other node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// One TCP connection, which agent and restorer have in their hands.
    #[default]
    Tcp,
    /// Chunks in registered memory, over a provider of libfabric.
    Ofi(ChunkSetup),
}

impl Transport {
    /// What people call it.
    #[must_use]
    pub fn word(&self) -> TransportWord {
        match self {
            Self::Tcp => TransportWord::Tcp,
            Self::Ofi(_) => TransportWord::Ofi,
        }
    }
}

/// The name of a transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportWord {
    /// One TCP connection.
    #[default]
    Tcp,
    /// Chunks over a provider of libfabric.
    Ofi,
}

impl TransportWord {
    /// As text.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Ofi => "ofi",
        }
    }
}

/// How chunks are moved: the same on all nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChunkSetup {
    /// Provider of libfabric, as `fi_info -l` names it.
    pub provider: String,
    /// Who moves the bytes.
    pub mode: ChunkMode,
    /// Bytes of a chunk, within [`CHUNK_BYTES`].
    pub chunk_bytes: u32,
    /// Chunks of a node, all ranks together, within [`CHUNKS`].
    pub chunks: u64,
}

impl ChunkSetup {
    /// Whether sizes are within their bounds. They may be a peer's.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        (CHUNK_BYTES.0..=CHUNK_BYTES.1).contains(&self.chunk_bytes) && (CHUNKS.0..=CHUNKS.1).contains(&self.chunks)
    }
}

/// Who moves the bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChunkMode {
    /// The target reads them.
    Read,
    /// The source writes them.
    Write,
}

/// What a source offers, if its image is to go in chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedChunks {
    /// The libfabric that the rank has loaded, if that is known.
    pub library: Option<PathBuf>,
    /// Where the source's endpoint is.
    pub address: Vec<u8>,
}

/// Daemon to `mend-chunks`, one packet each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChunkOrder {
    /// The first: open an endpoint and register memory.
    Open {
        /// What kind of memory, and the provider.
        setup: ChunkSetup,
        /// The libfabric to load; `None`: the one that the dynamic linker finds.
        library: Option<PathBuf>,
        /// Address of this node at which its peers reach it.
        source: IpAddr,
    },
    /// Move a stream. With it come the process's stream, the connection to the other node, and the socket for a [`Carried`].
    Carry {
        /// True: the stream is read here, and goes to the other node. False: it comes.
        outgoing: bool,
        /// Which rank's.
        rank: Rank,
        /// Where the other node's endpoint is.
        address: Vec<u8>,
        /// Longest time that the provider may take for a chunk, milliseconds.
        patience_ms: u64,
    },
}

/// `mend-chunks` to daemon, in answer to [`ChunkOrder::Open`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opened {
    /// It is open.
    Ready {
        /// Where the endpoint is.
        address: Vec<u8>,
    },
    /// It cannot be.
    Refused {
        /// What is in the way.
        why: String,
    },
}

/// What became of a stream: bytes, or why it ended early.
pub type Carried = Result<u64, String>;

/// Bytes of a word on the wire.
pub const WORD_BYTES: usize = 48;

/// What is said of a chunk. `offset` is the place of its first byte in the stream, and names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The source's first, and the target's answer: memory at which the other may try whether it reaches this side.
    Hello {
        /// Where the memory is.
        address: u64,
        /// Its key.
        key: u64,
    },
    /// The side whose endpoint has the lower address has reached the other's: operations may begin.
    Linked,
    /// The source has a chunk.
    Chunk {
        /// The rank whose stream it is of.
        rank: Rank,
        /// Where it begins in the stream, bytes.
        offset: u64,
        /// How many bytes it has.
        length: u32,
        /// xxh3-64 of its bytes.
        checksum: u64,
        /// Where it is in the source's memory.
        address: u64,
        /// The key of that memory.
        key: u64,
    },
    /// The target has room for a chunk.
    Granted {
        /// Where the chunk begins in the stream, bytes.
        offset: u64,
        /// Where in the target's memory.
        address: u64,
        /// The key of that memory.
        key: u64,
    },
    /// The source has written it there.
    Written {
        /// Where the chunk begins in the stream, bytes.
        offset: u64,
    },
    /// The target has it, and its checksum holds.
    Arrived {
        /// Where the chunk begins in the stream, bytes.
        offset: u64,
    },
    /// The stream is complete.
    End {
        /// How many bytes the stream has.
        offset: u64,
    },
}

impl Word {
    /// Wire form: kind, length, rank, 0; offset, checksum, address, key.
    #[must_use]
    pub fn encode(self) -> [u8; WORD_BYTES] {
        let (kind, length, rank, offset, checksum, address, key) = match self {
            Self::Hello { address, key } => (1u32, 0, 0, 0, 0, address, key),
            Self::Linked => (2, 0, 0, 0, 0, 0, 0),
            Self::Chunk { rank, offset, length, checksum, address, key } => (3, length, rank, offset, checksum, address, key),
            Self::Granted { offset, address, key } => (4, 0, 0, offset, 0, address, key),
            Self::Written { offset } => (5, 0, 0, offset, 0, 0, 0),
            Self::Arrived { offset } => (6, 0, 0, offset, 0, 0, 0),
            Self::End { offset } => (7, 0, 0, offset, 0, 0, 0),
        };
        let mut bytes = [0; WORD_BYTES];
        for (place, number) in bytes.chunks_exact_mut(4).zip([kind, length, rank]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        for (place, number) in bytes[16..].chunks_exact_mut(8).zip([offset, checksum, address, key]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads the wire form. `None`: it is none, or not the one that is written for such a word.
    #[must_use]
    pub fn decode(bytes: &[u8; WORD_BYTES]) -> Option<Self> {
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (first, second) = (long(0), long(8));
        let (offset, checksum, address, key) = (long(16), long(24), long(32), long(40));
        let word = match first as u32 {
            1 => Self::Hello { address, key },
            2 => Self::Linked,
            3 => Self::Chunk { rank: second as u32, offset, length: (first >> 32) as u32, checksum, address, key },
            4 => Self::Granted { offset, address, key },
            5 => Self::Written { offset },
            6 => Self::Arrived { offset },
            7 => Self::End { offset },
            _ => return None,
        };
        (word.encode() == *bytes).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_others_are_none() {
        let words = [
            Word::Hello { address: u64::MAX, key: 7 },
            Word::Linked,
            Word::Chunk { rank: 3, offset: 1 << 40, length: u32::MAX, checksum: 5, address: 6, key: 7 },
            Word::Granted { offset: 1, address: 2, key: 3 },
            Word::Written { offset: 9 },
            Word::Arrived { offset: 10 },
            Word::End { offset: 11 },
        ];
        for word in words {
            let bytes = word.encode();
            assert_eq!(Word::decode(&bytes), Some(word));
            let mut more = bytes;
            more[12] = 1;
            assert_eq!(Word::decode(&more), None, "{word:?}: with what no word has");
        }
        assert_eq!(Word::decode(&[0; WORD_BYTES]), None);
        assert_eq!(Word::decode(&[0xff; WORD_BYTES]), None);
    }

    #[test]
    fn sizes_have_bounds() {
        let sound = ChunkSetup { provider: "tcp".into(), mode: ChunkMode::Read, chunk_bytes: 128 << 10, chunks: 64 };
        assert!(sound.is_sound());
        assert!(!ChunkSetup { chunk_bytes: 0, ..sound.clone() }.is_sound());
        assert!(!ChunkSetup { chunk_bytes: u32::MAX, ..sound.clone() }.is_sound());
        assert!(!ChunkSetup { chunks: 3, ..sound.clone() }.is_sound());
        assert!(!ChunkSetup { chunks: u64::MAX, ..sound }.is_sound());
    }
}
