//! How often something has happened in the last hour, by what a sensor says of the time since it began to count.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What is judged is what came within this time, microseconds.
const COUNTED_US: u64 = 3_600_000_000;
/// Of what is said more often than this, microseconds, not all is remembered: so an hour takes little room.
const STEP_US: u64 = 30_000_000;

/// What kind of number a sensor gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// How much there is of something now.
    #[default]
    Level,
    /// How often something has happened since some time: what counts is how often it did in the last hour.
    Counter,
    /// How much there is of something that may become less again: what counts is by how much it became more in the last hour.
    Rise,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// What was said last.
    said: Option<f64>,
    /// How much has come since it was heard first.
    total: f64,
    /// Totals, and when they were reached. All but the oldest are of the last hour.
    reached: VecDeque<(u64, f64)>,
}

impl Counts {
    /// It says something. How much has come in the last hour; of a sensor that speaks more seldom, since its last word but one.
    pub fn add(&mut self, now_us: u64, value: f64, kind: Kind) -> f64 {
        let before = self.said.replace(value).unwrap_or(value);
        if value < before && kind == Kind::Counter {
            // It began anew, at 0: a reboot, or its driver's.
            self.reached = VecDeque::from([(now_us.saturating_sub(1), self.total)]);
            self.total += value;
        } else {
            self.total += (value - before).max(0.0);
        }
        if self.reached.back().is_none_or(|(at, _)| now_us.saturating_sub(*at) >= STEP_US) {
            self.reached.push_back((now_us, self.total));
        }
        while self.reached.get(1).is_some_and(|(at, _)| now_us.saturating_sub(*at) >= COUNTED_US) {
            self.reached.pop_front();
        }
        self.total - self.reached.front().map_or(self.total, |(_, total)| *total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn an_hour_is_an_hour_however_often_it_speaks() {
        for every in [1, 2, 60, 360, 1800] {
            let mut counts = Counts::default();
            // 3600 an hour.
            let said: Vec<f64> =
                (0..7200 / every).map(|at| counts.add(at * every * SECOND, 1e6 + (at * every) as f64, Kind::Counter)).collect();
            assert_eq!(said[0], 0.0);
            let last = *said.last().unwrap();
            assert!((3600.0..=3660.0).contains(&last), "every {every} s: {last}");
            assert!(counts.reached.len() <= 123, "{}", counts.reached.len());
        }
        // Once in four hours: since then.
        let mut counts = Counts::default();
        let hour = |at: u64| at * 3600 * SECOND;
        assert_eq!([0, 4, 8].map(|at| counts.add(hour(at), at as f64, Kind::Counter)), [0.0, 4.0, 4.0]);
    }

    #[test]
    fn one_that_came_long_ago_does_not_count() {
        let mut counts = Counts::default();
        let mut at = |second: u64, value| counts.add(second * SECOND, value, Kind::Counter);
        assert_eq!((at(0, 5.0), at(10, 6.0), at(3000, 6.0)), (0.0, 1.0, 1.0));
        assert_eq!((at(3700, 6.0), at(7400, 6.0), at(7402, 8.0)), (1.0, 0.0, 2.0));
    }

    #[test]
    fn what_falls_began_anew_or_became_less() {
        let said = |kind| {
            let mut counts = Counts::default();
            [60.0, 59.0, 61.0, 61.0].iter().zip(1..).map(|(value, at)| counts.add(at * 60 * SECOND, *value, kind)).collect::<Vec<f64>>()
        };
        assert_eq!(said(Kind::Counter), [0.0, 59.0, 61.0, 61.0]);
        assert_eq!(said(Kind::Rise), [0.0, 0.0, 2.0, 2.0]);
    }
}
