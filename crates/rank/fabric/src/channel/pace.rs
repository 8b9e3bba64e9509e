//! Which way long messages come between two ranks of a node: through the ring, or read by their receiver.
//!
//! Where reading another process's memory takes much longer than copying, the ring is the faster way, as long as the two
//! processors are near each other: it moves each line of a message once more. How far apart they are the host decides, and it
//! changes (docs/message.md#near-and-far). So each end watches what its copies into and out of the ring cost, and what its reads
//! cost. A message that only arrives may cost the sender's processor as much as the receiver's at the same time; if both ranks
//! send, each processor copies into one ring and out of the other. While it reads, a rank takes a message through the ring now and
//! then all the same, to see whether that has become the faster way; and the other way round, if the ring is slow.

/// Bytes from which a piece is timed: below, what surrounds the copy counts.
pub const TIMED: usize = 8 * 1024;
/// One of so many pieces out of the ring is timed.
const SAMPLED: u32 = 4;
/// One of so many messages comes the other way, where it is not clear which is the better.
const TRIED: u32 = 16;
/// Times after which copies count as known.
const FIRST: u32 = 8;

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
        if self.seen < FIRST {
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
}

/// What copies between a ring and the memory of this process cost. Times are cycles of the time stamp counter.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    cost: Typical,
    pieces: u32,
}

fn per_kib(length: usize, cycles: u64) -> u64 {
    cycles.saturating_mul(1024) / length.max(1) as u64
}

impl Copies {
    /// True if this piece is to be timed.
    #[inline]
    pub fn samples(&mut self, length: usize) -> bool {
        self.pieces = self.pieces.wrapping_add(u32::from(length >= TIMED));
        length >= TIMED && self.pieces.is_multiple_of(SAMPLED)
    }

    /// A piece of this length was copied.
    pub fn note(&mut self, length: usize, cycles: u64) {
        self.cost.note(per_kib(length, cycles));
    }

    /// What a KiB costs; 0 if that is not known.
    pub fn cost(&self) -> u64 {
        if self.cost.seen < FIRST { 0 } else { self.cost.value }
    }
}

/// The receiver's choice. Times are cycles of the time stamp counter.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Out of the ring.
    pub copies: Copies,
    read: Typical,
    turn: u32,
}

impl Pace {
    /// A piece of this length was read out of the peer's memory.
    pub fn read(&mut self, length: usize, cycles: u64) {
        if length >= TIMED {
            self.read.note(per_kib(length, cycles));
        }
    }

    /// True if the next message had better come through the ring. `sending`: what a KiB costs this rank to send, if it sends long
    /// messages, too; 0 if that is not known. `expected` is what a read costs, cycles per KiB, before any was done.
    pub fn rings(&mut self, sending: Option<u64>, expected: u64) -> bool {
        let out = self.copies.cost();
        // If both copy both ways they also wait for each other, a third of the time where they are far apart.
        let both = |into: u64| (out + if into == 0 { out } else { into }) * 3 / 2;
        let ring = sending.map_or(out, both);
        // What was expected is what a cold start cost.
        if ring <= expected / 3 * 2 {
            return true;
        }
        // Times jitter by less than that.
        let read = self.read.value == 0 || ring > self.read.value + self.read.value / 8;
        self.turn = self.turn.wrapping_add(1);
        read == self.turn.is_multiple_of(TRIED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: u64 = 300;
    const ALONE: Option<u64> = None;

    /// How many of some messages come through the ring.
    fn rings(pace: &mut Pace, sending: Option<u64>) -> usize {
        (0..TRIED).filter(|_| pace.rings(sending, EXPECTED)).count()
    }

    fn copy(pace: &mut Pace, per_kib: u64, count: usize) {
        (0..count).for_each(|_| pace.copies.note(16 * 1024, 16 * per_kib));
    }

    #[test]
    fn near_each_other_all_comes_through_the_ring_whatever_interrupts() {
        let mut pace = Pace::default();
        assert_eq!((rings(&mut pace, ALONE), rings(&mut pace, Some(0))), (16, 16));
        for _ in 0..100 {
            copy(&mut pace, 40, 10);
            copy(&mut pace, 50_000, 1);
            assert_eq!((rings(&mut pace, ALONE), rings(&mut pace, Some(60))), (16, 16));
        }
    }

    #[test]
    fn first_touches_of_memory_are_not_believed() {
        let mut pace = Pace::default();
        for _ in 0..FIRST - 1 {
            copy(&mut pace, 2000, 1);
            assert_eq!((rings(&mut pace, ALONE), rings(&mut pace, Some(0))), (16, 16));
        }
        copy(&mut pace, 40, 1);
        assert_eq!((rings(&mut pace, ALONE), rings(&mut pace, Some(0))), (16, 16));
    }

    #[test]
    fn apart_what_goes_both_ways_is_read_until_they_are_near_again() {
        let mut pace = Pace::default();
        copy(&mut pace, 100, 100);
        copy(&mut pace, 120, 100);
        assert_eq!((rings(&mut pace, ALONE), rings(&mut pace, Some(200))), (16, 1));
        (0..100).for_each(|_| pace.read(TIMED, 8 * 370));
        assert_eq!((rings(&mut pace, ALONE), rings(&mut pace, Some(220))), (16, 1));
        // The message that is tried tells.
        copy(&mut pace, 50, 40);
        assert_eq!((rings(&mut pace, ALONE), rings(&mut pace, Some(60))), (16, 16));
    }

    #[test]
    fn reads_that_cost_more_than_expected_are_given_up() {
        let mut pace = Pace::default();
        copy(&mut pace, 320, 100);
        assert_eq!(rings(&mut pace, Some(300)), 1);
        (0..100).for_each(|_| pace.read(64 * 1024, 64 * 900));
        assert_eq!(rings(&mut pace, Some(300)), 15);
    }

    #[test]
    fn one_of_a_few_long_pieces_is_timed_and_no_short_one() {
        let mut copies = Copies::default();
        assert_eq!((0..64).filter(|_| copies.samples(TIMED)).count(), 16);
        assert_eq!((0..64).filter(|_| copies.samples(TIMED - 1)).count(), 0);
    }
}
