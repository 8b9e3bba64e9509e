//! What the user wants of periodic checkpoints, out of flags, settings and what held before.

use mend_job::setup::CheckpointPlan;
use mend_policy::schedule::{Incremental, Interval};
use mend_settings::{AVERTED, INCREMENTAL, INTERVAL, KEEP, MTBF, SPACE_PERCENT, Setting, SettingError, WordOrNumber};

/// What the user wrote for this run or restart; `None`: what held before, else the settings.
#[derive(Clone, Debug, Default)]
pub struct PeriodicOptions {
    /// `--interval`
    pub interval: Option<String>,
    /// `--incremental`
    pub incremental: Option<String>,
    /// `--keep`
    pub keep: Option<String>,
    /// A job goes on by itself: what held before is what its user asked for, whatever the settings say.
    pub as_before: bool,
}

/// What is asked for, else set in the environment, else what held `before`, else the defaults.
///
/// # Errors
/// An option or setting has a value that it may not have.
pub fn plan(periodic: &PeriodicOptions, before: Option<&CheckpointPlan>) -> Result<CheckpointPlan, SettingError> {
    if let (true, Some(before)) = (periodic.as_before, before) {
        return Ok(*before);
    }
    fn take<T: Copy>(option: Option<&String>, setting: &Setting, before: Option<T>, of: fn(WordOrNumber) -> T) -> Result<T, SettingError> {
        match before {
            Some(before) if option.is_none() && !setting.is_set() => Ok(before),
            _ => setting.word_or_number(option.map(String::as_str)).map(of),
        }
    }
    let number = |choice| match choice {
        WordOrNumber::Number(number) => Some(u32::try_from(number).unwrap_or(u32::MAX)),
        WordOrNumber::Word(_) => None,
    };
    Ok(CheckpointPlan {
        interval: take(periodic.interval.as_ref(), &INTERVAL, before.map(|plan| plan.interval), |choice| match choice {
            WordOrNumber::Number(seconds) => Interval::Every(seconds),
            WordOrNumber::Word("auto") => Interval::Auto,
            WordOrNumber::Word(_) => Interval::Off,
        })?,
        incremental: take(periodic.incremental.as_ref(), &INCREMENTAL, before.map(|plan| plan.incremental), |choice| match choice {
            WordOrNumber::Number(count) => Incremental::Count(count as u32),
            WordOrNumber::Word("auto") => Incremental::Auto,
            WordOrNumber::Word(_) => Incremental::Off,
        })?,
        keep: take(periodic.keep.as_ref(), &KEEP, before.map(|plan| plan.keep), number)?,
        mtbf_hours: match before {
            Some(before) if !MTBF.is_set() => before.mtbf_hours,
            _ => MTBF.number()?,
        },
        averted_percent: match before {
            Some(before) if !AVERTED.is_set() => before.averted_percent,
            _ => AVERTED.number()? as u32,
        },
        space_percent: take(None, &SPACE_PERCENT, before.map(|plan| plan.space_percent), number)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(interval: &str, incremental: &str, keep: &str) -> PeriodicOptions {
        PeriodicOptions {
            interval: Some(interval.into()),
            incremental: Some(incremental.into()),
            keep: Some(keep.into()),
            ..PeriodicOptions::default()
        }
    }

    #[test]
    fn options_come_before_what_held_before() {
        let first = plan(&option("60", "3", "all"), None).unwrap();
        assert_eq!((first.interval, first.incremental, first.keep), (Interval::Every(60), Incremental::Count(3), None));
        assert_eq!(plan(&PeriodicOptions::default(), Some(&first)).unwrap(), first);
        let other = PeriodicOptions { interval: Some("auto".into()), ..PeriodicOptions::default() };
        assert_eq!(plan(&other, Some(&first)).unwrap(), CheckpointPlan { interval: Interval::Auto, ..first });
        let off = plan(&option("off", "off", "7"), Some(&first)).unwrap();
        assert_eq!((off.interval, off.incremental, off.keep), (Interval::Off, Incremental::Off, Some(7)));
        assert!(plan(&option("soon", "3", "1"), None).is_err());
    }

    #[test]
    fn the_settings_stay_within_what_the_policy_takes() {
        let mend_settings::Kind::WordOrNumber { max, .. } = INCREMENTAL.kind else { panic!() };
        assert_eq!(max, u64::from(mend_policy::schedule::MAX_INCREMENTALS));
    }
}
