//! When what happened: a job's journal as tracks of ranks, operations and marks on an axis of time.
//!
//! ```text
//! entries ─► builder: lives, where ranks are, operations ─► history: what each rank does when ─► Timeline
//! ```
//! The journal tells of a phase when it is over, and how long it lasted: its beginning is counted back from there. What a summary
//! ([`Event::Compacted`](crate::event::Event)) stands for is filled in from what the summary knows. Ranks that did the same at about the
//! same time share a track, so that a job of many ranks has few.
//!
//! Invariants: the spans of a track are in order and do not overlap, and everything ends at or after its beginning, whatever the entries
//! say and in whatever order; what is kept grows with the number of entries, not with the numbers in them.
//! Faults assumed: events of a later release; events that were left out or lost; clocks that were set back.

mod builder;
mod history;
#[cfg(test)]
mod tests;

use crate::event::{Asker, Entry, Phase};
use crate::ranks::Ranks;
use serde::Serialize;

/// A job's life on an axis of time. All times are microseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// When the first event was recorded.
    pub begin: u64,
    /// Where the axis ends: the last event, or now if the job runs.
    pub end: u64,
    /// The job runs.
    pub running: bool,
    /// Number of ranks, as of the last start.
    pub ranks: u32,
    /// All nodes that had a rank, in the order in which they got one.
    pub nodes: Vec<String>,
    /// Starts and restarts, each with its end.
    pub lives: Vec<Life>,
    /// What the ranks did.
    pub tracks: Vec<Track>,
    /// Starts, restarts, checkpoints and migrations, in the order in which they began.
    pub operations: Vec<Operation>,
    /// What happened at one point in time, and is worth to be seen.
    pub marks: Vec<Mark>,
    /// Up to here the journal keeps a summary and little else.
    pub summary_until: Option<u64>,
}

/// From a start or restart to the end that followed it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Life {
    /// When it began.
    pub begin: u64,
    /// When it ended, or where the axis ends.
    pub end: u64,
    /// The checkpoint that it went on from; none for a start.
    pub from_checkpoint: Option<u64>,
    /// How it ended, as a sentence; none while it lasts.
    pub ended: Option<String>,
}

/// What some ranks did, all of them the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Track {
    /// These ranks.
    pub ranks: Ranks,
    /// What they did, in order. Between two spans they were not there.
    pub spans: Vec<Span>,
}

/// What a rank did for a while.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// Since when.
    pub begin: u64,
    /// When it ends, microseconds since 1970.
    pub end: u64,
    /// Where it was; none if the journal does not say any more.
    pub node: Option<String>,
    /// What it did.
    #[serde(flatten)]
    pub activity: Activity,
}

/// What a rank can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "activity", rename_all = "snake_case")]
pub enum Activity {
    /// It is being started.
    Starting,
    /// It is being rebuilt from a checkpoint.
    Restoring,
    /// It runs.
    Running,
    /// It runs while its memory is copied to another node.
    Copying,
    /// It stands still for a checkpoint.
    Checkpoint {
        /// The number of the checkpoint.
        checkpoint: u64,
    },
    /// It stands still because it moves to another node.
    Moving,
}

/// Something that took time and had phases.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operation {
    /// What it was.
    #[serde(flatten)]
    pub what: What,
    /// When it began.
    pub begin: u64,
    /// When it was over, or where the axis ends.
    pub end: u64,
    /// When it took effect: a checkpoint was to be published, a rank was on its target.
    pub decided: Option<u64>,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long ranks stood still for it, microseconds.
    pub stopped_us: Option<u64>,
    /// Bytes that were written or sent.
    pub bytes: Option<u64>,
    /// What went over the link for them, if compression made it less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
    /// Its phases, as far as they are over.
    pub phases: Vec<Step>,
    /// Rounds of copying a rank that runs.
    pub rounds: Vec<Round>,
}

/// Kinds of operations.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub enum What {
    /// The ranks are started.
    Start,
    /// The ranks are rebuilt.
    Restart {
        /// From the checkpoint of this number.
        checkpoint: u64,
    },
    /// A checkpoint is taken.
    Checkpoint {
        /// Its number.
        checkpoint: u64,
        /// Who asked for it.
        by: Asker,
    },
    /// A rank moves.
    Migration {
        /// The rank that moves.
        rank: u32,
        /// The node it comes from.
        from: String,
        /// The node it goes to; empty if none would do.
        to: String,
        /// It ran on while most of it was copied.
        live: bool,
    },
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It is not over.
    UnderWay,
    /// It was done.
    Done,
    /// It was not done.
    Failed {
        /// What kept it from being done.
        error: String,
    },
    /// How it ended is not on record any more.
    Unknown,
}

/// A phase of an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Which phase it was.
    pub phase: Phase,
    /// The node that told of it.
    pub node: Option<String>,
    /// When it began.
    pub begin: u64,
    /// When it was over.
    pub end: u64,
}

/// A round of copying a rank that runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Round {
    /// Its number, from 0.
    pub round: u32,
    /// When it began.
    pub begin: u64,
    /// When it was over.
    pub end: u64,
    /// Bytes that were sent.
    pub bytes: u64,
    /// Bytes that were changed meanwhile, if that is known.
    pub left: Option<u64>,
}

/// Something that happened at one point in time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// When it happened.
    pub at: u64,
    /// What kind of thing it is.
    pub kind: MarkKind,
    /// The node it is about.
    pub node: Option<String>,
    /// The ranks it is about.
    pub ranks: Ranks,
    /// What happened, as a sentence.
    pub text: String,
}

/// Kinds of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A node was lost.
    NodeLost,
    /// A rank ended, and not well.
    RankEnded,
    /// Something else went wrong, and the job may have gone on.
    Trouble,
    /// Where a rank belongs was decided, with the reasons.
    Decision,
    /// What was lost of a data space is there again.
    Mended,
    /// A user or a signal asked for the job's end.
    EndAsked,
    /// The job ended.
    Ended,
}

impl MarkKind {
    /// True if ranks were lost.
    #[must_use]
    pub fn is_loss(self) -> bool {
        matches!(self, Self::NodeLost | Self::RankEnded)
    }
}

impl Timeline {
    /// The timeline of a job with this journal. `now_us`: the time, if the job runs.
    #[must_use]
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>, now_us: Option<u64>) -> Self {
        let mut builder = builder::Builder::default();
        entries.into_iter().for_each(|entry| builder.apply(entry));
        builder.finish(now_us)
    }
}

impl Operation {
    /// From when to when ranks stood still for it, as far as its phases tell.
    #[must_use]
    pub fn stopped(&self) -> Option<(u64, u64)> {
        let still = self.phases.iter().filter(|step| stands_still(step.phase));
        let hull = still.fold(None, |hull: Option<(u64, u64)>, step| {
            let (begin, end) = hull.unwrap_or((step.begin, step.end));
            Some((begin.min(step.begin), end.max(step.end)))
        });
        hull.or_else(|| {
            let us = self.stopped_us?;
            match self.what {
                // A summary tells how long, not when: ranks are stopped early, and a move ends with the rank's standing still.
                What::Migration { .. } => Some((self.end.saturating_sub(us).max(self.begin), self.end)),
                _ => Some((self.begin, self.begin.saturating_add(us).min(self.end))),
            }
        })
    }

    /// How long it took, microseconds; none if that is not on record.
    #[must_use]
    pub fn took_us(&self) -> Option<u64> {
        (self.outcome != Outcome::Unknown).then(|| self.end.saturating_sub(self.begin))
    }
}

/// A rank that an operation is about stands still in this phase.
fn stands_still(phase: Phase) -> bool {
    matches!(phase, Phase::Suspend | Phase::Save | Phase::Keep | Phase::Resume | Phase::Move | Phase::Connect)
}
