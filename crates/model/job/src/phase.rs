//! What a rank is doing, and how a node was lost.

use mend_messages::daemon::ExitStatus;
use serde::{Deserialize, Serialize};

/// How a node was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeLoss {
    /// Not a word for so many milliseconds.
    Silent(u64),
    /// Its connection broke, with this error.
    Broken(String),
    /// The same; and its host answers, but nobody listens there: its daemon has ended, and with it all ranks.
    Gone(String),
    /// Its daemon has ended all ranks of the job and said so.
    Left,
}

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankPhase {
    /// Asked to start.
    Starting,
    /// Being rebuilt; true once complete.
    Restoring(bool),
    /// It runs.
    Running,
    /// It has ended.
    Exited(ExitStatus),
}
