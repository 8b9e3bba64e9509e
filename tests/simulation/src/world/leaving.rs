//! Ranks are to leave nodes: some sicken and get well, the batch system drains some, and administrators do.
//!
//! What is asserted: no migration begins to a node that ranks are to leave; none that the job begins by itself goes to one that an
//! administrator has drained; in the end no rank is on a node that it is to leave, if there is another one that takes it. Drawn apart, so that
//! worlds without it stay as they were.

use super::World;
use crate::agent::RANK_BYTES;
use crate::coming::{Coming, Condition, HORIZON_US, SECOND_US};
use mend_job::Job;
use mend_job::event::{Event, Record};
use mend_job::phase::RankPhase;
use mend_journal::Event as Happened;
use mend_journal::event::Asker;
use mend_messages::control::MoveMode;
use mend_messages::daemon::FromDaemon;
use mend_messages::health::{Grade, LeaveReason, Leaving, NodeHealth};
use mend_messages::job::{NodeIndex, Rank};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// Within this whoever can leave a node has left it, once nothing is disturbed any more.
const LEAVING_TIME_US: u64 = 900 * SECOND_US;

/// How nodes are, and what the job knows of it.
#[derive(Debug, Default)]
pub struct Conditions {
    /// Of nodes that are not well.
    health: BTreeMap<usize, NodeHealth>,
    /// Drained by an administrator.
    drained: BTreeSet<String>,
    /// The reasons that the job was told in this life, by name of the node.
    pub(crate) told: BTreeSet<(String, LeaveReason)>,
    /// What it was told of drained nodes last.
    pub(crate) avoided: BTreeSet<String>,
    /// Ranks whose migration under way is a return.
    pub(crate) goes_back: BTreeSet<Rank>,
}

fn name(at: usize) -> String {
    format!("n{at}")
}

impl World {
    pub(crate) fn draw_conditions(&mut self) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ 0x51c);
        let mut draw = |bound: u64| rng.next_u64() % bound;
        if draw(4) != 0 {
            return;
        }
        for _ in 0..1 + draw(6) {
            let (when, at) = (SECOND_US + draw(HORIZON_US), draw(self.nodes.len() as u64) as usize);
            let left_ms = (draw(2) == 0).then(|| draw(20_000));
            let condition = match draw(8) {
                0..3 => Condition::Health(NodeHealth { grade: Grade::Low, left_ms, why: "hot".into() }),
                3..5 => Condition::Health(NodeHealth { grade: Grade::High, left_ms: None, why: "hotter".into() }),
                5 => Condition::Health(NodeHealth::default()),
                6 => Condition::BatchSystem((draw(3) > 0).then(|| Leaving { mode: MoveMode::Live, left_ms, why: "drained".into() })),
                _ => Condition::Administrator(draw(2) == 0),
            };
            self.plan(when, Coming::Condition(at, condition));
        }
    }

    pub(crate) fn is_unfit(&self, at: usize) -> bool {
        self.conditions.health.contains_key(&at)
    }

    pub(crate) fn takes_condition(&mut self, at: usize, condition: Condition) -> Result<(), String> {
        match condition {
            Condition::Health(health) => {
                match health.grade {
                    Grade::Well => drop(self.conditions.health.remove(&at)),
                    _ => drop(self.conditions.health.insert(at, health.clone())),
                }
                self.say(at, FromDaemon::Health(health));
            }
            Condition::BatchSystem(leaving) => {
                if let Some(node) = self.index(at).filter(|_| self.job.is_some()) {
                    self.note_told(at, LeaveReason::BatchSystem, leaving.is_some());
                    return self.feed(Event::Leave { node, reason: LeaveReason::BatchSystem, leaving });
                }
            }
            Condition::Administrator(drains) => {
                let drained = &mut self.conditions.drained;
                let _ = if drains { drained.insert(name(at)) } else { drained.remove(&name(at)) };
            }
        }
        Ok(())
    }

    /// Each life begins with what the daemons find.
    pub(crate) fn tell_health(&mut self) {
        self.conditions.told.clear();
        self.conditions.avoided.clear();
        self.conditions.goes_back.clear();
        for (at, health) in self.conditions.health.clone() {
            self.say(at, FromDaemon::Health(health));
        }
    }

    /// The job is about to hear this.
    pub(crate) fn note_heard(&mut self, at: usize, message: &FromDaemon) {
        if let FromDaemon::Health(health) = message {
            self.note_told(at, LeaveReason::Health, health.grade != Grade::Well);
        }
    }

    fn note_told(&mut self, at: usize, reason: LeaveReason, leaves: bool) {
        let key = (name(at), reason);
        let told = &mut self.conditions.told;
        let _ = if leaves { told.insert(key) } else { told.remove(&key) };
    }

    pub(crate) fn list_drained(&mut self) {
        self.later(Event::Drained(self.conditions.drained.iter().cloned().collect()));
    }

    /// The job is about to hear which nodes are drained.
    pub(crate) fn note_drained(&mut self, names: &[String]) {
        self.conditions.avoided = names.iter().cloned().collect();
    }

    pub(crate) fn check_target(&mut self, record: &Record) -> Result<(), String> {
        let Record::Happened { rank, event: Happened::MigrationAsked { by, to, .. }, .. } = record else { return Ok(()) };
        let rank = rank.unwrap_or_default();
        if self.conditions.told.iter().any(|(node, _)| node == to) {
            return Err(format!("rank {rank} is to move to {to}, which ranks are to leave"));
        }
        if *by == Asker::BackMigration {
            self.conditions.goes_back.insert(rank);
        }
        if *by == Asker::Data {
            self.data.follows.insert(rank);
        }
        if matches!(by, Asker::Health | Asker::BatchSystem | Asker::BackMigration | Asker::Data) && self.conditions.avoided.contains(to) {
            return Err(format!("rank {rank} is to move to {to}, which an administrator has drained"));
        }
        Ok(())
    }

    /// A rank that is to leave its node, and could. Of a job whose time is up none does.
    fn left_behind(&self) -> Option<(Rank, usize)> {
        let job = self.job.as_ref().filter(|job| job.end_reason().is_none() && !job.is_interrupted() && self.time_up.is_none())?;
        let alike = self.differences.are_none() && self.nodes.iter().all(|node| node.memory.is_none_or(|left| left > 100 * RANK_BYTES));
        let answers = self.nodes.iter().all(|node| node.ranks.values().all(|process| !process.stuck));
        let unfit = |at: usize| self.conditions.told.iter().any(|(node, _)| *node == name(at));
        let takes = |node: NodeIndex| {
            let at = self.hosts[node as usize];
            self.nodes[at].up && !self.nodes[at].cut && !unfit(at) && !self.conditions.drained.contains(&name(at))
        };
        let place = job.alive().into_iter().any(takes);
        let stays = |rank: &Rank| {
            let state = job.rank(*rank).filter(|state| state.phase == RankPhase::Running);
            state.is_some_and(|state| job.alive().contains(&state.node) && unfit(self.hosts[state.node as usize]))
        };
        let rank = (0..self.size).find(stays).filter(|_| alike && answers && place && self.all_up(job))?;
        job.rank(rank).map(|state| (rank, self.hosts[state.node as usize]))
    }

    /// Ranks that are to leave are tried again and again, as somebody does not answer.
    pub(crate) fn tries_for_ever(&self) -> bool {
        !self.conditions.told.is_empty() && self.nodes.iter().any(|node| node.ranks.values().any(|process| process.stuck))
    }

    fn all_up(&self, job: &Job) -> bool {
        job.alive().iter().all(|&node| self.nodes[self.hosts[node as usize]].up && !self.nodes[self.hosts[node as usize]].cut)
    }

    /// In the end, when nothing fails any more.
    pub(crate) fn all_have_left(&mut self) -> Result<(), String> {
        let limit = self.now + LEAVING_TIME_US;
        while (self.left_behind().is_some() || !self.is_quiet()) && self.now < limit {
            if !self.step_to_end()? {
                break;
            }
        }
        match self.left_behind() {
            Some((rank, at)) => Err(format!("rank {rank} is to leave node {at}, and does not though it can")),
            None => Ok(()),
        }
    }
}
