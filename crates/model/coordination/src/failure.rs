//! Why something that was asked of a running job came to nothing, as codes with data. Nothing here is a sentence: those are
//! made where people read them.
//!
//! Invariant: whoever decides by a failure decides by its variant, never by a text in it. Texts inside come from outside (an agent's
//! own words, an error of the operating system) and are only passed on.

use mend_image::cpu::CpuMismatch;
use mend_messages::agent::{Obstacle, Reply, Unasked};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::needs::Difference;
use serde::{Deserialize, Serialize};

/// How a rank went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gone {
    /// Its process ended.
    Ended,
    /// Its node was lost.
    WithItsNode,
}

/// Why a request to an agent was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The agent, or the daemon on its way to it, says so in its own words.
    Told {
        /// What and why.
        error: String,
        /// Way out; may be empty.
        hint: String,
    },
    /// Nobody could be asked, or nobody answered.
    Unasked(Unasked),
}

impl Refusal {
    /// The refusal in a reply, if it is one.
    #[must_use]
    pub fn of(reply: Reply) -> Option<Self> {
        match reply {
            Reply::Failed { error, hint } => Some(Self::Told { error, hint }),
            Reply::Unasked(why) => Some(Self::Unasked(why)),
            _ => None,
        }
    }
}

/// An error that was put into words where it happened: of a file system, a daemon, an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// What and why.
    pub error: String,
    /// Way out; may be empty.
    pub hint: String,
}

/// Why an operation came to nothing; the job runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// A rank cannot be saved as it is.
    Obstacle {
        /// The rank that cannot be saved.
        rank: Rank,
        /// The first thing in the way.
        first: Obstacle,
        /// How many there are besides.
        more: u32,
    },
    /// A rank's agent did not do what it was asked.
    Refused {
        /// The rank whose agent was asked.
        rank: Rank,
        /// Why the agent did not do it.
        why: Refusal,
    },
    /// An image was not written behind its rank.
    Unwritten {
        /// The rank whose image is missing.
        rank: Rank,
        /// Why, in the writer's words.
        why: String,
    },
    /// A rank that it needs is gone.
    Lost {
        /// The rank that is gone.
        rank: Rank,
        /// How it went.
        how: Gone,
    },
    /// The node that a rank was to move to did not build it.
    NotRebuilt {
        /// The rank that was to move.
        rank: Rank,
        /// The node that was to build it.
        node: NodeIndex,
        /// What kept the node from building it.
        why: TargetTrouble,
    },
    /// A migration failed at both ends: which is the cause, the reader can tell.
    BothEnds {
        /// What the target said.
        target: Box<Failure>,
        /// The rank that was to move.
        rank: Rank,
        /// What its agent said where it was.
        source: Refusal,
    },
    /// A checkpoint holds all ranks or none, and this one has ended.
    RankEnded {
        /// The rank that has ended.
        rank: Rank,
    },
    /// A rank that has ended does not move.
    MovesNoMore {
        /// The rank that was to move.
        rank: Rank,
    },
    /// No such rank.
    NoSuchRank {
        /// As asked.
        rank: Rank,
        /// How many there are.
        size: u32,
    },
    /// A node that is not the job's.
    NoSuchNode {
        /// As asked.
        name: String,
    },
    /// A node that is lost.
    NodeIsLost {
        /// The node that was named.
        node: NodeIndex,
    },
    /// Ranks are to leave the node: it takes none.
    TakesNone {
        /// The node that was named.
        node: NodeIndex,
    },
    /// The rank is there already.
    ThereAlready {
        /// The rank that was to move.
        rank: Rank,
        /// The node that it is on and was to move to.
        node: NodeIndex,
    },
    /// There is no other node.
    NoOtherNode,
    /// The node, or of all the one with the most, has too little memory left for the rank.
    NoRoom {
        /// The rank that was to move.
        rank: Rank,
        /// The node.
        node: NodeIndex,
        /// What the rank needs, bytes.
        needs: u64,
        /// What the node has left, bytes.
        left: u64,
    },
    /// The node's processor will not do for the rank.
    Processor {
        /// The rank that was to move.
        rank: Rank,
        /// The node.
        node: NodeIndex,
        /// What is the matter with it.
        why: CpuMismatch,
    },
    /// The node has not what the rank uses.
    Differs {
        /// The rank that was to move.
        rank: Rank,
        /// The node.
        node: NodeIndex,
        /// The first thing that is not the same there.
        first: Difference,
        /// How many there are besides.
        more: u32,
    },
    /// Somebody did not want it any more.
    Cancelled {
        /// The rank that was to move.
        rank: Rank,
    },
    /// No move of this rank is under way, or it is too late to change it.
    NotMoving {
        /// The rank.
        rank: Rank,
    },
    /// The job ended first.
    JobEnded,
    /// All images are there, and the moment they belong to is not known.
    NoSnapshot,
    /// The checkpoint's directory or manifest could not be written, or checkpoints not be removed.
    Storage(Trouble),
    /// The rank was to follow its data, and takes more than a quarter of what memory the node has left.
    TooLargeToFollow {
        /// The rank that was to move.
        rank: Rank,
        /// The node.
        node: NodeIndex,
        /// What the rank takes, bytes.
        needs: u64,
        /// What the node has left, bytes.
        left: u64,
    },
}

/// Why a rank was not rebuilt where it was to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetTrouble {
    /// Its processor will not do.
    Processor(CpuMismatch),
    /// Its daemon says so in its own words.
    Told(Trouble),
    /// The rebuilt process ended.
    Ended,
    /// The node was lost.
    NodeLost,
    /// Its daemon did not answer in time.
    Silent,
    /// A file that the rank uses was not there as it was when its image was taken.
    Files(Trouble),
}

impl Failure {
    /// True if nothing is wrong but that a rank came to its end: whoever tells of that end tells all.
    #[must_use]
    pub fn is_an_end(&self) -> bool {
        matches!(
            self,
            Self::Lost { .. }
                | Self::RankEnded { .. }
                | Self::JobEnded
                | Self::Refused { why: Refusal::Unasked(Unasked::Left | Unasked::Ended), .. }
        )
    }
}

/// The failure that an inspection's findings are, if they are one.
#[must_use]
pub fn obstacles(rank: Rank, obstacles: &[Obstacle]) -> Option<Failure> {
    let first = obstacles.first()?.clone();
    Some(Failure::Obstacle { rank, first, more: obstacles.len() as u32 - 1 })
}
