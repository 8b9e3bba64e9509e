//! Streams of the pipe: what is written on one node is read on another while it comes, and stored nowhere.
//!
//! ```text
//! a tool writes ─► Outgoing ── Open, Chunk, End ──────────────► Incoming ─► a tool reads
//!                  (writer's node) ◄── Credits, Taken, Closed ── (reader's node)
//! ```
//! `message` is what the two say to each other, `shares` who may hold how many chunks of memory, `outgoing` and `incoming` are the two ends: machines without clock and
//! sockets, which are told what happens and say what is to be done. Whoever waits for something is a token that the caller chooses; it comes back with the answer.
//!
//! Invariants: a chunk is sent only for a credit, and a credit is given only for memory that is free; so all chunks that were sent and not read fit into the reader's memory,
//! however many streams there are. A stream ends well only if its writer ended it, all of it came, and nothing of it was changed.
//!
//! Faults assumed: either side ends at any moment, or says what cannot be, which is [`Nonsense`]. The caller then breaks the connection.

pub mod incoming;
pub mod message;
pub mod outgoing;
pub mod shares;

pub use incoming::{Content, Effect, Incoming};
pub use message::{Hello, Refusal, ToReader, ToWriter, Welcome};
pub use outgoing::{Answer, Outgoing};
pub use shares::Shares;

/// Why something of a stream cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There is no such stream, or no more.
    Gone,
    /// Somebody else has it open, or one of this name is still there.
    Busy,
    /// There is a stream of this name that was not read to its end.
    Exists,
    /// As many streams are open as there may be.
    TooMany,
    /// The reader closed it before its end, or removed it.
    Closed,
    /// The writer was killed, a node was lost, or bytes were changed on their way.
    Broken,
    /// Who waited was told to stop waiting.
    Interrupted,
}

/// The other side says what cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other mount says what cannot be: {0}")]
pub struct Nonsense(pub &'static str);

/// The checksum of a chunk.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
