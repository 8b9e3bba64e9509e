//! One sensor: how it is, and how long it will be so.
//!
//! ```text
//! Well ── low mark, or high in a moment, or it is said so ──► Low ── high mark, or it is said so ──► High
//!   ◄── well on the good side, for CALM ──┘ ◄── the same ──────────────────────────────────────────────┘
//! ```

use super::counts::Counts;
pub use super::counts::Kind;
use super::marks::Marks;
use super::trend::History;
use mend_messages::health::Grade;
use serde::{Deserialize, Serialize};

/// A prediction of a plug-in counts for so long, microseconds.
const PREDICTED_US: u64 = 60_000_000;

/// What a sensor says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its name: what reads it, a colon, its name there.
    pub sensor: String,
    /// The value; `None`: it is only said how the sensor is.
    pub value: Option<f64>,
    /// Unit of the value.
    pub unit: String,
    /// What the value means.
    pub kind: Kind,
    /// Its own marks, if it has any.
    pub marks: Option<Marks>,
    /// Said by the sensor itself: how it is.
    pub told: Grade,
    /// Said by the sensor itself: why; may be empty.
    pub text: String,
}

/// What sensors are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// How long a sensor must be well on the good side of a mark before it counts as better, microseconds.
    pub calm_us: u64,
    /// A sensor that is likely to pass its high mark within this time counts as past its low one, microseconds; 0: never.
    pub horizon_us: u64,
    /// What a line is drawn through: the values of so many microseconds.
    pub window_us: u64,
    /// After so many microseconds without a word a sensor is forgotten.
    pub stale_us: u64,
}

/// One sensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    last: Sample,
    read_us: u64,
    history: History,
    /// Of a counter.
    counts: Counts,
    marks: Option<Marks>,
    grade: Grade,
    /// Since when it could count as better, and as how much better: as it was at its worst since then.
    calm: Option<(u64, Grade)>,
    /// A plug-in says when the high mark is passed; and when it said so.
    predicted: Option<(u64, u64)>,
}

impl Watch {
    /// A sensor of which nothing is known but its first word, which [`Watch::take`] is to get, too.
    #[must_use]
    pub fn new(first: &Sample) -> Self {
        Self {
            last: first.clone(),
            read_us: 0,
            history: History::default(),
            counts: Counts::default(),
            marks: None,
            grade: Grade::Well,
            calm: None,
            predicted: None,
        }
    }

    /// It says something; `marks` are those that it is judged by, and `judged` is false if it is not judged at all.
    pub fn take(&mut self, now_us: u64, sample: Sample, (marks, judged): (Option<Marks>, bool), rules: &Rules) {
        let value = sample.value.filter(|value| value.is_finite()).map(|value| self.meant(now_us, value, sample.kind));
        self.read_us = now_us;
        self.marks = marks;
        if let Some(value) = value {
            self.history.add(now_us, value, rules.window_us);
        }
        let told = if judged { sample.told } else { Grade::Well };
        self.last = Sample { value, ..sample };
        let of = |judge: fn(Marks, f64) -> Grade| value.zip(marks).map_or(Grade::Well, |(value, marks)| judge(marks, value));
        let soon = self.left_us(now_us).is_some_and(|left| left <= rules.horizon_us);
        let soon = if soon { Grade::Low } else { Grade::Well };
        let reached = of(Marks::reached).max(told).max(soon);
        let settled = of(Marks::settled).max(told).max(soon);
        if reached > self.grade {
            (self.grade, self.calm) = (reached, None);
        } else if settled < self.grade {
            let (since, worst) = self.calm.get_or_insert((now_us, settled));
            *worst = settled.max(*worst);
            if now_us.saturating_sub(*since) >= rules.calm_us {
                (self.grade, self.calm) = (*worst, None);
            }
        } else {
            self.calm = None;
        }
    }

    /// What a value means: of a counter how often something happened in the last hour. One that begins anew (a reboot) begins at 0.
    fn meant(&mut self, now_us: u64, value: f64, kind: Kind) -> f64 {
        if kind == Kind::Level { value } else { self.counts.add(now_us, value, kind) }
    }

    /// A plug-in says that the high mark is passed in so many microseconds; `None`: never.
    pub fn predict(&mut self, now_us: u64, left_us: Option<u64>) {
        self.predicted = Some((now_us, left_us.map_or(u64::MAX, |left| now_us.saturating_add(left))));
    }

    /// How it is.
    #[must_use]
    pub fn grade(&self) -> Grade {
        self.grade
    }

    /// Its last word. The value of a counter is that of the last hour.
    #[must_use]
    pub fn last(&self) -> &Sample {
        &self.last
    }

    /// What it is judged by.
    #[must_use]
    pub fn marks(&self) -> Option<Marks> {
        self.marks
    }

    /// What it said lately.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Microseconds since it spoke last.
    #[must_use]
    pub fn age_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.read_us)
    }

    /// Microseconds until it is likely to pass its high mark. `None`: it has, it will not, or nobody knows.
    #[must_use]
    pub fn left_us(&self, now_us: u64) -> Option<u64> {
        let (at_us, value) = self.history.last()?;
        let marks = self.marks.filter(|marks| marks.reached(value) < Grade::High)?;
        match self.predicted.filter(|(said, _)| now_us.saturating_sub(*said) <= PREDICTED_US) {
            Some((_, u64::MAX)) => None,
            Some((_, passed)) => Some(passed.saturating_sub(now_us)),
            None => {
                let seconds = self.history.seconds_until(marks.high())?;
                // What was read a while ago has gone on since.
                Some(((seconds * 1e6) as u64).saturating_sub(now_us.saturating_sub(at_us)))
            }
        }
    }

    /// What is the matter with it, for people: "bmc:CPU is 91 °C, low mark 85; past 95 in about 12 s".
    #[must_use]
    pub fn reason(&self, now_us: u64) -> String {
        let Sample { sensor, value, unit, text, .. } = &self.last;
        let unit = if unit.is_empty() || unit == "%" { unit.clone() } else { format!(" {unit}") };
        let mut said = match (value, self.marks) {
            (Some(value), Some(marks)) => match self.grade {
                Grade::High => format!("{sensor} is {}{unit}, high mark {}", short(*value), short(marks.high())),
                _ => format!("{sensor} is {}{unit}, low mark {}", short(*value), short(marks.low())),
            },
            (Some(value), None) => format!("{sensor} is {}{unit}", short(*value)),
            (None, _) => sensor.clone(),
        };
        if !text.is_empty() {
            said = format!("{said}: {text}");
        }
        match (self.left_us(now_us), self.marks) {
            (Some(left), Some(marks)) => format!("{said}; past {} in about {} s", short(marks.high()), left.div_ceil(1_000_000)),
            _ => said,
        }
    }
}

/// A number with no more decimals than it needs, three at most.
#[must_use]
pub fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
