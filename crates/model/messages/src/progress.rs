//! How far a rank's program has come, and with whom it exchanges messages, as its agent reads it: what back migration and moves to data are decided by.

use crate::job::Rank;
use serde::{Deserialize, Serialize};

/// A time step that a program has told by `mend_step`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Steps that are done.
    pub done: u64,
    /// Steps that there are; 0: not known.
    pub total: u64,
    /// When it said so, microseconds of its node's monotonic clock.
    pub at_us: u64,
}

/// How far a rank has come. Counters begin anew in each process of the rank, and go back when it goes back to a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The last step that its program has told; `None`: it has told none.
    pub step: Option<Step>,
    /// Messages that it has sent or made ready to receive over the fabric.
    pub calls: u64,
    /// For how long it looked for messages and found none, microseconds: as far as that can be told, it waited for others.
    pub waited_us: u64,
    /// When this was read, microseconds of its node's monotonic clock.
    pub at_us: u64,
}

/// The progress of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProgress {
    /// The rank that has sent it.
    pub rank: Rank,
    /// Which of the rank's processes, by the controller's number.
    pub attempt: u64,
    /// How far it has come.
    pub progress: Progress,
}

/// What a rank has sent to another one over the fabric, or read of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The other rank.
    pub peer: Rank,
    /// Bytes of messages, and of one-sided operations in either direction.
    pub bytes: u64,
    /// Messages and one-sided operations.
    pub messages: u64,
}

/// Bytes by which a message weighs more than what is in it: what it takes to go over a network beside that. A guess on the side of leaving ranks where they are:
/// 4 µs at 1 GB/s, 40 µs at 100 MB/s.
const MESSAGE_BYTES: u64 = 4096;

impl Sent {
    /// What it takes a network to carry it, in bytes.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.bytes.saturating_add(self.messages.saturating_mul(MESSAGE_BYTES))
    }
}

/// Peers that one reading of a rank's traffic names, at most: those with which most was exchanged.
pub const MOST_PEERS: usize = 64;

/// What a rank has sent since the reading before in the same process. A message is counted by its sender alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// From the reading before to this one, microseconds; 0: there is none to compare with, as the process is new here or has gone back to a checkpoint.
    pub over_us: u64,
    /// [`MOST_PEERS`] at most, the one with most bytes first.
    pub sent: Vec<Sent>,
}

/// The traffic of a rank's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTraffic {
    /// The rank.
    pub rank: Rank,
    /// Which of the rank's processes, by the controller's number.
    pub attempt: u64,
    /// What it has sent.
    pub traffic: Traffic,
}
