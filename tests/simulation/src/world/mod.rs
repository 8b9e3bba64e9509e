//! The world: time, what is on its way, who is there. What happens is drawn from the seed alone.

mod begin;
mod check;
mod daemon;
mod data;
mod differences;
mod effects;
mod failover;
mod faults;
mod input;
mod leaving;
mod local;
mod log;
mod paces;
mod power;
mod precopy;
mod rest;
mod retold;
mod scenario;
mod standing;
mod succession;
mod summary;
mod tiers;
mod verbs;

use crate::Defect;
use crate::coming::{Coming, HORIZON_US, MILLISECOND_US, SECOND_US};
use crate::disk::Disk;
use crate::node::Node;
use crate::story::Story;
use data::Data;
use differences::Differences;
use leaving::Conditions;
use mend_job::Job;
use mend_job::event::{Event, UpkeepDone, VerbId};
use mend_job::gathering::LastRun;
use mend_job::safeguard::Safeguard;
use mend_job::setup::CheckpointPlan;
use mend_messages::agent::{ImageId, SaveMode};
use mend_messages::control::Ask;
use mend_messages::daemon::FromDaemon;
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::TierSpec;
use mend_node_job::safeguard::Safeguard as NodeSafeguard;
use mend_policy::retention::Bounds;
use mend_policy::schedule::{Incremental, Interval};
use paces::Paces;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
pub use summary::Summary;

/// After the last of them the world comes to rest within this.
const IDLE_TIME_US: u64 = 4 * 3600 * SECOND_US;

/// What a run is to find.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Taken out of the job's machine.
    pub safeguard: Option<Safeguard>,
    /// Taken out of the machines of the nodes.
    pub on_nodes: Option<NodeSafeguard>,
    /// Put back.
    pub defect: Option<Defect>,
    /// Everything that happens is told on standard error.
    pub trace: bool,
}

/// A verb that was asked.
#[derive(Debug)]
pub struct Asked {
    pub ask: Ask,
    pub answers: u32,
}

/// Since when a rank's image is of its moment, and until when.
pub type Moment = (u64, Option<u64>);

/// See the module's head.
pub struct World {
    pub options: Options,
    pub now: u64,
    pub seed: u64,
    pub rng: ChaCha8Rng,
    queue: BTreeMap<(u64, u64), Coming>,
    next: u64,
    pub job: Option<Job>,
    /// All that it was told in this life.
    retold: Option<retold::Retold>,
    failovers: failover::Failovers,
    succession: succession::Succession,
    rollbacks: standing::Rollbacks,
    /// What an effect is answered at once.
    answer: Option<Event>,
    /// Somebody was told that the job ends.
    killed: bool,
    /// Checkpoints of which a lost controller removed images in the checkpoint directory, and its successor does not know.
    removed_unknown: BTreeSet<u64>,
    /// Checkpoints that a lost controller could not publish, which its successor does not know.
    failed_unknown: BTreeSet<u64>,
    pub life: u64,
    pub size: u32,
    /// Node of each of the job's node indices.
    pub hosts: Vec<usize>,
    /// Where the job ran last, as its record says.
    pub last: Option<LastRun>,
    /// Where its ranks lived to the end of it, by rank.
    pub stood: Vec<Option<String>>,
    pub moved: bool,
    /// The hosts of each checkpoint's job, and of its ranks.
    pub manifests: BTreeMap<u64, (Vec<String>, Vec<String>)>,
    choice: Option<begin::Choice>,
    pub nodes: Vec<Node>,
    pub disk: Disk,
    pub moments: BTreeMap<ImageId, Moment>,
    /// What nodes offer, and images need.
    pub differences: Differences,
    /// How nodes are.
    pub conditions: Conditions,
    /// How fast they are.
    pub paces: Paces,
    /// What is seen of storage.
    pub data: Data,
    /// The checkpoint that this life began from.
    pub from: Option<u64>,
    last_sent: BTreeMap<(u64, usize, bool), u64>,
    verbs: BTreeMap<VerbId, Asked>,
    pub attempts: u64,
    /// What was found on a node while something happened there.
    pub found_on_node: Option<String>,
    /// Disturbed since the world began.
    pub disturbed: bool,
    /// An agent, a disk or a node failed in this life, so that checkpoints may.
    pub failed_for_real: bool,
    /// Why this life may end.
    pub reasons: BTreeSet<&'static str>,
    /// Two ranks between which messages were lost, and where they were then.
    pub lost_told: Vec<(Rank, Rank, NodeIndex, NodeIndex)>,
    pub hung: Option<(Rank, u64, Rank, u64, u64)>,
    pub signalled: Option<u64>,
    /// When the job's time was up: its newest checkpoint, and whether ranks were still being restored.
    pub time_up: Option<(Option<u64>, bool)>,
    pub upkeep: bool,
    pub effects_under_way: u32,
    numbers_of_life: BTreeSet<u64>,
    pub story: Story,
    /// The file system says how much room it has.
    knows_free_space: bool,
    lives_left: u64,
    pub rules: CheckpointPlan,
    /// When a user removed a checkpoint last.
    pub vanished: Option<u64>,
    /// Standard input.
    pub stdin: input::Stdin,
    /// Where checkpoints are kept; none: in the shared directory alone.
    pub tiers: Vec<TierSpec>,
    pub mode: SaveMode,
    quiet: bool,
    pub summary: Summary,
}

/// Runs the world of a seed to its end.
///
/// # Errors
/// What was found.
pub fn run(seed: u64, options: Options) -> Result<Summary, String> {
    let mut world = World::new(seed, options);
    world.revive()?;
    while world.step()? {}
    world.come_to_rest()?;
    Ok(world.summary)
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let nodes = 1 + (rng.next_u64() % 4) as usize;
        let size = 1 + (rng.next_u64() % 5) as u32;
        let plan = CheckpointPlan {
            interval: [Interval::Off, Interval::Every(7), Interval::Every(20)][(rng.next_u64() % 3) as usize],
            incremental: Incremental::Count((rng.next_u64() % 3) as u32),
            keep: Some(1 + (rng.next_u64() % 2) as u32),
            mtbf_hours: 1000,
            averted_percent: 0,
            space_percent: None,
        };
        let mode = if rng.next_u64().is_multiple_of(3) { SaveMode::Stop } else { SaveMode::CopyOnWrite };
        let knows_free_space = !rng.next_u64().is_multiple_of(8);
        let mut world = Self {
            options,
            now: 0,
            seed,
            rng,
            queue: BTreeMap::new(),
            next: 0,
            job: None,
            retold: None,
            failovers: failover::Failovers::new(seed),
            succession: succession::Succession::new(seed, nodes),
            rollbacks: standing::Rollbacks::new(seed),
            answer: None,
            killed: false,
            removed_unknown: BTreeSet::new(),
            failed_unknown: BTreeSet::new(),
            life: 0,
            size,
            hosts: Vec::new(),
            last: None,
            stood: Vec::new(),
            moved: false,
            manifests: BTreeMap::new(),
            choice: None,
            nodes: (0..nodes).map(|_| Node { up: true, ..Node::default() }).collect(),
            disk: Disk::default(),
            moments: BTreeMap::new(),
            differences: Differences::draw(seed, nodes),
            conditions: Conditions::default(),
            paces: Paces::new(seed, nodes),
            data: Data::new(seed),
            from: None,
            last_sent: BTreeMap::new(),
            verbs: BTreeMap::new(),
            attempts: 0,
            found_on_node: None,
            disturbed: false,
            failed_for_real: false,
            reasons: BTreeSet::new(),
            lost_told: Vec::new(),
            hung: None,
            signalled: None,
            time_up: None,
            upkeep: false,
            effects_under_way: 0,
            numbers_of_life: BTreeSet::new(),
            story: Story::default(),
            knows_free_space,
            lives_left: 3,
            rules: plan,
            vanished: None,
            stdin: input::Stdin::default(),
            tiers: Vec::new(),
            mode,
            quiet: false,
            summary: Summary::default(),
        };
        world.draw_tiers();
        world.draw_stdin();
        world.draw_scenario();
        world.draw_successions();
        world.draw_conditions();
        world.draw_paces();
        world.draw_data();
        world
    }

    /// A number below `bound`.
    pub fn draw(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound.max(1)
    }

    /// True once in so many times.
    pub fn chance(&mut self, times: u64) -> bool {
        self.draw(times) == 0
    }

    /// True once in so many times, in a world that is disturbed.
    pub fn fails(&mut self, times: u64) -> bool {
        self.disturbed && !self.quiet && self.chance(times)
    }

    /// Something comes after a while.
    pub fn plan(&mut self, delay: u64, coming: Coming) {
        self.next += 1;
        self.queue.insert((self.now.saturating_add(delay), self.next), coming);
    }

    /// How long a message or a small work takes: mostly little.
    pub fn delay(&mut self) -> u64 {
        match self.draw(20) {
            0 => self.draw(3 * SECOND_US),
            1..4 => self.draw(300 * MILLISECOND_US),
            _ => self.draw(5 * MILLISECOND_US),
        }
    }

    pub(crate) fn send(&mut self, at: usize, to_job: bool, coming: Coming) {
        let life = if to_job { self.nodes[at].connection } else { self.life };
        if self.nodes[at].cut || !self.nodes[at].up {
            return;
        }
        let delay = self.delay();
        let last = self.last_sent.get(&(life, at, to_job)).copied().unwrap_or(0);
        let time = (self.now + delay).max(last);
        self.last_sent.insert((life, at, to_job), time);
        self.next += 1;
        self.queue.insert((time, self.next), coming);
    }

    /// A daemon says something.
    pub fn say(&mut self, at: usize, message: FromDaemon) {
        let life = self.nodes[at].connection;
        if life > 0 {
            self.send(at, true, Coming::ToJob { life, at, message });
        }
    }

    /// Takes this out of what is coming, in its order.
    pub fn take_out(&mut self, wanted: impl Fn(&Coming) -> bool) -> Vec<Coming> {
        self.queue.extract_if(.., |_, coming| wanted(coming)).map(|(_, coming)| coming).collect()
    }

    /// Keeps of what is coming only this.
    pub fn retain(&mut self, keep: impl Fn(&Coming) -> bool) {
        self.queue.retain(|_, coming| keep(coming));
    }

    /// One more thing happens. False when nothing more is to be expected.
    fn step(&mut self) -> Result<bool, String> {
        let first = self.queue.first_key_value().map(|((time, _), _)| *time);
        let due = self.due();
        let Some(time) = first.into_iter().chain(due).min() else { return Ok(false) };
        if self.queue.is_empty() && time > HORIZON_US + IDLE_TIME_US || time > HORIZON_US && self.job.is_some() && self.is_quiet() {
            return Ok(false);
        }
        if time > HORIZON_US + IDLE_TIME_US {
            return Err(format!("it does not come to rest: {:?}", self.job));
        }
        self.now = self.now.max(time);
        match self.queue.pop_first() {
            Some((key, coming)) if key.0 == time => {
                if let Coming::Fault(_) | Coming::Verb(_) = coming {
                    self.look_at_peace()?;
                }
                self.happens(coming)?;
            }
            later => {
                self.queue.extend(later);
                self.feed(Event::Time)?;
            }
        }
        self.look()?;
        Ok(true)
    }

    /// Nothing is on its way but what fate has in store.
    pub fn is_quiet(&self) -> bool {
        let fate = |coming: &Coming| match coming {
            // The image has come.
            Coming::NoImage { at, token, .. } => !self.nodes[*at].images.contains_key(token),
            Coming::Forsaken { .. } | Coming::Wakes { .. } | Coming::StandingEnds { .. } => true,
            coming => coming.is_fate(),
        };
        let idle = self.has_controller() && self.job.as_ref().is_none_or(|job| job.open_matters() == (0, 0) && job.end_reason().is_none());
        // A signal ends the job, in time.
        idle && self.signalled.is_none() && !self.upkeep && self.effects_under_way == 0 && self.queue.values().all(fate)
    }

    fn over(&mut self) -> Result<(), String> {
        self.check_end()?;
        self.restart_ended();
        self.close_all();
        self.job = None;
        if (self.lives_left > 0 || self.choice.is_some()) && self.now < HORIZON_US {
            let delay = SECOND_US + self.draw(3 * SECOND_US);
            self.plan(delay, Coming::Revive);
        }
        Ok(())
    }

    /// The controller is no more: its connections end.
    pub fn close_all(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].connection == self.life {
                let delay = self.draw(200 * MILLISECOND_US);
                self.plan(delay, Coming::Closed { life: self.life, at });
            }
        }
    }

    pub(crate) fn controller_died(&mut self) {
        if self.job.take().is_some() {
            self.choice = None;
            self.close_all();
            self.verbs.clear();
            // What it had begun to write is swept up by the next.
            self.disk.unfinished().into_iter().for_each(|number| self.disk.discard(number));
            self.hung = None;
            if self.lives_left > 0 {
                self.plan(SECOND_US, Coming::Revive);
            }
        }
    }

    pub(crate) fn upkeep_done(&mut self, bounds: Option<Bounds>) -> Result<(), String> {
        self.upkeep = false;
        if let Some(bounds) = bounds {
            self.disk.tidy(bounds);
        }
        self.feed(Event::Upkeep(UpkeepDone::default()))
    }

    pub(crate) fn revived(&mut self) -> Result<(), String> {
        if self.job.is_some() || self.lives_left == 0 && self.choice.is_none() { Ok(()) } else { self.revive() }
    }
}
