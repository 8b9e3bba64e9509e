//! What of the log of a job's controller is durable, in worlds whose controllers lose their power: as its own thread makes it so.

use super::data::Past;
use crate::coming::SECOND_US;
use crate::story::Story;
use mend_job::durable::HeardMessages;
use mend_job::safeguard::Kept;
use mend_messages::health::LeaveReason;
use mend_messages::job::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// How long a disk takes as a rule, microseconds.
const SYNC_US: u64 = 20_000;

/// What a world has seen of the machine's decisions, and told it.
#[derive(Clone)]
pub struct Seen {
    pub story: Story,
    pub told: BTreeSet<(String, LeaveReason)>,
    pub avoided: BTreeSet<String>,
    pub goes_back: BTreeSet<Rank>,
    pub returns: Past,
    pub follows: BTreeSet<Rank>,
    pub past: Past,
    pub signalled: Option<u64>,
}

/// What of a log is durable.
#[derive(Clone)]
pub struct Log {
    /// So much is on disk.
    pub durable: usize,
    /// When the next of it is to be.
    pub due: Option<u64>,
    /// A disk is at work: until when, on how much, and what was heard then.
    pub syncing: Option<(u64, usize, Vec<u64>)>,
    pub heard: Vec<HeardMessages>,
    /// What was seen when so much was written, from what is durable on.
    pub seen: BTreeMap<usize, Seen>,
    /// Images of a checkpoint were removed when so much was written.
    pub removals: Vec<(usize, u64)>,
    /// Something was decided that is not taken back.
    pub decided: bool,
}

impl Log {
    pub fn new(heard: &[u64], kept: Kept, length: usize, seen: Seen) -> Self {
        let heard = heard.iter().map(|number| HeardMessages::through(*number, kept)).collect();
        Self { durable: length, due: None, syncing: None, heard, seen: [(length, seen)].into(), removals: Vec::new(), decided: false }
    }

    /// What the disk has done until now. `length`: what is written.
    pub fn advance(&mut self, now: u64, length: usize, mut draw: impl FnMut(u64) -> u64) {
        loop {
            match self.syncing.take() {
                Some((until, entries, heard)) if until <= now => {
                    self.is_durable(entries);
                    for (node, number) in self.heard.iter_mut().zip(heard) {
                        node.is_durable(number);
                    }
                    self.due = self.due.map(|due| due.max(until));
                }
                busy @ Some(_) => {
                    self.syncing = busy;
                    return;
                }
                None => {}
            }
            let Some(due) = self.due.take_if(|due| *due <= now) else { return };
            let time = if draw(20) == 0 { draw(SECOND_US) } else { draw(SYNC_US) };
            self.syncing = Some((due + time, length, self.heard.iter().map(HeardMessages::last).collect()));
        }
    }

    pub fn is_durable(&mut self, entries: usize) {
        self.durable = self.durable.max(entries);
        let durable = self.durable;
        self.seen.retain(|written, _| *written >= durable);
    }
}
