//! How fast a rank is at a place: what a unit of its work takes there. The unit is a time step that its program tells, or else a message.
//!
//! Readings come about once a second. Between two of them in which the program came further lies an interval; what counts is the middle one
//! of the newest [`KEPT`]: a checkpoint, or another rank's move, makes one of them long and changes nothing.
//!
//! Faults assumed: readings that come late, twice or go back (after a rollback), counters of any size.

use mend_messages::progress::Progress;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Intervals that count.
pub const KEPT: usize = 16;
/// As many are needed to say anything.
pub const NEEDED: usize = 5;
/// Intervals at the beginning that do not count: the rank has just come, and so has what it needs.
const WARM_UP: usize = 1;

/// What a unit of work is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// A time step, as the program tells.
    Step,
    /// A message over the fabric.
    #[default]
    Message,
}

/// Where a rank stood at a reading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Point {
    /// Units that were done, and when the last was.
    units: u64,
    at_us: u64,
    /// As read, and when that was.
    waited_us: u64,
    read_us: u64,
}

/// What a unit took in one interval, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Interval {
    all: f64,
    /// Of it, what the rank did not wait for others.
    own: f64,
}

/// Three of many values, microseconds per unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// A quarter of the values is below.
    pub low: f64,
    /// Half of them are.
    pub middle: f64,
    /// Three quarters are.
    pub high: f64,
}

/// What a unit of a rank's work takes at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// What the unit is.
    pub unit: Unit,
    /// From one to the next.
    pub all: Spread,
    /// Of that the middle of what the rank did not wait for others.
    pub own: f64,
}

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    unit: Unit,
    last: Option<Point>,
    skipped: usize,
    intervals: VecDeque<Interval>,
}

impl Pace {
    /// A reading.
    pub fn add(&mut self, progress: &Progress) {
        let unit = if progress.step.is_some() { Unit::Step } else { Unit::Message };
        let (units, at_us) = progress.step.map_or((progress.calls, progress.at_us), |step| (step.done, step.at_us));
        let point = Point { units, at_us, waited_us: progress.waited_us, read_us: progress.at_us };
        if unit != self.unit {
            *self = Self { unit, ..Self::default() };
        }
        let Some(last) = self.last else {
            self.last = Some(point);
            return;
        };
        if units < last.units || at_us < last.at_us || progress.at_us < last.read_us || progress.waited_us < last.waited_us {
            // Another life of the process: what was measured holds, but nothing lies between the two.
            self.last = Some(point);
            return;
        }
        let (count, us) = (units - last.units, at_us - last.at_us);
        if count == 0 || us == 0 {
            return;
        }
        self.last = Some(point);
        if self.skipped < WARM_UP {
            self.skipped += 1;
            return;
        }
        let (waited, read) = ((point.waited_us - last.waited_us) as f64, (point.read_us - last.read_us) as f64);
        let share = if read > 0.0 { (waited / read).clamp(0.0, 1.0) } else { 0.0 };
        let all = us as f64 / count as f64;
        self.intervals.push_back(Interval { all, own: all * (1.0 - share) });
        if self.intervals.len() > KEPT {
            self.intervals.pop_front();
        }
    }

    /// The next reading is not to be compared with those before it.
    pub fn interrupt(&mut self) {
        self.last = None;
        self.skipped = 0;
    }

    /// What a unit takes; `None` as long as too little was seen.
    #[must_use]
    pub fn estimate(&self) -> Option<Estimate> {
        if self.intervals.len() < NEEDED {
            return None;
        }
        let sorted = |value: fn(&Interval) -> f64| {
            let mut values: Vec<f64> = self.intervals.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (all, own) = (sorted(|one| one.all), sorted(|one| one.own));
        let at = |values: &[f64], quarters: usize| values[(values.len() - 1) * quarters / 4];
        let all = Spread { low: at(&all, 1), middle: at(&all, 2), high: at(&all, 3) };
        Some(Estimate { unit: self.unit, all, own: at(&own, 2) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::progress::Step;
    use proptest::prelude::*;

    fn step(done: u64, at_us: u64, waited_us: u64) -> Progress {
        Progress { step: Some(Step { done, total: 1000, at_us }), calls: 7, waited_us, at_us: at_us + 10 }
    }

    #[test]
    fn the_middle_interval_counts_and_a_stop_changes_nothing() {
        let mut pace = Pace::default();
        let mut at = 0;
        for done in 0..12u64 {
            // One interval in which a checkpoint stood in the way.
            at += if done == 6 { 9_000_000 } else { 1_000_000 };
            pace.add(&step(done * 10, at, at / 4));
            assert_eq!(pace.estimate().is_some(), done as usize > NEEDED, "{done}");
        }
        let found = pace.estimate().unwrap();
        assert_eq!((found.unit, found.all.low, found.all.middle, found.all.high), (Unit::Step, 1e5, 1e5, 1e5));
        assert!((found.own - 75_000.0).abs() < 1.0, "{found:?}");
    }

    #[test]
    fn what_goes_back_is_another_life_and_steps_take_the_place_of_messages() {
        let mut pace = Pace::default();
        for at in 0..9u64 {
            pace.add(&Progress { step: None, calls: at * 1000, waited_us: 0, at_us: at * 1_000_000 });
        }
        assert_eq!(pace.estimate().map(|found| (found.unit, found.all.middle)), Some((Unit::Message, 1000.0)));
        // After a rollback the counter is lower; a long time lies between the two, which is no interval.
        pace.add(&Progress { step: None, calls: 100, waited_us: 0, at_us: 99_000_000 });
        pace.add(&Progress { step: None, calls: 1100, waited_us: 0, at_us: 100_000_000 });
        assert_eq!(pace.estimate().map(|found| found.all.high), Some(1000.0));
        pace.add(&step(1, 101_000_000, 0));
        assert_eq!(pace.estimate(), None);
    }

    #[test]
    fn steps_that_take_longer_than_a_reading_are_measured_from_one_to_the_next() {
        let mut pace = Pace::default();
        for second in 0..60u64 {
            // A step each seven seconds, a reading each second.
            let done = second / 7;
            pace.add(&Progress { at_us: second * 1_000_000, ..step(done, done * 7_000_000, 0) });
        }
        assert_eq!(pace.estimate().map(|found| found.all.middle), Some(7e6));
    }

    proptest! {
        #[test]
        fn any_readings_give_a_time_above_none_or_nothing(
            all in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 0..80),
        ) {
            let mut pace = Pace::default();
            for (done, at_us, waited_us, read_us, steps) in all {
                let step = steps.then_some(Step { done, total: 0, at_us });
                pace.add(&Progress { step, calls: done, waited_us, at_us: read_us });
                prop_assert!(pace.intervals.len() <= KEPT);
                if let Some(Estimate { all, own, .. }) = pace.estimate() {
                    prop_assert!(all.low > 0.0 && all.low <= all.middle && all.middle <= all.high && all.high.is_finite());
                    prop_assert!(own >= 0.0 && own.is_finite());
                }
            }
        }
    }
}
