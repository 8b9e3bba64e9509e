//! Messages between ranks that are lost: what the job does about them.

use super::Job;
use crate::event::End;
use crate::losses::Loss;
use crate::safeguard::Safeguard;
use mend_messages::job::Rank;

impl Job {
    /// A channel between two ranks broke with messages under way. What a peer tells of a rank may come before the news that it runs.
    pub(crate) fn messages_lost(&mut self, rank: Rank, peer: Rank, why: String) {
        if let (Some(one), Some(other)) = (self.roster.living(rank), self.roster.living(peer)) {
            self.losses.add(Loss { since_us: self.now_us, ranks: (rank, peer), generations: (one, other), why });
        }
    }

    /// When the next loss is to be judged.
    pub(crate) fn losses_due(&self) -> Option<u64> {
        self.losses.due().filter(|_| self.background.is_none())
    }

    /// Ends the job if messages were lost between ranks that live. A checkpoint that is still being written behind them comes first: it is what
    /// the job goes on from.
    pub(crate) fn judge_losses(&mut self) {
        if self.keeps(Safeguard::OldLossesAreForgotten) {
            let roster = &self.roster;
            self.losses.forget_mended(|rank| roster.living(rank));
        }
        if self.background.is_some() {
            return;
        }
        let Some(loss) = self.losses.take_due(self.now_us) else { return };
        if !self.keeps(Safeguard::LossesEndTheJob) {
            return;
        }
        if self.time_up.is_some() {
            return self.end_in_time();
        }
        let node = |rank: Rank| self.roster.node_of(rank).unwrap_or_default();
        let nodes = (node(loss.ranks.0), node(loss.ranks.1));
        let goes_on = self.goes_on();
        self.end(End::MessagesLost { ranks: loss.ranks, nodes, why: loss.why, goes_on });
    }
}
