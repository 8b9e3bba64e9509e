//! When a waiting rank stops polling.
//!
//! MPI libraries poll for ever. A rank that waits polls for a while, because an answer that is nearly here is fastest
//! met awake; then it sleeps until it is woken. With more ranks than processors the rank it waits for may be
//! the one it keeps from running, so it gives way almost at once.
//!
//! A program that does something between its polls (`MPI_Test` now and then in a computation) is not waiting, and must not be held
//! up: neither put to sleep nor kept looking. An MPI library that waits polls again at once, or gives the processor away in between
//! as MPICH does, which is seen where that calls `sched_yield`. Long gaps between polls start the clock again, too.
//!
//! Giving the processor away is a system call that takes as long as a message. A rank that was here a moment ago and finds
//! nothing again therefore *lingers*: it goes on looking, for about as long as an answer takes, before it goes back.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Polling time before sleeping, with a processor for each rank: being woken costs tens of microseconds on a virtual
/// machine, so a rank that is not in anybody's way sleeps only when it will wait long.
const SPIN_TIME: Duration = Duration::from_millis(1);
/// Polling time before empty polls give the processor away now and then: something else may be waiting for it (two ranks
/// that were started on one, a daemon), and after as long as this the system call is not noticed.
const KEEP_TIME: Duration = Duration::from_micros(20);
/// The same when ranks share processors; before it, empty polls give the processor away.
const CROWDED_SPIN_TIME: Duration = Duration::from_micros(30);
/// Empty polls between two looks at the clock.
const POLLS_PER_CLOCK: u32 = 16;
/// The same when ranks share processors.
const CROWDED_POLLS_PER_CLOCK: u32 = 4;
/// How long a rank lingers, and the longest absence after which it does: 1 to 2 µs, in cycles of the time stamp counter.
const LINGER_CYCLES: u64 = 4096;
/// How often a rank lingers since something happened last without having given way in between: the first poll of a wait does, and
/// others are no waits, or tight loops that gain nothing by it.
const MIN_LINGERS: u32 = 2;
/// A program that is away for as long as this between two polls, and does not give way, does something else: 0.2 to 0.5 µs, in
/// cycles. The ways of MPI libraries from a poll to the next take a fifth of it.
const AWAY_CYCLES: u64 = 1024;
/// How long a rank that has sent a long message goes on receiving another before it hears of it: 0.2 to 0.5 ms, in cycles.
pub const HALFWAY_CYCLES: u64 = 1 << 20;
/// Looks between two at the counter.
pub const POLLS_PER_COUNTER: u32 = 16;
/// A gap between two looks longer than this is computing.
const MAX_POLL_GAP: Duration = Duration::from_micros(400);
/// A longer absence between two looks is no waiting, as far as it is counted: the program does something, or the processor was taken away. 0.1 to
/// 0.2 ms, in cycles.
const MAX_WAIT_CYCLES: u64 = 1 << 19;
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

thread_local! {
    static GAVE_WAY: Cell<bool> = const { Cell::new(false) };
}

/// This thread gives the processor away.
pub fn gives_way() {
    GAVE_WAY.set(true);
}

/// True if this thread gave the processor away since it was asked last.
#[inline]
pub fn gave_way() -> bool {
    GAVE_WAY.take()
}

/// Watches how long nothing has happened.
#[derive(Debug, Default)]
pub struct Idle {
    /// More ranks than processors on this node.
    pub crowded: bool,
    empty: u32,
    /// Those of the empty polls before which the program was away.
    away: u32,
    /// How often this rank has lingered without having given way.
    lingered: u32,
    /// The MPI library (or the program) gives way between polls, where it waits.
    gives_way: bool,
    since: Option<Instant>,
    last: Option<Instant>,
    /// Counter when this rank was last here.
    left: u64,
    /// Cycles for which this rank looked and found nothing, or slept for that.
    waited: u64,
}

impl Idle {
    /// This rank is here again at `now`, finds nothing, and may have given way in between.
    #[inline]
    pub fn comes_back(&mut self, now: u64, gave_way: bool) {
        self.wait_to(now);
        self.gives_way |= gave_way;
        self.away += u32::from(!gave_way && now.wrapping_sub(self.left) >= AWAY_CYCLES);
    }

    /// True if a rank that is here at `now` and finds nothing does nothing but wait, and is in nobody's way; `gave_way` in between.
    #[inline]
    pub fn lingers(&mut self, now: u64, gave_way: bool) -> bool {
        // In a restored process the counter may be behind; then this is long once.
        let absence = now.wrapping_sub(self.left);
        if self.crowded || absence >= LINGER_CYCLES || !gave_way && self.lingered == MIN_LINGERS {
            return false;
        }
        self.lingered += u32::from(!gave_way);
        true
    }

    /// What lies between this rank's last look and the one at `now` was waiting, if it is short.
    #[inline]
    fn wait_to(&mut self, now: u64) {
        let away = now.wrapping_sub(self.left);
        if away < MAX_WAIT_CYCLES {
            self.waited += away;
        }
    }

    /// This rank has slept for want of anything to do, and is here again at `now`.
    #[inline]
    pub fn slept(&mut self, now: u64) {
        // In a restored process the counter may be behind.
        if self.left != 0 && now > self.left {
            self.waited = self.waited.saturating_add(now - self.left);
        }
        self.left = now;
    }

    /// Cycles for which this rank waited so far.
    #[inline]
    pub fn waited(&self) -> u64 {
        self.waited
    }

    /// This rank is here at `now`, whether it finds something or not.
    #[inline]
    pub fn here(&mut self, now: u64) {
        self.left = now;
    }

    /// True if a rank that lingers since `began` has done so long enough at `now`; it leaves then, or when it found something.
    #[inline]
    pub fn lingered(&mut self, began: u64, now: u64) -> bool {
        self.wait_to(now);
        self.left = now;
        now.wrapping_sub(began) >= LINGER_CYCLES
    }

    /// The program does something that nobody is waited for: the next look is not that of a rank that waits.
    #[inline]
    pub fn busy(&mut self) {
        self.left = 0;
        self.start_again();
    }

    /// Something happened.
    #[inline]
    pub fn reset(&mut self) {
        self.lingered = 0;
        self.start_again();
    }

    #[inline]
    fn start_again(&mut self) {
        (self.empty, self.away, self.since) = (0, 0, None);
    }

    /// After a poll that found nothing.
    #[inline]
    pub fn empty_poll(&mut self) -> Rest {
        self.empty += 1;
        let every = if self.crowded { CROWDED_POLLS_PER_CLOCK } else { POLLS_PER_CLOCK };
        if self.empty < every {
            return Rest::Poll;
        }
        let polls = std::mem::take(&mut self.empty);
        // A probe is two polls, one right after the other.
        if std::mem::take(&mut self.away) * 2 >= polls {
            self.since = None;
            // Of a library that never gives way one cannot be sure, and somebody may wait for the processor.
            return if self.crowded && !self.gives_way { Rest::Yield } else { Rest::Poll };
        }
        self.judge(Instant::now())
    }

    fn judge(&mut self, now: Instant) -> Rest {
        // A restored process may find an earlier clock: differences saturate at zero.
        let computed = self.last.is_none_or(|last| now.saturating_duration_since(last) > MAX_POLL_GAP);
        self.last = Some(now);
        let since = match self.since {
            Some(since) if !computed || self.crowded => since,
            _ => {
                self.since = Some(now);
                now
            }
        };
        let spin = if self.crowded { CROWDED_SPIN_TIME } else { SPIN_TIME };
        let waited = now.saturating_duration_since(since);
        if waited >= spin {
            Rest::Sleep
        } else if self.crowded || waited >= KEEP_TIME {
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
        let long = 10 * LINGER_CYCLES;
        assert!(!idle.lingers(long, true) && idle.lingered(0, long));
        assert!(idle.lingers(long + 1, true) && !idle.lingered(long + 1, long + 2));
        // What it found at once does not keep it from lingering the next time.
        idle.here(long + LINGER_CYCLES);
        assert!(idle.lingers(long + 2 * LINGER_CYCLES - 1, true));
        idle.here(long + 2);
        assert!(!idle.lingers(long + 2 + LINGER_CYCLES, true));
        assert!(!idle.lingers(1, true), "the counter of another machine");
        assert!(!Idle { crowded: true, ..Idle::default() }.lingers(1, true));
    }

    #[test]
    fn who_polls_and_never_gives_way_soon_lingers_no_more() {
        let mut idle = Idle::default();
        for _ in 0..3 {
            assert_eq!((0..10).filter(|_| idle.lingers(1, false)).count(), MIN_LINGERS as usize);
            assert!((0..10).all(|_| idle.lingers(1, true)));
            idle.busy();
            idle.here(0);
            assert!(!idle.lingers(1, false));
            idle.reset();
        }
    }

    /// What a rank is told to do in polls each `every` cycles, of a library that gives way where it waits or never.
    fn told(crowded: bool, gives_way: bool, gave_way: bool, every: u64) -> Vec<Rest> {
        let mut idle = Idle { crowded, gives_way, ..Idle::default() };
        // So long ago that it would sleep by now.
        idle.since = Instant::now().checked_sub(Duration::from_secs(1));
        let poll = |number: u64| {
            // In the future: however slow the test is, no poll comes late.
            idle.last = Some(Instant::now() + Duration::from_secs(3600));
            idle.comes_back(number * every, gave_way);
            idle.here(number * every);
            idle.empty_poll()
        };
        (1..1000).map(poll).filter(|rest| *rest != Rest::Poll).collect()
    }

    #[test]
    fn who_does_something_between_polls_is_not_held_up() {
        for crowded in [false, true] {
            assert_eq!(told(crowded, true, false, AWAY_CYCLES), []);
            assert!(told(crowded, true, false, AWAY_CYCLES / 2).contains(&Rest::Sleep), "it does nothing but poll");
            assert!(told(crowded, false, true, 100 * AWAY_CYCLES).contains(&Rest::Sleep), "it lets others run");
            let unsure = told(crowded, false, false, AWAY_CYCLES);
            assert!(!unsure.contains(&Rest::Sleep) && unsure.contains(&Rest::Yield) == crowded, "{unsure:?}");
        }
    }

    #[test]
    fn who_gave_way_is_asked_once() {
        assert!(!gave_way());
        gives_way();
        assert!(!std::thread::spawn(gave_way).join().unwrap(), "another thread did not");
        assert!(gave_way() && !gave_way());
    }

    #[test]
    fn a_crowded_node_gives_way_first() {
        let (mut idle, start) = (Idle { crowded: true, ..Idle::default() }, Instant::now());
        assert_eq!(after(&mut idle, start, 0), Rest::Yield);
        assert_eq!(after(&mut idle, start, 29), Rest::Yield);
        assert_eq!(after(&mut idle, start, 31), Rest::Sleep);
    }
}
