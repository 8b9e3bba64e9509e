//! Operations that begin anew after they failed: those that failed because ranks ended in their middle, in a job that has spawned worlds and
//! goes on without those ranks; and moves whose target missed a file that the other ranks, which run on, have removed or cut meanwhile.
//!
//! What a rank, or a peer of it, says of its end comes before the end itself is known. So an operation that failed waits for that, first in the
//! queue, and fails for good if no end comes.

use super::Job;
use crate::event::{Asker, Outcome};
use mend_coordination::failure::{Failure, Gone, TargetTrouble};
use mend_messages::control::Ask;
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};

/// Operations begin anew so often, one after the other.
const MOST_ANEW: u32 = 8;
/// From what is first seen of a rank's end until that is known, at most.
const LEAVE_US: u64 = 3_000_000;

/// What is known of operations that may begin anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Anew {
    judged: Option<Judged>,
    /// Times that an operation began anew, since the last that succeeded or failed for good.
    again: u32,
    /// When a rank ended last that the job goes on without.
    ended_us: u64,
}

/// An operation that failed, and waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Judged {
    attempt: Attempt,
    asker: Asker,
    /// When it failed, which is since when it waits.
    failed_us: u64,
    failure: Failure,
}

/// An operation that may begin anew, by what it was and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) kind: Kind,
    /// When it began.
    pub(crate) begun_us: u64,
}

/// Which operation it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// The checkpoint of this number.
    Checkpoint(u64),
    /// The move of this rank.
    Move(Rank),
}

/// Whether a move failed because a file that its rank uses was no longer as it was.
fn is_for_files(failure: &Failure) -> bool {
    match failure {
        Failure::NotRebuilt { why: TargetTrouble::Files(_), .. } => true,
        Failure::BothEnds { target, .. } => is_for_files(target),
        _ => false,
    }
}

impl Anew {
    /// When the operation that waits fails for good.
    pub(crate) fn due(&self) -> Option<u64> {
        self.judged.as_ref().map(|judged| judged.failed_us.saturating_add(LEAVE_US))
    }

    /// A rank has ended that the job goes on without.
    pub(crate) fn rank_ended(&mut self, now_us: u64) {
        self.ended_us = now_us;
    }

    /// An operation was completed.
    pub(crate) fn completed(&mut self) {
        self.again = 0;
    }
}

impl Job {
    /// Puts an operation that failed so back into the queue, as this request, if it may begin anew. True if it does.
    pub(crate) fn begins_anew(&mut self, attempt: Attempt, (ask, asker): (Ask, Asker), failure: &Failure) -> bool {
        let mover = match attempt.kind {
            Kind::Checkpoint(_) => None,
            Kind::Move(rank) => Some(rank),
        };
        let by_ranks = self.worlds.spawned().next().is_some()
            && match failure {
                Failure::Lost { rank, how: Gone::Ended } => Some(*rank) != mover,
                Failure::Refused { .. } => true,
                _ => false,
            };
        let by_files = is_for_files(failure);
        // A move would be in the way of the last checkpoint.
        let too_late = mover.is_some() && self.time_up.is_some();
        if !(by_ranks || by_files) || self.anew.again >= MOST_ANEW || self.ending.is_some() || too_late {
            self.anew.again = 0;
            return false;
        }
        self.anew.again += 1;
        if by_ranks {
            self.anew.judged = Some(Judged { attempt, asker, failed_us: self.now_us, failure: failure.clone() });
        }
        self.waiting.push_front((ask, asker, self.now_us));
        true
    }

    /// Whether the first operation of the queue is one that failed, and waits for a rank's end, or fails for good now.
    pub(crate) fn first_is_judged(&mut self) -> bool {
        let Some(Judged { attempt, asker, failed_us, failure }) = self.anew.judged.clone() else { return false };
        let is_it = |(ask, its, since): &(Ask, Asker, u64)| {
            let same = match attempt.kind {
                Kind::Checkpoint(_) => matches!(ask, Ask::Checkpoint { .. }),
                Kind::Move(mover) => matches!(ask, Ask::Migrate { rank, .. } if *rank == mover),
            };
            same && (*its, *since) == (asker, failed_us)
        };
        if !self.waiting.front().is_some_and(is_it) {
            return false;
        }
        if self.anew.ended_us >= attempt.begun_us {
            self.anew.judged = None;
            return false;
        }
        if self.anew.due().is_some_and(|due_us| self.now_us >= due_us) {
            self.anew.judged = None;
            self.waiting.pop_front();
            match attempt.kind {
                Kind::Checkpoint(number) => self.checkpoint_failed(number, asker, failure),
                Kind::Move(_) => self.answer(asker, Outcome::Failed(failure)),
            }
        }
        true
    }
}
