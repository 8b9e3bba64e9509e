//! How a controller holds a job on this node: its lease, when a successor of the controller is started, when the ranks end.
//!
//! ```text
//! held ── silent for half of the lease ──► suspected: a successor is started, until one was
//!   │ ▲                                        │
//!   │ └───────────── any word ─────────────────┤
//!   ├── its connection is closed, no successor can come ──► closed: 2 s more at most
//!   └── no ping for 0.9 of the lease ──► over: the ranks end
//! ```
//! Invariants: the ranks end before the lease does, counted from the last ping; only a ping of the controller makes that later, or that it comes back. A
//! controller that may not renew the lease sends none, though it may give orders. Faults assumed: the
//! controller dies, stalls, or loses its connection; this daemon stands still, which is not held against the controller (the kernel ends ranks
//! that share a PID namespace then).

use mend_coordination::lease::SenderClock;
use serde::{Deserialize, Serialize};

const MILLISECOND_US: u64 = 1_000;
const SECOND_US: u64 = 1_000_000;
/// Bounds of the lease that a controller may ask for.
const LEASE_BOUNDS_US: (u64, u64) = (500 * MILLISECOND_US, 600 * SECOND_US);
/// Tenths of the lease after which the daemon ends the ranks itself, which is kinder than the kernel at the lease's end: output is sent.
const KIND_END: u64 = 9;
/// Which part of the lease a controller may be silent before nodes look for a successor.
const SUSPICION: u64 = 2;
/// How long the lease goes on after the controller's process closed the connection, at most: it has ended, or is back at once.
const CLOSED_LEASE_US: u64 = 2 * SECOND_US;
/// Looks within a lease.
const LOOKS_PER_LEASE: u64 = 20;
/// Bounds of the pause between two of them.
const PAUSE_BOUNDS_US: (u64, u64) = (10 * MILLISECOND_US, 250 * MILLISECOND_US);
/// Which part of the lease passes after a word until the first look, and how long at most: while words come there is nothing to look for.
const FIRST_LOOK_US: (u64, u64) = (4, 2 * SECOND_US);

/// The lease that a controller gets which asks for this one.
#[must_use]
pub fn lease_us(wanted_us: u64) -> u64 {
    wanted_us.clamp(LEASE_BOUNDS_US.0, LEASE_BOUNDS_US.1)
}

/// What becomes of the connection to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkState {
    /// The controller closed it, or its host knows it no more.
    Closed,
    /// It is there again.
    Connected,
    /// Another controller is there in its place.
    Succeeded,
}

/// What a look at the time finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// A successor of the controller is to be started.
    pub suspects: bool,
    /// The ranks are to end.
    pub over: bool,
}

/// What is left of a limit. [`Hold`] counts the time as `mend-patience` does, but by a clock that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Patience {
    limit_us: u64,
    spent_us: u64,
}

impl Patience {
    fn new(limit_us: u64) -> Self {
        Self { limit_us, spent_us: 0 }
    }

    fn left_us(&self) -> u64 {
        self.limit_us.saturating_sub(self.spent_us)
    }
}

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    lease_us: u64,
    /// Time between two looks in silence.
    pause_us: u64,
    /// The same after the last word or look, if no limit ends before.
    next_us: u64,
    /// Up to when the time is counted.
    counted_us: u64,
    silence: Patience,
    suspicion: Patience,
    /// A successor has been started since the controller was heard last, or is just being.
    suspected: bool,
    clock: SenderClock,
    /// When this daemon did something last.
    awake_us: u64,
    /// Until when it did nothing the last time, and for how long.
    delay: (u64, u64),
}

impl Hold {
    /// A job that begins with this lease.
    #[must_use]
    pub fn begin(wanted_us: u64, now_us: u64) -> Self {
        let lease_us = lease_us(wanted_us);
        let kind_us = lease_us * KIND_END / 10;
        let mut hold = Self {
            lease_us,
            pause_us: (kind_us / LOOKS_PER_LEASE).clamp(PAUSE_BOUNDS_US.0, PAUSE_BOUNDS_US.1),
            next_us: 0,
            counted_us: now_us,
            silence: Patience::new(kind_us),
            suspicion: Patience::new(lease_us / SUSPICION),
            suspected: false,
            clock: SenderClock::default(),
            awake_us: now_us,
            delay: (0, 0),
        };
        hold.rest();
        hold
    }

    /// How long the lease is, microseconds.
    #[must_use]
    pub fn lease_us(&self) -> u64 {
        self.lease_us
    }

    /// When the next [`Hold::look`] is due, if there is no word before.
    #[must_use]
    pub fn look_at_us(&self) -> u64 {
        self.counted_us + self.wait_us()
    }

    /// Time from the last word or look to the next look. A limit that ends before that is looked for then.
    fn wait_us(&self) -> u64 {
        let suspicion_us = if self.suspected { u64::MAX } else { self.suspicion.left_us() };
        self.next_us.min(self.silence.left_us()).min(suspicion_us).max(self.pause_us)
    }

    /// Somebody has spoken: more words will come.
    fn rest(&mut self) {
        self.next_us = (self.lease_us / FIRST_LOOK_US.0).min(FIRST_LOOK_US.1);
    }

    /// Of the time since the last word or look no more counts than was to pass until the next look: the rest is this daemon's own delay.
    fn count(&mut self, now_us: u64) {
        let wait_us = self.wait_us();
        self.is_awake(now_us, wait_us);
        let passed_us = now_us.saturating_sub(self.counted_us).min(wait_us);
        self.silence.spent_us += passed_us;
        self.suspicion.spent_us += passed_us;
        self.counted_us = now_us;
    }

    fn kind_us(&self) -> u64 {
        self.lease_us * KIND_END / 10
    }

    /// A word of the controller's that renews the lease from when it was sent, so long ago.
    pub fn heard(&mut self, age_us: u64, now_us: u64) {
        self.spoke(now_us);
        self.silence.spent_us = self.silence.spent_us.min(age_us);
    }

    /// Any other one: there is a controller.
    pub fn spoke(&mut self, now_us: u64) {
        self.count(now_us);
        self.suspicion.spent_us = 0;
        self.suspected = false;
        self.rest();
    }

    /// A ping, sent at this time of the controller's clock: how old it is, microseconds.
    pub fn pinged(&mut self, at_us: u64, now_us: u64) -> u64 {
        self.clock.age_us(at_us, now_us)
    }

    /// The connection is another. True if a successor is to be started: nobody may be there any more. [`Hold::succeeds`] is told whether
    /// one was.
    pub fn linked(&mut self, state: LinkState, now_us: u64) -> bool {
        self.count(now_us);
        match state {
            LinkState::Closed => {
                // Nothing was said: what is spent stays spent.
                self.next_us = self.pause_us;
                self.silence.limit_us = self.kind_us().min(self.silence.spent_us + CLOSED_LEASE_US);
                return true;
            }
            LinkState::Connected => {}
            LinkState::Succeeded => self.clock = SenderClock::default(),
        }
        self.silence = Patience::new(self.kind_us());
        self.rest();
        false
    }

    /// Whether a successor was started, after silence or after the end of a connection. The controller may have been heard since that was to be done.
    pub fn succeeds(&mut self, started: bool, silent: bool) {
        match (started, silent) {
            // It needs the ranks for longer than it takes to see that nobody comes back.
            (true, false) => self.silence.limit_us = self.kind_us(),
            // Tried again while the job's directory cannot be seen.
            (false, true) => self.suspected = false,
            (true, true) | (false, false) => {}
        }
    }

    /// How long this daemon itself stood still in the lease before its last look at the time, microseconds: as long as nothing happened at all.
    #[must_use]
    pub fn stood_still_us(&self) -> u64 {
        let (until_us, us) = self.delay;
        if self.awake_us.saturating_sub(until_us) < self.lease_us { us } else { 0 }
    }

    /// This daemon does something, and was to do so after this time at most.
    fn is_awake(&mut self, now_us: u64, wait_us: u64) {
        let us = now_us.saturating_sub(self.awake_us);
        if us > wait_us + self.pause_us {
            self.delay = (now_us, us);
        }
        self.awake_us = now_us;
    }

    /// Looks at the time.
    pub fn look(&mut self, now_us: u64) -> Look {
        self.count(now_us);
        self.next_us = self.pause_us;
        let suspects = self.suspicion.left_us() == 0 && !self.suspected;
        self.suspected |= suspects;
        Look { suspects, over: self.silence.left_us() == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEASE_US: u64 = 10 * SECOND_US;

    /// Looks as a daemon does; the time at which it was first found to be so.
    fn first(hold: &mut Hold, from_us: u64, is_so: impl Fn(Look) -> bool) -> u64 {
        let mut now_us = from_us;
        loop {
            now_us = hold.look_at_us().max(now_us + 1);
            if is_so(hold.look(now_us)) {
                return now_us;
            }
        }
    }

    #[test]
    fn silence_is_suspected_at_half_of_the_lease_and_ends_ranks_before_its_end() {
        let mut hold = Hold::begin(LEASE_US, 7);
        assert_eq!(first(&mut hold, 7, |look| look.suspects), 7 + LEASE_US / 2);
        // Once, whether or not it is known already if one could be started. One that could not be is tried again, one that was is not.
        assert_eq!(hold.look(8 + LEASE_US / 2), Look::default());
        hold.succeeds(false, true);
        assert!(hold.look(8 + LEASE_US / 2).suspects);
        hold.succeeds(true, true);
        assert_eq!(hold.look(9 + LEASE_US / 2), Look::default());
        assert_eq!(first(&mut hold, 9 + LEASE_US / 2, |look| look.over), 9 + LEASE_US / 10 * 9);
    }

    #[test]
    fn a_closed_connection_shortens_the_lease_unless_somebody_comes() {
        for (started, over_us) in [(false, 5 * SECOND_US), (true, 9 * SECOND_US)] {
            let mut hold = Hold::begin(LEASE_US, 0);
            assert!(!first_within(&mut hold, 3 * SECOND_US));
            assert!(hold.linked(LinkState::Closed, 3 * SECOND_US));
            hold.succeeds(started, false);
            assert_eq!(first(&mut hold, 3 * SECOND_US, |look| look.over), over_us);
        }
    }

    fn first_within(hold: &mut Hold, until_us: u64) -> bool {
        let mut now_us = 0;
        while now_us < until_us {
            now_us = until_us.min(hold.look_at_us());
            if hold.look(now_us).over {
                return true;
            }
        }
        false
    }

    /// It began the lease anew: a job of one rank, whose controller had given the node up, could live on beside its successor.
    #[test]
    fn a_connection_that_is_closed_late_does_not_begin_the_lease_anew() {
        let mut hold = Hold::begin(LEASE_US, 0);
        assert!(!first_within(&mut hold, 8 * SECOND_US));
        hold.linked(LinkState::Closed, 8 * SECOND_US);
        hold.succeeds(true, false);
        assert_eq!(first(&mut hold, 8 * SECOND_US, |look| look.over), 9 * SECOND_US);
    }

    #[test]
    fn own_delay_is_not_held_against_the_controller() {
        let mut hold = Hold::begin(LEASE_US, 0);
        assert_eq!(hold.look(1000 * SECOND_US), Look::default());
        assert_eq!(hold.stood_still_us(), 1000 * SECOND_US);
        // What was said meanwhile is heard late.
        hold.heard(1000 * SECOND_US, 1000 * SECOND_US);
        assert_eq!(hold.stood_still_us(), 1000 * SECOND_US);
        first(&mut hold, 1000 * SECOND_US, |look| look.over);
        assert_eq!(hold.stood_still_us(), 1000 * SECOND_US);
        (1011..=1020).step_by(3).for_each(|second| hold.heard(0, second * SECOND_US));
        assert_eq!(hold.stood_still_us(), 3 * SECOND_US);
    }

    /// Pings come 15 times in a lease.
    #[test]
    fn nothing_is_looked_at_while_pings_come_and_silence_is_looked_at_often() {
        for lease_us in [500 * MILLISECOND_US, 3 * SECOND_US, LEASE_US, 600 * SECOND_US] {
            let (mut hold, pause_us) = (Hold::begin(lease_us, 0), SECOND_US.min(lease_us / 15));
            for now_us in (pause_us..10 * lease_us).step_by(pause_us as usize) {
                assert!(hold.look_at_us() > now_us);
                hold.heard(0, now_us);
            }
            let heard_us = hold.counted_us;
            let looks = (0..5).map(|_| {
                let at_us = hold.look_at_us();
                assert_eq!(hold.look(at_us), Look::default());
                at_us
            });
            let looks: Vec<u64> = [heard_us].into_iter().chain(looks).collect();
            let waits: Vec<u64> = looks.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(waits[0] <= lease_us / 4 && waits[1..].iter().all(|wait_us| *wait_us <= lease_us / 20), "{waits:?}");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Look,
        /// So old.
        Heard(u64),
        Spoke,
        Link(LinkState),
        Successor(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
        let link = prop_oneof![Just(LinkState::Closed), Just(LinkState::Connected), Just(LinkState::Succeeded)];
        let step = prop_oneof![
            8 => Just(Step::Look),
            2 => (0u64..2_000_000).prop_map(Step::Heard),
            2 => Just(Step::Spoke),
            2 => link.prop_map(Step::Link),
            1 => any::<bool>().prop_map(Step::Successor),
        ];
        proptest::collection::vec((0u64..3_000_000, step), 0..200)
    }

    proptest! {
        /// A daemon that looks as often as it should never lets ranks live for a whole lease without a word.
        #[test]
        fn no_rank_outlives_the_lease(lease_ms in 500u64..20_000, steps in steps()) {
            let mut hold = Hold::begin(lease_ms * MILLISECOND_US, 0);
            let (mut now_us, mut heard_us) = (0, 0);
            for (wait_us, step) in steps {
                let until_us = now_us + wait_us;
                while now_us < until_us {
                    now_us = until_us.min(hold.look_at_us());
                    if hold.look(now_us).over {
                        return Ok(());
                    }
                    prop_assert!(now_us - heard_us < lease_ms * MILLISECOND_US, "at {now_us}, heard at {heard_us}");
                }
                match step {
                    Step::Look => {}
                    Step::Heard(age_us) => hold.heard(age_us, now_us),
                    Step::Spoke => hold.spoke(now_us),
                    Step::Link(state) => prop_assert_eq!(hold.linked(state, now_us), state == LinkState::Closed),
                    Step::Successor(started) => hold.succeeds(started, false),
                }
                match step {
                    Step::Heard(age_us) => heard_us = heard_us.max(now_us.saturating_sub(age_us)),
                    // Who comes back or takes over has spoken.
                    Step::Link(LinkState::Connected | LinkState::Succeeded) => heard_us = now_us,
                    _ => {}
                }
            }
        }

        /// Nobody is ended while the controller speaks.
        #[test]
        fn who_is_heard_is_not_ended(lease_ms in 500u64..20_000, waits in proptest::collection::vec(0u64..400, 1..100)) {
            let mut hold = Hold::begin(lease_ms * MILLISECOND_US, 0);
            let mut now_us = 0;
            for wait_thousandths in waits {
                now_us += hold.lease_us() * wait_thousandths / 1000;
                prop_assert_eq!(hold.look(now_us), Look::default());
                hold.heard(0, now_us);
            }
        }
    }
}
