//! What restarts of a job took, and what that says of the next one's length.
//!
//! A restart reads its images: the time for that grows with them. What was measured is told per byte of the chain that was
//! restored. Where newer images supersede pages of older ones, a restart skips those, so that the next byte of a chain costs
//! rather less than the ones before; the mean is what it costs where nothing is superseded, and at most too much elsewhere: chains
//! become a little shorter than they might be, never longer.
//!
//! Invariants: the newest [`KEPT`] restarts count, by their bytes; what cannot be (no byte, no time) is not kept.
//! Faults assumed: a record that somebody edited; times and lengths of any size.

use serde::{Deserialize, Serialize};

/// Restarts that count: older ones may have been on other nodes, from other tiers.
pub const KEPT: usize = 4;

/// A restart that came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// From the search for the images until the slowest rank's were read and its memory was filled, microseconds.
    pub read_us: u64,
    /// Length of the full images, of all ranks.
    pub full: u64,
    /// Length of those that build on others.
    pub incremental: u64,
}

impl Restart {
    fn bytes(&self) -> f64 {
        self.full as f64 + self.incremental as f64
    }
}

/// The last restarts of a job, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Restarts(Vec<Restart>);

impl Restarts {
    /// One more came about.
    pub fn add(&mut self, restart: Restart) {
        if restart.read_us == 0 || restart.bytes() == 0.0 {
            return;
        }
        self.0.push(restart);
        let beyond = self.0.len().saturating_sub(KEPT);
        self.0.drain(..beyond);
    }

    fn counted(&self) -> &[Restart] {
        &self.0[self.0.len().saturating_sub(KEPT)..]
    }

    /// How many count.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.counted().len() as u32
    }

    /// True if none was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Seconds per byte of all ranks' chains; `None` if nothing was measured.
    #[must_use]
    pub fn seconds_per_byte(&self) -> Option<f64> {
        let (us, bytes) = self.counted().iter().fold((0.0, 0.0), |(us, bytes), one| (us + one.read_us as f64, bytes + one.bytes()));
        (bytes > 0.0).then(|| us / 1e6 / bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn restart(read_us: u64, full: u64, incremental: u64) -> Restart {
        Restart { read_us, full, incremental }
    }

    #[test]
    fn the_newest_count_by_their_bytes() {
        let mut restarts = Restarts::default();
        assert_eq!((restarts.seconds_per_byte(), restarts.count(), restarts.is_empty()), (None, 0, true));
        // The first is forgotten; what cannot be is not taken.
        restarts.add(restart(9_000_000_000, 1, 0));
        for _ in 0..KEPT - 1 {
            restarts.add(restart(1_000_000, 900, 100));
        }
        restarts.add(restart(0, 5, 5));
        restarts.add(restart(5, 0, 0));
        restarts.add(restart(7_000_000, 5_000, 2_000));
        assert_eq!((restarts.count(), restarts.seconds_per_byte()), (4, Some(10.0 / 10_000.0)));
    }

    #[test]
    fn a_record_of_more_is_read_by_its_end() {
        let all: Vec<Restart> = (0..9).map(|at| restart(1_000_000, 1 << at, 0)).collect();
        let restarts = Restarts(all);
        assert_eq!((restarts.count(), restarts.seconds_per_byte()), (4, Some(4.0 / 480.0)));
    }

    proptest! {
        #[test]
        fn it_lies_between_the_fastest_and_the_slowest(
            all in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..12),
        ) {
            let mut restarts = Restarts::default();
            for (read_us, full, incremental) in all {
                restarts.add(restart(read_us, full, incremental));
                prop_assert!(restarts.0.len() <= KEPT);
            }
            let rates: Vec<f64> = restarts.0.iter().map(|one| one.read_us as f64 / 1e6 / one.bytes()).collect();
            let (least, most) = rates.iter().fold((f64::INFINITY, 0.0f64), |(least, most), &rate| (least.min(rate), most.max(rate)));
            match restarts.seconds_per_byte() {
                Some(rate) => prop_assert!(rate >= least * 0.999_999 && rate <= most * 1.000_001, "{rate} of {rates:?}"),
                None => prop_assert!(restarts.is_empty()),
            }
        }
    }
}
