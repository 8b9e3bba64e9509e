//! Calls of libmend-data that are in progress: they have connections to other nodes, which no image can hold, and which are closed when the call is over.
//!
//! Whoever examines the program's descriptors and finds such a call waits for its end, as for other transient descriptors. Calls that begin meanwhile wait for
//! [`HOLD_TIME`], so that one that follows another without a pause does not stand in the way for ever.
//!
//! Both numbers are part of the image: an image has no call in progress, and a time that is over a moment later.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long calls do not begin after one was found in progress.
const HOLD_TIME: Duration = Duration::from_millis(100);
/// How long a call that is not to begin sleeps between two looks.
const PAUSE: Duration = Duration::from_micros(500);

static IN_PROGRESS: AtomicU32 = AtomicU32::new(0);
/// Nanoseconds of CLOCK_MONOTONIC.
static HELD_UNTIL: AtomicU64 = AtomicU64::new(0);

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A call begins.
pub fn begins() {
    while now_ns() < HELD_UNTIL.load(Ordering::SeqCst) {
        std::thread::sleep(PAUSE);
    }
    IN_PROGRESS.fetch_add(1, Ordering::SeqCst);
}

/// A call is over, and has closed what it had open.
pub fn ends() {
    IN_PROGRESS.fetch_sub(1, Ordering::SeqCst);
}

/// True if some call is in progress. Others do not begin for a while then.
pub(crate) fn are_in_progress() -> bool {
    let in_progress = IN_PROGRESS.load(Ordering::SeqCst) > 0;
    if in_progress {
        HELD_UNTIL.store(now_ns() + HOLD_TIME.as_nanos() as u64, Ordering::SeqCst);
    }
    in_progress
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_call_that_follows_one_that_is_waited_for_begins_later() {
        assert!(!are_in_progress());
        begins();
        let found = Instant::now();
        assert!(are_in_progress());
        ends();
        assert!(!are_in_progress());
        begins();
        assert!(found.elapsed() >= HOLD_TIME - Duration::from_millis(1));
        ends();
    }
}
