//! Where a sensor is heading: a straight line through what it said lately (least squares).
//!
//! Few sensors move in straight lines for long; but ranks leave within seconds or minutes, and over such a time a line says as much as most
//! other models. Where more is known of a sensor, a plug-in predicts.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Values that are remembered of a sensor, at most.
const MAX_VALUES: usize = 128;
/// Values that a line needs.
const MIN_VALUES: usize = 4;
/// Share of the variance that the line must explain, so that it is one (the coefficient of determination).
const LEAST_FIT: f64 = 0.8;

/// What a sensor said, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    values: VecDeque<(u64, f64)>,
}

impl History {
    /// One more value. What is no number, or comes before the last, is passed over. What is older than `window_us` is forgotten, but for as
    /// many as a line needs.
    pub fn add(&mut self, now_us: u64, value: f64, window_us: u64) {
        if !value.is_finite() || self.values.back().is_some_and(|(last, _)| *last >= now_us) {
            return;
        }
        self.values.push_back((now_us, value));
        let old = |values: &VecDeque<(u64, f64)>| values.front().is_some_and(|(at, _)| now_us.saturating_sub(*at) > window_us);
        while self.values.len() > MAX_VALUES || self.values.len() > MIN_VALUES && old(&self.values) {
            self.values.pop_front();
        }
    }

    /// All of it: when, and what.
    pub fn values(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.values.iter().copied()
    }

    /// When it said something last, and what.
    #[must_use]
    pub fn last(&self) -> Option<(u64, f64)> {
        self.values.back().copied()
    }

    /// By how much it changes in a second. `None`: there are too few values.
    #[must_use]
    pub fn slope(&self) -> Option<f64> {
        self.line().map(|(slope, ..)| slope)
    }

    /// Slope per second, the line's value now, and how well it fits, from 0 to 1.
    fn line(&self) -> Option<(f64, f64, f64)> {
        let (last_us, _) = self.last().filter(|_| self.values.len() >= MIN_VALUES)?;
        // Seconds before the last value, so that the line's value now is its intercept.
        let points = || self.values.iter().map(|(at, value)| (-((last_us - at) as f64) / 1e6, *value));
        let count = self.values.len() as f64;
        let (sum_x, sum_y) = points().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
        let (mean_x, mean_y) = (sum_x / count, sum_y / count);
        let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
        for (x, y) in points() {
            xx += (x - mean_x) * (x - mean_x);
            xy += (x - mean_x) * (y - mean_y);
            yy += (y - mean_y) * (y - mean_y);
        }
        if xx <= 0.0 {
            return None;
        }
        let slope = xy / xx;
        let fit = if yy > 0.0 { (xy * xy / (xx * yy)).clamp(0.0, 1.0) } else { 0.0 };
        Some((slope, mean_y - slope * mean_x, fit)).filter(|(slope, now, _)| slope.is_finite() && now.is_finite())
    }

    /// Seconds from the last value until it reaches this one, if it goes on as it does. `None`: it does not head there, or not clearly.
    #[must_use]
    pub fn seconds_until(&self, value: f64) -> Option<f64> {
        let (slope, now, fit) = self.line()?;
        let left = (value - now) / slope;
        (fit >= LEAST_FIT && left.is_finite() && left > 0.0).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;

    fn history(values: &[f64]) -> History {
        let mut history = History::default();
        (1..).zip(values).for_each(|(at, value)| history.add(at * SECOND, *value, 1000 * SECOND));
        history
    }

    #[test]
    fn a_straight_line_is_found_and_noise_is_not() {
        let rising = history(&[10.0, 12.0, 14.0, 16.0, 18.0]);
        assert!((rising.slope().unwrap() - 2.0).abs() < 1e-9);
        assert!((rising.seconds_until(28.0).unwrap() - 5.0).abs() < 1e-9);
        assert_eq!(rising.seconds_until(5.0), None);
        assert!((history(&[20.0, 18.0, 16.0, 14.0]).seconds_until(10.0).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(history(&[10.0, 12.0, 14.0]).slope(), None);
        assert_eq!(history(&[50.0, 90.0, 40.0, 80.0, 60.0, 70.0]).seconds_until(100.0), None);
        assert_eq!(history(&[7.0; 20]).seconds_until(8.0), None);
    }

    #[test]
    fn what_is_old_or_nonsense_is_forgotten() {
        let mut history = History::default();
        for at in 0..1000u64 {
            history.add(at * SECOND, at as f64, 10 * SECOND);
            history.add(at * SECOND, f64::NAN, 10 * SECOND);
        }
        assert_eq!((history.values().count(), history.last()), (11, Some((999 * SECOND, 999.0))));
        history.add(5 * SECOND, 1.0, 10 * SECOND);
        assert_eq!(history.last(), Some((999 * SECOND, 999.0)));
        history.add(9999 * SECOND, 5.0, 10 * SECOND);
        assert_eq!(history.values().count(), MIN_VALUES);
    }

    proptest! {
        /// Whatever it says: a time that is told is one, and the true one where the values lie on a line.
        #[test]
        fn lines_are_met(start in -1e4..1e4, slope in -1e2..1e2f64, count in 4usize..40, goal in -1e5..1e5) {
            prop_assume!(slope.abs() > 1e-3);
            let values: Vec<f64> = (0..count).map(|at| start + slope * at as f64).collect();
            let left = (goal - values[count - 1]) / slope;
            match history(&values).seconds_until(goal) {
                Some(told) => prop_assert!((told - left).abs() <= 1e-3 * left.abs().max(1.0)),
                None => prop_assert!(left <= 1e-3),
            }
        }

        #[test]
        fn any_values_do_no_harm(values in proptest::collection::vec(any::<f64>(), 0..50), goal: f64) {
            let left = history(&values).seconds_until(goal);
            prop_assert!(left.is_none_or(|left| left.is_finite() && left > 0.0));
        }
    }
}
