//! Clocks that must go on from where a saved process saw them.
//!
//! `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` count from a node's boot, so a restored process would see them jump by the
//! difference of two uptimes, or backwards. A time namespace (time_namespaces(7)) makes them continue.

use crate::supervisor::order::ClockOffsets;
use mend_image::Header;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// A jump forward that a busy machine can cause as well; not worth a namespace (in which clocks read a little slower).
const MAX_UNNOTICED_NS: i64 = 1_000_000_000;

/// The clocks here are behind, and nothing can be done about it.
#[derive(Debug, PartialEq, Eq)]
pub struct ClocksBehind;

#[derive(Clone, Copy, Debug)]
struct Clocks {
    monotonic: i64,
    boottime: i64,
}

/// Offsets for the namespace of a process with this header; `None` if it needs none.
pub fn offsets_for(header: &Header, time_namespaces: bool) -> Result<Option<ClockOffsets>, ClocksBehind> {
    let saved = Clocks { monotonic: nanoseconds(header.monotonic), boottime: nanoseconds(header.boottime) };
    let now = Clocks { monotonic: read(ClockId::Monotonic), boottime: read(ClockId::Boottime) };
    let own = std::fs::read_to_string("/proc/self/timens_offsets").map(|text| parse_offsets(&text)).unwrap_or_default();
    match offsets(saved, now, own) {
        Some(offsets) if time_namespaces => Ok(Some(offsets)),
        Some(_) if now.monotonic < saved.monotonic || now.boottime < saved.boottime => Err(ClocksBehind),
        _ => Ok(None),
    }
}

/// A header's clock beyond what `i64` holds (292 years) is a lie, and harmless when cut.
fn nanoseconds(clock: u64) -> i64 {
    i64::try_from(clock).unwrap_or(i64::MAX)
}

fn read(clock: ClockId) -> i64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    tv_sec.saturating_mul(1_000_000_000).saturating_add(tv_nsec)
}

fn offsets(saved: Clocks, now: Clocks, own: ClockOffsets) -> Option<ClockOffsets> {
    let ahead = |now: i64, saved: i64| now.saturating_sub(saved);
    let unnoticed = |by: i64| (0..MAX_UNNOTICED_NS).contains(&by);
    if unnoticed(ahead(now.monotonic, saved.monotonic)) && unnoticed(ahead(now.boottime, saved.boottime)) {
        return None;
    }
    // Offsets count from the initial namespace, in which this daemon need not be.
    let offset = |saved: i64, now: i64, own: i64| own.saturating_add(saved.saturating_sub(now));
    Some(ClockOffsets {
        monotonic_ns: offset(saved.monotonic, now.monotonic, own.monotonic_ns),
        boottime_ns: offset(saved.boottime, now.boottime, own.boottime_ns),
    })
}

fn parse_offsets(text: &str) -> ClockOffsets {
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
        let mut numbers = line.split_whitespace().map(str::parse::<i64>);
        let (seconds, nanoseconds) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
    };
    ClockOffsets { monotonic_ns: of("monotonic").unwrap_or(0), boottime_ns: of("boottime").unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const HERE: ClockOffsets = ClockOffsets { monotonic_ns: 0, boottime_ns: 0 };

    fn both(seconds: i64) -> Clocks {
        Clocks { monotonic: seconds * SECOND, boottime: seconds * SECOND }
    }

    #[test]
    fn a_moment_ahead_needs_nothing_and_a_moment_behind_does() {
        let later = Clocks { monotonic: 10 * SECOND + 5, boottime: 10 * SECOND + 5 };
        assert_eq!(offsets(both(10), later, HERE), None);
        assert_eq!(offsets(later, both(10), HERE), Some(ClockOffsets { monotonic_ns: 5, boottime_ns: 5 }));
    }

    #[test]
    fn the_restored_clock_equals_the_saved_one_also_within_a_namespace() {
        let own = ClockOffsets { monotonic_ns: 7 * SECOND, boottime_ns: -3 * SECOND };
        let (saved, now) = (both(500), both(40));
        let result = offsets(saved, now, own).unwrap();
        // The initial clock is `now - own`; the new namespace shows it plus its offset.
        assert_eq!(now.monotonic - own.monotonic_ns + result.monotonic_ns, saved.monotonic);
        assert_eq!(now.boottime - own.boottime_ns + result.boottime_ns, saved.boottime);
    }

    #[test]
    fn the_kernel_s_format_is_read() {
        let text = "monotonic           -1 999999999\nboottime            12         5\n";
        assert_eq!(parse_offsets(text), ClockOffsets { monotonic_ns: -1, boottime_ns: 12 * SECOND + 5 });
        assert_eq!(parse_offsets("nonsense"), HERE);
    }
}
