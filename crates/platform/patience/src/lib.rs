//! How long to wait for somebody who may be busy, before he counts as dead.
//!
//! Two things that a clock does not know are counted here. A waiter that was itself kept from running (too few processors, a stopped
//! process) saw nothing of its peer and does not judge it by that time. And a peer that makes progress is alive, however slow it is: each
//! sign of it begins the wait anew.
//!
//! So whoever waits looks again and again, after a pause. Of the time between two looks no more than the pause counts: the rest is the
//! waiter's own delay. A peer that is dead is given up after as many pauses as make the limit, at least.

#[cfg(feature = "tokio")]
mod future;
mod process;

#[cfg(feature = "tokio")]
pub use future::{OutOfPatience, patiently, patiently_paced, while_active};
pub use process::Activity;

use std::time::{Duration, Instant};

/// Looks within a limit, unless the caller says otherwise.
const LOOKS_PER_LIMIT: u32 = 20;
/// Bounds of the pause between two of these.
const PAUSE_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// The longest pause between two looks for something that is awaited; see [`next_look`].
const MAX_PAUSE: Duration = Duration::from_millis(10);

/// How long to pause before the next look for something that has been awaited for `waited`: a sixteenth of that, so that no wait takes
/// noticeably longer; at least `least`, which is below 10 ms, and at most 10 ms.
///
/// Thousands of looks a second keep everybody else from the processor: Linux 6.18 was seen to leave other sessions' threads waiting for
/// as long as threads of one slept and woke so often.
#[must_use]
pub fn next_look(waited: Duration, least: Duration) -> Duration {
    (waited / 16).clamp(least, MAX_PAUSE)
}

/// What is left of a limit.
#[derive(Clone, Debug)]
pub struct Patience {
    limit: Duration,
    pause: Duration,
    spent: Duration,
    looked: Instant,
}

impl Patience {
    /// A wait that begins now, of at most `limit` without progress.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self::with_pause(limit, (limit / LOOKS_PER_LIMIT).clamp(PAUSE_BOUNDS.0, PAUSE_BOUNDS.1))
    }

    /// The same for somebody who looks every `pause` or more often.
    #[must_use]
    pub fn with_pause(limit: Duration, pause: Duration) -> Self {
        Self { limit, pause, spent: Duration::ZERO, looked: Instant::now() }
    }

    /// Time to the next look, at most.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// The peer has made progress.
    pub fn renew(&mut self) {
        self.renew_at(Instant::now());
    }

    /// A look that found no progress. True if that is enough.
    pub fn is_over(&mut self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn renew_at(&mut self, now: Instant) {
        (self.spent, self.looked) = (Duration::ZERO, now);
    }

    fn is_over_at(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        self.spent += passed.min(self.pause);
        self.spent >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(patience: &mut Patience, from: Instant, every: Duration) -> u32 {
        (1..).find(|look| patience.is_over_at(from + every * *look)).expect("it ends")
    }

    #[test]
    fn a_silent_peer_is_given_up_when_the_limit_is_over() {
        let mut patience = Patience::new(Duration::from_secs(5));
        assert_eq!(patience.pause(), Duration::from_millis(250));
        let from = patience.looked;
        assert_eq!(looks(&mut patience, from, Duration::from_millis(100)), 50);
    }

    #[test]
    fn time_in_which_the_waiter_did_not_run_is_not_held_against_its_peer() {
        let mut patience = Patience::new(Duration::from_secs(5));
        let from = patience.looked;
        assert!(!patience.is_over_at(from + Duration::from_secs(3600)), "it was stopped for an hour");
        assert_eq!(looks(&mut patience, from + Duration::from_secs(3600), Duration::from_secs(1)), 19);
    }

    #[test]
    fn progress_begins_the_wait_anew() {
        let mut patience = Patience::new(Duration::from_secs(1));
        let mut now = patience.looked;
        for _ in 0..100 {
            for _ in 0..10 {
                now += Duration::from_millis(50);
                assert!(!patience.is_over_at(now));
            }
            patience.renew_at(now);
        }
    }

    #[test]
    fn looks_become_rare_as_a_wait_goes_on() {
        let (least, ms) = (Duration::from_micros(100), Duration::from_millis);
        assert_eq!(next_look(Duration::ZERO, least), least);
        assert_eq!(next_look(ms(16), least), ms(1));
        assert_eq!(next_look(ms(10_000), least), MAX_PAUSE);
    }

    #[test]
    fn limits_of_any_length_have_pauses() {
        assert_eq!(Patience::new(Duration::from_millis(100)).pause(), PAUSE_BOUNDS.0);
        assert_eq!(Patience::new(Duration::from_secs(600)).pause(), PAUSE_BOUNDS.1);
    }
}
