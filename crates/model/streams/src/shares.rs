//! Who may hold how many chunks of memory.
//!
//! There are places for a quarter of the chunks as streams. A chunk is kept back for each place that holds none, so every stream can always get one, whatever the others hold and
//! however long their readers wait. Of the rest a stream may take one more as long as it holds less than what is left: so those that are served get equal parts. What a
//! stream gives back is given out one chunk to each in turn.
//!
//! Invariant: what is free is never less than the places that hold nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Fewest chunks that memory may hold.
pub const FEWEST_CHUNKS: u32 = 8;
/// Most streams at once, however large memory is.
pub const MOST_STREAMS: u32 = 64;

/// Chunks of memory, and the streams that hold them.
#[derive(Debug)]
pub struct Shares {
    places: u32,
    free: u32,
    held: BTreeMap<u64, u32>,
    /// Those that get no more.
    settled: BTreeSet<u64>,
    /// Who got the last one.
    last: u64,
}

impl Shares {
    /// Memory of so many chunks, [`FEWEST_CHUNKS`] at least. A chunk for each place is not given out: the writer's node needs one for each stream besides.
    #[must_use]
    pub fn new(chunks: u32) -> Self {
        let chunks = chunks.max(FEWEST_CHUNKS);
        let places = (chunks / 4).min(MOST_STREAMS);
        Self { places, free: chunks - places, held: BTreeMap::new(), settled: BTreeSet::new(), last: 0 }
    }

    /// How many streams there may be.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.places
    }

    /// A new stream, without a chunk. False if there are as many as there may be.
    pub fn enter(&mut self, stream: u64) -> bool {
        let room = self.held.len() < self.places as usize;
        if room {
            self.held.entry(stream).or_insert(0);
        }
        room
    }

    /// A stream is gone: all that it held is free.
    pub fn leave(&mut self, stream: u64) {
        self.free += self.held.remove(&stream).unwrap_or(0);
        self.settled.remove(&stream);
    }

    /// A stream needs no more: it keeps what it holds until it gives that back.
    pub fn settle(&mut self, stream: u64) {
        if self.held.contains_key(&stream) {
            self.settled.insert(stream);
        }
    }

    /// A stream gives some back.
    pub fn give_back(&mut self, stream: u64, chunks: u32) {
        if let Some(held) = self.held.get_mut(&stream) {
            let chunks = chunks.min(*held);
            *held -= chunks;
            self.free += chunks;
        }
    }

    /// What a stream holds.
    #[must_use]
    pub fn held(&self, stream: u64) -> u32 {
        self.held.get(&stream).copied().unwrap_or(0)
    }

    /// Chunks that are kept back for those who have none.
    fn kept_back(&self) -> u32 {
        self.places - self.held.values().filter(|held| **held > 0).count() as u32
    }

    /// Gives out what may be given, one chunk to each stream in turn. Who got how many.
    pub fn give_out(&mut self) -> BTreeMap<u64, u32> {
        let mut given = BTreeMap::new();
        loop {
            let spare = self.free - self.kept_back();
            let may = |(stream, held): (&u64, &u32)| ((*held == 0 || *held < spare) && !self.settled.contains(stream)).then_some(*stream);
            let next = self.held.range((Excluded(self.last), Unbounded)).find_map(may);
            let Some(stream) = next.or_else(|| self.held.range(..=self.last).find_map(may)) else { return given };
            *self.held.entry(stream).or_default() += 1;
            self.free -= 1;
            self.last = stream;
            *given.entry(stream).or_insert(0) += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u64),
        Leave(u64),
        GiveBack(u64, u32),
        Settle(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..24_u64).prop_map(Step::Enter),
            (0..24_u64).prop_map(Step::Leave),
            (0..24_u64).prop_map(Step::Settle),
            (0..24_u64, 0..9_u32).prop_map(|(stream, chunks)| Step::GiveBack(stream, chunks)),
        ]
    }

    proptest! {
        #[test]
        fn every_stream_has_a_chunk_and_memory_is_never_exceeded(chunks in 0..200_u32, steps in prop::collection::vec(step(), 0..200)) {
            let mut shares = Shares::new(chunks);
            let all = chunks.max(FEWEST_CHUNKS);
            for step in steps {
                match step {
                    Step::Enter(stream) => {
                        shares.enter(stream);
                    }
                    Step::Leave(stream) => shares.leave(stream),
                    Step::Settle(stream) => shares.settle(stream),
                    Step::GiveBack(stream, chunks) => shares.give_back(stream, chunks),
                }
                let before: u32 = shares.held.values().sum();
                let given: u32 = shares.give_out().values().sum();
                let after: u32 = shares.held.values().sum();
                prop_assert_eq!(before + given, after);
                prop_assert_eq!(after + shares.free, all - shares.places);
                prop_assert!(shares.held.iter().all(|(stream, held)| *held > 0 || shares.settled.contains(stream)));
                prop_assert!(shares.held.len() <= shares.places as usize);
                prop_assert!(shares.free >= shares.kept_back());
                // Nothing more may be given out.
                prop_assert!(shares.give_out().is_empty());
            }
        }

        #[test]
        fn who_begins_late_gets_as_much_as_the_others_once_they_have_read(count in 2..16_u64, order in 0..100_u64) {
            let mut shares = Shares::new(64);
            for stream in 1..=count {
                prop_assert!(shares.enter(stream));
                // The first of them get more than their part.
                shares.give_out();
            }
            // Each reads chunk by chunk, in some order, as often as it takes.
            for turn in 0..1000 {
                let stream = 1 + (turn * (2 * order % count + 1)) % count;
                for reader in [stream, 1 + turn % count] {
                    shares.give_back(reader, 1);
                    shares.give_out();
                }
            }
            let held: Vec<u32> = shares.held.values().copied().collect();
            let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", held);
        }
    }

    #[test]
    fn a_stream_alone_gets_a_quarter_of_all_memory_and_more() {
        let mut shares = Shares::new(64);
        assert_eq!(shares.places(), 16);
        shares.enter(7);
        assert_eq!(shares.give_out(), BTreeMap::from([(7, 17)]));
        for stream in 0..15 {
            assert!(shares.enter(100 + stream));
        }
        assert!(!shares.enter(300));
        shares.give_out();
        assert!((0..15).all(|stream| shares.held(100 + stream) >= 1));
    }
}
