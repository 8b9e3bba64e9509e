//! What is too much of something, or too little: a low and a high mark.

use mend_messages::health::Grade;
use serde::{Deserialize, Serialize};

/// A sensor is back on the good side of a mark when it is so many hundredths of the distance between the marks away from it, or so many of the
/// low mark if that is less.
const HYSTERESIS_PERCENT: (f64, f64) = (25.0, 10.0);

/// Two marks. The high one is the worse: below the low one where small values are bad (the speed of a fan).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Marks {
    low: f64,
    high: f64,
}

impl Marks {
    /// `None` if they are no numbers, or the same.
    #[must_use]
    pub fn new(low: f64, high: f64) -> Option<Self> {
        (low.is_finite() && high.is_finite() && low != high).then_some(Self { low, high })
    }

    /// Where ranks begin to leave.
    #[must_use]
    pub fn low(self) -> f64 {
        self.low
    }

    /// Where they have no time any more.
    #[must_use]
    pub fn high(self) -> f64 {
        self.high
    }

    /// 1 if large values are bad, else -1.
    #[must_use]
    pub fn direction(self) -> f64 {
        if self.high > self.low { 1.0 } else { -1.0 }
    }

    /// Which mark a value has reached, whatever was before.
    #[must_use]
    pub fn reached(self, value: f64) -> Grade {
        self.beyond(value, 0.0)
    }

    /// The best that a sensor with this value may count as after it was worse: it has to be away from a mark by some hysteresis.
    #[must_use]
    pub fn settled(self, value: f64) -> Grade {
        let (of_distance, of_low) = HYSTERESIS_PERCENT;
        let hysteresis = ((self.high - self.low).abs() * of_distance).min(self.low.abs() * of_low) / 100.0;
        self.beyond(value, hysteresis)
    }

    fn beyond(self, value: f64, nearer: f64) -> Grade {
        let (value, sign) = (value * self.direction(), self.direction());
        if value >= self.high * sign - nearer {
            Grade::High
        } else if value >= self.low * sign - nearer {
            Grade::Low
        } else {
            Grade::Well
        }
    }
}

/// What an operator says of some sensors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Rule {
    /// They have these marks.
    Marks(Marks),
    /// They are not judged.
    Off,
}

/// Rules by the beginnings of sensors' names; the longest that fits counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MarkRules(Vec<(String, Rule)>);

/// What is wrong with a list of rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not SENSOR=LOW/HIGH or SENSOR=off")]
pub struct RuleError(pub String);

impl MarkRules {
    /// Reads `disk=90/98,bmc:FAN=1000/500,hwmon=off`.
    ///
    /// # Errors
    /// [`RuleError`]: one of them is none, or its marks are the same.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let rule = |text: &str| {
            let (name, marks) = text.rsplit_once('=')?;
            let rule = match marks.split_once('/') {
                None if marks == "off" => Rule::Off,
                None => return None,
                Some((low, high)) => Rule::Marks(Marks::new(low.trim().parse().ok()?, high.trim().parse().ok()?)?),
            };
            (!name.trim().is_empty()).then(|| (name.trim().to_owned(), rule))
        };
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(|item| rule(item).ok_or_else(|| RuleError(item.to_owned()))).collect::<Result<_, _>>().map(Self)
    }

    /// The marks of a sensor that has `own` ones. `None`: it is not judged.
    #[must_use]
    pub fn marks(&self, sensor: &str, own: Option<Marks>) -> Option<Marks> {
        match self.rule(sensor) {
            Some(Rule::Marks(marks)) => Some(marks),
            Some(Rule::Off) => None,
            None => own,
        }
    }

    /// Whether an operator does not want a sensor judged.
    #[must_use]
    pub fn is_off(&self, sensor: &str) -> bool {
        self.rule(sensor) == Some(Rule::Off)
    }

    /// Whether an operator says what is too much for a sensor.
    #[must_use]
    pub fn has_marks(&self, sensor: &str) -> bool {
        matches!(self.rule(sensor), Some(Rule::Marks(_)))
    }

    fn rule(&self, sensor: &str) -> Option<Rule> {
        let fitting = self.0.iter().filter(|(name, _)| sensor.starts_with(name.as_str()));
        fitting.max_by_key(|(name, _)| name.len()).map(|(_, rule)| *rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_may_lie_in_either_direction() {
        let hot = Marks::new(80.0, 90.0).unwrap();
        assert_eq!([79.9, 80.0, 89.9, 90.0].map(|value| hot.reached(value)), [Grade::Well, Grade::Low, Grade::Low, Grade::High]);
        assert_eq!([77.4, 77.6, 87.4, 87.6].map(|value| hot.settled(value)), [Grade::Well, Grade::Low, Grade::Low, Grade::High]);
        let slow = Marks::new(1000.0, 500.0).unwrap();
        assert_eq!([1001.0, 1000.0, 500.0].map(|value| slow.reached(value)), [Grade::Well, Grade::Low, Grade::High]);
        assert_eq!([1101.0, 1099.0].map(|value| slow.settled(value)), [Grade::Well, Grade::Low]);
        assert_eq!([Marks::new(1.0, 1.0), Marks::new(f64::NAN, 1.0)], [None, None]);
    }

    #[test]
    fn the_longest_rule_counts_and_nonsense_is_named() {
        let rules = MarkRules::parse("disk=90/98, disk:/tmp=97/99,bmc:FAN=1000/500,hwmon=off,").unwrap();
        let own = Marks::new(1.0, 2.0);
        assert_eq!(rules.marks("disk:/dev/shm", own), Marks::new(90.0, 98.0));
        assert_eq!(rules.marks("disk:/tmp", own), Marks::new(97.0, 99.0));
        assert_eq!((rules.marks("hwmon:cpu", own), rules.is_off("hwmon:cpu"), rules.is_off("edac")), (None, true, false));
        assert_eq!(rules.marks("memory", own), own);
        for wrong in ["disk", "disk=", "disk=9", "=9/10", "disk=9/9", "disk=a/b", "disk=on"] {
            assert_eq!(MarkRules::parse(wrong), Err(RuleError(wrong.into())));
        }
    }

    proptest! {
        /// What counts as settled is never better than what is reached.
        #[test]
        fn hysteresis_only_delays(low in -1e6..1e6, high in -1e6..1e6, value in -2e6..2e6) {
            if let Some(marks) = Marks::new(low, high) {
                prop_assert!(marks.settled(value) >= marks.reached(value));
            }
        }

        #[test]
        fn any_text_is_a_list_of_rules_or_is_refused(text in "[a-z0-9=/:, .-]{0,40}") {
            let _ = MarkRules::parse(&text);
        }
    }
}
