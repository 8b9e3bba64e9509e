//! How far a rank's program has come, as its agent reads it: what back migration is decided by.

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
    /// The rank.
    pub rank: Rank,
    /// Which of the rank's processes, by the controller's number.
    pub attempt: u64,
    /// How far it has come.
    pub progress: Progress,
}
