//! Ranks that are paused, and agents that take their ranks back to a checkpoint in place.

use super::AgentRouter;
use crate::agents::{AgentId, AgentLink};
use crate::local_rank::LocalRanks;
use crate::rank::Command;
use mend_messages::agent::{FromAgent, Reply, Request, ToAgent};
use mend_messages::job::Rank;
use std::collections::HashMap;

/// The only question that an agent is asked which takes its rank back.
const ROLLBACK_SEQ: u64 = u64::MAX;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pausing {
    /// Questions that have no answer yet, by number, and whose they are.
    asked: HashMap<u64, AgentId>,
    /// Ranks that stand still.
    paused: HashMap<Rank, AgentId>,
    /// Agents of ranks that are to go back.
    going_back: HashMap<AgentId, (Rank, AgentLink)>,
}

impl AgentRouter {
    /// Asks the agents of all ranks here to pause them.
    pub fn pause(&mut self, ranks: &LocalRanks) {
        for slot in ranks.values().filter(|slot| slot.descendant.is_none() && slot.restore.is_none()) {
            let Some((id, agent)) = slot.main.and_then(|id| Some((id, self.agents.get(&id)?))) else { continue };
            let number = self.asked;
            self.asked += 1;
            self.pausing.asked.insert(number, id);
            agent.link.send(&ToAgent::Request { seq: number, request: Request::Pause }, None);
        }
    }

    /// True while an agent has not answered.
    pub fn is_pausing(&self) -> bool {
        !self.pausing.asked.is_empty()
    }

    /// The ranks that stand still, with their agents.
    pub fn take_paused(&mut self) -> Vec<(Rank, AgentId, AgentLink)> {
        let paused = std::mem::take(&mut self.pausing.paused);
        paused.into_iter().filter_map(|(rank, id)| Some((rank, id, self.agents.get(&id)?.link.clone()))).collect()
    }

    /// Whether a reply is to a pause.
    pub(super) fn pause_answered(&mut self, id: AgentId, number: u64, reply: &Reply) -> bool {
        if self.pausing.asked.get(&number) != Some(&id) {
            return false;
        }
        self.pausing.asked.remove(&number);
        if let Some(agent) = self.agents.get(&id) {
            match reply {
                Reply::Paused => drop(self.pausing.paused.insert(agent.rank, id)),
                Reply::Failed { error, .. } => tracing::info!(rank = agent.rank, error, "a rank cannot go back in place"),
                _ => tracing::warn!(rank = agent.rank, "an agent says neither that its rank stands still nor that it does not"),
            }
        }
        true
    }

    /// An agent is gone: it answers no more.
    pub(super) fn pause_lost(&mut self, id: AgentId) {
        self.pausing.asked.retain(|_, agent| *agent != id);
        self.pausing.paused.retain(|_, agent| *agent != id);
        self.pausing.going_back.remove(&id);
    }

    /// A rank that stands still goes back: what its agent says from here on is that it cannot.
    pub fn await_rollback(&mut self, rank: Rank, agent: AgentId, link: AgentLink) {
        self.pausing.going_back.insert(agent, (rank, link));
    }

    /// Whether a message is from such an agent.
    pub(super) fn rollback_refused(&mut self, id: AgentId, message: &FromAgent, ranks: &LocalRanks) -> bool {
        let Some((rank, _)) = self.pausing.going_back.get(&id) else { return false };
        if let (FromAgent::Reply { reply: Reply::Failed { error, .. }, .. }, Some(slot)) = (message, ranks.get(rank)) {
            slot.tell(Command::Abandon(error.clone()));
        }
        true
    }
}

/// The request that takes a rank back; its descriptors come with it.
pub fn rollback_request(order: mend_messages::agent::RollbackOrder) -> ToAgent {
    ToAgent::Request { seq: ROLLBACK_SEQ, request: Request::RollBack(order) }
}
