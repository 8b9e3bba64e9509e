//! Connections that break between two ranks that both live: what was under way is lost, and they wait for each other for ever. So the
//! job is stopped, to go on from its last checkpoint.
//!
//! A connection breaks, too, when a rank has ended or its node is lost, of which this machine hears in another way: that
//! has its time first. Faults assumed: a rank tells of a loss late, or of one that has mended itself since.

use crate::event::{End, GoesOn};
use crate::job::{Job, RankPhase};
use crate::safeguard::Safeguard;
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};

/// Beyond the time after which a silent node counts as lost, microseconds.
const REPORT_DELAY_US: u64 = 1_000_000;

/// What a rank told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Loss {
    since_us: u64,
    ranks: (Rank, Rank),
    generations: (u64, u64),
    why: String,
}

/// Those that were not judged yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    patience_us: u64,
    told: Vec<Loss>,
}

impl Losses {
    /// `node_timeout_us`: a node that is silent for so long is lost.
    pub fn new(node_timeout_us: u64) -> Self {
        Self { patience_us: node_timeout_us.saturating_add(REPORT_DELAY_US), told: Vec::new() }
    }

    /// A migration was undone: the rank is the one that it was, under a new generation, and has lost what it had lost.
    pub(crate) fn stayed(&mut self, rank: Rank, before: u64, now: u64) {
        for loss in &mut self.told {
            for (its, generation) in [(loss.ranks.0, &mut loss.generations.0), (loss.ranks.1, &mut loss.generations.1)] {
                if (its, *generation) == (rank, before) {
                    *generation = now;
                }
            }
        }
    }
}

impl Job {
    /// The generation of a rank that has not ended. What a peer tells of it may come before the news that it runs.
    fn living(&self, rank: Rank) -> Option<u64> {
        self.ranks.get(rank as usize).filter(|state| !matches!(state.phase, RankPhase::Exited(_))).map(|state| state.generation)
    }

    /// A channel between two ranks broke with messages under way.
    pub(crate) fn messages_lost(&mut self, rank: Rank, peer: Rank, why: String) {
        if let (Some(one), Some(other)) = (self.living(rank), self.living(peer)) {
            self.losses.told.push(Loss { since_us: self.now_us, ranks: (rank, peer), generations: (one, other), why });
        }
    }

    /// When the next loss is to be judged.
    pub(crate) fn losses_due(&self) -> Option<u64> {
        let first = self.losses.told.iter().map(|loss| loss.since_us).min()?;
        self.background.is_none().then(|| first.saturating_add(self.losses.patience_us))
    }

    /// Ends the job if messages were lost between ranks that live. A checkpoint that is still being written behind them comes first: it is what
    /// the job goes on from.
    pub(crate) fn judge_losses(&mut self) {
        let mut told = std::mem::take(&mut self.losses.told);
        if self.keeps(Safeguard::OldLossesAreForgotten) {
            told.retain(|loss| {
                (self.living(loss.ranks.0), self.living(loss.ranks.1)) == (Some(loss.generations.0), Some(loss.generations.1))
            });
        }
        let patience_us = self.losses.patience_us;
        let is_due = |loss: &Loss| self.now_us.saturating_sub(loss.since_us) >= patience_us && self.background.is_none();
        let due = told.iter().position(is_due);
        let Some(loss) = due.map(|at| told.swap_remove(at)) else {
            self.losses.told = told;
            return;
        };
        if !self.keeps(Safeguard::LossesEndTheJob) {
            return;
        }
        let node = |rank: Rank| self.ranks[rank as usize].node;
        let nodes = (node(loss.ranks.0), node(loss.ranks.1));
        let goes_on = self.newest_left().map_or(GoesOn::NoCheckpoint, GoesOn::From);
        self.end(End::MessagesLost { ranks: loss.ranks, nodes, why: loss.why, goes_on });
    }
}
