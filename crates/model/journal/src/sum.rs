//! Adds events up to the state of their job.

use crate::event::{Entry, Event};
use crate::facts::{Cause, Code};
use crate::ranks::Ranks;
use crate::state::{End, Facts, Failures, State, UnderWay};
use std::collections::BTreeMap;

/// Checkpoints of which the state knows more than that they are counted.
const MAX_CHECKPOINTS: usize = 256;
/// Ranks' ends that it knows each.
const MAX_EXITS: usize = 64;

impl State {
    /// What these events add up to.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut state = Self::default();
        entries.into_iter().for_each(|entry| state.apply(entry));
        state
    }

    /// One more event.
    pub fn apply(&mut self, entry: &Entry) {
        if let Event::Compacted { state } = &entry.event {
            *self = State::clone(state);
            return;
        }
        self.seq = entry.seq;
        if self.since == 0 {
            self.since = entry.at;
        }
        match &entry.event {
            Event::JobStarted { command, ranks, settings, .. } => {
                self.begin(entry.at, *ranks, settings);
                (self.command, self.from) = (command.clone(), None);
            }
            Event::JobRestarted { checkpoint, ranks, settings, .. } => {
                self.begin(entry.at, *ranks, settings);
                self.from = Some(*checkpoint);
            }
            Event::NodeReached { .. } => drop(entry.node.as_ref().and_then(|node| self.lost.remove(node))),
            Event::NodeLost { why, .. } => drop(entry.node.as_ref().map(|node| self.lost.insert(node.clone(), why.clone()))),
            Event::Placed { places } => self.places.clone_from(places),
            Event::WorldSpawned { places, .. } => {
                for (node, ranks) in places {
                    self.ranks = self.ranks.saturating_add(u32::try_from(ranks.count()).unwrap_or(u32::MAX));
                    let all = self.places.entry(node.clone()).or_default();
                    *all = all.union(ranks);
                }
            }
            Event::RankStarted | Event::RankRestored { .. } => self.of_rank(entry, |state, rank| state.running.insert(rank)),
            Event::RankExited { status } => self.of_rank(entry, |state, rank| state.exit(rank, *status)),
            Event::RankSignal { signal } => self.of_rank(entry, |state, rank| state.exit(rank, 128 + signal)),
            Event::CheckpointAsked { checkpoint, .. } => {
                self.under_way = Some(UnderWay::Checkpoint { checkpoint: *checkpoint, decided: false });
            }
            Event::CheckpointDecided { checkpoint } => {
                self.under_way = Some(UnderWay::Checkpoint { checkpoint: *checkpoint, decided: true });
            }
            Event::CheckpointCommitted { checkpoint, by, bytes, stopped_us, durable_us, .. } => {
                self.leave_checkpoint(*checkpoint);
                let (by, bytes, stopped_us, durable_us) = (*by, *bytes, *stopped_us, *durable_us);
                self.checkpoints.insert(*checkpoint, Facts { at: entry.at, by, bytes, stopped_us, durable_us, ..Facts::default() });
                while self.checkpoints.len() > MAX_CHECKPOINTS {
                    self.checkpoints.pop_first();
                }
                self.tallies.checkpoints += 1;
                self.tallies.bytes = self.tallies.bytes.saturating_add(bytes);
                self.tallies.stopped_us = self.tallies.stopped_us.saturating_add(stopped_us);
                self.tallies.longest_stopped_us = self.tallies.longest_stopped_us.max(stopped_us);
            }
            Event::CheckpointFailed { checkpoint, code, error, .. } => {
                self.leave_checkpoint(*checkpoint);
                self.tallies.failed += 1;
                count(&mut self.failures, *code, entry.at, error);
            }
            Event::CheckpointRemoved { checkpoints, .. } => {
                self.tallies.removed += checkpoints.len() as u64;
                checkpoints.iter().for_each(|number| drop(self.checkpoints.remove(number)));
            }
            Event::CheckpointMerged { checkpoint } => {
                self.tallies.merged += 1;
                self.checkpoints.entry(*checkpoint).and_modify(|facts| facts.merged = true);
            }
            Event::TierComplete { checkpoint, tiers } => {
                self.checkpoints.entry(*checkpoint).and_modify(|facts| facts.tiers.clone_from(tiers));
            }
            Event::MigrationAsked { from, to, .. } => self.moves(entry, from, to, false),
            Event::MigrationDecided { from, to } => {
                self.moves(entry, from, to, true);
                self.of_rank(entry, |state, rank| state.place(rank, to));
            }
            Event::MigrationCommitted { .. } => {
                self.under_way = None;
                self.tallies.migrations += 1;
            }
            Event::MigrationUndone { code, error, .. } => {
                self.under_way = None;
                self.tallies.undone += 1;
                count(&mut self.undone, *code, entry.at, error);
            }
            Event::DrainSlow { .. } => self.tallies.slow_drains += 1,
            Event::ChannelBroke { .. } => self.tallies.broken_channels += 1,
            Event::PassedOver { .. } => self.tallies.passed_over += 1,
            Event::TargetLost { .. } => self.tallies.targets_lost += 1,
            Event::FileHealed { fetched, .. } => {
                self.tallies.files_healed += 1;
                self.tallies.healed_bytes = self.tallies.healed_bytes.saturating_add(*fetched);
            }
            Event::FileNotHealed { .. } => self.tallies.files_not_healed += 1,
            Event::Ended { status, cause } => self.end(entry.at, Some(*status), cause),
            Event::RestartFailed { cause } | Event::GoesOn { cause, .. } => self.end(entry.at, None, cause),
            Event::ControllerDied => self.end(entry.at, None, &Cause::ControllerDied),
            Event::Unknown { .. } => self.tallies.unknown += 1,
            _ => {}
        }
    }

    fn begin(&mut self, at: u64, ranks: u32, settings: &BTreeMap<String, String>) {
        self.lives += 1;
        (self.begun, self.ranks) = (at, ranks);
        self.settings.clone_from(settings);
        (self.running, self.exited) = (Ranks::default(), Ranks::default());
        self.exits.clear();
        self.lost.clear();
        (self.under_way, self.ended) = (None, None);
    }

    fn end(&mut self, at: u64, status: Option<i32>, cause: &Cause) {
        self.under_way = None;
        self.running = Ranks::default();
        self.ended = Some(End { at, status, cause: cause.clone() });
    }

    fn of_rank(&mut self, entry: &Entry, apply: impl FnOnce(&mut Self, u32)) {
        if let Some(rank) = entry.rank {
            apply(self, rank);
        }
    }

    fn exit(&mut self, rank: u32, status: i32) {
        self.running.remove(rank);
        self.exited.insert(rank);
        if status != 0 && self.exits.len() < MAX_EXITS {
            self.exits.entry(rank).or_insert(status);
        }
    }

    fn leave_checkpoint(&mut self, number: u64) {
        if matches!(self.under_way, Some(UnderWay::Checkpoint { checkpoint, .. }) if checkpoint == number) {
            self.under_way = None;
        }
    }

    fn moves(&mut self, entry: &Entry, from: &str, to: &str, decided: bool) {
        let rank = entry.rank.unwrap_or_default();
        self.under_way = Some(UnderWay::Migration { rank, from: from.to_owned(), to: to.to_owned(), decided });
    }

    fn place(&mut self, rank: u32, node: &str) {
        self.places.values_mut().for_each(|ranks| ranks.remove(rank));
        self.places.entry(node.to_owned()).or_default().insert(rank);
        self.places.retain(|_, ranks| !ranks.is_empty());
    }
}

fn count(all: &mut BTreeMap<Code, Failures>, code: Code, at: u64, error: &str) {
    let failures = all.entry(code).or_insert_with(|| Failures { first: at, ..Failures::default() });
    failures.count += 1;
    failures.last = at;
    error.clone_into(&mut failures.error);
}
