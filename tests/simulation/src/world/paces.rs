//! Ranks tell how far they have come, on nodes whose speed and load change: some ranks go back to nodes that they left.
//!
//! What is asserted: nobody goes back to a node that ranks are to leave, or that is drained (`leaving`); nobody goes back to where it went back from, in a
//! life of the job, nor more often than the policy allows. Drawn apart, so that worlds without it stay as they were.

use super::World;
use super::data::Past;
use crate::coming::{Coming, Condition, HORIZON_US, SECOND_US};
use mend_job::event::Record;
use mend_journal::Event as Happened;
use mend_messages::daemon::{FromDaemon, NodeRoom};
use mend_messages::health::{Grade, NodeHealth};
use mend_messages::job::Rank;
use mend_messages::progress::{Progress, RankProgress, Step};
use mend_policy::back::MAX_RETURNS;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::BTreeMap;

/// From one reading to the next; on the nodes' clocks it is a second.
const READING_US: u64 = SECOND_US / 4;
/// As often the nodes' speeds change.
const READINGS_PER_SPEED: u64 = 40;
const STEPS: u64 = 1 << 40;

/// How fast nodes are, and how far ranks have come.
#[derive(Debug)]
pub struct Paces {
    rng: ChaCha8Rng,
    readings: u64,
    /// Microseconds that a step takes, by node.
    step_us: Vec<u64>,
    done: BTreeMap<Rank, u64>,
    /// Where each rank went back from in this life, and how often.
    pub(crate) returns: Past,
}

impl Paces {
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed ^ 0xbac);
        Self { rng, readings: 0, step_us: vec![10_000; nodes], done: BTreeMap::new(), returns: BTreeMap::new() }
    }

    fn draw(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }
}

impl World {
    pub(crate) fn draw_paces(&mut self) {
        if self.paces.draw(16) != 0 {
            return;
        }
        self.plan(SECOND_US, Coming::Reading);
        // Ranks leave nodes that are sick for a while.
        for at in 0..self.nodes.len() {
            let (when, lasts) = (SECOND_US * (5 + self.paces.draw(60)), SECOND_US * (2 + self.paces.draw(40)));
            let sick = NodeHealth { grade: Grade::Low, left_ms: None, why: "hot".into() };
            self.plan(when, Coming::Condition(at, Condition::Health(sick)));
            self.plan(when + lasts, Coming::Condition(at, Condition::Health(NodeHealth::default())));
        }
    }

    /// All nodes tell how far their ranks are, and how they are themselves.
    pub(crate) fn read_paces(&mut self) {
        self.paces.readings += 1;
        let at_us = self.paces.readings * SECOND_US;
        if self.paces.readings.is_multiple_of(READINGS_PER_SPEED) {
            for at in 0..self.nodes.len() {
                self.paces.step_us[at] = 10_000 << self.paces.draw(4);
            }
        }
        for at in 0..self.nodes.len() {
            let step_us = self.paces.step_us[at];
            let running: Vec<_> = self.nodes[at].ranks.iter().filter(|(_, process)| process.phase.runs()).collect();
            let running: Vec<(Rank, u64)> = running.into_iter().map(|(rank, process)| (*rank, process.number)).collect();
            let mut all = Vec::new();
            for (rank, attempt) in running {
                let done = self.paces.done.entry(rank).or_default();
                *done += SECOND_US / step_us;
                let step = Step { done: *done, total: STEPS, at_us };
                all.push(RankProgress { rank, attempt, progress: Progress { step: Some(step), calls: *done, waited_us: 0, at_us } });
            }
            if let Some(memory) = self.nodes[at].memory {
                let load = 100 * self.paces.draw(6) as u32;
                self.say(at, FromDaemon::Pong(NodeRoom { memory, processors: 2, load }));
            }
            if !all.is_empty() {
                self.say(at, FromDaemon::Progress(all));
            }
        }
        if self.now < HORIZON_US {
            self.plan(READING_US, Coming::Reading);
        }
    }

    /// A life of the job begins: it remembers nothing of where ranks have been.
    pub(crate) fn forget_returns(&mut self) {
        self.paces.returns.clear();
    }

    pub(crate) fn check_return(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Happened { rank: Some(rank), event: Happened::GoesBack { to, gain_s, price_s, .. }, .. } => {
                let (from, times) = self.paces.returns.entry(*rank).or_default();
                if from.contains(to) {
                    return Err(format!("rank {rank} is to go back to {to}, which it went back from"));
                }
                if *times >= MAX_RETURNS {
                    return Err(format!("rank {rank} is to go back, and did {times} times"));
                }
                if gain_s <= price_s {
                    return Err(format!("rank {rank} is to go back for {gain_s} s, and that has to save {price_s} s"));
                }
                self.summary.returns += 1;
                Ok(())
            }
            Record::Happened { rank: Some(rank), event: Happened::MigrationCommitted { from, .. }, .. } => {
                if self.conditions.goes_back.remove(rank) {
                    let (left, times) = self.paces.returns.entry(*rank).or_default();
                    left.insert(from.clone());
                    *times += 1;
                }
                Ok(())
            }
            Record::MigrationUndone { rank, .. } => {
                self.conditions.goes_back.remove(rank);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
