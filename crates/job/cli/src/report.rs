//! How results are shown: tables and sentences for people, JSON for programs.

use crate::failure::Failure;
use mend_messages::agent::Tracking;
use mend_messages::control::Phases;
use serde::Serialize;

/// Prints a value as one JSON document.
pub fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(error.to_string(), "", 1))?;
    println!("{text}");
    Ok(())
}

/// Prints rows under a heading, columns aligned.
pub fn table(heading: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heading[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        println!("{}", padded.collect::<Vec<_>>().join("  ").trim_end());
    };
    line(heading.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
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

/// A duration for people.
pub fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
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

pub use mend_journal::text::size;

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

/// A point in time, UTC.
pub fn time(seconds: u64) -> String {
    // Days to a civil date: Howard Hinnant's algorithm (chrono-Compatible Low-Level Date Algorithms).
    let (days, clock) = ((seconds / 86_400) as i64 + 719_468, seconds % 86_400);
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", clock / 3600, clock / 60 % 60, clock % 60)
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
    }
}
