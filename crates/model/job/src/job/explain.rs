//! `mend explain`: what the agents find in their ranks.

use super::Job;
use crate::event::{Asker, Outcome, Unexplained};
use crate::operation::Operation;
use crate::questions::Purpose;
use mend_coordination::failure::{Gone, Refusal};
use mend_messages::agent::{Reply, Request};
use mend_messages::job::Rank;
use std::collections::{BTreeMap, BTreeSet};

impl Job {
    /// Asks the agents of all ranks.
    pub(crate) fn begin_explain(&mut self, asker: Asker) {
        let waiting: BTreeSet<Rank> = self.roster.all_living().into_iter().collect();
        let ended = self.roster.rank_numbers().filter(|rank| !waiting.contains(rank));
        let found: BTreeMap<Rank, _> = ended.map(|rank| (rank, Err(Unexplained::Gone(Gone::Ended)))).collect();
        let inspect = waiting.iter().map(|&rank| (rank, Request::Inspect { ahead: None, files: false })).collect();
        self.operation = Some(Operation::Explain { waiting, found, asker });
        self.ask_agents(Purpose::Explain, vec![inspect]);
        self.finish_explain();
    }

    /// An agent answered.
    pub(crate) fn explained(&mut self, rank: Rank, reply: Reply) {
        let Some(Operation::Explain { waiting, found, .. }) = &mut self.operation else { return };
        if waiting.remove(&rank) {
            match reply {
                Reply::Inspected(inspection) => drop(found.insert(rank, Ok(inspection))),
                reply => match Refusal::of(reply) {
                    Some(why) => drop(found.insert(rank, Err(Unexplained::Refused(why)))),
                    None => drop(waiting.insert(rank)),
                },
            }
        }
        self.finish_explain();
    }

    /// Answers once nobody is waited for.
    pub(crate) fn finish_explain(&mut self) {
        if !matches!(&self.operation, Some(Operation::Explain { waiting, .. }) if waiting.is_empty()) {
            return;
        }
        let Some(Operation::Explain { found, asker, .. }) = self.operation.take() else { return };
        let explained = found.into_iter().map(|(rank, inspection)| (rank, self.roster.ranks[rank as usize].node, inspection)).collect();
        self.answer(asker, Outcome::Explained(explained));
        self.next_operation();
    }
}
