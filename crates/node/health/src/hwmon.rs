//! Temperatures, fans and voltages that the kernel reads (Documentation/hwmon/sysfs-interface.rst).
//!
//! | sensor | low mark | high mark |
//! | --- | --- | --- |
//! | `tempN` | `tempN_max` | `tempN_crit`, else `tempN_emergency` |
//! | `fanN` | a fifth above `fanN_min` | `fanN_min` |
//! | `inN` | `inN_max` or `inN_min` | `inN_crit` or `inN_lcrit` |
//!
//! `…_alarm` says past the low mark, `…_crit_alarm` and the like past the high one. What has a `…_fault` is passed over.

use crate::{names, number, text};
use mend_messages::health::Grade;
use mend_policy::health::marks::Marks;
use mend_policy::health::watch::Sample;
use std::path::{Path, PathBuf};

/// Where a sensor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SensorChannel {
    /// Directory of the chip.
    chip: PathBuf,
    /// `temp1`, `fan2`, `in0`.
    channel: String,
    /// Its name.
    sensor: String,
}

/// All sensors below a root. Listing takes longer than reading.
#[must_use]
pub fn list(root: &Path) -> Vec<SensorChannel> {
    let base = root.join("sys/class/hwmon");
    let mut places = Vec::new();
    for chip in names(&base).into_iter().map(|name| base.join(name)) {
        let kind = text(&chip.join("name")).unwrap_or_else(|| "unknown".into());
        for file in names(&chip) {
            let Some(channel) = file.strip_suffix("_input").filter(|channel| kind_of(channel).is_some()) else { continue };
            let label = text(&chip.join(format!("{channel}_label"))).filter(|label| !label.is_empty());
            let mut sensor = format!("hwmon:{kind}/{}", label.unwrap_or_else(|| channel.to_owned()));
            if places.iter().any(|place: &SensorChannel| place.sensor == sensor) {
                // Several of the same kind: disks, processors.
                let number = chip.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                sensor = format!("{sensor} {number}/{channel}");
            }
            places.push(SensorChannel { chip: chip.clone(), channel: channel.to_owned(), sensor });
        }
    }
    places
}

/// Unit and divisor of a channel's files.
fn kind_of(channel: &str) -> Option<(&'static str, f64)> {
    let numbered =
        |prefix: &str| channel.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit()));
    match () {
        () if numbered("temp") => Some(("°C", 1000.0)),
        () if numbered("fan") => Some(("RPM", 1.0)),
        () if numbered("in") => Some(("V", 1000.0)),
        () => None,
    }
}

/// Reads a sensor. `None`: it has nothing to say now.
#[must_use]
pub fn read(place: &SensorChannel) -> Option<Sample> {
    let (unit, divisor) = kind_of(&place.channel)?;
    let file = |suffix: &str| place.chip.join(format!("{}_{suffix}", place.channel));
    let of = |suffix: &str| number(&file(suffix)).map(|raw| raw / divisor);
    let set = |suffix: &str| number(&file(suffix)).is_some_and(|raw| raw != 0.0);
    if set("fault") {
        return None;
    }
    let value = of("input")?;
    let marks = match unit {
        "°C" => upper(of("max"), of("crit").or(of("emergency"))),
        "RPM" => of("min").filter(|min| *min > 0.0).and_then(|min| Marks::new(min * 1.2, min)),
        _ => voltage(value, [of("lcrit"), of("min"), of("max"), of("crit")]),
    };
    // Chips raise alarms of what is not connected, which has no limits, or two that are the same.
    let is_unused = match unit {
        "RPM" => of("min").is_some_and(|min| min <= 0.0),
        "V" => of("min").zip(of("max")).is_some_and(|(min, max)| min >= max),
        _ => false,
    };
    let told = if ["crit_alarm", "lcrit_alarm", "emergency_alarm"].into_iter().any(set) {
        Grade::High
    } else if !is_unused && ["alarm", "max_alarm", "min_alarm"].into_iter().any(set) {
        Grade::Low
    } else {
        Grade::Well
    };
    let text = if told > Grade::Well { "the chip raises an alarm".into() } else { String::new() };
    Some(Sample { sensor: place.sensor.clone(), value: Some(value), unit: unit.into(), marks, told, text, ..Sample::default() })
}

/// Some drivers give the same number twice, or none, or one that cannot be.
fn upper(max: Option<f64>, crit: Option<f64>) -> Option<Marks> {
    let crit = crit.filter(|crit| *crit > 0.0)?;
    let max = max.filter(|max| *max > 0.0 && *max < crit).unwrap_or(crit - 10.0);
    Marks::new(max, crit)
}

/// Those on the side to which the value is nearer. A limit of 0 that was never set lies on the wrong side of the other one.
fn voltage(value: f64, [lcrit, min, max, crit]: [Option<f64>; 4]) -> Option<Marks> {
    let (below, above) = (min.zip(lcrit).filter(|(min, lcrit)| lcrit < min), max.zip(crit).filter(|(max, crit)| crit > max));
    let distance = |side: Option<(f64, f64)>| side.map_or(f64::INFINITY, |(near, _)| (value - near).abs());
    let nearer = if distance(below) < distance(above) { below } else { above };
    nearer.and_then(|(near, far)| Marks::new(near, far))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_drivers_are_taken_as_far_as_they_make_sense() {
        assert_eq!(upper(Some(80.0), Some(100.0)), Marks::new(80.0, 100.0));
        assert_eq!(upper(Some(100.0), Some(100.0)), Marks::new(90.0, 100.0));
        assert_eq!(upper(Some(80.0), None), None);
        let sides = [Some(10.8), Some(11.4), Some(12.6), Some(13.2)];
        assert_eq!(voltage(11.5, sides), Marks::new(11.4, 10.8));
        assert_eq!(voltage(12.5, sides), Marks::new(12.6, 13.2));
        assert_eq!(voltage(12.5, [None; 4]), None);
        assert_eq!(voltage(1.2, [None, None, Some(3.06), Some(0.0)]), None);
        assert_eq!(voltage(12.0, [Some(10.8), Some(0.0), None, None]), None);
    }
}
