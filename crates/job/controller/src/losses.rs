//! Connections that break between two ranks that both live: what was under way is lost, and they wait for each other for ever. So the
//! job is stopped, to go on from its last checkpoint.
//!
//! A connection breaks, too, when a rank has ended or its node is lost, of which this controller hears in another way: that
//! has its time first. Faults assumed: a rank tells of a loss late, or of one that has mended itself since.

use crate::error::RunError;
use crate::job::{Job, NO_CHECKPOINT, RankPhase};
use mend_messages::job::Rank;
use std::time::{Duration, Instant};

/// Beyond the time after which a silent node counts as lost.
const MORE: Duration = Duration::from_secs(1);

/// What a rank told of.
#[derive(Debug)]
struct Loss {
    since: Instant,
    ranks: (Rank, Rank),
    generations: (u64, u64),
    why: String,
}

/// Those that were not judged yet.
#[derive(Debug)]
pub struct Losses {
    patience: Duration,
    told: Vec<Loss>,
}

impl Losses {
    /// `node_timeout`: a node that is silent for so long is lost.
    pub fn new(node_timeout: Duration) -> Self {
        Self { patience: node_timeout + MORE, told: Vec::new() }
    }
}

impl Job {
    /// The generation of a rank that runs.
    fn living(&self, rank: Rank) -> Option<u64> {
        self.ranks.get(rank as usize).filter(|state| state.phase == RankPhase::Running).map(|state| state.generation)
    }

    /// A channel between two ranks broke with messages under way.
    pub(crate) fn messages_lost(&mut self, rank: Rank, peer: Rank, why: String) {
        if let (Some(one), Some(other)) = (self.living(rank), self.living(peer)) {
            self.losses.told.push(Loss { since: Instant::now(), ranks: (rank, peer), generations: (one, other), why });
        }
    }

    /// Ends the job if messages were lost between ranks that live. A checkpoint that is still being written behind them comes first: it is what
    /// the job goes on from.
    pub(crate) fn judge_losses(&mut self) {
        let mut told = std::mem::take(&mut self.losses.told);
        told.retain(|loss| (self.living(loss.ranks.0), self.living(loss.ranks.1)) == (Some(loss.generations.0), Some(loss.generations.1)));
        let due = told.iter().position(|loss| loss.since.elapsed() >= self.losses.patience && self.background.is_none());
        let Some(loss) = due.map(|at| told.swap_remove(at)) else {
            self.losses.told = told;
            return;
        };
        let host = |rank: Rank| self.nodes[self.ranks[rank as usize].node as usize].name.clone();
        let id = &self.record.id;
        let hint = match self.newest_left() {
            Some(number) => format!("look at the network between them; `mend restart {id}` continues the job from checkpoint {number}"),
            None => NO_CHECKPOINT.to_owned(),
        };
        self.end(Err(RunError::MessagesLost { ranks: loss.ranks, hosts: (host(loss.ranks.0), host(loss.ranks.1)), why: loss.why, hint }));
    }
}
