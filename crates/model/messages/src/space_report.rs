//! What happens to the data spaces that a job uses, as one node sees it: on its way to the job's journal.
//!
//! ```text
//! mend-data ──SpaceEvent──► mend-space ranks ──SpaceEvents──► mendd ──SpaceReports──► controller ──► journal
//! ```
//! Each step keeps a bounded number, lets the oldest go, and counts those. Nobody waits for the next one.

use serde::{Deserialize, Serialize};

/// Most events in one of these messages.
pub const MAX_EVENTS: usize = 256;

/// What a process that serves the mounts of a space tells its daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceEvents {
    /// In the order in which they were seen.
    pub events: Vec<SpaceEvent>,
    /// How many were left out before them, since nobody took them.
    pub left_out: u64,
}

/// What a daemon tells a job's controller of the spaces that the job uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceReports {
    /// In the order in which they were seen.
    pub reports: Vec<SpaceReport>,
    /// How many were left out before them, since nobody took them.
    pub left_out: u64,
}

/// Something that happened to a space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceReport {
    /// The name of the space.
    pub space: String,
    /// What happened to it.
    pub event: SpaceEvent,
}

/// What can happen to a space, as one node sees it. Files are named by their paths in the space, targets as `mend data df` names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpaceEvent {
    /// A process begins to look at the space: targets that the node said were lost may answer by now.
    Begun,
    /// A target is lost.
    TargetLost {
        /// The target that is lost.
        target: String,
        /// Why it is.
        why: TargetFault,
    },
    /// A target that was lost answers again.
    TargetBack {
        /// The target that answers.
        target: String,
        /// After how long, milliseconds.
        lost_ms: u64,
    },
    /// Blocks of a file came from its source, since a target gave nothing; of one look, all of them.
    ReadFromSource {
        /// The file that was read.
        file: String,
        /// The target that should have given them.
        target: String,
        /// Why it gave nothing, the last time.
        why: TargetFault,
        /// Bytes that came from the source.
        bytes: u64,
        /// In so many reads.
        reads: u64,
    },
    /// A file is whole again.
    Healed(Healed),
    /// A file is not made whole.
    NotHealed {
        /// The file; empty if it is about all of the space.
        file: String,
        /// What stands in the way.
        why: HealingFault,
    },
}

impl SpaceEvent {
    /// Nobody says it again: how targets stand is wrong from then on if it is left out.
    #[must_use]
    pub fn is_said_once(&self) -> bool {
        matches!(self, Self::Begun | Self::TargetLost { .. } | Self::TargetBack { .. })
    }
}

/// A file that is whole again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healed {
    /// The file that was healed.
    pub file: String,
    /// Targets that had lost something of it, or had it damaged.
    pub lacked: Vec<String>,
    /// Bytes that came from its sources.
    pub fetched: u64,
    /// Bytes that came from other copies.
    pub copied: u64,
    /// Sources that gave something.
    pub sources: Vec<String>,
    /// Targets that have it now.
    pub targets: Vec<String>,
    /// How long that took, microseconds.
    pub us: u64,
}

/// Why a target gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetFault {
    /// It says nothing.
    Silent {
        /// For so long, milliseconds.
        ms: u64,
    },
    /// It cannot be reached, or its daemon serves it no more.
    Unreachable {
        /// What the connection or the daemon says.
        error: String,
    },
    /// It answers, and has not got what it should have.
    Absent,
    /// It gives other bytes than were staged.
    Damaged,
    /// It answers that it cannot.
    Failed {
        /// What it says.
        error: String,
    },
}

/// Why a file is not made whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HealingFault {
    /// No source gives what is lost.
    NoSource {
        /// Bytes that are lost.
        lost: u64,
        /// The targets that lack them.
        lacked: Vec<String>,
        /// The file's sources, in the order in which they are asked.
        sources: Vec<SourceFault>,
    },
    /// No target has room for what is lost.
    NoRoom {
        /// Bytes that are lost.
        lost: u64,
        /// What is short.
        error: String,
    },
    /// Both copies of what ranks wrote are lost, or the only one.
    NoCopy {
        /// The targets that had them.
        lacked: Vec<String>,
    },
    /// A target failed meanwhile.
    Target {
        /// What it said.
        error: String,
    },
    /// The program that heals could not be run.
    Program {
        /// The program's name, without its directory.
        program: String,
        /// What stood in the way.
        error: String,
    },
    /// What has no code of its own.
    Other {
        /// What went wrong.
        error: String,
        /// What to do; may be empty.
        hint: String,
    },
}

/// What a source is to blame for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFault {
    /// The source's address.
    pub uri: String,
    /// What it said; `None`: it was not asked.
    pub error: Option<String>,
}
