//! A plug-in that predicts: it gets a sensor's history, and says in how many seconds the high mark is passed.
//!
//! ```text
//! standard input:  { "sensor", "unit", "low", "high", "history": [[seconds, value], …] }   seconds: 0 is now, the past is negative
//! standard output: a number of seconds, or `never`
//! ```

use crate::program::{self, ProgramFailure};
use crate::unread;
use mend_messages::health::Unread;
use mend_policy::health::watch::Watch;
use mend_report::with_causes;
use std::path::Path;
use std::time::Duration;

/// What a predictor is called where it fails.
pub const NAME: &str = "predictor";
/// Longest time that counts as one, seconds: ten years.
const MOST_SECONDS: f64 = 315_576_000.0;

/// What a predictor is asked.
#[must_use]
pub fn question(now_us: u64, watch: &Watch) -> Vec<u8> {
    let seconds = |at: u64| -(now_us.saturating_sub(at) as f64 / 1e6);
    let history: Vec<(f64, f64)> = watch.history().values().map(|(at, value)| (seconds(at), value)).collect();
    let (low, high) = watch.marks().map_or((None, None), |marks| (Some(marks.low()), Some(marks.high())));
    let last = watch.last();
    serde_json::json!({ "sensor": last.sensor, "unit": last.unit, "low": low, "high": high, "history": history }).to_string().into_bytes()
}

/// Asks it. Microseconds until the high mark is passed; `None`: never.
///
/// # Errors
/// It was not run, hung, failed, or said neither.
pub async fn ask(program: &Path, question: &[u8], limit: Duration) -> Result<Option<u64>, Unread> {
    let failed = |error: ProgramFailure| unread(NAME, format!("{} {}", program.display(), with_causes(&error)), true);
    program::trusted(program).map_err(failed)?;
    let ended = program::run(program, &[], question, limit).await.map_err(failed)?;
    if !ended.status.success() {
        return Err(unread(NAME, format!("{} ended with {}: {}", program.display(), ended.status, ended.first_line()), true));
    }
    answer(&ended.stdout).ok_or_else(|| {
        unread(NAME, format!("{} said `{}`, which is neither a number of seconds nor `never`", program.display(), ended.first_line()), true)
    })
}

fn answer(text: &str) -> Option<Option<u64>> {
    let text = text.trim();
    if text == "never" {
        return Some(None);
    }
    text.parse().ok().filter(|seconds: &f64| (0.0..=MOST_SECONDS).contains(seconds)).map(|seconds| Some((seconds * 1e6) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_seconds_or_never() {
        assert_eq!([answer("12.5\n"), answer(" never "), answer("0")], [Some(Some(12_500_000)), Some(None), Some(Some(0))]);
        assert_eq!([answer(""), answer("soon"), answer("-1"), answer("NaN"), answer("1e99")], [None; 5]);
    }
}
