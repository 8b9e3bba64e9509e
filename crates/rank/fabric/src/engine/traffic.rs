//! With whom this rank exchanges how much. A message is counted when the application's call has taken it on, whatever channel it takes, by its sender alone; a
//! one-sided operation by who asks for it.
//!
//! Like the rest of the engine it is ordinary memory: it moves with the process, and goes back with it to a checkpoint. Who reads it looks at differences alone.

use mend_messages::job::{MAX_RANKS, Rank};

/// What was sent to one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Bytes of payload.
    pub bytes: u64,
    /// Messages and one-sided operations.
    pub messages: u64,
}

/// What was sent to each rank.
#[derive(Debug, Default)]
pub struct Traffic(Vec<Count>);

impl Traffic {
    /// Another message to this rank.
    #[inline]
    pub(super) fn count(&mut self, peer: Rank, bytes: usize) {
        match self.0.get_mut(peer as usize) {
            Some(count) => {
                count.bytes = count.bytes.wrapping_add(bytes as u64);
                count.messages = count.messages.wrapping_add(1);
            }
            None => self.first(peer, bytes),
        }
    }

    /// The first one to a rank of such a number. Names of ranks come from others: no job has a rank beyond the limit.
    #[cold]
    fn first(&mut self, peer: Rank, bytes: usize) {
        if peer < MAX_RANKS {
            self.0.resize(peer as usize + 1, Count::default());
            self.count(peer, bytes);
        }
    }

    /// By the rank's number: ranks that are not there were sent nothing.
    #[must_use]
    pub fn counts(&self) -> &[Count] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_counted_by_peer() {
        let mut traffic = Traffic::default();
        assert!(traffic.counts().is_empty());
        for (peer, bytes) in [(2, 100), (0, 8), (MAX_RANKS, 1), (2, 0)] {
            traffic.count(peer, bytes);
        }
        let count = |bytes, messages| Count { bytes, messages };
        assert_eq!(traffic.counts(), [count(8, 1), count(0, 0), count(100, 2)]);
    }
}
