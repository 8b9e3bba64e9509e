//! `mend explain`: what the agents find in their ranks.

use crate::event::{Asker, Outcome, Unexplained};
use crate::job::{Job, RankPhase};
use crate::operation::Operation;
use mend_coordination::failure::Gone;
use mend_messages::agent::Request;
use mend_messages::job::Rank;
use std::collections::{BTreeMap, BTreeSet};

impl Job {
    /// Asks the agents of all ranks.
    pub(crate) fn begin_explain(&mut self, asker: Asker) {
        let mut waiting = BTreeSet::new();
        let mut found = BTreeMap::new();
        for rank in 0..self.ranks.len() as Rank {
            if matches!(self.ranks[rank as usize].phase, RankPhase::Exited(_)) {
                found.insert(rank, Err(Unexplained::Gone(Gone::Ended)));
            } else {
                waiting.insert(rank);
            }
        }
        let inspect = waiting.iter().map(|&rank| (rank, Request::Inspect { ahead: None })).collect();
        self.operation = Some(Operation::Explain { waiting, found, asker });
        self.ask_agents(vec![inspect]);
        self.finish_explain();
    }

    /// Answers once nobody is waited for.
    pub(crate) fn finish_explain(&mut self) {
        if !matches!(&self.operation, Some(Operation::Explain { waiting, .. }) if waiting.is_empty()) {
            return;
        }
        let Some(Operation::Explain { found, asker, .. }) = self.operation.take() else { return };
        let explained = found.into_iter().map(|(rank, inspection)| (rank, self.ranks[rank as usize].node, inspection)).collect();
        self.answer(asker, Outcome::Explained(explained));
        self.next_operation();
    }
}
