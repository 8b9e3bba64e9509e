//! How results are shown: tables and sentences for people, JSON for programs.

use crate::failure::Failure;
use mend_messages::agent::Tracking;
use mend_messages::control::Phases;
use serde::Serialize;
use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::sync::{Mutex, PoisonError};

/// What a removal does not reach.
pub const LEFT_IN_TIERS: &str = "copies of its checkpoints in other tiers stay (memory and directories of nodes, object stores)";

/// What kept standard output from being written first.
static UNWRITTEN: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line, as `println!` does, which panics where it cannot. What could not be written, [`written`] tells.
macro_rules! say {
    () => { $crate::report::out(format_args!("\n")) };
    ($($what:tt)*) => { $crate::report::out(format_args!("{}\n", format_args!($($what)*))) };
}
pub(crate) use say;

/// Prints; nothing more where something could not be written.
pub fn out(what: fmt::Arguments<'_>) {
    let mut unwritten = UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    if unwritten.is_none() {
        let mut out = io::stdout().lock();
        *unwritten = out.write_all(what.to_string().as_bytes()).and_then(|()| out.flush()).err();
    }
}

/// Whether all that was printed could be written; told once. A reader that went away wants no more.
pub fn written() -> Result<(), Failure> {
    match UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(unwritten(&error)),
        _ => Ok(()),
    }
}

/// That standard output could not be written.
pub fn unwritten(error: &io::Error) -> Failure {
    Failure::new(format!("standard output cannot be written: {error}"), "", 1)
}

/// Prints a value as one JSON document.
pub fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(error.to_string(), "", 1))?;
    say!("{text}");
    written()
}

/// Writes a value to standard error, on one line: something that is told on the way to the result.
pub fn json_line<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::new(error.to_string(), "", 1))?;
    mend_report::tell!("{text}");
    Ok(())
}

/// Prints rows under a heading, columns aligned.
pub fn table(heading: &[&str], rows: &[Vec<String>]) {
    say!("{}", mend_report::table(heading, rows));
}

/// How changed pages are noticed, for people.
pub fn tracking(tracking: &Tracking) -> &'static str {
    match tracking.method.as_str() {
        "write-protect" => "changes noticed by write protection",
        "soft-dirty" => "changes noticed by soft-dirty bits",
        "hash" => "changes noticed by page hashes",
        _ => "changes not noticed: every image is full",
    }
}

/// How long ago something was, for people.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

pub use mend_journal::text::{duration, size};

/// The five phases on one line.
pub fn phases(phases: &Phases) -> String {
    format!(
        "suspend {}, write {}, transfer {}, restart {}, reconnect {}",
        duration(phases.suspend_us),
        duration(phases.write_us),
        duration(phases.transfer_us),
        duration(phases.restart_us),
        duration(phases.reconnect_us)
    )
}

/// A point in time, seconds since 1970, as UTC.
pub fn time(seconds: u64) -> String {
    instant(seconds.saturating_mul(1_000_000), "%F %T")
}

/// A point in time to the millisecond, microseconds since 1970, as UTC.
pub fn precise_time(us: u64) -> String {
    instant(us, "%F %T%.3f")
}

/// What no calendar has, since a file may hold any number, is a dash.
fn instant(us: u64, format: &str) -> String {
    let instant = i64::try_from(us).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    instant.map_or_else(|| "-".into(), |instant| instant.strftime(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!((duration(12), duration(1_500), duration(2_500_000)), ("12 µs".into(), "1.5 ms".into(), "2.50 s".into()));
        assert_eq!((age(119), age(7_199), age(7_200), age(200_000)), ("119 s".into(), "119 min".into(), "2 h".into(), "2 d".into()));
        assert_eq!((size(12), size(1536), size(3 << 30)), ("12 B".into(), "1.5 KiB".into(), "3.0 GiB".into()));
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(time(1_795_172_645), "2026-11-20 11:04:05");
        assert_eq!(precise_time(1_795_172_645_012_999), "2026-11-20 11:04:05.012");
        assert_eq!(time(u64::MAX), "-");
    }
}
