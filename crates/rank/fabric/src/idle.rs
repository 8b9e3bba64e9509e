//! When a waiting rank stops polling.
//!
//! MPI libraries poll for ever. A rank that waits polls for a while, because an answer that is nearly here is fastest
//! met awake; then it sleeps until its doorbell rings. With more ranks than processors the rank it waits for may be
//! the one it keeps from running, so it gives way almost at once.
//!
//! A program that computes between polls is not waiting: long gaps between polls start the clock again.
//!
//! Between two polls MPICH gives the processor away, a system call that takes as long as a message. A rank that was here a
//! moment ago and finds nothing again therefore *lingers*: it goes on looking, for about as long as an answer takes, before
//! it goes back.

use std::time::{Duration, Instant};

/// Polling time before sleeping, with a processor for each rank: being woken costs tens of microseconds on a virtual
/// machine, so a rank that is not in anybody's way sleeps only when it will wait long.
const SPIN: Duration = Duration::from_millis(1);
/// Polling time before empty polls give the processor away now and then: something else may be waiting for it (two ranks
/// that were started on one, a daemon), and after as long as this the system call is not noticed.
const KEEP: Duration = Duration::from_micros(20);
/// The same when ranks share processors; before it, empty polls give the processor away.
const SPIN_CROWDED: Duration = Duration::from_micros(30);
/// Empty polls between two looks at the clock.
const POLLS: u32 = 16;
/// The same when ranks share processors.
const POLLS_CROWDED: u32 = 4;
/// How long a rank lingers, and the longest absence after which it does: 1 to 2 µs, in cycles of the time stamp counter.
const LINGER: u64 = 4096;
/// How long a rank that has sent a long message goes on receiving another before it hears of it: 0.2 to 0.5 ms, in cycles.
pub const HALFWAY: u64 = 1 << 20;
/// Looks between two at the counter.
pub const LOOKS: u32 = 16;
/// A gap between two looks longer than this is computing.
const GAP: Duration = Duration::from_micros(400);
/// Longest sleep: a bound on what an unforeseen lost wake-up costs, and the pace of other progress in the MPI library.
pub const NAP: Duration = Duration::from_millis(1);

/// What to do after an empty poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Poll on.
    Poll,
    /// Let others run.
    Yield,
    /// Sleep until woken.
    Sleep,
}

/// Watches how long nothing has happened.
#[derive(Debug, Default)]
pub struct Idle {
    /// More ranks than processors on this node.
    pub crowded: bool,
    empty: u32,
    since: Option<Instant>,
    last: Option<Instant>,
    /// Counter when this rank was last here.
    left: u64,
}

impl Idle {
    /// True if a rank that is here at `now` and finds nothing does nothing but wait, and is in nobody's way.
    #[inline]
    pub fn lingers(&self, now: u64) -> bool {
        // In a restored process the counter may be behind; then this is not true once.
        !self.crowded && now.wrapping_sub(self.left) < LINGER
    }

    /// This rank is here at `now`, whether it finds something or not.
    #[inline]
    pub fn here(&mut self, now: u64) {
        self.left = now;
    }

    /// True if a rank that lingers since `began` has done so long enough at `now`; it leaves then, or when it found something.
    #[inline]
    pub fn lingered(&mut self, began: u64, now: u64) -> bool {
        self.left = now;
        now.wrapping_sub(began) >= LINGER
    }

    /// The program does something that nobody is waited for: the next look is not that of a rank that waits.
    #[inline]
    pub fn busy(&mut self) {
        self.left = 0;
        self.reset();
    }

    /// Something happened.
    #[inline]
    pub fn reset(&mut self) {
        self.empty = 0;
        self.since = None;
    }

    /// After a poll that found nothing.
    #[inline]
    pub fn empty_poll(&mut self) -> Rest {
        self.empty += 1;
        let every = if self.crowded { POLLS_CROWDED } else { POLLS };
        if !self.empty.is_multiple_of(every) {
            return Rest::Poll;
        }
        self.judge(Instant::now())
    }

    fn judge(&mut self, now: Instant) -> Rest {
        // A restored process may find an earlier clock: differences saturate at zero.
        let computed = self.last.is_none_or(|last| now.saturating_duration_since(last) > GAP);
        self.last = Some(now);
        let since = match self.since {
            Some(since) if !computed || self.crowded => since,
            _ => {
                self.since = Some(now);
                now
            }
        };
        let spin = if self.crowded { SPIN_CROWDED } else { SPIN };
        let waited = now.saturating_duration_since(since);
        if waited >= spin {
            Rest::Sleep
        } else if self.crowded || waited >= KEEP {
            Rest::Yield
        } else {
            Rest::Poll
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(idle: &mut Idle, start: Instant, micros: u64) -> Rest {
        idle.judge(start + Duration::from_micros(micros))
    }

    #[test]
    fn a_waiting_rank_sleeps_and_a_computing_one_does_not() {
        let (mut idle, start) = (Idle::default(), Instant::now());
        assert_eq!(after(&mut idle, start, 0), Rest::Poll);
        assert_eq!(after(&mut idle, start, 19), Rest::Poll);
        for micros in (300..1000).step_by(300) {
            assert_eq!(after(&mut idle, start, micros), Rest::Yield);
        }
        assert_eq!(after(&mut idle, start, 1001), Rest::Sleep);
        assert_eq!(after(&mut idle, start, 2000), Rest::Poll);
        idle.reset();
        assert_eq!(after(&mut idle, start, 2010), Rest::Poll);
    }

    #[test]
    fn who_was_here_a_moment_ago_lingers() {
        let mut idle = Idle::default();
        let long = 10 * LINGER;
        assert!(!idle.lingers(long) && idle.lingered(0, long));
        assert!(idle.lingers(long + 1) && !idle.lingered(long + 1, long + 2));
        // What it found at once does not keep it from lingering the next time.
        idle.here(long + LINGER);
        assert!(idle.lingers(long + 2 * LINGER - 1));
        idle.here(long + 2);
        assert!(!idle.lingers(long + 2 + LINGER));
        assert!(!idle.lingers(1), "the counter of another machine");
        assert!(!Idle { crowded: true, ..Idle::default() }.lingers(1));
    }

    #[test]
    fn a_crowded_node_gives_way_first() {
        let (mut idle, start) = (Idle { crowded: true, ..Idle::default() }, Instant::now());
        assert_eq!(after(&mut idle, start, 0), Rest::Yield);
        assert_eq!(after(&mut idle, start, 29), Rest::Yield);
        assert_eq!(after(&mut idle, start, 31), Rest::Sleep);
    }
}
