//! What is under way: a checkpoint, a migration or an inspection.
//!
//! ```text
//! checkpoint: Preparing ──Prepared──► Checkpoint ──all run, images being written──► (background) ──► Publishing ──Published──► over
//! ```

use crate::course::Course;
use crate::event::{Asker, JobPhase, Publication, Unexplained};
use mend_coordination::checkpoint::Checkpoint;
use mend_coordination::migration::Migration;
use mend_coordination::worlds::Worlds;
use mend_messages::agent::{ImageId, Inspection, SaveMode};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_messages::needs::NodeNeeds;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The migration of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// The state machine that takes its steps.
    pub(crate) machine: Migration,
    /// When it began.
    pub(crate) begun_us: u64,
    /// The place that it comes from.
    pub(crate) from: NodeIndex,
    /// The node that it moves to.
    pub(crate) target: NodeIndex,
    /// Somebody has named it; else another one will do.
    pub(crate) named: bool,
    /// Nodes that are not to be chosen.
    pub(crate) avoid: Vec<String>,
    /// What the rank takes there, bytes; 0 before its agent has told it.
    pub(crate) bytes: u64,
    /// What a node must have for the rank, once its agent has told.
    pub(crate) needs: Box<NodeNeeds>,
    /// Number of the process that is being built there, if one is.
    pub(crate) attempt: Option<u64>,
    /// The restored rank's listener there.
    pub(crate) address: Option<FabricAddress>,
    /// The target was told that more standard input comes to the rank.
    pub(crate) fed: bool,
    /// When the rank left its node, once it has.
    pub(crate) left_us: Option<u64>,
    /// How far it is, for the journal.
    pub(crate) course: Course,
    /// The one who asked for it.
    pub(crate) asker: Asker,
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// A checkpoint whose directory is being made.
    Preparing {
        /// The number of the checkpoint.
        number: u64,
        /// How it is to be taken.
        mode: SaveMode,
        /// The images to build on, by rank.
        bases: BTreeMap<Rank, ImageId>,
        /// The checkpoint that has them.
        base: Option<u64>,
        /// The one who asked for it.
        asker: Asker,
    },
    /// A coordinated checkpoint.
    Checkpoint {
        /// The state machine that takes its steps.
        machine: Box<Checkpoint>,
        /// The number of the checkpoint.
        number: u64,
        /// How it is taken.
        mode: SaveMode,
        /// When its ranks were first asked.
        begun_us: u64,
        /// The process manager at the snapshot.
        snapshot: Option<Worlds>,
        /// The one who asked for it.
        asker: Asker,
    },
    /// A checkpoint whose images are durable.
    Publishing {
        /// What its manifest is made of.
        publication: Box<Publication>,
        /// What was done in another way than ordered.
        notes: Vec<(Rank, String)>,
        /// The one who asked for it.
        asker: Asker,
    },
    /// Migrations, at least one; at most one of them stops its rank at a time.
    Migration {
        /// Each is of another rank.
        moves: Vec<Move>,
    },
    /// An inspection.
    Explain {
        /// Ranks that did not answer yet.
        waiting: BTreeSet<Rank>,
        /// What was found.
        found: BTreeMap<Rank, Result<Inspection, Unexplained>>,
        /// The one who asked for it.
        asker: Asker,
    },
}

impl Operation {
    /// For `mend ps`.
    pub(crate) fn phase(&self) -> JobPhase {
        match self {
            Self::Preparing { .. } | Self::Checkpoint { .. } | Self::Publishing { .. } => JobPhase::Checkpointing,
            Self::Migration { .. } => JobPhase::Migrating,
            Self::Explain { .. } => JobPhase::Running,
        }
    }

    /// Who asked.
    pub(crate) fn askers(&self) -> Vec<Asker> {
        match self {
            Self::Preparing { asker, .. }
            | Self::Checkpoint { asker, .. }
            | Self::Publishing { asker, .. }
            | Self::Explain { asker, .. } => {
                vec![*asker]
            }
            Self::Migration { moves } => moves.iter().map(|one| one.asker).collect(),
        }
    }
}
