//! What agents were asked and have not answered.
//!
//! Invariants: every question is forgotten: answered, failed for its time, or with its rank. An answer to a step that is not awaited yet
//! is kept until it is. Faults assumed: answers come twice, late, out of turn, never.

use mend_messages::agent::Reply;
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an agent is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// The checkpoint under way.
    Checkpoint,
    /// The migration of this rank.
    Move(Rank),
    /// An inspection.
    Explain,
    /// Ranks that were rebuilt go on.
    Restart,
}

/// A question that an agent has not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Open {
    /// The rank whose agent is asked.
    rank: Rank,
    purpose: Purpose,
    /// When it counts as failed.
    due: Due,
}

/// When an answer counts as failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Due {
    /// At this time, in microseconds.
    At(u64),
    /// So long after this step of its batch is awaited; with the answer, if it came before.
    Later(usize, u64, Option<Reply>),
}

/// All of them, by number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Questions {
    open: BTreeMap<u64, Open>,
    last: u64,
}

impl Questions {
    /// The number of a new question. It counts as failed `patience_us` after now, or, for a later step of its batch, after that is awaited.
    pub(crate) fn ask(&mut self, now_us: u64, (rank, purpose): (Rank, Purpose), step: usize, patience_us: u64) -> u64 {
        let due = match step {
            0 => Due::At(now_us.saturating_add(patience_us)),
            _ => Due::Later(step, patience_us, None),
        };
        self.last += 1;
        self.open.insert(self.last, Open { rank, purpose, due });
        self.last
    }

    /// From now on the answers to this step count. Returns those that have come: to be given to [`Questions::answered`].
    pub(crate) fn await_step(&mut self, now_us: u64, step: usize) -> Vec<(u64, Rank, Reply)> {
        let mut early = Vec::new();
        for (seq, open) in &mut self.open {
            if let Due::Later(its, patience_us, reply) = &mut open.due
                && *its == step
            {
                early.extend(reply.take().map(|reply| (*seq, open.rank, reply)));
                open.due = Due::At(now_us.saturating_add(*patience_us));
            }
        }
        early
    }

    /// An answer came; it is returned if it is awaited, with what was asked for. It may be to a step that is not yet, as the last answer to the one before it is
    /// still on its way.
    pub(crate) fn answered(&mut self, seq: u64, rank: Rank, reply: Reply) -> Option<(Purpose, Reply)> {
        let open = self.open.get_mut(&seq).filter(|open| open.rank == rank)?;
        let purpose = open.purpose;
        match &mut open.due {
            Due::Later(.., early) => {
                *early = Some(reply);
                None
            }
            Due::At(_) => {
                self.open.remove(&seq);
                Some((purpose, reply))
            }
        }
    }

    /// No answer is expected to what is not awaited yet.
    pub(crate) fn forget_later_steps(&mut self) {
        self.open.retain(|_, open| matches!(open.due, Due::At(_)));
    }

    /// A rank answers no more.
    pub(crate) fn forget_rank(&mut self, rank: Rank) {
        self.open.retain(|_, open| open.rank != rank);
    }

    /// Nobody is waited for any more.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// When the next answer is late.
    pub(crate) fn due(&self) -> Option<u64> {
        let due = |open: &Open| match open.due {
            Due::At(time) => Some(time),
            Due::Later(..) => None,
        };
        self.open.values().filter_map(due).min()
    }

    /// Questions that are late.
    pub(crate) fn late(&self, now_us: u64) -> Vec<u64> {
        let late = |open: &Open| matches!(open.due, Due::At(time) if time <= now_us);
        self.open.iter().filter(|(_, open)| late(open)).map(|(seq, _)| *seq).collect()
    }

    /// A question is not waited for any more. Returns whose it was, and what for.
    pub(crate) fn give_up(&mut self, seq: u64) -> Option<(Rank, Purpose)> {
        self.open.remove(&seq).map(|open| (open.rank, open.purpose))
    }

    /// Nobody waits for what was asked for this rank's migration.
    pub(crate) fn forget_mover(&mut self, mover: Rank) {
        self.open.retain(|_, open| open.purpose != Purpose::Move(mover));
    }
}
