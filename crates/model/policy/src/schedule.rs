//! What a job knows about its checkpoints, and when the next one is due.
//!
//! ```text
//!            ┌────────── taken: due again an interval later ◄──────────┐
//! waiting ──► due ──► the caller begins one ──► taken, or failed: due again after a pause that doubles
//! ```
//! Invariants: without an interval nothing is ever due; a checkpoint that anybody asked for counts like one that was due;
//! after a failure the pause never shrinks until one succeeds; a chain never grows past [`MAX_INCREMENTALS`].
//! Faults assumed: costs may be measured as zero or as absurdly large; the clock stands still but never goes back.

use crate::chain::{Costs, plan};
use crate::interval::{daly, job_mtbf, unforeseen_mtbf};
use crate::restarts::Restarts;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most incremental checkpoints that build on one full one: a restart opens them all at once.
pub const MAX_INCREMENTALS: u32 = 31;
/// With `auto`, the first checkpoint comes at most this late, so that costs are known. Seconds.
const FIRST_CHECKPOINT_S: f64 = 300.0;
/// What a checkpoint is taken to cost before one was measured. Seconds.
const ASSUMED_COST_S: f64 = 1.0;
/// Shortest interval that `auto` chooses. Seconds.
const MIN_INTERVAL_S: f64 = 1.0;
/// Least cost reckoned with; a measured one may be zero. Seconds.
const MIN_COST_S: f64 = 1e-4;
/// What writing behind a running program costs it, as a share of the time that takes: copied pages, shared disks.
const BACKGROUND_COST_SHARE: f64 = 0.1;
/// Weight of the newest measurement.
const NEWEST_WEIGHT: f64 = 0.5;
/// The pause after failures does not grow past this (or the interval, if that is longer). Microseconds.
const MAX_PAUSE_US: u64 = 600_000_000;

/// When checkpoints are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Interval {
    /// When somebody asks.
    #[default]
    Off,
    /// From the beginning of one to that of the next, seconds.
    Every(u64),
    /// As costs and failures make it best.
    Auto,
}

/// Incremental checkpoints between two full ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Incremental {
    /// None: all are full.
    Off,
    /// At most so many.
    Count(u32),
    /// As costs and failures make it best.
    Auto,
}

/// What the user wants, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// When checkpoints are taken.
    pub interval: Interval,
    /// Which of them are incremental.
    pub incremental: Incremental,
    /// Mean time between failures of one node, seconds.
    pub node_mtbf_s: u64,
    /// Nodes the job depends on.
    pub nodes: u32,
    /// Of a hundred failures those that the job's ranks leave in time, below 100.
    pub averted_percent: u32,
    /// A chain that would take more than this, per cent of its full checkpoint, is not continued; `None`: others bound it.
    pub space_percent: Option<u32>,
}

/// What kind a checkpoint turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointKind {
    /// All images are full.
    Full,
    /// All build on older ones.
    Incremental,
    /// Some of both (a rank that moved begins anew): says little about the cost of either.
    Mixed,
}

impl fmt::Display for CheckpointKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Full => "full",
            Self::Incremental => "incremental",
            Self::Mixed => "partly full",
        })
    }
}

/// A checkpoint that was taken. Microseconds on the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// When it was begun.
    pub begun_us: u64,
    /// When it was complete.
    pub ended_us: u64,
    /// How long the job stood still.
    pub stopped_us: u64,
    /// Writing the images, of the slowest rank.
    pub write_us: u64,
    /// Length of all images.
    pub bytes: u64,
    /// What it is.
    pub kind: CheckpointKind,
    /// Images that a restart from it needs of one rank, less one; of the rank that needs most.
    pub chain: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Measured {
    cost_s: f64,
    write_s: f64,
    bytes: f64,
}

/// The state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    rules: Rules,
    due_us: Option<u64>,
    failures: u32,
    full: Option<Measured>,
    incremental: Option<Measured>,
    /// Seconds that restarts of this job took per byte of all ranks' images.
    read_s_per_byte: Option<f64>,
    chain: u32,
    space: ChainSpace,
}

/// An interval that the policy has chosen, and what it was chosen by. Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// From one checkpoint to the next.
    pub interval_s: f64,
    /// Incremental checkpoints between two full ones.
    pub incrementals: u32,
    /// What a full checkpoint costs the job; `None` before one was measured.
    pub cost_s: Option<f64>,
    /// What an incremental one costs.
    pub incremental_cost_s: Option<f64>,
    /// Between two failures of the job that it does not leave in time.
    pub mtbf_s: f64,
    /// Of a hundred failures those that it does.
    pub averted_percent: u32,
}

impl Choice {
    /// Whether somebody who knows that one would want to know this one: another number of incremental checkpoints, or an interval that is
    /// a quarter longer or shorter.
    #[must_use]
    pub fn differs(&self, known: &Self) -> bool {
        let ratio = self.interval_s / known.interval_s.max(1e-9);
        self.incrementals != known.incrementals || !(0.8..=1.25).contains(&ratio)
    }
}

/// Bytes of the chain that the next checkpoint would build on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ChainSpace {
    /// Of its full checkpoint.
    full: u64,
    /// Of all of it.
    total: u64,
    /// Of the newest incremental one, which the next is expected to equal.
    newest: u64,
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn microseconds(seconds: f64) -> u64 {
    // The conversion saturates.
    (seconds * 1e6) as u64
}

fn smoothed(old: Option<Measured>, new: Measured) -> Measured {
    let Some(old) = old else { return new };
    let mix = |old: f64, new: f64| old + NEWEST_WEIGHT * (new - old);
    Measured { cost_s: mix(old.cost_s, new.cost_s), write_s: mix(old.write_s, new.write_s), bytes: mix(old.bytes, new.bytes) }
}

impl Schedule {
    /// The schedule of a job that begins now, new or restarted.
    #[must_use]
    pub fn new(rules: Rules, now_us: u64) -> Self {
        let space = ChainSpace::default();
        let mut schedule = Self { rules, due_us: None, failures: 0, full: None, incremental: None, read_s_per_byte: None, chain: 0, space };
        schedule.due_us = schedule.interval_s().map(|interval| now_us.saturating_add(microseconds(interval)));
        schedule
    }

    /// True if a checkpoint is to begin now.
    #[must_use]
    pub fn due(&self, now_us: u64) -> bool {
        self.due_us.is_some_and(|due| due <= now_us)
    }

    /// When the next one is due; `None`: when somebody asks.
    #[must_use]
    pub fn next_us(&self) -> Option<u64> {
        self.due_us
    }

    /// True if the next checkpoint is to build on the last one.
    #[must_use]
    pub fn builds(&self) -> bool {
        self.chain < self.incrementals() && self.has_space()
    }

    fn has_space(&self) -> bool {
        let ChainSpace { full, total, newest } = self.space;
        let wanted = u128::from(total) + u128::from(newest);
        self.rules.space_percent.is_none_or(|percent| wanted * 100 <= u128::from(full) * u128::from(percent))
    }

    /// Seconds of an interval now; `None` without one.
    #[must_use]
    pub fn interval_s(&self) -> Option<f64> {
        match self.rules.interval {
            Interval::Off => None,
            Interval::Every(seconds) => Some(seconds as f64),
            Interval::Auto => Some(
                match self.full {
                    None => daly(ASSUMED_COST_S, self.mtbf_s()).min(FIRST_CHECKPOINT_S),
                    Some(full) => self.auto_interval_s(full),
                }
                .max(MIN_INTERVAL_S),
            ),
        }
    }

    /// Incremental checkpoints between two full ones now.
    #[must_use]
    pub fn incrementals(&self) -> u32 {
        match (self.rules.incremental, self.costs()) {
            (Incremental::Off, _) => 0,
            (Incremental::Count(count), _) => count.min(MAX_INCREMENTALS),
            (Incremental::Auto, Some(costs)) => plan(&costs, self.mtbf_s(), MAX_INCREMENTALS).incrementals,
            // One, to learn what it costs.
            (Incremental::Auto, None) => 1,
        }
    }

    /// A checkpoint is complete, whoever asked for it.
    pub fn taken(&mut self, taken: &Taken) {
        let behind = seconds(taken.ended_us.saturating_sub(taken.begun_us).saturating_sub(taken.stopped_us));
        let cost_s = (seconds(taken.stopped_us) + BACKGROUND_COST_SHARE * behind).max(MIN_COST_S);
        let measured = Measured { cost_s, write_s: seconds(taken.write_us), bytes: taken.bytes as f64 };
        match taken.kind {
            CheckpointKind::Full => self.full = Some(smoothed(self.full, measured)),
            CheckpointKind::Incremental => self.incremental = Some(smoothed(self.incremental, measured)),
            CheckpointKind::Mixed => {}
        }
        self.space = match taken.kind {
            CheckpointKind::Full => ChainSpace { full: taken.bytes, total: taken.bytes, newest: 0 },
            _ => ChainSpace { total: self.space.total.saturating_add(taken.bytes), newest: taken.bytes, ..self.space },
        };
        self.chain = taken.chain;
        self.failures = 0;
        self.due_us = self.interval_s().map(|interval| match self.rules.interval {
            // Never more than half of the time for checkpoints.
            Interval::Every(_) => {
                let next = taken.begun_us.saturating_add(microseconds(interval));
                next.max(taken.ended_us.saturating_add(taken.stopped_us))
            }
            _ => taken.ended_us.saturating_add(microseconds(interval)),
        });
    }

    /// One that was due could not be taken.
    pub fn failed(&mut self, now_us: u64) {
        let interval = self.interval_s().map_or(0, microseconds).max(microseconds(MIN_INTERVAL_S));
        let doubled = interval.saturating_mul(1 << self.failures.min(32));
        self.failures = self.failures.saturating_add(1);
        if self.due_us.is_some() {
            self.due_us = Some(now_us.saturating_add(doubled.min(MAX_PAUSE_US.max(interval))));
        }
    }

    /// Older members of the chain were merged: a restart from the newest checkpoint needs `chain` images besides its own.
    pub fn merged(&mut self, chain: u32) {
        self.chain = chain;
    }

    /// What restarts of the job took is known, as far as there were any: it takes the place of the estimate from then on.
    pub fn restarted(&mut self, restarts: &Restarts) {
        self.read_s_per_byte = restarts.seconds_per_byte().or(self.read_s_per_byte);
    }

    /// How much longer an incremental checkpoint of the usual length makes a restart, seconds; `None` as long as none was
    /// taken, or no full one.
    #[must_use]
    pub fn extra_recovery_s(&self) -> Option<f64> {
        self.costs().map(|costs| costs.extra_recovery_s)
    }

    /// What `auto` has chosen, and by what; `None` where the user has.
    #[must_use]
    pub fn choice(&self) -> Option<Choice> {
        let interval_s = self.interval_s().filter(|_| self.rules.interval == Interval::Auto)?;
        Some(Choice {
            interval_s,
            incrementals: self.incrementals(),
            cost_s: self.full.map(|full| full.cost_s),
            incremental_cost_s: self.incremental.map(|incremental| incremental.cost_s),
            mtbf_s: self.mtbf_s(),
            averted_percent: self.rules.averted_percent,
        })
    }

    fn mtbf_s(&self) -> f64 {
        let all = job_mtbf((self.rules.node_mtbf_s as f64).max(1.0), self.rules.nodes);
        unforeseen_mtbf(all, self.rules.averted_percent)
    }

    fn costs(&self) -> Option<Costs> {
        let (full, incremental) = (self.full?, self.incremental?);
        // As long as no restart was measured: images are read about as fast as a full one is written.
        let per_byte = self.read_s_per_byte.unwrap_or(full.write_s / full.bytes.max(1.0));
        let extra_recovery_s = per_byte * incremental.bytes;
        Some(Costs { full_s: full.cost_s, incremental_s: incremental.cost_s, extra_recovery_s })
    }

    fn auto_interval_s(&self, full: Measured) -> f64 {
        match (self.costs(), self.rules.incremental) {
            (Some(costs), Incremental::Auto) => plan(&costs, self.mtbf_s(), MAX_INCREMENTALS).interval_s,
            (Some(costs), Incremental::Count(count)) => {
                let count = f64::from(count.min(MAX_INCREMENTALS));
                daly((costs.full_s + count * costs.incremental_s) / (count + 1.0), self.mtbf_s())
            }
            _ => daly(full.cost_s, self.mtbf_s()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restarts::Restart;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;

    fn rules(interval: Interval, incremental: Incremental) -> Rules {
        Rules { interval, incremental, node_mtbf_s: 86_400, nodes: 4, averted_percent: 0, space_percent: None }
    }

    fn taken(at: u64, kind: CheckpointKind, chain: u32, stopped_us: u64) -> Taken {
        Taken { begun_us: at, ended_us: at + stopped_us, stopped_us, write_us: stopped_us, bytes: 1000, kind, chain }
    }

    #[test]
    fn off_is_off() {
        let mut schedule = Schedule::new(rules(Interval::Off, Incremental::Auto), 0);
        schedule.failed(5);
        schedule.taken(&taken(9, CheckpointKind::Full, 0, 1));
        assert!(!schedule.due(u64::MAX) && schedule.next_us().is_none());
    }

    #[test]
    fn every_so_many_seconds_and_each_fourth_is_full() {
        let mut schedule = Schedule::new(rules(Interval::Every(10), Incremental::Count(3)), 0);
        let (mut now, mut kinds) = (0, Vec::new());
        for _ in 0..9 {
            assert!(!schedule.due(now));
            now += 10 * SECOND;
            assert!(schedule.due(now));
            let chain = if schedule.builds() && !kinds.is_empty() { schedule.chain + 1 } else { 0 };
            kinds.push(chain);
            let kind = if chain == 0 { CheckpointKind::Full } else { CheckpointKind::Incremental };
            schedule.taken(&taken(now, kind, chain, SECOND));
        }
        assert_eq!(kinds, [0, 1, 2, 3, 0, 1, 2, 3, 0]);
    }

    #[test]
    fn a_chain_ends_where_one_more_would_take_too_much_space() {
        let rules = Rules { space_percent: Some(150), ..rules(Interval::Every(10), Incremental::Count(20)) };
        let mut schedule = Schedule::new(rules, 0);
        let mut chains = Vec::new();
        for at in 0..12 {
            let chain = if schedule.builds() && at > 0 { schedule.chain + 1 } else { 0 };
            chains.push(chain);
            let (kind, bytes) = if chain == 0 { (CheckpointKind::Full, 1000) } else { (CheckpointKind::Incremental, 120) };
            schedule.taken(&Taken { bytes, ..taken(at, kind, chain, SECOND) });
        }
        assert_eq!(chains, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1], "1480 of 1500 bytes");
    }

    #[test]
    fn the_program_gets_half_of_the_time_at_least() {
        let mut schedule = Schedule::new(rules(Interval::Every(10), Incremental::Off), 0);
        schedule.taken(&taken(10 * SECOND, CheckpointKind::Full, 0, 30 * SECOND));
        assert_eq!(schedule.next_us(), Some(70 * SECOND));
    }

    #[test]
    fn auto_learns_what_checkpoints_cost() {
        let mut schedule = Schedule::new(rules(Interval::Auto, Incremental::Auto), 0);
        let assumed = daly(1.0, 21_600.0);
        assert_eq!(schedule.next_us(), Some((assumed * 1e6) as u64), "a second is assumed, on four nodes that fail daily");
        schedule.taken(&taken(100 * SECOND, CheckpointKind::Full, 0, 10 * SECOND));
        let full = schedule.interval_s().unwrap();
        assert!((full - daly(10.0, 21_600.0)).abs() < 1e-6, "{full}");
        assert!(schedule.builds(), "the cost of an incremental one is to be learnt");
        schedule.taken(&Taken { bytes: 100, ..taken(900 * SECOND, CheckpointKind::Incremental, 1, SECOND) });
        assert!(schedule.interval_s().unwrap() < full / 2.0);
        assert!(schedule.incrementals() > 5, "{}", schedule.incrementals());
        // Incremental ones that save nothing are given up.
        for at in 1..9 {
            schedule.taken(&taken((1000 + 100 * at) * SECOND, CheckpointKind::Incremental, 2, 11 * SECOND));
        }
        assert_eq!(schedule.incrementals(), 0);
    }

    #[test]
    fn a_measured_restart_takes_the_place_of_the_estimate() {
        let mut schedule = Schedule::new(rules(Interval::Auto, Incremental::Auto), 0);
        assert_eq!(schedule.extra_recovery_s(), None);
        schedule.taken(&taken(100 * SECOND, CheckpointKind::Full, 0, 10 * SECOND));
        schedule.taken(&Taken { bytes: 100, ..taken(900 * SECOND, CheckpointKind::Incremental, 1, SECOND) });
        assert_eq!(schedule.extra_recovery_s(), Some(1.0), "a full one of 1000 bytes was written in 10 s");
        let estimated = schedule.incrementals();
        schedule.restarted(&Restarts::default());
        assert_eq!(schedule.extra_recovery_s(), Some(1.0), "none was measured");
        let mut restarts = Restarts::default();
        restarts.add(Restart { read_us: 1200 * SECOND, full: 1000, incremental: 200 });
        schedule.restarted(&restarts);
        assert_eq!(schedule.extra_recovery_s(), Some(100.0), "a second for each byte");
        assert!(schedule.incrementals() < estimated, "{} against {estimated}", schedule.incrementals());
        // Later checkpoints change nothing about what restarts take.
        schedule.taken(&taken(2000 * SECOND, CheckpointKind::Full, 0, 30 * SECOND));
        assert_eq!(schedule.extra_recovery_s(), Some(100.0));
    }

    #[test]
    fn failures_are_tried_again_ever_later() {
        let mut schedule = Schedule::new(rules(Interval::Every(10), Incremental::Off), 0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            schedule.failed(1000);
            pauses.push((schedule.next_us().unwrap() - 1000) / SECOND);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        schedule.taken(&taken(5000 * SECOND, CheckpointKind::Full, 0, SECOND));
        schedule.failed(0);
        assert_eq!(schedule.next_us(), Some(10 * SECOND));
    }

    fn rules_of_any_kind() -> impl Strategy<Value = Rules> {
        let interval = prop_oneof![Just(Interval::Off), (1u64..100_000).prop_map(Interval::Every), Just(Interval::Auto)];
        let incremental = prop_oneof![Just(Incremental::Off), (0u32..100).prop_map(Incremental::Count), Just(Incremental::Auto)];
        let space = proptest::option::of(0u32..1000);
        (interval, incremental, 1u64..u64::MAX, 0u32..200_000, space).prop_map(
            |(interval, incremental, node_mtbf_s, nodes, space_percent)| {
                let averted_percent = nodes % 100;
                Rules { space_percent, interval, incremental, node_mtbf_s, nodes, averted_percent }
            },
        )
    }

    proptest! {
        /// Whatever is measured: the next one is due after the last ended, chains stay within their bound.
        #[test]
        fn it_survives_any_measurement(
            rules in rules_of_any_kind(), events in proptest::collection::vec((any::<u32>(), any::<u64>(), any::<u64>(), 0u8..5), 0..40),
        ) {
            let mut schedule = Schedule::new(rules, 7);
            let (mut now, mut chain, mut restarts) = (7u64, 0, Restarts::default());
            for (pause, long, bytes, what) in events {
                now = now.saturating_add(u64::from(pause));
                if what == 3 {
                    schedule.failed(now);
                } else if what == 4 {
                    restarts.add(Restart { read_us: long, full: bytes, incremental: bytes >> 7 });
                    schedule.restarted(&restarts);
                } else {
                    let (begun, stopped) = (now, long >> (what * 20));
                    now = now.saturating_add(stopped);
                    chain = if schedule.builds() { chain + 1 } else { 0 };
                    prop_assert!(chain <= MAX_INCREMENTALS);
                    let kind = [CheckpointKind::Full, CheckpointKind::Incremental, CheckpointKind::Mixed][usize::from(what)];
                    let done = Taken { begun_us: begun, ended_us: now, stopped_us: stopped, write_us: stopped, bytes, kind, chain };
                    schedule.taken(&done);
                }
                prop_assert_eq!(schedule.next_us().is_some(), rules.interval != Interval::Off);
                // A restart that was measured sets no date.
                prop_assert!(what == 4 || schedule.next_us().is_none_or(|due| due >= now));
                prop_assert!(schedule.interval_s().is_none_or(|interval| interval >= 1.0 && interval.is_finite()));
                prop_assert!(schedule.incrementals() <= MAX_INCREMENTALS);
                prop_assert!(schedule.extra_recovery_s().is_none_or(|extra| extra >= 0.0 && extra.is_finite()));
            }
        }
    }
}
