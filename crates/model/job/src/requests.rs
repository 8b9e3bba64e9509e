//! What agents were asked and have not answered. Requests go to a node in batches, step by step; where one node has all ranks, several
//! steps go at once, and its daemon goes from one to the next by itself.
//!
//! Invariants: every request is forgotten: answered, failed for its time, or with its rank. An answer to a step that is not awaited yet
//! is kept until it is. Faults assumed: answers come twice, late, out of turn, never.

use crate::job::Job;
use crate::safeguard::Safeguard;
use mend_messages::agent::{Reply, Request, Unasked};
use mend_messages::daemon::{Question, ToDaemon};
use mend_messages::job::{NodeIndex, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const SECOND_US: u64 = 1_000_000;

/// A request that an agent has not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingRequest {
    /// Whose agent.
    pub rank: Rank,
    /// When it counts as failed.
    due: Due,
}

/// When an answer counts as failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Due {
    /// Then, microseconds.
    At(u64),
    /// So long after this step of its batch is awaited; with the answer, if it came before.
    Later(usize, u64, Option<Reply>),
}

impl Job {
    /// Whether one daemon speaks with all ranks. With tiers it decides where an image goes only when it is asked for one.
    pub(crate) fn one_daemon(&self) -> bool {
        self.tiers.is_none() && self.ranks.iter().all(|rank| rank.node == self.ranks[0].node)
    }

    /// How long an agent may take for an answer.
    fn patience_us(&self, request: &Request) -> u64 {
        match request {
            Request::Inspect { .. } | Request::Resume => 60 * SECOND_US,
            // It gives up by itself when a peer makes no progress for that long; until then channels drain.
            Request::Suspend | Request::SuspendPeer(_) => 3 * self.drain_timeout_us + 5 * SECOND_US,
            Request::Save(_) | Request::KeepFiles(_) | Request::SyncFiles => 3600 * SECOND_US,
        }
    }

    /// Asks agents, each node in one batch. An answer that does not come in time counts as a failure. The first step is awaited from now on, each later one when [`Job::await_step`] says so;
    /// of several steps all must be of one node.
    pub(crate) fn ask_agents(&mut self, steps: Vec<Vec<(Rank, Request)>>) {
        let mut batches: BTreeMap<NodeIndex, Vec<Vec<Question>>> = BTreeMap::new();
        for (step, requests) in steps.into_iter().enumerate() {
            for (rank, request) in requests {
                let patience_us = self.patience_us(&request);
                let due = match step {
                    0 => Due::At(self.now_us.saturating_add(patience_us)),
                    _ => Due::Later(step, patience_us, None),
                };
                self.next_seq += 1;
                self.pending.insert(self.next_seq, PendingRequest { rank, due });
                let batch = batches.entry(self.ranks[rank as usize].node).or_default();
                batch.resize_with(batch.len().max(step + 1), Vec::new);
                batch[step].push(Question { seq: self.next_seq, rank, request });
            }
        }
        for (node, batch) in batches {
            self.send(node, ToDaemon::Ask(batch));
        }
    }

    /// Number for a request that goes another way.
    pub(crate) fn new_seq(&mut self, rank: Rank, patience_us: u64) -> u64 {
        self.next_seq += 1;
        self.pending.insert(self.next_seq, PendingRequest { rank, due: Due::At(self.now_us.saturating_add(patience_us)) });
        self.next_seq
    }

    /// Uses the answers to this step, those that have come and those that come; one that does not in time counts as a failure.
    pub(crate) fn await_step(&mut self, step: usize) {
        let mut early = Vec::new();
        for (seq, pending) in &mut self.pending {
            if let Due::Later(its, patience_us, reply) = &mut pending.due
                && *its == step
            {
                early.extend(reply.take().map(|reply| (*seq, pending.rank, reply)));
                pending.due = Due::At(self.now_us.saturating_add(*patience_us));
            }
        }
        for (seq, rank, reply) in early {
            self.answered(seq, rank, reply);
        }
    }

    /// An answer came. It may be to a step that is not awaited yet, as the last answer to the one before it is still on its way.
    pub(crate) fn answered(&mut self, seq: u64, rank: Rank, reply: Reply) {
        match self.pending.get_mut(&seq).filter(|pending| pending.rank == rank).map(|pending| &mut pending.due) {
            Some(Due::Later(.., early)) => *early = Some(reply),
            Some(Due::At(_)) => {
                self.pending.remove(&seq);
                self.replied(rank, reply);
            }
            None => {}
        }
    }

    /// No answer is expected to what is not awaited yet.
    pub(crate) fn forget_later_steps(&mut self) {
        self.pending.retain(|_, pending| matches!(pending.due, Due::At(_)));
    }

    /// When the next answer is late.
    pub(crate) fn answers_due(&self) -> Option<u64> {
        let due = |pending: &PendingRequest| match pending.due {
            Due::At(time) => Some(time),
            Due::Later(..) => None,
        };
        self.pending.values().filter_map(due).min()
    }

    /// What was not answered in time has failed.
    pub(crate) fn judge_silence(&mut self) {
        let late = |pending: &PendingRequest| matches!(pending.due, Due::At(time) if time <= self.now_us);
        let late: Vec<u64> = self.pending.iter().filter(|(_, pending)| late(pending)).map(|(seq, _)| *seq).collect();
        for seq in late {
            if let Some(pending) = self.pending.remove(&seq)
                && self.keeps(Safeguard::SilenceIsFailure)
            {
                self.replied(pending.rank, Reply::Unasked(Unasked::Silent));
            }
        }
    }
}
