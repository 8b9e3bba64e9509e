//! What is on its way in a world: messages, works under way, verbs, faults.

use crate::node::Receiver;
use mend_job::event::{Event, NodeLoss};
use mend_messages::agent::{ImageId, Reply, Request};
use mend_messages::control::Ask;
use mend_messages::daemon::{ExitStatus, FromDaemon, ToDaemon};
use mend_messages::health::{Leaving, NodeHealth};
use mend_messages::job::Rank;
use mend_messages::tier::TierOrder;
use mend_policy::retention::Bounds;
use std::path::PathBuf;

/// A millisecond in microseconds.
pub const MILLISECOND_US: u64 = 1_000;
/// A second in microseconds.
pub const SECOND_US: u64 = 1_000_000;
/// Silence after which a node counts as lost.
pub const NODE_TIMEOUT_US: u64 = 10 * SECOND_US;
/// Faults and verbs come before this.
pub const HORIZON_US: u64 = 120 * SECOND_US;
/// Something that goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    NodeDies(usize),
    ConnectionBreaks(usize),
    RankDies(Rank, ExitStatus),
    /// Any process of the rank, also one that nobody counts on.
    CopyDies(Rank),
    Stuck(Rank, Option<u64>),
    DiskFull(u64),
    DiskEmpty,
    /// It is gone for good.
    ControllerDies,
    /// Its process ends; nodes may start a successor.
    ControllerKilled,
    /// It does nothing for so long.
    ControllerStandsStill(u64),
    /// Its connection to a node is closed, and there again a moment later.
    ConnectionBlinks(usize),
    /// It is there again.
    ConnectionReturns(usize),
    Signal,
    /// The batch system wants the job to end.
    TimeUp,
    MessagesLost(Rank, Rank),
    OldLoss(Rank, Rank),
    NewestVanishes,
    /// An image of the newest checkpoint becomes bad on its disk.
    ImageRots(Rank),
    Unstuck(usize, Rank, u64),
}

/// Why a rank does not go back in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlaceFailure {
    /// Its agent says that it cannot, before anything is changed.
    Refused,
    /// It fails midway, or its process has died: its daemon notices.
    Broken,
    /// Its agent says that it cannot, and just then its process is killed: that is noticed first.
    KilledAsItRefused,
}

/// What becomes of a node.
#[derive(Clone, Debug)]
pub enum Condition {
    /// Its daemon finds this.
    Health(NodeHealth),
    /// The batch system drains it, or does not any more.
    BatchSystem(Option<Leaving>),
    /// An administrator drains it, or does not any more.
    Administrator(bool),
}

/// Something that is on its way.
#[derive(Clone, Debug)]
pub enum Coming {
    ToNode {
        life: u64,
        at: usize,
        message: ToDaemon,
    },
    ToJob {
        life: u64,
        at: usize,
        message: FromDaemon,
    },
    Lost {
        life: u64,
        at: usize,
        how: NodeLoss,
    },
    Closed {
        life: u64,
        at: usize,
    },
    /// A daemon looks whether the job's lease is over; by this time it is.
    Looks {
        life: u64,
        at: usize,
        until: u64,
    },
    /// A daemon has what a question takes, or cannot have it.
    Prepared {
        life: u64,
        at: usize,
        rank: Rank,
        number: u64,
        request: Result<Request, Reply>,
    },
    /// A daemon notices something late.
    OfNode {
        life: u64,
        at: usize,
        event: Box<mend_node_job::event::Event>,
    },
    Reaped {
        life: u64,
        at: usize,
        asked: bool,
    },
    Agent {
        at: usize,
        rank: Rank,
        attempt: u64,
        seq: u64,
        request: Request,
    },
    Streamed {
        at: usize,
        rank: Rank,
        attempt: u64,
        seq: u64,
        to: usize,
        token: [u8; 16],
        until: u64,
    },
    Precopies {
        at: usize,
        rank: Rank,
        attempt: u64,
        seq: u64,
        to: usize,
        token: [u8; 16],
        until: u64,
    },
    Round {
        at: usize,
        rank: Rank,
        attempt: u64,
        receiver: Receiver,
        number: u32,
    },
    NoTransfer {
        at: usize,
        rank: Rank,
        attempt: u64,
    },
    Started {
        at: usize,
        rank: Rank,
        attempt: u64,
    },
    Built {
        at: usize,
        rank: Rank,
        attempt: u64,
    },
    /// A rank that was to go back in place does not.
    FailsInPlace {
        at: usize,
        rank: Rank,
        attempt: u64,
        how: InPlaceFailure,
    },
    /// Nobody has come for ranks that a life left standing.
    StandingEnds {
        at: usize,
        life: u64,
    },
    FabricUp {
        at: usize,
        rank: Rank,
        attempt: u64,
    },
    Behind {
        at: usize,
        rank: Rank,
        attempt: u64,
        path: PathBuf,
        id: ImageId,
        base: Option<ImageId>,
    },
    TierWork {
        life: u64,
        at: usize,
        order: Box<TierOrder>,
        until: u64,
    },
    NoImage {
        life: u64,
        at: usize,
        token: [u8; 16],
    },
    Piece {
        life: u64,
    },
    Feeds {
        at: usize,
        rank: Rank,
        attempt: u64,
    },
    LastWord {
        life: u64,
        at: usize,
        word: FromDaemon,
    },
    Effect {
        life: u64,
        event: Box<Event>,
    },
    Upkeep {
        life: u64,
        bounds: Option<Bounds>,
    },
    Fault(Fault),
    Condition(usize, Condition),
    Verb(Ask),
    /// Ranks tell how far they are.
    Reading,
    /// Storage is looked at.
    Look,
    Revive,
    /// A successor that a node has started tries to get the job from who had the lock then.
    Elects {
        life: u64,
        at: usize,
        holder: u64,
        silent: bool,
        tries: u32,
    },
    /// It has votes enough, and takes the place of whoever has the lock.
    Seizes {
        life: u64,
        at: usize,
        holder: u64,
    },
    /// It has the lock, and goes on with the job.
    Succeeds {
        life: u64,
        at: usize,
        holder: u64,
    },
    /// A controller that stood still goes on.
    Wakes {
        absence: u64,
    },
    /// No successor comes any more.
    Forsaken {
        absence: u64,
    },
}

impl Coming {
    /// What fate has in store, and users.
    pub fn is_fate(&self) -> bool {
        matches!(self, Self::Fault(_) | Self::Condition(..) | Self::Verb(_) | Self::Reading | Self::Look | Self::Revive)
    }

    /// It comes to the controller, if there is one: daemons, users and the controller's own work wait.
    pub fn is_for_controller(&self) -> bool {
        let fault = |fault: &Fault| {
            matches!(
                fault,
                Fault::Signal
                    | Fault::TimeUp
                    | Fault::OldLoss(..)
                    | Fault::NewestVanishes
                    | Fault::ControllerDies
                    | Fault::ControllerKilled
                    | Fault::ControllerStandsStill(_)
            )
        };
        match self {
            Self::Fault(which) => fault(which),
            Self::ToJob { .. }
            | Self::Lost { .. }
            | Self::Piece { .. }
            | Self::Effect { .. }
            | Self::Upkeep { .. }
            | Self::Condition(..)
            | Self::Verb(_)
            | Self::Reading
            | Self::Look => true,
            _ => false,
        }
    }
}
