//! What is known of programs from earlier jobs: a file for each, `$MEND_HOME/programs/NAME-HASH.json`.
//!
//! It only makes a choice better. So what cannot be read counts as not known, and what cannot be written is not kept.

use crate::record::{home, make_directories, now};
use mend_job::event::MeasuredRates;
use serde::{Deserialize, Serialize};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// After so many seconds what was measured is measured anew: programs and their input change.
const MAX_AGE_S: u64 = 7 * 24 * 3600;

#[derive(Debug, Serialize, Deserialize)]
struct Known {
    /// As it was called.
    program: String,
    /// Seconds since 1970.
    measured: u64,
    rates: MeasuredRates,
}

fn path(home: &Path, program: &str) -> PathBuf {
    let name: String = Path::new(program).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(64).collect();
    // Without keys, so that it is the same tomorrow; what it says is compared.
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    home.join("programs").join(format!("{name}-{:016x}.json", hasher.finish()))
}

/// What was measured when a rank of this program moved, if that is not long ago.
#[must_use]
pub(crate) fn rates(program: &str) -> Option<MeasuredRates> {
    rates_in(&home().ok()?, program, now())
}

fn rates_in(home: &Path, program: &str, now: u64) -> Option<MeasuredRates> {
    let known: Known = serde_json::from_slice(&fs::read(path(home, program)).ok()?).ok()?;
    (known.program == program && now.saturating_sub(known.measured) < MAX_AGE_S).then_some(known.rates)
}

/// Keeps what was measured when a rank of this program moved.
pub(crate) fn keep(program: &str, rates: MeasuredRates) {
    let Ok(home) = home() else { return };
    keep_in(&home, program, rates, now());
}

fn keep_in(home: &Path, program: &str, rates: MeasuredRates, now: u64) {
    let path = path(home, program);
    let Ok(text) = serde_json::to_vec(&Known { program: program.to_owned(), measured: now, rates }) else { return };
    let kept = path.parent().map_or(Ok(()), make_directories).and_then(|()| mend_durable::write(&path, &text));
    if let Err(error) = kept {
        tracing::info!(%error, path = %path.display(), "what was measured of the program is not kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_known_for_some_days_and_of_this_program_alone() {
        let home = tempfile::tempdir().unwrap();
        let rates = MeasuredRates { dirty: 5, rate: 7 };
        keep_in(home.path(), "/bin/app", rates, 1000);
        assert_eq!(rates_in(home.path(), "/bin/app", 1000 + MAX_AGE_S - 1), Some(rates));
        assert_eq!(rates_in(home.path(), "/bin/app", 1000 + MAX_AGE_S), None);
        assert_eq!(rates_in(home.path(), "/other/app", 1000), None);
        fs::write(path(home.path(), "/bin/app"), "{").unwrap();
        assert_eq!(rates_in(home.path(), "/bin/app", 1000), None);
        keep_in(home.path(), "/", rates, 1000);
        assert_eq!(rates_in(home.path(), "/", 1000), Some(rates));
    }
}
