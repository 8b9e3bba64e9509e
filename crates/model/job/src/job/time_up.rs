//! The time of the job is up, as its batch system says: a last checkpoint is taken, and the job ends, to go on from that.
//!
//! ```text
//! Event::TimeUp ──► moves are given up ──► Ask::Checkpoint, before all that waits ──► published ──► End::TimeUp
//!                                             ▲                                   └─ failed, a few times again
//!                                             └───────── a pause ─────────────────────┘   then the job runs on until it is killed
//! ```
//! Invariants: the ranks are ended only when a checkpoint of this moment is published, or when they had not run since the one before. Its
//! images are in the checkpoint directory, whatever tiers the job has: nodes that are taken away keep nothing.
//! Faults assumed: the batch system says so twice, or kills ranks with the same signal.

use super::Job;
use crate::event::{Asker, End, Notice, Outcome};
use crate::phase::RankPhase;
use mend_coordination::failure::Failure;
use mend_journal::Event as Happened;
use mend_journal::event::Cause;
use mend_messages::control::Ask;
use serde::{Deserialize, Serialize};

/// How often a last checkpoint is tried.
const MAX_TRIES: u32 = 5;
/// From one try to the next.
const RETRY_US: u64 = 2_000_000;

/// What is known since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimeUp {
    signal: i32,
    tries: u32,
    again_us: Option<u64>,
    /// It is being tried.
    trying: bool,
}

impl Job {
    /// The batch system has sent this signal.
    pub(crate) fn time_is_up(&mut self, signal: i32) {
        // It goes on when it is queued again, from where it would have gone on now.
        if self.end_for_good(End::TimeUp { signal, checkpoint: self.newest_listed() }) {
            return self.record(Happened::TimeUp { signal });
        }
        if self.time_up.is_some() || self.interrupted.is_some() || self.ending.is_some() {
            return;
        }
        self.time_up = Some(TimeUp { signal, tries: 0, again_us: None, trying: false });
        self.record(Happened::TimeUp { signal });
        self.cause(Cause::TimeUp { signal });
        self.tell(Notice::TimeUp { signal });
        let rebuilding = self.roster.ranks.iter().any(|rank| matches!(rank.phase, RankPhase::Restoring(_)));
        if rebuilding || self.placing || self.searching.is_some() || !self.putting.is_empty() {
            return self.end_in_time();
        }
        self.save_in_time();
    }

    /// True while a last checkpoint is being tried, or will be in a moment: nothing else begins that would be in its way.
    pub(crate) fn saves_in_time(&self) -> bool {
        self.time_up.is_some_and(|time_up| time_up.trying || time_up.again_us.is_some())
    }

    fn save_in_time(&mut self) {
        if let Some(time_up) = &mut self.time_up {
            (time_up.tries, time_up.again_us, time_up.trying) = (time_up.tries + 1, None, true);
        }
        for mover in self.movers() {
            let now_us = self.now_us;
            self.step_move(mover, |machine| machine.cancel(now_us).unwrap_or_default());
        }
        self.waiting.push_front((Ask::Checkpoint { mode: None }, Asker::TimeUp, self.now_us));
        self.next_operation();
    }

    /// What became of the last checkpoint.
    pub(crate) fn saved_in_time(&mut self, outcome: Outcome) {
        match outcome {
            // It is in the checkpoint directory, which the tiers may know nothing of.
            Outcome::Checkpoint { publication, .. } => self.end_at(Some(publication.number)),
            Outcome::Failed(failure) if self.ending.is_none() => self.not_saved_in_time(failure),
            _ => {}
        }
    }

    fn not_saved_in_time(&mut self, failure: Failure) {
        let Some(time_up) = &mut self.time_up else { return };
        let again = time_up.tries < MAX_TRIES && !failure.is_an_end();
        time_up.trying = false;
        time_up.again_us = again.then(|| self.now_us.saturating_add(RETRY_US));
        let newest = self.newest_left();
        self.tell(Notice::NotSavedInTime { failure, again, newest });
    }

    /// Ends the job where it is, without another checkpoint.
    pub(crate) fn end_in_time(&mut self) {
        // Before its ranks are placed, what the tiers hold is not known yet; it goes on from what is listed.
        let unknown = self.placing || self.searching.is_some();
        self.end_at(if unknown { self.newest_listed() } else { self.newest_left() });
    }

    fn end_at(&mut self, checkpoint: Option<u64>) {
        if let Some(TimeUp { signal, .. }) = self.time_up {
            self.end(End::TimeUp { signal, checkpoint });
        }
    }

    /// When the last checkpoint is tried again.
    pub(crate) fn time_up_due(&self) -> Option<u64> {
        self.time_up.and_then(|time_up| time_up.again_us).filter(|_| self.ending.is_none())
    }

    /// Tries it again if it is time.
    pub(crate) fn judge_time_up(&mut self) {
        if self.time_up_due().is_some_and(|due| due <= self.now_us) {
            self.save_in_time();
        }
    }
}
