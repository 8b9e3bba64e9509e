//! Storage is looked at: ranks are said to wait for their data, and moves are suggested, sensible ones and others.
//!
//! What is asserted: nobody moves to a node that ranks are to leave, or that is drained (`leaving`); nobody comes back to a node that it left for its data, in a life of
//! the job, nor moves more often than the policy allows, nor for less than it costs. Drawn apart, so that worlds without it stay as they were.

use super::World;
use crate::coming::{Coming, HORIZON_US, SECOND_US};
use mend_job::event::{Event, Record};
use mend_journal::Event as Happened;
use mend_messages::job::Rank;
use mend_policy::follow::{ForeignRank, MAX_MOVES, Scan, Wish};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// From one look to the next.
const LOOK_US: u64 = 2 * SECOND_US;

/// Where each rank left from in a life of the job, and how often it went.
pub type Past = BTreeMap<Rank, (BTreeSet<String>, u32)>;

/// What is seen of storage, and who followed its data.
#[derive(Debug)]
pub struct Data {
    rng: ChaCha8Rng,
    /// What was seen last: it is seen again as a rule.
    last: Scan,
    /// Ranks whose migration under way is to their data.
    pub(crate) follows: BTreeSet<Rank>,
    /// Where each rank left from for its data in this life, and how often it went.
    pub(crate) past: Past,
}

impl Data {
    pub(crate) fn new(seed: u64) -> Self {
        let (last, follows, past) = Default::default();
        Self { rng: ChaCha8Rng::seed_from_u64(seed ^ 0xda7a), last, follows, past }
    }

    fn draw(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }
}

impl World {
    pub(crate) fn draw_data(&mut self) {
        if self.data.draw(16) == 0 {
            self.plan(SECOND_US, Coming::Look);
        }
    }

    /// A look at storage.
    pub(crate) fn look_at_data(&mut self) -> Result<(), String> {
        if self.now < HORIZON_US {
            self.plan(LOOK_US, Coming::Look);
        }
        if self.data.draw(4) == 0 {
            self.data.last = self.draw_scan();
        }
        if self.job.is_none() {
            return Ok(());
        }
        self.feed(Event::DataSeen(self.data.last.clone()))
    }

    fn draw_scan(&mut self) -> Scan {
        let name = |at: u64| format!("n{at}");
        let (ranks, nodes) = (u64::from(self.size), self.nodes.len() as u64);
        let mut wishes = Vec::new();
        for _ in 0..self.data.draw(4) {
            let (rank, to) = (self.data.draw(ranks) as Rank, name(self.data.draw(nodes)));
            let home = |rank: Rank| (0..self.nodes.len()).find(|&at| self.nodes[at].ranks.contains_key(&rank)).map(|at| format!("n{at}"));
            // Some are of ranks that are elsewhere by now.
            let from = home(rank).unwrap_or_else(|| name(0));
            let there: Vec<Rank> = (0..self.size).filter(|&other| other != rank && home(other).as_ref() == Some(&to)).collect();
            let back = (self.data.draw(2) == 0).then(|| there.first().copied()).flatten();
            let messages = self.data.draw(4).saturating_sub(2) as f64 * (self.data.draw(100) as f64 - 40.0) / 100.0;
            wishes.push(Wish { rank, from, to, back, share: self.data.draw(100) as f64 / 100.0, messages });
        }
        wishes.retain(|wish| wish.from != wish.to && wish.share > 0.0);
        // Some are kept by messages, and are not to be made.
        let kept = if self.data.draw(4) == 0 { wishes.split_off(wishes.len() / 2) } else { Vec::new() };
        let foreign_ranks = (0..self.data.draw(2))
            .map(|rank| ForeignRank { rank: rank as u32, job: "other".into(), other: 0, node: "elsewhere".into(), bytes: 1 << 20 })
            .collect();
        let waited_s = self.data.draw(100) as f64 / 50.0 * f64::from(self.size);
        Scan { seconds: 2.0, waited_s, fetched: 1 << 20, wishes, kept, foreign_ranks }
    }

    /// A life of the job begins: it remembers nothing of who followed its data.
    pub(crate) fn forget_data(&mut self) {
        self.data.past.clear();
        self.data.follows.clear();
    }

    pub(crate) fn check_following(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Happened { rank: Some(rank), event: Happened::FollowsData { to, gain_s, price_s, goes: true, .. }, .. } => {
                let (left, times) = self.data.past.entry(*rank).or_default();
                if left.contains(to) || *times >= MAX_MOVES || gain_s <= price_s {
                    return Err(format!(
                        "rank {rank} is to follow its data to {to}: {times} times before, from {left:?}, {gain_s} s for {price_s} s"
                    ));
                }
                self.summary.followers += 1;
            }
            Record::Happened { rank: Some(rank), event: Happened::MigrationCommitted { from, .. }, .. }
                if self.data.follows.remove(rank) =>
            {
                let (left, times) = self.data.past.entry(*rank).or_default();
                left.insert(from.clone());
                *times += 1;
            }
            Record::MigrationUndone { rank, .. } => drop(self.data.follows.remove(rank)),
            _ => {}
        }
        Ok(())
    }
}
