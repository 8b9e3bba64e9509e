//! Ranks that are paused, and agents that take their ranks back to a checkpoint in place.

use super::NodeJob;
use crate::event::{Abandonment, AgentId, Effect, Notice, Word};
use mend_messages::agent::{FromAgent, Reply, Request};
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How long ranks may take to stand still.
const PAUSE_TIME_US: u64 = 3_000_000;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pausing {
    /// Until when the ranks of the job are waited for, once it is to pause.
    until_us: Option<u64>,
    /// Questions that have no answer yet, by number, and whose they are.
    asked: BTreeMap<u64, AgentId>,
    /// Ranks that stand still.
    pub paused: BTreeMap<Rank, AgentId>,
    /// Agents of ranks that are to go back.
    pub going_back: BTreeMap<AgentId, Rank>,
}

impl Pausing {
    /// The job pauses, and no rank is waited for any more.
    pub fn is_over(&self, now_us: u64) -> bool {
        self.over_at_us().is_some_and(|over_us| self.asked.is_empty() || now_us >= over_us)
    }

    /// When no rank is waited for any more, if the job pauses.
    pub fn over_at_us(&self) -> Option<u64> {
        self.until_us
    }
}

impl NodeJob {
    /// Asks the agents of all ranks here to pause them.
    pub(super) fn pause(&mut self, now_us: u64) {
        self.pausing.until_us = Some(now_us + PAUSE_TIME_US);
        let able = self.ranks.iter().filter(|(_, slot)| slot.descendant.is_none() && slot.restore.is_none());
        let asked: Vec<(Rank, u64, AgentId)> = able.filter_map(|(rank, slot)| Some((*rank, slot.attempt, slot.main?))).collect();
        for (rank, attempt, agent) in asked {
            if self.agents.contains_key(&agent) {
                let number = self.next_number();
                self.pausing.asked.insert(number, agent);
                self.effect(Effect::Ask { agent, rank, attempt, number, request: Request::Pause });
            }
        }
    }

    /// Whether a reply is to a pause.
    pub(super) fn pause_answered(&mut self, id: AgentId, number: u64, reply: &Reply) -> bool {
        if self.pausing.asked.get(&number) != Some(&id) {
            return false;
        }
        self.pausing.asked.remove(&number);
        if let Some(rank) = self.agents.get(&id).map(|agent| agent.rank) {
            match reply {
                Reply::Paused => drop(self.pausing.paused.insert(rank, id)),
                Reply::Failed { error, .. } => self.effect(Effect::Notice(Notice::NotPaused { rank, error: Some(error.clone()) })),
                _ => self.effect(Effect::Notice(Notice::NotPaused { rank, error: None })),
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

    /// Whether a message is of an agent whose rank goes back: all that it says from there on is that it cannot.
    pub(super) fn rollback_refused(&mut self, id: AgentId, message: &FromAgent) -> bool {
        let Some(&rank) = self.pausing.going_back.get(&id) else { return false };
        if let FromAgent::Reply { reply: Reply::Failed { error, .. }, .. } = message
            && self.ranks.contains_key(&rank)
        {
            self.effect(Effect::Tell { rank, word: Word::Abandon(Abandonment::Agent { error: error.clone(), files: false }) });
        }
        true
    }
}
