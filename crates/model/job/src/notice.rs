//! What people are told while a job runs, without its words.

use crate::phase::NodeLoss;
use mend_coordination::failure::{Failure, Refusal};
use mend_coordination::recovery::Source;
use mend_messages::daemon::ExitStatus;
use mend_messages::health::LeaveReason;
use mend_messages::job::{MAX_RANKS, NodeIndex, Rank};
use mend_messages::tier::{ImageRef, NodeStore};
use serde::{Deserialize, Serialize};

/// Why a rank that asks for processes (`MPI_Comm_spawn`) gets none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SpawnTrouble {
    /// What it sent cannot be carried out.
    #[error("{0}")]
    Request(String),
    /// The job would have more ranks than any may have.
    #[error("a job has {MAX_RANKS} ranks at most, those that have ended included")]
    TooMany,
    /// It named a host.
    #[error("{0} is not a node of the job")]
    NoSuchHost(String),
    /// It named a host.
    #[error("{0} takes no ranks: it is lost, or ranks are leaving it")]
    TakesNone(String),
    /// All are lost, or ranks are leaving them.
    #[error("no node of the job takes ranks")]
    NoNode,
    /// A program cannot be started.
    #[error("{error}")]
    NotStarted {
        /// What and why.
        error: String,
        /// Way out; may be empty.
        hint: String,
    },
    /// A process ended before it called `MPI_Init`.
    #[error("a process {} before it called MPI_Init", ended(*.0))]
    Ended(ExitStatus),
}

fn ended(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exited with code {code}"),
        ExitStatus::Signal(signal) => format!("was ended by signal {signal}"),
    }
}

/// What people are told, and the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// All ranks of a restart run again.
    Restored {
        /// How many ranks there are.
        ranks: u32,
    },
    /// A rank called `MPI_Abort`.
    Aborted {
        /// The rank that this is about.
        rank: Rank,
        /// With this code.
        code: i32,
    },
    /// A rank wanted more processes and has none. Each reason is told once.
    SpawnFailed {
        /// The rank that this is about.
        rank: Rank,
        /// The reason.
        trouble: SpawnTrouble,
    },
    /// A rank's PMI client broke the protocol.
    PmiViolation {
        /// The rank that this is about.
        rank: Rank,
        /// What it sent.
        text: String,
    },
    /// A rank was ended by a signal.
    RankKilled {
        /// The rank that this is about.
        rank: Rank,
        /// The node where it happened.
        node: NodeIndex,
        /// The number of the signal that killed it.
        signal: i32,
        /// The newest checkpoint that can be restarted.
        newest: Option<u64>,
    },
    /// The first rank that did not exit well.
    RankExited {
        /// The rank that this is about.
        rank: Rank,
        /// The node where it happened.
        node: NodeIndex,
        /// With this code.
        code: i32,
    },
    /// A signal is passed on to the ranks.
    Interrupted {
        /// The signal's number.
        signal: i32,
        /// The time ranks have to obey, seconds.
        obey_s: u64,
        /// The newest checkpoint that can be restarted.
        newest: Option<u64>,
    },
    /// The batch system wants the job to end.
    TimeUp {
        /// The signal that it has sent.
        signal: i32,
    },
    /// The last checkpoint before the end of the job's time failed.
    NotSavedInTime {
        /// What went wrong.
        failure: Failure,
        /// It is tried again.
        again: bool,
        /// The newest checkpoint that can be restarted.
        newest: Option<u64>,
    },
    /// A node without ranks is lost.
    SpareLost {
        /// The node that this is about.
        node: NodeIndex,
        /// How it was lost.
        how: NodeLoss,
    },
    /// A file was put back, but for something.
    FilePut(String),
    /// A verb ended the job.
    Killed,
    /// A rank's agent failed while it went on after a restart.
    GoesOnBadly {
        /// The rank that this is about.
        rank: Rank,
        /// What went wrong.
        why: Refusal,
    },
    /// When periodic checkpoints are taken.
    Schedule {
        /// The time from one checkpoint to the next, in seconds.
        interval_s: f64,
        /// As their cost makes it best, from then on.
        auto: bool,
    },
    /// A periodic checkpoint failed; told once for each reason.
    PeriodicFailed {
        /// What went wrong.
        failure: Failure,
        /// Seconds to the next try.
        next_s: u64,
    },
    /// After such failures one succeeded.
    PeriodicGoesOn {
        /// Number of the checkpoint.
        number: u64,
    },
    /// There is too little room for periodic checkpoints from now on, all in bytes.
    NoRoom {
        /// What is left.
        left: u64,
        /// What the next one takes, about.
        expected: u64,
        /// What stays free.
        reserve: u64,
    },
    /// A rank of a restart cannot run where it was, and begins on another node.
    PlacedElsewhere {
        /// Why it cannot.
        failure: Failure,
        /// The node that it goes to.
        node: NodeIndex,
    },
    /// Ranks are to leave a node, which takes none.
    NodeUnfit {
        /// The node that this is about.
        node: NodeIndex,
        /// Who says so.
        reason: LeaveReason,
        /// What is the matter.
        why: String,
        /// Milliseconds that they have, if anybody knows.
        left_ms: Option<u64>,
        /// Those that are there.
        ranks: Vec<Rank>,
    },
    /// That reason is no more.
    NodeFit {
        /// The node that this is about.
        node: NodeIndex,
        /// Whose reason it was.
        reason: LeaveReason,
    },
    /// Ranks that are to leave a node have nowhere to go.
    NowhereToGo {
        /// The node that this is about.
        node: NodeIndex,
        /// The ranks.
        ranks: Vec<Rank>,
        /// What keeps the first of them.
        failure: Failure,
    },
    /// A rank goes back to a node that it has left, or to a better one.
    GoesBack {
        /// The rank.
        rank: Rank,
        /// Where it is.
        from: NodeIndex,
        /// Where it goes.
        to: NodeIndex,
    },
    /// A rank moves to where its data is.
    FollowsData {
        /// The rank.
        rank: Rank,
        /// Where it is.
        from: NodeIndex,
        /// Where it goes.
        to: NodeIndex,
        /// Who goes the other way, since there is no room.
        with: Option<Rank>,
    },
    /// There is room again.
    RoomAgain,
    /// Upkeep failed; told once for each reason.
    Upkeep(String),
    /// A job of one node has no partner for the tier of that name.
    NoPartner,
    /// What a store would hold goes to the next tier.
    PassedOver {
        /// The node where it happened.
        node: NodeIndex,
        /// The store that this is about.
        store: NodeStore,
        /// What went wrong.
        why: String,
    },
    /// A tier will not hold the whole checkpoint.
    TierGaveUp {
        /// Name of the tier.
        tier: String,
        /// Of the checkpoint.
        number: u64,
        /// What went wrong.
        why: String,
    },
    /// Files of a portable checkpoint do not get to a tier, for now.
    PortableNotCopied {
        /// Name of the tier.
        tier: String,
        /// Of the checkpoint.
        number: u64,
        /// What went wrong.
        why: String,
    },
    /// A copy of an image is not good.
    BadCopy {
        /// Of which image.
        image: ImageRef,
        /// Who wanted it.
        node: NodeIndex,
        /// Where it is.
        source: Source,
        /// What is wrong.
        why: String,
    },
}
