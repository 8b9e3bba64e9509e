//! Back migration: when a rank that has left a node goes back there, or to a better one.
//!
//! C. Wang, "Transparent Fault Tolerance for Job Healing in HPC Environments", dissertation, NC State 2009, chapter on back migration: a rank goes
//! back if R x (Td - To) > Tm. R is what is left to do, Td what a time step takes at the rank's destination, where it is now, To what it took on
//! the original node, Tm what a move costs.
//!
//! ```text
//! home ── leaves (sick, drained) ──► displaced ── weighed each second ──► goes back ──► home
//!   ▲                                    │  ▲                               │
//!   └── the user has placed it ──────────┘  └── to a better node than this ─┘
//! ```
//! Nothing goes to and fro: a rank never returns to a node that it went back from; each time that it goes back, the next has to gain twice as much;
//! one that has gained nothing by it stays; nobody goes back more than [`MAX_RETURNS`] times in a life of the job.
//!
//! Faults assumed: readings of any kind ([`pace`]), nodes that were measured under other conditions than now. What is not known keeps a rank
//! where it is.

pub mod pace;

use self::pace::{Estimate, Pace, Unit};
use mend_messages::job::NodeIndex;
use mend_messages::progress::Progress;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Least share of a step's time that going back must save, where steps are told.
pub const STEP_MARGIN: f64 = 0.02;
/// The same where messages are counted, or load is compared: they say less of how far a program has come.
pub const ROUGH_MARGIN: f64 = 0.25;
/// What copying a rank that runs costs it, as a share of the time that takes.
const PRECOPY_COST_SHARE: f64 = 0.1;
/// Least cost of a move reckoned with, seconds.
const LEAST_COST_S: f64 = 0.01;
/// Times that a rank goes back in a life of the job, at most.
pub const MAX_RETURNS: u32 = 4;
/// Pause after a rank went back, or could not; it doubles each time. Microseconds.
const PAUSE_US: u64 = 60_000_000;
/// A node may be busier by this factor, and by so many threads per processor, than it was, or than the one here, and still count as what was measured.
const LOAD_MARGINS: (f64, f64) = (1.25, 0.5);
/// Whether a node is clearly busier than another, or than it was, by threads per processor: by more than what changes all the time.
#[must_use]
pub fn is_clearly_busier(there: f64, here: f64) -> bool {
    there > here * LOAD_MARGINS.0 + LOAD_MARGINS.1
}

/// For so long a node has to be the better one by load alone, which is an average over a minute. Microseconds.
const LOAD_TIME_US: u64 = 60_000_000;

/// What the job loses by a move, seconds: the time for which the rank stood still, and a share of that for which it was copied.
#[must_use]
pub fn cost_s(stopped_us: u64, copied_us: u64) -> f64 {
    ((stopped_us as f64 + PRECOPY_COST_SHARE * copied_us as f64) / 1e6).max(LEAST_COST_S)
}

/// How a rank comes to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It had to leave the one where it was.
    Left,
    /// Somebody has chosen the place: there it belongs from now on.
    Chosen,
    /// It went back, by this policy.
    Back,
}

/// What keeps a rank from a node, whatever it would gain there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obstacle {
    /// The node is lost.
    Lost,
    /// Ranks are to leave it: it is sick, or the batch system drains it.
    Unfit,
    /// An administrator has drained it.
    Drained,
    /// More ranks than processors would be there, and more than when it was measured.
    Crowded,
    /// The rank does not fit, or its processor will not do.
    Room,
}

/// A node that a rank may go to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The number of the node.
    pub node: NodeIndex,
    /// What keeps the rank from it.
    pub obstacle: Option<Obstacle>,
    /// Ranks of the job that are there, without the rank.
    pub ranks: u32,
    /// Processors; 0: not known.
    pub processors: u32,
    /// Threads per processor that run there or want to, without the rank; `None`: not known.
    pub load: Option<f64>,
}

impl Candidate {
    /// Another rank is to go there, too.
    pub fn add_one(&mut self) {
        (self.ranks, self.load) = (self.ranks + 1, self.load_with_it());
    }

    /// Its load with the rank.
    fn load_with_it(&self) -> Option<f64> {
        self.load.map(|load| load + 1.0 / f64::from(self.processors.max(1)))
    }
}

/// What a rank shared a node with when it left, itself included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Company {
    /// Threads per processor.
    pub load: Option<f64>,
    /// Ranks of the job.
    pub ranks: u32,
}

impl Company {
    /// The most of both.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        let load = self.load.into_iter().chain(other.load).reduce(f64::max);
        Self { load, ranks: self.ranks.max(other.ranks) }
    }
}

/// What is known when a rank is weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Circumstances<'a> {
    /// Now, microseconds of the caller's clock.
    pub now_us: u64,
    /// Seconds for which the job may still run; `None`: nobody knows.
    pub limit_s: Option<f64>,
    /// Seconds for which it is taken to run on where no steps are told; `None`: nobody knows.
    pub left_s: Option<f64>,
    /// Threads per processor where the rank is.
    pub load: Option<f64>,
    /// The other nodes.
    pub candidates: &'a [Candidate],
    /// What keeps ranks from going to and fro counts; only the simulator has it otherwise.
    pub restrained: bool,
}

/// What going to a node would bring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weighed {
    /// Where to.
    pub to: NodeIndex,
    /// What the times are of.
    pub by: Measure,
    /// What a unit takes here and what it would take there, microseconds.
    pub here_us: f64,
    /// See `here_us`.
    pub there_us: f64,
    /// What is left to do takes so long here, seconds.
    pub left_s: f64,
    /// So much less there, seconds.
    pub gain_s: f64,
    /// What the last move of the rank cost, seconds.
    pub cost_s: f64,
    /// What going has to gain: the cost, doubled for each time that the rank went back.
    pub price_s: f64,
}

/// What two places are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// Time steps that the program tells.
    Steps,
    /// Messages over the fabric.
    Messages,
    /// The nodes' load.
    Load,
}

/// Why a rank stays where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// Something keeps it from the node.
    Kept(NodeIndex, Obstacle),
    /// It tells no steps, and nobody knows how long the job may run.
    NoMeasure,
    /// Too few readings yet, here or there.
    Measuring(NodeIndex),
    /// It is no faster there, or hardly.
    NotFaster(Weighed),
    /// What is left to do is too little.
    TooLittleLeft(Weighed),
    /// It went back from there before.
    CameFromThere(NodeIndex),
    /// It went back, and became no faster by it.
    GainedNothing,
    /// It went back so often.
    Often(u32),
    /// It was tried a short while ago.
    Pause,
}

impl Why {
    /// The same for reasons that differ in nothing but numbers.
    #[must_use]
    pub fn kind(&self) -> (u8, NodeIndex) {
        match self {
            Self::Kept(node, obstacle) => (*obstacle as u8, *node),
            Self::NoMeasure => (10, 0),
            Self::Measuring(node) => (11, *node),
            Self::NotFaster(weighed) => (12, weighed.to),
            Self::TooLittleLeft(weighed) => (13, weighed.to),
            Self::CameFromThere(node) => (14, *node),
            Self::GainedNothing => (15, 0),
            Self::Often(_) => (16, 0),
            Self::Pause => (17, 0),
        }
    }
}

/// What becomes of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It goes.
    Goes(Weighed),
    /// It stays.
    Stays(Why),
}

/// What is known of a rank and the nodes where it has been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Where it belongs, if that is elsewhere.
    home: Option<NodeIndex>,
    here: NodeIndex,
    pace: Pace,
    /// Of nodes that it has left.
    paces: BTreeMap<NodeIndex, Pace>,
    /// What it shared those nodes with when it left.
    companies: BTreeMap<NodeIndex, Company>,
    progress: Progress,
    /// Of its last move.
    cost_s: Option<f64>,
    /// Nodes from which it went back.
    went_from: BTreeSet<NodeIndex>,
    returns: u32,
    tries: u32,
    not_before_us: u64,
    /// What a unit took where it went back from: here it is to take less.
    promised: Option<(Unit, f64)>,
    gained_nothing: bool,
    /// The node that is the better one by load alone, and since when.
    less_loaded: Option<(NodeIndex, u64)>,
    /// Why it stays, as it was told last.
    told: Option<(u8, NodeIndex)>,
    told_us: u64,
}

/// Reasons that change more often are not told.
const TOLD_PAUSE_US: u64 = 10_000_000;

impl Ledger {
    /// Of a rank that begins here.
    #[must_use]
    pub fn new(here: NodeIndex) -> Self {
        Self {
            home: None,
            here,
            pace: Pace::default(),
            paces: BTreeMap::new(),
            companies: BTreeMap::new(),
            progress: Progress::default(),
            cost_s: None,
            went_from: BTreeSet::new(),
            returns: 0,
            tries: 0,
            not_before_us: 0,
            promised: None,
            gained_nothing: false,
            less_loaded: None,
            told: None,
            told_us: 0,
        }
    }

    /// A reading of the rank where it is.
    pub fn add(&mut self, progress: &Progress) {
        self.progress = *progress;
        self.pace.add(progress);
        if let Some((unit, before)) = self.promised
            && let Some(now) = self.pace.estimate()
        {
            self.promised = None;
            self.gained_nothing |= now.unit == unit && now.all.middle >= before * (1.0 - STEP_MARGIN / 2.0);
        }
    }

    /// The rank is copied, or stands still: the next reading says nothing of how fast it is.
    pub fn interrupt(&mut self) {
        self.pace.interrupt();
    }

    /// The rank has come to another node, where nothing was measured of it in this stay. `company`: on the node that it has left.
    pub fn moved(&mut self, now_us: u64, to: NodeIndex, way: Way, cost_s: f64, company: Company) {
        let from = std::mem::replace(&mut self.here, to);
        let left = std::mem::take(&mut self.pace);
        if way == Way::Back {
            self.promised = left.estimate().map(|found| (found.unit, found.all.middle));
        } else {
            self.promised = None;
        }
        if left.estimate().is_some() {
            self.paces.insert(from, left);
            self.companies.insert(from, company);
        }
        self.cost_s = Some(cost_s);
        (self.told, self.less_loaded) = (None, None);
        self.tries = 0;
        match way {
            Way::Left => _ = self.home.get_or_insert(from),
            Way::Chosen => self.home = None,
            Way::Back => {
                self.went_from.insert(from);
                self.returns += 1;
                self.pause(now_us, self.returns);
            }
        }
        if self.home == Some(to) {
            self.home = None;
        }
    }

    /// The rank was to go back and could not.
    pub fn failed(&mut self, now_us: u64) {
        self.tries += 1;
        self.pause(now_us, self.tries);
    }

    fn pause(&mut self, now_us: u64, times: u32) {
        let pause = PAUSE_US.saturating_mul(1 << times.saturating_sub(1).min(16));
        self.not_before_us = self.not_before_us.max(now_us.saturating_add(pause));
    }

    /// Where the rank belongs, if it is not there.
    #[must_use]
    pub fn home(&self) -> Option<NodeIndex> {
        self.home
    }

    /// What the rank shared a node with that it has left, if it belongs there.
    #[must_use]
    pub fn company_at(&self, node: NodeIndex) -> Option<Company> {
        self.companies.get(&node).copied().filter(|_| self.home == Some(node))
    }

    /// Seconds that what is left to do takes here; `None`: nobody knows.
    fn left_s(&self, here: &Estimate, circumstances: &Circumstances<'_>) -> Option<f64> {
        let Some(step) = self.progress.step.filter(|step| step.total > 0) else { return circumstances.left_s };
        let told = step.total.saturating_sub(step.done) as f64 * here.all.middle / 1e6;
        Some(circumstances.limit_s.map_or(told, |limit| told.min(limit)))
    }

    /// Whether the rank goes to another node, or why not. `None`: it is where it belongs.
    #[must_use]
    pub fn weigh(&mut self, circumstances: &Circumstances<'_>) -> Option<Verdict> {
        let home = self.home?;
        let restrained = circumstances.restrained;
        if restrained && self.returns >= MAX_RETURNS {
            return Some(Verdict::Stays(Why::Often(self.returns)));
        }
        if restrained && self.gained_nothing {
            return Some(Verdict::Stays(Why::GainedNothing));
        }
        if restrained && circumstances.now_us < self.not_before_us {
            return Some(Verdict::Stays(Why::Pause));
        }
        let Some(here) = self.pace.estimate() else { return Some(Verdict::Stays(Why::Measuring(self.here))) };
        let Some(left_s) = self.left_s(&here, circumstances) else { return Some(Verdict::Stays(Why::NoMeasure)) };
        // What was measured comes before what is concluded from load.
        let value = |weighed: &Weighed| (weighed.by != Measure::Load, weighed.gain_s);
        let (mut best, mut why): (Option<Weighed>, Option<Why>) = (None, None);
        for candidate in circumstances.candidates.iter().filter(|candidate| candidate.node != self.here) {
            match self.weigh_one(&here, left_s, circumstances, candidate) {
                Ok(weighed) if best.is_none_or(|best| value(&weighed) > value(&best)) => best = Some(weighed),
                Ok(_) => {}
                Err(reason) if candidate.node == home => why = Some(reason),
                Err(_) => {}
            }
        }
        let stays = why.unwrap_or(Why::Kept(home, Obstacle::Lost));
        let best = match best {
            Some(best) => self.is_lasting(circumstances.now_us, &best).then_some(best),
            None => {
                self.less_loaded = None;
                None
            }
        };
        Some(best.map_or(Verdict::Stays(stays), Verdict::Goes))
    }

    /// Whether what speaks for going there is more than a moment's load.
    fn is_lasting(&mut self, now_us: u64, best: &Weighed) -> bool {
        let since = self.less_loaded.filter(|(node, _)| best.by == Measure::Load && *node == best.to).map_or(now_us, |(_, since)| since);
        self.less_loaded = (best.by == Measure::Load).then_some((best.to, since));
        best.by != Measure::Load || now_us.saturating_sub(since) >= LOAD_TIME_US
    }

    fn weigh_one(&self, here: &Estimate, left_s: f64, circumstances: &Circumstances<'_>, candidate: &Candidate) -> Result<Weighed, Why> {
        let (to, load) = (candidate.node, circumstances.load);
        if circumstances.restrained && self.went_from.contains(&to) {
            return Err(Why::CameFromThere(to));
        }
        if let Some(obstacle) = candidate.obstacle {
            return Err(Why::Kept(to, obstacle));
        }
        let before = self.companies.get(&to).map_or(0, |company| company.ranks);
        if candidate.processors > 0 && candidate.ranks + 1 > candidate.processors.max(before) {
            return Err(Why::Kept(to, Obstacle::Crowded));
        }
        let measured = self.paces.get(&to).and_then(Pace::estimate).filter(|found| found.unit == here.unit && self.holds(load, candidate));
        // What a unit would take there; the least by which that must be shorter; whether the two differ by more than each varies.
        let (by, there_us, saved_us, margin, clear) = match measured {
            Some(there) => {
                // Of others that it waits for, a rank gets nothing by moving.
                let saved = (here.all.middle - there.all.middle).min(here.own - there.own);
                let (by, margin) = match here.unit {
                    Unit::Step => (Measure::Steps, STEP_MARGIN),
                    Unit::Message => (Measure::Messages, ROUGH_MARGIN),
                };
                (by, there.all.middle, saved, margin, here.all.low > there.all.high)
            }
            None => {
                let (Some(load), Some(theirs)) = (load, candidate.load_with_it()) else { return Err(Why::Measuring(to)) };
                let share = (1.0 / load).min(1.0) / (1.0 / theirs).min(1.0);
                let there = here.all.middle * share;
                (Measure::Load, there, (here.all.middle - there).min(here.own * (1.0 - share)), ROUGH_MARGIN, true)
            }
        };
        let gain_s = left_s * saved_us / here.all.middle;
        let cost_s = self.cost_s.unwrap_or(LEAST_COST_S);
        let price_s = cost_s * f64::from(1u32 << self.returns.min(16));
        let weighed = Weighed { to, by, here_us: here.all.middle, there_us, left_s, gain_s, cost_s, price_s };
        if saved_us < margin * here.all.middle || !clear {
            return Err(Why::NotFaster(weighed));
        }
        if gain_s <= price_s {
            return Err(Why::TooLittleLeft(weighed));
        }
        Ok(weighed)
    }

    /// Whether what was measured at a node still says what it would be like there: it is not much busier than it was, nor than the one here.
    fn holds(&self, load: Option<f64>, candidate: &Candidate) -> bool {
        let then = self.companies.get(&candidate.node).and_then(|company| company.load);
        let (Some(then), Some(now)) = (then, candidate.load_with_it()) else { return true };
        !is_clearly_busier(now, then) || load.is_some_and(|here| !is_clearly_busier(now, here))
    }

    /// Whether this reason to stay is to be told: it is another one than the last, and that was a while ago.
    pub fn tells(&mut self, now_us: u64, why: &Why) -> bool {
        let known = self.told == Some(why.kind());
        let soon = self.told.is_some() && now_us < self.told_us.saturating_add(TOLD_PAUSE_US);
        if known || soon || matches!(why, Why::Measuring(node) if *node == self.here) {
            return false;
        }
        (self.told, self.told_us) = (Some(why.kind()), now_us);
        true
    }
}

/// Whether it is worth it that all of these go at the same time: ranks wait for each other, so that moves cost the job one after the other, and the
/// slowest rank gains.
#[must_use]
pub fn is_worth(all: &[Weighed]) -> bool {
    let price: f64 = all.iter().map(|one| one.price_s).sum();
    all.iter().any(|one| one.gain_s > price)
}

#[cfg(test)]
mod tests;
