//! All sensors of a node: the worst of them is how the node is.

use super::marks::MarkRules;
use super::watch::{Rules, Sample, Watch};
use mend_messages::health::{Grade, Milli, NodeHealth, Reading};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sensors of one node, at most; more are passed over.
const MOST_SENSORS: usize = 4096;
/// Of so many sensors it is said what is the matter with them.
const MOST_REASONS: usize = 4;

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeWatch {
    rules: Rules,
    marks: MarkRules,
    sensors: BTreeMap<String, Watch>,
}

impl NodeWatch {
    /// A node of which nothing is known yet.
    #[must_use]
    pub fn new(rules: Rules, marks: MarkRules) -> Self {
        Self { rules, marks, sensors: BTreeMap::new() }
    }

    /// Some of its sensors say something.
    pub fn take(&mut self, now_us: u64, samples: Vec<Sample>) {
        for mut sample in samples {
            if sample.value.is_some() && self.marks.has_marks(&sample.sensor) {
                // The operator knows better than the sensor.
                sample.told = Grade::Well;
            }
            let judged = (self.marks.marks(&sample.sensor, sample.marks), !self.marks.is_off(&sample.sensor));
            if !self.sensors.contains_key(&sample.sensor) && self.sensors.len() >= MOST_SENSORS {
                continue;
            }
            let watch = self.sensors.entry(sample.sensor.clone()).or_insert_with(|| Watch::new(&sample));
            watch.take(now_us, sample, judged, &self.rules);
        }
        self.sensors.retain(|_, watch| watch.age_us(now_us) <= self.rules.stale_us);
    }

    /// Sensors past their low mark, and not past the high one, that have a history: what is to be predicted.
    pub fn to_predict(&self) -> impl Iterator<Item = &Watch> {
        self.sensors.values().filter(|watch| watch.grade() == Grade::Low && watch.marks().is_some())
    }

    /// A plug-in says when a sensor passes its high mark, in microseconds from now; `None`: never.
    pub fn predict(&mut self, now_us: u64, sensor: &str, left_us: Option<u64>) {
        if let Some(watch) = self.sensors.get_mut(sensor) {
            watch.predict(now_us, left_us);
        }
    }

    /// How it is.
    #[must_use]
    pub fn verdict(&self, now_us: u64) -> NodeHealth {
        let grade = self.sensors.values().map(Watch::grade).max().unwrap_or_default();
        if grade == Grade::Well {
            return NodeHealth::default();
        }
        let mut bad: Vec<&Watch> = self.sensors.values().filter(|watch| watch.grade() > Grade::Well).collect();
        bad.sort_by_key(|watch| std::cmp::Reverse(watch.grade()));
        let mut reasons: Vec<String> = bad.iter().take(MOST_REASONS).map(|watch| watch.reason(now_us)).collect();
        if bad.len() > MOST_REASONS {
            reasons.push(format!("and {} more", bad.len() - MOST_REASONS));
        }
        let left = bad.iter().filter_map(|watch| watch.left_us(now_us)).min().filter(|_| grade == Grade::Low);
        NodeHealth { grade, left_ms: left.map(|us| us / 1000), why: reasons.join("; ") }
    }

    /// What all sensors say, for people.
    #[must_use]
    pub fn readings(&self, now_us: u64) -> Vec<Reading> {
        let reading = |watch: &Watch| Reading {
            sensor: watch.last().sensor.clone(),
            value: Milli::of(watch.last().value.unwrap_or_default()),
            unit: watch.last().unit.clone(),
            marks: watch.marks().map(|marks| (Milli::of(marks.low()), Milli::of(marks.high()))),
            grade: watch.grade(),
            per_minute: watch.history().slope().map(|slope| Milli::of(slope * 60.0)),
            left_ms: watch.left_us(now_us).map(|us| us / 1000),
            age_ms: watch.age_us(now_us) / 1000,
        };
        self.sensors.values().map(reading).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::leaving;
    use crate::health::marks::Marks;
    use mend_messages::control::MoveMode;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    const SECOND: u64 = 1_000_000;
    const RULES: Rules = Rules { calm_us: 30 * SECOND, horizon_us: 30 * SECOND, window_us: 60 * SECOND, stale_us: 300 * SECOND };

    fn temperature(value: f64) -> Sample {
        Sample { sensor: "bmc:CPU".into(), value: Some(value), marks: Marks::new(85.0, 95.0), ..Sample::default() }
    }

    #[test]
    fn the_worst_sensor_counts_and_one_that_falls_silent_is_forgotten() {
        let mut node = NodeWatch::new(RULES, MarkRules::default());
        node.take(
            SECOND,
            vec![
                temperature(86.0),
                Sample { sensor: "disk:/tmp".into(), value: Some(99.5), marks: Marks::new(95.0, 99.0), ..Sample::default() },
            ],
        );
        let health = node.verdict(SECOND);
        assert_eq!(health.grade, Grade::High);
        assert_eq!(health.why, "disk:/tmp is 99.5, high mark 99; bmc:CPU is 86, low mark 85");
        assert_eq!(leaving(&health).map(|leaving| leaving.mode), Some(MoveMode::Frozen));
        node.take(400 * SECOND, vec![temperature(20.0)]);
        assert_eq!(node.readings(400 * SECOND).len(), 1);
        node.take(440 * SECOND, vec![temperature(20.0)]);
        assert_eq!((node.verdict(440 * SECOND), leaving(&node.verdict(440 * SECOND))), (NodeHealth::default(), None));
    }

    #[test]
    fn an_operator_s_marks_take_the_place_of_what_a_sensor_says_of_itself() {
        let mut node = NodeWatch::new(RULES, MarkRules::parse("bmc:CPU=90/97").unwrap());
        node.take(SECOND, vec![Sample { told: Grade::Low, ..temperature(87.0) }]);
        assert_eq!(node.verdict(SECOND).grade, Grade::Well);
        node.take(2 * SECOND, vec![Sample { told: Grade::Low, ..temperature(97.0) }]);
        assert_eq!(node.verdict(2 * SECOND).grade, Grade::High);
    }

    /// A node that heats up in a minute or two, with noise, after an hour of noise: it is found sick before it dies, told so once, with a
    /// time that is about right, and never while nothing is wrong.
    #[test]
    fn traces_of_nodes_that_heat_up_are_found_in_time_and_noise_is_not_taken_for_one() {
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut noise = || (rng.next_u64() % 2001) as f64 / 1000.0 - 1.0;
            let mut node = NodeWatch::new(RULES, MarkRules::default());
            let (base, slope) = (60.0 + 5.0 * noise(), 0.4 + 0.15 * noise());
            for at in 0..1800 {
                node.take(at * 2 * SECOND, vec![temperature(base + 2.0 * noise())]);
                assert_eq!(node.verdict(at * 2 * SECOND).grade, Grade::Well, "seed {seed}, {at}");
            }
            let (begin, mut sick) = (3600, None);
            for step in 0.. {
                let at = begin + 2 * step;
                let true_value = base + slope * (at - begin) as f64;
                node.take(at * SECOND, vec![temperature(true_value + noise())]);
                let health = node.verdict(at * SECOND);
                if health.grade == Grade::High {
                    break;
                }
                if sick.is_none() && health.grade == Grade::Low {
                    let left = (95.0 - true_value) / slope;
                    sick = Some(left);
                    if let Some(told) = health.left_ms.map(|ms| ms as f64 / 1000.0) {
                        assert!((told - left).abs() <= 0.5 * left + 10.0, "seed {seed}: {told} s are told, {left} are left");
                    }
                }
                assert!(sick.is_none() || health.grade == Grade::Low, "seed {seed}: it gets well while it heats up");
            }
            assert!(sick.is_some_and(|left| left > 10.0), "seed {seed}: {sick:?}");
        }
    }
}
