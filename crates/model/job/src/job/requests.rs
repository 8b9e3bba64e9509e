//! Asking agents. Requests go to a node in batches, step by step; where one node has all ranks, several
//! steps go at once, and its daemon goes from one to the next by itself.

use super::Job;
use crate::questions::Purpose;
use crate::safeguard::Safeguard;
use mend_messages::agent::{Reply, Request, Unasked};
use mend_messages::daemon::{Question, ToDaemon};
use mend_messages::job::{NodeIndex, Rank};
use std::collections::BTreeMap;

const SECOND_US: u64 = 1_000_000;

impl Job {
    /// Whether one daemon speaks with all ranks. With tiers it decides where an image goes only when it is asked for one.
    pub(crate) fn one_daemon(&self) -> bool {
        self.tiers.is_none() && self.roster.is_one_node()
    }

    /// How long an agent may take for an answer.
    fn patience_us(&self, request: &Request) -> u64 {
        match request {
            Request::Inspect { .. } | Request::Resume | Request::Precopy { .. } | Request::EndPrecopy => 60 * SECOND_US,
            // It gives up by itself when a peer makes no progress for that long; until then channels drain.
            Request::Suspend | Request::SuspendPeer(_) => 3 * self.drain_timeout_us + 5 * SECOND_US,
            // A daemon asks these by itself.
            Request::Pause | Request::RollBack(_) => 60 * SECOND_US,
            Request::Save(_) | Request::KeepFiles(_) | Request::SyncFiles => 3600 * SECOND_US,
        }
    }

    /// Asks agents, each node in one batch. An answer that does not come in time counts as a failure. The first step is awaited from now on, each later one when [`Job::await_step`] says so;
    /// of several steps all must be of one node.
    pub(crate) fn ask_agents(&mut self, purpose: Purpose, steps: Vec<Vec<(Rank, Request)>>) {
        let mut batches: BTreeMap<NodeIndex, Vec<Vec<Question>>> = BTreeMap::new();
        for (step, requests) in steps.into_iter().enumerate() {
            for (rank, request) in requests {
                let patience_us = self.patience_us(&request);
                let seq = self.questions.ask(self.now_us, (rank, purpose), step, patience_us);
                let Some(node) = self.roster.node_of(rank) else { continue };
                let batch = batches.entry(node).or_default();
                batch.resize_with(batch.len().max(step + 1), Vec::new);
                batch[step].push(Question { seq, rank, request });
            }
        }
        for (node, batch) in batches {
            self.send(node, ToDaemon::Ask(batch));
        }
    }

    /// Number for a request that goes another way.
    pub(crate) fn new_seq(&mut self, rank: Rank, purpose: Purpose, patience_us: u64) -> u64 {
        self.questions.ask(self.now_us, (rank, purpose), 0, patience_us)
    }

    /// Uses the answers to this step, those that have come and those that come; one that does not in time counts as a failure.
    pub(crate) fn await_step(&mut self, step: usize) {
        for (seq, rank, reply) in self.questions.await_step(self.now_us, step) {
            self.answered(seq, rank, reply);
        }
    }

    /// An answer came.
    pub(crate) fn answered(&mut self, seq: u64, rank: Rank, reply: Reply) {
        if let Some((purpose, reply)) = self.questions.answered(seq, rank, reply) {
            self.replied(rank, purpose, reply);
        }
    }

    /// What was not answered in time has failed.
    pub(crate) fn judge_silence(&mut self) {
        for seq in self.questions.late(self.now_us) {
            if let Some((rank, purpose)) = self.questions.give_up(seq)
                && self.keeps(Safeguard::SilenceIsFailure)
            {
                self.replied(rank, purpose, Reply::Unasked(Unasked::Silent));
            }
        }
    }
}
