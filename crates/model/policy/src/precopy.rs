//! When a rank that is copied while it runs is stopped for the rest, and whether it is worth while to copy it so.
//!
//! Each round sends what the program changed while the round before it was sent. If the program changes `d` bytes per second and the
//! link takes `r`, a round is about `d / r` as long as the one before it: rounds shrink as long as `d < r`, and the time for which the
//! rank stands still is what the last one leaves, divided by `r` (Clark et al., "Live Migration of Virtual Machines", NSDI 2005, whose
//! writable working set is what rounds no longer make smaller).

use mend_messages::agent::Round;
use mend_messages::control::{MoveMode, StopReason};
use serde::{Deserialize, Serialize};

/// A round leaves fewer if it leaves less than so many hundredths of the least that any before it left.
const SHRINKS: u64 = 90;
/// Rounds in a row that don't, after which it is taken for good: a program's bursts are no steady state.
const FRUITLESS_ROUNDS: u32 = 2;
/// Of what a rank has, hundredths that it changes during the first round, from which further rounds are of no use.
const NEARLY_ALL: u64 = 80;
/// Bytes that are sent faster than it takes to begin to copy live.
const SMALL_RANK_BYTES: u64 = 4 << 20;

/// Within which bounds a rank is copied while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes that are few enough for the rank to be stopped.
    pub threshold: u64,
    /// Most rounds, the first included.
    pub rounds: u32,
    /// When the rank is to run on its target, on the caller's clock.
    pub deadline_us: Option<u64>,
}

/// What was seen of a rank before: bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredRates {
    /// That it changes.
    pub dirty: u64,
    /// That were sent of it.
    pub rate: u64,
}

/// Whether a rank runs on while it is copied: `bytes` of memory, of which `rates` is known, and so much time left.
#[must_use]
pub fn choose(wanted: MoveMode, bytes: u64, rates: Option<MeasuredRates>, left_us: Option<u64>) -> MoveMode {
    if wanted != MoveMode::Auto {
        return wanted;
    }
    if bytes <= SMALL_RANK_BYTES {
        return MoveMode::Frozen;
    }
    let Some(MeasuredRates { dirty, rate }) = rates.filter(|rates| rates.rate > 0) else { return MoveMode::Live };
    // What is sent twice has to fit into the time, too.
    let late = left_us.is_some_and(|left| time_us(bytes, rate).saturating_add(time_us(change(dirty, time_us(bytes, rate)), rate)) > left);
    let useless = change(dirty, time_us(bytes, rate)) >= bytes / 100 * NEARLY_ALL;
    if late || useless { MoveMode::Frozen } else { MoveMode::Live }
}

/// Microseconds for so many bytes.
fn time_us(bytes: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000 / u128::from(rate.max(1))).unwrap_or(u64::MAX)
}

/// Bytes in so many microseconds.
fn change(rate: u64, us: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(us) / 1_000_000).unwrap_or(u64::MAX)
}

/// A rank being copied while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Precopy {
    bounds: Bounds,
    /// The last word of the agent's.
    last: Round,
    /// What the largest complete round took: bytes, microseconds.
    sent: (u64, u64),
    /// One was complete.
    first_done: bool,
    /// The least that a round left.
    least: Option<u64>,
    fruitless: u32,
    dirty: Option<u64>,
    urgent: bool,
}

impl Precopy {
    /// Before the first round.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, last: Round::default(), sent: (0, 0), first_done: false, least: None, fruitless: 0, dirty: None, urgent: false }
    }

    /// From now on it is to be stopped at once.
    pub fn hurry(&mut self) {
        self.urgent = true;
    }

    /// From now on the rank is to run on its target by then, on the caller's clock.
    pub fn set_deadline(&mut self, deadline_us: Option<u64>) {
        self.bounds.deadline_us = deadline_us;
    }

    /// What the agent said last.
    #[must_use]
    pub fn last(&self) -> Round {
        self.last
    }

    /// Bytes per second that are sent; 0: not known yet.
    #[must_use]
    pub fn rate(&self) -> u64 {
        // The largest round tells most.
        let (bytes, us) = match self.sent {
            (_, 0) => (self.last.bytes, self.last.us),
            sent => sent,
        };
        1_000_000_000_000u64.checked_div(us).map_or(0, |per_second| change(bytes, per_second))
    }

    /// Bytes per second that the program changes, if known.
    #[must_use]
    pub fn dirty_rate(&self) -> Option<u64> {
        self.dirty
    }

    /// What is known now for the next time.
    #[must_use]
    pub fn rates(&self) -> Option<MeasuredRates> {
        self.dirty.map(|dirty| MeasuredRates { dirty, rate: self.rate() })
    }

    /// Bytes that would have to be sent if the rank stopped now, if known.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        self.last.left
    }

    /// The agent says how far it is; whether the rank is to be stopped, and why.
    pub fn round(&mut self, now_us: u64, round: Round) -> Option<StopReason> {
        let mut round = round;
        if round.done {
            // Where nobody can tell without reading all of it: as much as the last time, though it may be less in a shorter round. A set
            // that is rewritten all the time is none the smaller.
            round.left = round.left.or(self.first_done.then_some(round.bytes));
        }
        self.last = round;
        if self.urgent {
            return Some(StopReason::Urgent);
        }
        if round.done { self.completed(round).or_else(|| self.late(now_us)) } else { self.late(now_us) }
    }

    /// Without a word of the agent's: whether the rank is to be stopped by now.
    #[must_use]
    pub fn judge(&self, now_us: u64) -> Option<StopReason> {
        if self.urgent { Some(StopReason::Urgent) } else { self.late(now_us) }
    }

    fn completed(&mut self, round: Round) -> Option<StopReason> {
        if round.bytes >= self.sent.0 {
            self.sent = (round.bytes, round.us);
        }
        let first = !std::mem::replace(&mut self.first_done, true);
        let Some(left) = round.left else {
            // Nothing is known yet of how much changes.
            return (round.number + 1 >= self.bounds.rounds).then_some(StopReason::RoundLimit);
        };
        if let Some(per_second) = 1_000_000_000_000u64.checked_div(round.us) {
            self.dirty = Some(change(left, per_second));
        }
        if left <= self.bounds.threshold {
            return Some(StopReason::LittleLeft);
        }
        let shrinks = self.least.is_none_or(|least| left < least / 100 * SHRINKS);
        self.fruitless = if shrinks { 0 } else { self.fruitless + 1 };
        self.least = Some(self.least.map_or(left, |least| least.min(left)));
        if first && left >= round.bytes / 100 * NEARLY_ALL || self.fruitless >= FRUITLESS_ROUNDS {
            return Some(StopReason::NotShrinking);
        }
        (round.number + 1 >= self.bounds.rounds).then_some(StopReason::RoundLimit)
    }

    /// Whether what is left, and after a round what changes while it is sent, takes all of the time that is left.
    fn late(&self, now_us: u64) -> Option<StopReason> {
        let left_us = self.bounds.deadline_us?.saturating_sub(now_us);
        let rate = self.rate();
        let late = left_us == 0
            || rate > 0
                && self.last.left.is_some_and(|left| {
                    let us = time_us(left, rate);
                    let again = if self.last.done { time_us(change(self.dirty.unwrap_or(0), us), rate) } else { 0 };
                    us.saturating_add(again) >= left_us
                });
        late.then_some(StopReason::Deadline)
    }

    /// When [`Precopy::judge`] has something to say at the latest, whatever the agent says.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        self.bounds.deadline_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { threshold: 1 << 20, rounds: 30, deadline_us: None };
    const MIB: u64 = 1 << 20;

    /// A program with so much memory, of which it changes a set at a rate, on a link. Returns reason, rounds, bytes sent before the stop,
    /// bytes left.
    fn play(bounds: Bounds, memory: u64, (set, dirty): (u64, u64), rate: u64, told: bool) -> (StopReason, u32, u64, u64) {
        let mut precopy = Precopy::new(bounds);
        let (mut now, mut bytes, mut total) = (0, memory, 0);
        for number in 0.. {
            let us = time_us(bytes, rate).max(1);
            now += us;
            total += bytes;
            let left = change(dirty, us).min(set);
            let round = Round { number, done: true, bytes, us, total, left: told.then_some(left), ..Round::default() };
            if let Some(reason) = precopy.round(now, round) {
                return (reason, number + 1, total, left);
            }
            bytes = left;
        }
        unreachable!("rounds are limited")
    }

    #[test]
    fn a_quiet_program_is_stopped_after_one_round() {
        assert_eq!(play(BOUNDS, 1 << 30, (MIB, 1 << 20), 1 << 30, true), (StopReason::LittleLeft, 1, 1 << 30, MIB));
    }

    #[test]
    fn a_working_set_that_is_rewritten_all_the_time_is_not_chased() {
        let (reason, rounds, total, left) = play(BOUNDS, 1 << 30, (8 * MIB, 8 << 30), 1 << 30, true);
        assert_eq!((reason, left), (StopReason::NotShrinking, 8 * MIB));
        assert!(rounds <= 4 && total <= (1 << 30) + 24 * MIB, "{rounds} {total}");
        // Nor where nobody tells how much changed.
        let (reason, rounds, ..) = play(BOUNDS, 1 << 30, (8 * MIB, 8 << 30), 1 << 30, false);
        assert!(reason == StopReason::NotShrinking && rounds <= 6, "{reason:?} {rounds}");
    }

    #[test]
    fn who_changes_all_of_it_is_stopped_after_one_round() {
        assert_eq!(play(BOUNDS, 1 << 30, (1 << 30, 4 << 30), 1 << 30, true).0, StopReason::NotShrinking);
        assert_eq!(play(BOUNDS, 1 << 30, (1 << 30, 4 << 30), 1 << 30, true).1, 1);
    }

    #[test]
    fn the_deadline_stops_it_within_a_round_and_after_one() {
        let bounds = Bounds { deadline_us: Some(3_000_000), ..BOUNDS };
        let mut precopy = Precopy::new(bounds);
        let round = |us, bytes, left| Round { number: 0, done: false, bytes, us, total: bytes, left: Some(left), ..Round::default() };
        assert_eq!(precopy.round(1_000_000, round(1_000_000, 100 * MIB, 150 * MIB)), None);
        assert_eq!(precopy.round(1_000_000, round(1_000_000, 100 * MIB, 250 * MIB)), Some(StopReason::Deadline));
        assert_eq!((precopy.judge(999_999_999), precopy.due_us()), (Some(StopReason::Deadline), Some(3_000_000)));
        assert_eq!(play(Bounds { deadline_us: Some(1), ..BOUNDS }, 1 << 30, (64 * MIB, 64 << 20), 1 << 30, true).0, StopReason::Deadline);
    }

    #[test]
    fn who_is_in_a_hurry_does_not_wait_for_a_round() {
        let mut precopy = Precopy::new(BOUNDS);
        assert_eq!(precopy.judge(5), None);
        precopy.hurry();
        assert_eq!((precopy.judge(5), precopy.round(5, Round::default())), (Some(StopReason::Urgent), Some(StopReason::Urgent)));
    }

    #[test]
    fn auto_weighs_what_was_seen_before() {
        let rates = |dirty, rate| Some(MeasuredRates { dirty, rate });
        let auto = |bytes, rates, left| choose(MoveMode::Auto, bytes, rates, left);
        assert_eq!(auto(1 << 30, None, None), MoveMode::Live);
        assert_eq!(auto(1 << 20, None, None), MoveMode::Frozen);
        assert_eq!(auto(1 << 30, rates(1 << 20, 1 << 30), None), MoveMode::Live);
        assert_eq!(auto(1 << 30, rates(2 << 30, 1 << 30), None), MoveMode::Frozen);
        // No time to send anything twice.
        assert_eq!(auto(1 << 30, rates(1 << 28, 1 << 30), Some(1_100_000)), MoveMode::Frozen);
        assert_eq!(auto(1 << 30, rates(1 << 28, 1 << 30), Some(1_300_000)), MoveMode::Live);
        assert_eq!(choose(MoveMode::Live, 1, rates(2 << 30, 1), Some(0)), MoveMode::Live);
        assert_eq!(choose(MoveMode::Frozen, 1 << 40, None, None), MoveMode::Frozen);
    }

    proptest! {
        /// Whatever program and link: it ends within its rounds, and what is sent is bounded by what it changes.
        #[test]
        fn it_always_ends(memory in 0u64..1 << 36, set in 0u64..1 << 36, dirty in 0u64..1 << 36, rate in 1u64..1 << 36, told: bool) {
            let set = set.min(memory);
            let (_, rounds, total, _) = play(BOUNDS, memory, (set, dirty), rate, told);
            prop_assert!(rounds <= BOUNDS.rounds);
            prop_assert!(total <= memory + u64::from(rounds - 1) * set);
        }

        /// A program that changes less than a tenth of what the link takes costs a ninth more at most.
        #[test]
        fn a_slow_changer_costs_little(memory in 64u64 << 20..1 << 34, share in 0u64..10, rate in 1u64 << 24..1 << 34) {
            let (_, _, total, left) = play(BOUNDS, memory, (memory, rate / 100 * share), rate, true);
            prop_assert!(total + left <= memory / 100 * 112 + (1 << 20));
        }

        #[test]
        fn any_words_of_an_agent_do_no_harm(rounds in proptest::collection::vec(any::<(u32, bool, u64, u64, u64, Option<u64>)>(), 0..20), now: u64, deadline: Option<u64>) {
            let mut precopy = Precopy::new(Bounds { deadline_us: deadline, ..BOUNDS });
            for (number, done, bytes, us, total, left) in rounds {
                let _ = precopy.round(now, Round { number, done, bytes, us, total, left, ..Round::default() });
                let _ = (precopy.rate(), precopy.rates(), precopy.judge(now));
            }
        }
    }
}
