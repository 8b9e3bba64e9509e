//! What the ranks of one node are asked in turn: their daemon goes from step to step by itself, and the controller hears of it.

use crate::job::{Due, Job, Pending};
use mend_messages::agent::{Reply, Request};
use mend_messages::daemon::{ToDaemon, Turn};
use mend_messages::job::Rank;
use std::time::Instant;

impl Job {
    /// Whether one daemon speaks with all ranks. With tiers it decides where an image goes only when it is asked for one.
    pub(crate) fn can_ask_in_turn(&self) -> bool {
        self.tiers.is_none() && self.ranks.iter().all(|rank| rank.node == self.ranks[0].node)
    }

    /// Asks all steps at once. Whoever does [awaits](Job::await_turn) each.
    pub(crate) fn ask_in_turn(&mut self, steps: Vec<Vec<(Rank, Request)>>) {
        let mut numbered = Vec::new();
        for (step, requests) in steps.into_iter().enumerate() {
            let mut turns = Vec::new();
            for (rank, request) in requests {
                let patience = self.patience(&request);
                self.next_seq += 1;
                self.pending.insert(self.next_seq, Pending { rank, due: Due::Later(step, patience, None) });
                turns.push(Turn { seq: self.next_seq, rank, request });
            }
            numbered.push(turns);
        }
        self.send_to_rank(0, ToDaemon::InTurn(numbered));
    }

    /// Uses the answers to this step, those that have come and those that come; one that does not in time counts as a failure.
    pub(crate) fn await_turn(&mut self, step: usize) {
        let mut early = Vec::new();
        for (seq, pending) in &mut self.pending {
            if let Due::Later(its, patience, reply) = &mut pending.due
                && *its == step
            {
                early.extend(reply.take().map(|reply| (*seq, pending.rank, reply)));
                let time = Instant::now() + *patience;
                pending.due = Due::At(time);
            }
        }
        for (seq, rank, reply) in early {
            self.answered(seq, rank, reply);
        }
    }

    /// An answer came. It may be to a step that is not awaited yet, as the last answer to the one before it is still on its way.
    pub(crate) fn answered(&mut self, seq: u64, rank: Rank, reply: Reply) {
        match self.pending.get_mut(&seq).map(|pending| &mut pending.due) {
            Some(Due::Later(.., early)) => *early = Some(reply),
            Some(Due::At(_)) => {
                self.pending.remove(&seq);
                self.replied(rank, reply);
            }
            None => {}
        }
    }

    /// No answer is expected to what is not awaited yet.
    pub(crate) fn forget_turns(&mut self) {
        self.pending.retain(|_, pending| matches!(pending.due, Due::At(_)));
    }
}
