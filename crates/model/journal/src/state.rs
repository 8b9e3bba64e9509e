//! How a job stands, or how it ended and why: what all its events add up to ([`crate::sum`]).
//!
//! Invariant: bounded in size, however long the job lasts: lists hold the newest, tallies the rest.

use crate::facts::{Asker, Cause, Code};
use crate::ranks::Ranks;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a job stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Of the last event.
    pub seq: u64,
    /// When the first event was recorded, microseconds since 1970.
    pub since: u64,
    /// When the last start or restart was.
    pub begun: u64,
    /// Starts and restarts.
    pub lives: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Command line, if it was started here.
    pub command: Vec<String>,
    /// Settings that differ from their defaults, as of the last start.
    pub settings: BTreeMap<String, String>,
    /// The checkpoint that it went on from last.
    pub from: Option<u64>,
    /// Where ranks are, by node.
    pub places: BTreeMap<String, Ranks>,
    /// Nodes that are lost, with the reason.
    pub lost: BTreeMap<String, String>,
    /// Ranks that run.
    pub running: Ranks,
    /// Ranks that ended.
    pub exited: Ranks,
    /// How ranks ended that did not end well: exit code, or 128 and the signal; the first ones.
    pub exits: BTreeMap<u32, i32>,
    /// The checkpoint or migration that is under way.
    pub under_way: Option<UnderWay>,
    /// Checkpoints that are there; the newest ones.
    pub checkpoints: BTreeMap<u64, Facts>,
    /// How often what happened.
    pub tallies: Tallies,
    /// Checkpoints that failed, by code.
    pub failures: BTreeMap<Code, Failures>,
    /// Migrations that were undone, by code.
    pub undone: BTreeMap<Code, Failures>,
    /// The end of the last life.
    pub ended: Option<End>,
    /// Events that were left out by compaction.
    pub left_out: u64,
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum UnderWay {
    /// A checkpoint.
    Checkpoint {
        /// The number of the checkpoint.
        checkpoint: u64,
        /// It is being published: whether it is there, its directory tells.
        decided: bool,
    },
    /// A migration.
    Migration {
        /// The rank that moves.
        rank: u32,
        /// Where it comes from.
        from: String,
        /// Where it goes.
        to: String,
        /// It is on the target.
        decided: bool,
    },
    /// One of a later release.
    #[serde(other)]
    Other,
}

/// What is known of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// When it was published, microseconds since 1970.
    pub at: u64,
    /// Who asked for it.
    pub by: Asker,
    /// Bytes of all its images.
    pub bytes: u64,
    /// How long the ranks stood still, microseconds.
    pub stopped_us: u64,
    /// Until it was durable, microseconds.
    pub durable_us: u64,
    /// Tiers that hold all of it.
    pub tiers: Vec<String>,
    /// Its images were merged with those that they built on.
    pub merged: bool,
}

/// How often things happened to a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "they are named after what they count; times in microseconds")]
pub struct Tallies {
    pub checkpoints: u64,
    pub failed: u64,
    pub removed: u64,
    pub merged: u64,
    pub bytes: u64,
    pub stopped_us: u64,
    pub longest_stopped_us: u64,
    pub migrations: u64,
    pub undone: u64,
    pub slow_drains: u64,
    pub broken_channels: u64,
    pub passed_over: u64,
    pub targets_lost: u64,
    pub files_healed: u64,
    pub healed_bytes: u64,
    pub files_not_healed: u64,
    pub unknown: u64,
}

/// Failures of one code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failures {
    /// How many there are.
    pub count: u64,
    /// When the first one was, microseconds since 1970.
    pub first: u64,
    /// When the last one was.
    pub last: u64,
    /// What the last one said.
    pub error: String,
}

/// How a life of the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When, microseconds since 1970.
    pub at: u64,
    /// Exit code of the command; `None` where nobody wrote it down.
    pub status: Option<i32>,
    /// What went wrong.
    pub cause: Cause,
}

impl State {
    /// The job runs, as far as the journal knows.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.lives > 0 && self.ended.is_none()
    }

    /// The newest checkpoint that is there.
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        self.checkpoints.last_key_value().map(|(number, _)| *number)
    }
}
