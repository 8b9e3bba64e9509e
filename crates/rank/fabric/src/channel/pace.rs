//! Which way long messages come between two ranks of a node: through the ring, or read by their receiver.
//!
//! Which is the faster one depends on the processors, on how far from each other the two are, which the host decides and which
//! changes (docs/message.md#near-and-far), on the length, and on what else the ranks do: a rank that sends at the same time
//! copies into one ring and out of another. So the receiver takes the time of whole messages, from when it answers an announcement
//! until everything is there, whichever way they come, and uses the way that takes less. Now and then one message comes by the
//! other way, to see whether that has become the better one: the more seldom the worse it was. A way that is far worse shows that
//! by its first messages, and by those of the next shorter class, where a try costs less.

use std::collections::VecDeque;

/// Bytes up to which messages are judged together, by class; longer ones are the last class.
const CLASS_BYTES: [usize; 4] = [32 << 10, 128 << 10, 512 << 10, 2 << 20];
/// Messages under way that are remembered.
const RECENT_MESSAGES: usize = 16;
/// Times after which a way counts as known.
const MIN_SAMPLES: u32 = 8;
/// Times after which a way is given up that took [`GIVE_UP_HALVES`] as long as the other each time.
const GIVE_UP_SAMPLES: u32 = 2;
/// Halves of the better way's time.
const GIVE_UP_HALVES: u64 = 3;
/// One of so many messages comes the other way, at most, while that is not known or no worse.
const TRIAL_MESSAGES: u64 = 16;
/// At least, however much worse it is.
const MAX_TRIAL_MESSAGES: u64 = 4096;
/// What tries cost together: one of so many parts of the time.
const TRIAL_TIME_PARTS: u64 = 256;

/// What is typical of a cost that is sometimes much higher, because somebody interrupted: close to the median.
#[derive(Clone, Copy, Debug, Default)]
struct Typical {
    /// Cycles per KiB.
    value: u64,
    seen: u32,
}

impl Typical {
    /// The least of the first: some of them touch memory that was never touched before. Then up or down by a sixteenth.
    fn note(&mut self, cost: u64) {
        let cost = cost.max(1);
        if self.seen < MIN_SAMPLES {
            self.value = if self.seen == 0 { cost } else { self.value.min(cost) };
            self.seen += 1;
            return;
        }
        let step = (self.value / 16).max(1);
        if cost > self.value {
            self.value = cost.min(self.value + step);
        } else {
            self.value = cost.max(self.value - step);
        }
    }

    fn known(&self) -> Option<u64> {
        (self.seen >= MIN_SAMPLES).then_some(self.value)
    }

    /// The same, sooner if it is far above the `other` way's.
    fn known_beside(&self, other: u64) -> Option<u64> {
        (self.seen >= if far(self.value, other) { GIVE_UP_SAMPLES } else { MIN_SAMPLES }).then_some(self.value)
    }
}

fn far(worse: u64, better: u64) -> bool {
    worse.saturating_mul(2) >= better.saturating_mul(GIVE_UP_HALVES)
}

fn per_kib(length: usize, cycles: u64) -> u64 {
    cycles.saturating_mul(1024) / length.max(1) as u64
}

/// What messages of similar lengths cost.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    ring: Typical,
    read: Typical,
    turn: u64,
}

/// What reading and copying cost this process alone, before any message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prospect {
    /// A read, cycles per KiB.
    pub read: u64,
    /// True if the ring is likely to be the faster way.
    pub slow: bool,
}

/// The receiver's choice. Times are cycles of the time stamp counter.
#[derive(Debug, Default)]
pub struct Pace {
    ways: [Ways; CLASS_BYTES.len() + 1],
    /// Messages that were decided upon last, and their classes.
    recent: VecDeque<(u64, usize)>,
    /// The latest message that comes through the ring, until it is there.
    latest: Option<u64>,
    /// Since when `bytes` have come through the ring.
    since: u64,
    bytes: usize,
}

impl Pace {
    /// True if the message of this number and length had better come through the ring.
    pub fn rings(&mut self, number: u64, length: usize, prospect: Prospect, now: u64) -> bool {
        let class = CLASS_BYTES.iter().position(|longest| length < *longest).unwrap_or(CLASS_BYTES.len());
        let hopeless = self.ways[..class].iter().rev().find_map(|shorter| shorter.ring_is_far(prospect)).unwrap_or(false);
        let rings = self.ways[class].choose(prospect, hopeless);
        if self.recent.len() == RECENT_MESSAGES {
            self.recent.pop_front();
        }
        self.recent.push_back((number, class));
        if rings {
            if self.latest.is_none() {
                (self.since, self.bytes) = (now, 0);
            }
            self.latest = Some(number);
        }
        rings
    }

    fn class(&self, number: u64) -> Option<usize> {
        self.recent.iter().rev().find(|(other, _)| *other == number).map(|(_, class)| *class)
    }

    /// A piece of a message was read out of the peer's memory.
    pub fn read(&mut self, number: u64, length: usize, cycles: u64) {
        if let Some(class) = self.class(number) {
            self.ways[class].read.note(per_kib(length, cycles));
        }
    }

    /// A piece of a message has come through the ring, the `last` or not. `now` is asked for the time if that counts.
    #[inline]
    pub fn came(&mut self, number: u64, length: usize, last: bool, now: impl Fn() -> u64) {
        self.bytes += length;
        if last && let Some(class) = self.class(number) {
            let now = now();
            self.ways[class].ring.note(per_kib(self.bytes, now.saturating_sub(self.since)));
            (self.since, self.bytes) = (now, 0);
            // The next one may have been under way for a while, or be asked for much later.
            if self.latest == Some(number) {
                self.latest = None;
            }
        }
    }
}

impl Ways {
    /// What a read costs.
    fn reads(&self, prospect: Prospect) -> u64 {
        self.read.known().unwrap_or(prospect.read)
    }

    /// Whether the ring has turned out to be much slower. `None`: not known.
    fn ring_is_far(&self, prospect: Prospect) -> Option<bool> {
        let read = self.reads(prospect);
        self.ring.known_beside(read).map(|ring| far(ring, read))
    }

    /// True: through the ring. `hopeless`: it is far slower for shorter messages.
    fn choose(&mut self, prospect: Prospect, hopeless: bool) -> bool {
        let read = self.reads(prospect);
        let (rings, every) = match (self.ring.known_beside(read), read) {
            (None, _) if prospect.slow => return true,
            (None, _) if hopeless => (false, TRIAL_TIME_PARTS),
            (None, _) => (false, TRIAL_MESSAGES),
            (Some(ring), read) => {
                let (better, worse) = (ring.min(read).max(1), ring.max(read));
                let every = TRIAL_TIME_PARTS.saturating_mul(worse - better) / better;
                (ring <= read, every.clamp(TRIAL_MESSAGES, MAX_TRIAL_MESSAGES))
            }
        };
        self.turn = self.turn.wrapping_add(1);
        rings != self.turn.is_multiple_of(every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW_PROSPECT: Prospect = Prospect { read: 150, slow: true };
    const FAST_PROSPECT: Prospect = Prospect { read: 60, slow: false };
    const LENGTH: usize = 64 << 10;

    /// A node on which messages cost so many cycles per KiB, one at a time.
    struct Node {
        pace: Pace,
        prospect: Prospect,
        now: u64,
        number: u64,
        ring: u64,
        read: u64,
    }

    impl Node {
        fn new(prospect: Prospect, ring: u64, read: u64) -> Self {
            Self { pace: Pace::default(), prospect, now: 1 << 40, number: 0, ring, read }
        }

        /// How many of some messages come through the ring.
        fn rings(&mut self, count: u64, length: usize) -> u64 {
            (0..count).filter(|_| self.message(length)).count() as u64
        }

        fn message(&mut self, length: usize) -> bool {
            self.number += 1;
            let (number, kib) = (self.number, length as u64 >> 10);
            let rings = self.pace.rings(number, length, self.prospect, self.now);
            if rings {
                for piece in 1..=4 {
                    self.now += self.ring * kib / 4;
                    self.pace.came(number, length / 4, piece == 4, || self.now);
                }
            } else {
                self.now += self.read * kib;
                self.pace.read(number, length, self.read * kib);
            }
            // The program does something else.
            self.now += 1 << 30;
            rings
        }
    }

    #[test]
    fn where_reading_is_slow_the_ring_is_used_from_the_first_and_nearly_always() {
        let mut near = Node::new(SLOW_PROSPECT, 25, 120);
        assert_eq!(near.rings(u64::from(MIN_SAMPLES), LENGTH), u64::from(MIN_SAMPLES));
        assert!(near.rings(1000, LENGTH) > 990);
    }

    #[test]
    fn where_reading_is_fast_the_ring_is_only_tried() {
        let mut node = Node::new(FAST_PROSPECT, 250, 100);
        assert!(node.rings(1000, LENGTH) < 30);
        assert!(node.rings(1000, LENGTH) < 20);
    }

    #[test]
    fn what_is_far_worse_is_seen_at_a_glance_and_not_tried_on_longer_messages() {
        let mut node = Node::new(FAST_PROSPECT, 250, 100);
        assert!(node.rings(5 * TRIAL_MESSAGES, 16 << 10) <= u64::from(GIVE_UP_SAMPLES));
        assert!(node.rings(2 * TRIAL_MESSAGES, 64 << 10) <= 1);
        assert!(node.rings(2 * TRIAL_MESSAGES, 300 << 10) <= 1);
        // But what has become better is noticed.
        node.ring = 30;
        node.rings(20_000, 16 << 10);
        node.rings(20_000, 64 << 10);
        assert!(node.rings(100, 64 << 10) > 90);
    }

    #[test]
    fn a_prospect_that_was_wrong_is_given_up() {
        let mut apart = Node::new(SLOW_PROSPECT, 250, 100);
        apart.rings(20, LENGTH);
        assert!(apart.rings(100, LENGTH) < 10);
        let mut node = Node::new(FAST_PROSPECT, 60, 100);
        node.rings(1000, LENGTH);
        assert!(node.rings(100, LENGTH) > 90);
    }

    #[test]
    fn what_changes_is_noticed_both_ways() {
        let mut node = Node::new(SLOW_PROSPECT, 30, 120);
        node.rings(1000, LENGTH);
        node.ring = 300;
        node.rings(200, LENGTH);
        assert!(node.rings(100, LENGTH) < 10);
        node.ring = 30;
        node.rings(10_000, LENGTH);
        assert!(node.rings(100, LENGTH) > 90);
    }

    #[test]
    fn interruptions_change_nothing() {
        let mut node = Node::new(SLOW_PROSPECT, 30, 120);
        for _ in 0..100 {
            assert!(node.rings(10, LENGTH) >= 9);
            node.ring = 50_000;
            node.message(LENGTH);
            node.ring = 30;
        }
    }

    #[test]
    fn each_length_has_its_way() {
        let mut node = Node::new(SLOW_PROSPECT, 30, 120);
        node.rings(100, LENGTH);
        (node.ring, node.read) = (200, 90);
        node.rings(200, 4 << 20);
        assert!(node.rings(100, 4 << 20) < 10);
        (node.ring, node.read) = (30, 120);
        assert!(node.rings(100, LENGTH) > 90);
    }

    /// Messages that are under way at the same time share the ring: each has its part of the time.
    #[test]
    fn messages_at_the_same_time_are_not_charged_for_each_other() {
        let (mut pace, mut now) = (Pace::default(), 0);
        for number in 0..200 {
            let first = 10 * number;
            let rings = (first..first + 8).filter(|number| pace.rings(*number, LENGTH, SLOW_PROSPECT, now)).collect::<Vec<_>>();
            for piece in 0..4 {
                for number in &rings {
                    now += 40 * 16;
                    pace.came(*number, LENGTH / 4, piece == 3, || now);
                }
            }
        }
        let cost = pace.ways[1].ring.known().unwrap();
        assert!((30..=60).contains(&cost), "{cost} cycles per KiB instead of 40");
    }
}
