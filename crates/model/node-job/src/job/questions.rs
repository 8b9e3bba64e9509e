//! What the controller asks agents, and which answer belongs to which question.
//!
//! ```text
//! Ask, SaveTo, … ──► prepared, if it takes something ──► asked ──► answered; of a save, when what it wrote is kept
//!                        └─ the rank has ended ─┐           └─ its agent is gone, its rank is let go ─┐
//!                                               └──────────► answered: not asked ◄────────────────────┘
//! ```
//! Invariant: every question gets exactly one answer, also when its agent dies or its rank ends.

use super::NodeJob;
use crate::event::{AgentId, Effect, Notice, Preparation, Refusal, Word};
use mend_messages::agent::{Reply, Request, SaveOrder, SaveTarget, Saved, Unasked};
use mend_messages::daemon::{FromDaemon, Question, Way};
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A question that has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenQuestion {
    /// The controller's number.
    seq: u64,
    rank: Rank,
    attempt: u64,
    /// Whom it was put to; `None` while it is prepared.
    agent: Option<AgentId>,
    save: bool,
}

impl OpenQuestion {
    /// It was put to an agent of this process.
    pub fn is_of(&self, rank: Rank, attempt: u64) -> bool {
        self.agent.is_some() && (self.rank, self.attempt) == (rank, attempt)
    }
}

impl NodeJob {
    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// A save on its own, whose place is to be found first: that may take a while.
    pub(super) fn is_to_save(&mut self, seq: u64, rank: Rank) {
        self.batch.drop_rest();
        if let Some(slot) = self.ranks.get(&rank) {
            self.placing.insert(seq, slot.attempt);
        }
    }

    /// Its place is found. A process that ended meanwhile is not mixed up with the next one of its rank.
    pub(super) fn save(&mut self, seq: u64, rank: Rank, order: SaveOrder) {
        match self.placing.remove(&seq) {
            Some(attempt) if self.slot(rank, attempt).is_none() => self.refuse(seq, rank, Refusal::Unasked(Unasked::Ended)),
            _ => self.pass_on(seq, rank, Request::Save(order)),
        }
    }

    /// A save into a transfer.
    pub(super) fn save_to(&mut self, seq: u64, rank: Rank, (address, token): (SocketAddr, [u8; 16]), way: Way) {
        self.batch.drop_rest();
        self.prepare(seq, rank, Preparation::Transfer { address, token, way });
    }

    /// A copy of a rank that runs on, into a transfer.
    pub(super) fn precopy_to(&mut self, seq: u64, rank: Rank, address: SocketAddr, token: [u8; 16]) {
        self.batch.drop_rest();
        self.prepare(seq, rank, Preparation::Precopy { address, token });
    }

    /// Questions to agents, step by step.
    pub(super) fn ask_all(&mut self, steps: Vec<Vec<Question>>) {
        let first = self.batch.begin(steps);
        self.pass_all_on(first);
    }

    fn pass_all_on(&mut self, step: Vec<Question>) {
        for Question { seq, rank, request } in step {
            self.pass_on(seq, rank, request);
        }
    }

    pub(super) fn answered(&mut self, seq: u64, good: bool) {
        let next = self.batch.answered(seq, good);
        self.pass_all_on(next);
    }

    fn pass_on(&mut self, seq: u64, rank: Rank, request: Request) {
        match request {
            Request::Save(SaveOrder { target: SaveTarget::Descriptor, .. }) => self.refuse(seq, rank, Refusal::NoTransfer),
            Request::Precopy { .. } => self.refuse(seq, rank, Refusal::NoTransferOfCopy),
            Request::Save(order) => self.prepare(seq, rank, Preparation::Save(order)),
            request => {
                if request == Request::Resume && self.ranks.contains_key(&rank) {
                    self.effect(Effect::Tell { rank, word: Word::Feed });
                }
                match self.speaker(rank, false) {
                    Ok((agent, attempt)) => self.ask((seq, rank, attempt), agent, None, request),
                    Err(why) => self.refuse(seq, rank, why),
                }
            }
        }
    }

    fn prepare(&mut self, seq: u64, rank: Rank, what: Preparation) {
        match self.speaker(rank, true) {
            Ok((_, attempt)) => {
                let number = self.next_number();
                let save = !matches!(what, Preparation::Precopy { .. });
                self.questions.insert(number, OpenQuestion { seq, rank, attempt, agent: None, save });
                self.effect(Effect::Prepare { number, rank, what });
            }
            Err(why) => self.refuse(seq, rank, why),
        }
    }

    /// What a question takes is ready, or cannot be had.
    pub(super) fn prepared(&mut self, number: u64, request: Result<Request, Reply>) {
        let Some(OpenQuestion { seq, rank, attempt, .. }) = self.questions.remove(&number) else { return };
        if self.slot(rank, attempt).is_none() {
            return self.refuse(seq, rank, Refusal::Unasked(Unasked::Ended));
        }
        match (request, self.speaker(rank, true)) {
            (Ok(request), Ok((agent, attempt))) => self.ask((seq, rank, attempt), agent, Some(number), request),
            (Ok(_), Err(why)) => self.refuse(seq, rank, why),
            (Err(reply), _) => self.fail(seq, rank, reply),
        }
    }

    fn ask(&mut self, (seq, rank, attempt): (u64, Rank, u64), agent: AgentId, number: Option<u64>, request: Request) {
        if !self.agents.contains_key(&agent) {
            return self.refuse(seq, rank, Refusal::Unasked(Unasked::Left));
        }
        let number = number.unwrap_or_else(|| self.next_number());
        let save = matches!(request, Request::Save(_));
        self.questions.insert(number, OpenQuestion { seq, rank, attempt, agent: Some(agent), save });
        self.effect(Effect::Ask { agent, rank, attempt, number, request });
    }

    /// The agent to ask. For a save only the process itself will do.
    fn speaker(&self, rank: Rank, save: bool) -> Result<(AgentId, u64), Refusal> {
        let Some(slot) = self.ranks.get(&rank) else { return Err(Refusal::Unasked(Unasked::NotHere)) };
        if slot.restore.is_some() {
            return Err(Refusal::Unasked(Unasked::Restoring));
        }
        match (slot.descendant, slot.main) {
            (Some(descendant), _) if save => {
                let executable = self.agents.get(&descendant).and_then(|agent| agent.descendant.clone());
                Err(Refusal::Descendant { executable: executable.unwrap_or_else(|| "a child process".into()) })
            }
            (Some(agent), _) | (None, Some(agent)) => Ok((agent, slot.attempt)),
            (None, None) if slot.agentless => Err(Refusal::Agentless),
            (None, None) if slot.left => Err(Refusal::Unasked(Unasked::Left)),
            (None, None) => Err(Refusal::NoAgent),
        }
    }

    fn refuse(&mut self, seq: u64, rank: Rank, why: Refusal) {
        self.failed(seq);
        match why {
            Refusal::Unasked(why) => self.send(FromDaemon::Agent { seq, rank, reply: Reply::Unasked(why) }),
            why => self.effect(Effect::Refuse { seq, rank, why }),
        }
    }

    fn fail(&mut self, seq: u64, rank: Rank, reply: Reply) {
        self.failed(seq);
        self.send(FromDaemon::Agent { seq, rank, reply });
    }

    /// Nothing follows a failure.
    fn failed(&mut self, seq: u64) {
        self.batch.answered(seq, false);
    }

    /// Who asked what nobody will answer is told.
    pub(super) fn answer_lost(&mut self, lost: impl Fn(&OpenQuestion) -> bool, why: Unasked) {
        let unanswered: Vec<OpenQuestion> =
            self.questions.extract_if(.., |_, question| lost(question)).map(|(_, question)| question).collect();
        for OpenQuestion { seq, rank, .. } in unanswered {
            self.refuse(seq, rank, Refusal::Unasked(why));
        }
    }

    /// An agent is gone: what it was asked is answered.
    pub(super) fn agent_lost(&mut self, agent: AgentId) {
        self.answer_lost(|question| question.agent == Some(agent), Unasked::Left);
    }

    /// An agent answers.
    pub(super) fn reply(&mut self, id: AgentId, number: u64, reply: Reply) {
        if self.pause_answered(id, number, &reply) {
            return;
        }
        let Some(question) = self.questions.get(&number).filter(|question| question.agent.is_some()) else {
            return self.effect(Effect::Notice(Notice::NotAsked));
        };
        if question.agent != Some(id) {
            return self.effect(Effect::Notice(Notice::AnothersQuestion));
        }
        let Some(OpenQuestion { seq, rank, save, .. }) = self.questions.remove(&number) else { return };
        if let (Reply::Saved(Saved { behind: true, id: image, .. }), Some(agent)) = (&reply, self.agents.get_mut(&id)) {
            agent.behind.push(*image);
        }
        if save {
            return self.effect(Effect::Keep { agent: id, number, seq, rank, reply });
        }
        let good = !reply.is_failure();
        self.effect(Effect::Answer { seq, rank, reply });
        self.answered(seq, good);
    }
}
