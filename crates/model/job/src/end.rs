//! How a job ends, and from what it can go on.

use crate::phase::NodeLoss;
use mend_coordination::failure::{TargetTrouble, Trouble};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::ImageRef;
use serde::{Deserialize, Serialize};

/// From what a job that ended early can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GoesOn {
    /// From this checkpoint.
    From(u64),
    /// It has no checkpoint.
    NoCheckpoint,
    /// The nodes that are left do not have all of any checkpoint.
    NotAllThere,
    /// From the one that it was just being restarted from.
    Again,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// With this exit code.
    Code(i32),
    /// A signal that nobody sent to the job ended a rank.
    RankKilled {
        /// The first such rank.
        rank: Rank,
        /// Number of the signal.
        signal: i32,
    },
    /// A rank could not be started.
    NotStarted {
        /// The rank that did not start.
        rank: Rank,
        /// The node that was to start it.
        node: NodeIndex,
        /// What kept it from starting.
        why: Trouble,
        /// Exit code as a shell would give.
        code: i32,
    },
    /// A rank could not be rebuilt; nothing ran.
    NotRestored {
        /// The rank that was not rebuilt.
        rank: Rank,
        /// The node that was to rebuild it.
        node: NodeIndex,
        /// What kept the node from rebuilding it.
        why: TargetTrouble,
        /// It is the image that is at fault.
        image: bool,
    },
    /// No copy of this image is good; nothing ran.
    NoGoodCopy(ImageRef),
    /// A file that the program had open could not be put back; nothing ran.
    FileNotPut {
        /// The node that was to put it back.
        node: NodeIndex,
        /// What went wrong, as a text.
        error: String,
        /// What the checkpoint kept of it is at fault.
        kept: bool,
    },
    /// A node is lost, with ranks on it.
    NodeLost {
        /// The node that is lost.
        node: NodeIndex,
        /// How its loss was noticed.
        how: NodeLoss,
        /// With it.
        ranks: Vec<Rank>,
        /// From what the job can go on.
        goes_on: GoesOn,
    },
    /// The connection between two ranks broke, and both live.
    MessagesLost {
        /// The two ranks that the connection joined.
        ranks: (Rank, Rank),
        /// The nodes that these ranks are on.
        nodes: (NodeIndex, NodeIndex),
        /// How it showed.
        why: String,
        /// From what the job can go on.
        goes_on: GoesOn,
    },
    /// A daemon refuses the job.
    Refused {
        /// Which node.
        node: NodeIndex,
        /// The reason that the daemon gives.
        error: String,
    },
    /// A signal came before any rank was there.
    Interrupted(i32),
    /// The batch system wanted the job to end.
    TimeUp {
        /// The signal that it has sent.
        signal: i32,
        /// The newest checkpoint that can be restarted.
        checkpoint: Option<u64>,
    },
}
