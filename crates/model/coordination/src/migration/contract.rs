//! What goes into a migration, and what it wants done.

use crate::failure::Failure;
use mend_messages::agent::Request;
use mend_messages::control::{MoveMode, Phases, Precopied};
use mend_messages::job::Rank;
use mend_policy::precopy::{Bounds, MeasuredRates};
use serde::{Deserialize, Serialize};

/// What the caller has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to the rank's agent where the rank is *now placed*.
    Ask {
        /// The rank whose agent is asked.
        rank: Rank,
        /// What the agent is to do.
        request: Request,
    },
    /// Have the target's daemon compare what the rank needs with what is there. The answer is a reply of the rank's,
    /// [`mend_messages::agent::Reply::Compared`]; before it is told, the caller refuses the migration or changes the target if there is a difference.
    Compare,
    /// Stop answering PMI requests and feeding standard input, before any later `Ask` is sent.
    Freeze,
    /// Tell the target's daemon to build the rank from a transfer, and the source's to copy into it while the rank runs.
    Precopy,
    /// Kill what there is on the target. Nothing else changed.
    Withdraw,
    /// Tell the target's daemon to build the rank from a transfer, and the source's to save into it.
    Stream,
    /// Kill what there is on the target, so that its source, which writes into it, notices: [`Action::Undo`] follows.
    Break,
    /// Kill the source copy and place the rank on the target; publish the map with a new generation, open.
    Commit,
    /// Kill what there is on the target; publish the map with a new generation and the old place, open.
    Undo,
    /// Answer and feed again.
    Thaw,
    /// It is over.
    Finish(Result<Outcome, Failure>),
}

/// A successful migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that were sent, as they are before compression.
    pub bytes: u64,
    /// Bytes that went over the link for them.
    pub sent_bytes: u64,
    /// The five phases.
    pub phases: Phases,
    /// From the request to suspend until the rank ran again, microseconds.
    pub stopped_us: u64,
    /// What was sent while it ran.
    pub precopied: Option<Precopied>,
}

/// How a rank is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manner {
    /// Whether it runs on while it is copied.
    pub mode: MoveMode,
    /// Within which bounds.
    pub bounds: Bounds,
    /// What was seen of it before.
    pub rates: Option<MeasuredRates>,
}
