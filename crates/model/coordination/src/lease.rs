//! How late a word is heard: what a node's hold of a job counts from is when the controller spoke, not when the daemon came to hear it.
//!
//! A word may lie in a socket while its reader stands still. If it counted from when it is heard, a node that stood still could hold a job
//! for longer than whoever sent the word can know, and its ranks' successors would run beside them.
//!
//! The two clocks have nothing in common but their speed, nearly. So the shortest way that a word took lately is taken for no time at all. Invariant:
//! a word's age is never taken for less than it is, but for the time of the fastest word of the last [`WINDOW`] ones. Faults assumed: clocks that drift
//! (within two windows, by 500 ppm as adjtimex(2) may slew them), readers that stand still, words that come in heaps.

use serde::{Deserialize, Serialize};

/// Words after which what is known of the clocks begins to be forgotten.
pub const WINDOW: u32 = 64;

/// What is known of the other side's clock. Differences are microseconds of this side's clock less microseconds of the other's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderClock {
    /// The least difference of the window that is over.
    before: Option<i64>,
    /// The least of this one.
    now: Option<i64>,
    words: u32,
}

impl SenderClock {
    /// A word that was sent at this time of the other side's clock is heard at this time of ours: how old it is, microseconds.
    pub fn age_us(&mut self, sent_us: u64, heard_us: u64) -> u64 {
        let difference = (heard_us as i64).wrapping_sub(sent_us as i64);
        let known = [self.before, self.now].into_iter().flatten().chain([difference]).min().unwrap_or(difference);
        self.now = Some(self.now.map_or(difference, |now| now.min(difference)));
        self.words += 1;
        if self.words >= WINDOW {
            *self = Self { before: self.now, now: None, words: 0 };
        }
        u64::try_from(difference.saturating_sub(known)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_lay_in_a_socket_is_old() {
        let mut clock = SenderClock::default();
        for second in 0..10u64 {
            assert_eq!(clock.age_us(second * 1_000_000, 5_000_000_000 + second * 1_000_000), 0);
        }
        // The reader stood still for three seconds; the last of three words is fresh again.
        assert_eq!(clock.age_us(10_000_000, 5_013_000_000), 3_000_000);
        assert_eq!(clock.age_us(11_000_000, 5_013_000_000), 2_000_000);
        assert_eq!(clock.age_us(13_000_000, 5_013_000_000), 0);
    }

    #[test]
    fn a_clock_that_drifts_makes_no_word_old() {
        let mut clock = SenderClock::default();
        for word in 0..100_000u64 {
            // Five words a second; ours is fast by 500 ppm.
            let sent = word * 200_000;
            assert!(clock.age_us(sent, sent + sent / 2000) <= 2 * u64::from(WINDOW) * 100, "word {word}");
        }
    }

    proptest! {
        #[test]
        fn no_word_is_taken_for_younger_than_it_is(offset in 0u64..1 << 50, ways in proptest::collection::vec(0u64..10_000_000, 1..300)) {
            let (mut clock, mut fastest) = (SenderClock::default(), u64::MAX);
            for (word, way) in ways.into_iter().enumerate() {
                let sent = word as u64 * 200_000;
                fastest = fastest.min(way);
                let age = clock.age_us(sent, sent + offset + way);
                prop_assert!(age <= way && age + way.min(10_000_000) >= way);
                if (word as u32) < WINDOW {
                    prop_assert_eq!(age, way - fastest);
                }
            }
        }
    }
}
