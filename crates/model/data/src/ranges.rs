//! Ranges of a file, and the blocks in which it is summed up and fetched.

use crate::sums::BLOCK;
use serde::{Deserialize, Serialize};

/// Bytes of a file, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Range {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
}

impl Range {
    /// The range from `offset` to before `end`; empty if that is not behind it.
    #[must_use]
    pub fn between(offset: u64, end: u64) -> Self {
        Self { offset, length: end.saturating_sub(offset) }
    }

    /// The first byte behind it.
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// How many blocks a file of this size has.
#[must_use]
pub fn blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK)
}

/// The bytes of a block in a file of this size; empty behind its end.
#[must_use]
pub fn block(index: u64, size: u64) -> Range {
    let offset = index.saturating_mul(BLOCK);
    Range::between(offset.min(size), offset.saturating_add(BLOCK).min(size))
}

/// Ranges in order, with those that touch or overlap as one.
#[must_use]
pub fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut merged: Vec<Range> = Vec::new();
    for range in ranges.into_iter().filter(|range| range.length > 0) {
        match merged.last_mut() {
            Some(last) if range.offset <= last.end() => *last = Range::between(last.offset, last.end().max(range.end())),
            _ => merged.push(range),
        }
    }
    merged
}

/// The blocks of these numbers in a file of this size, as merged ranges.
#[must_use]
pub fn of_blocks(indices: impl IntoIterator<Item = u64>, size: u64) -> Vec<Range> {
    merged(indices.into_iter().map(|index| block(index, size)).collect())
}

/// The sum of the lengths.
#[must_use]
pub fn total(ranges: &[Range]) -> u64 {
    ranges.iter().fold(0, |sum, range| sum.saturating_add(range.length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_of_a_file() {
        assert_eq!([blocks(0), blocks(1), blocks(BLOCK), blocks(BLOCK + 1)], [0, 1, 1, 2]);
        assert_eq!(block(1, BLOCK + 5), Range { offset: BLOCK, length: 5 });
        assert_eq!(block(2, BLOCK + 5).length, 0);
        assert_eq!(of_blocks([2, 0, 1], 3 * BLOCK - 1), [Range { offset: 0, length: 3 * BLOCK - 1 }]);
        // The greatest numbers do not overflow.
        assert_eq!(block(u64::MAX, u64::MAX).length, 0);
        assert_eq!(blocks(u64::MAX), 1 << 44);
    }

    proptest! {
        #[test]
        fn merging_keeps_every_byte_and_leaves_gaps(ranges in prop::collection::vec((0_u64..60, 0_u64..8), 0..12)) {
            let ranges: Vec<Range> = ranges.into_iter().map(|(offset, length)| Range { offset, length }).collect();
            let bytes = |ranges: &[Range]| (0..80).filter(|at| ranges.iter().any(|range| (range.offset..range.end()).contains(at))).collect::<Vec<u64>>();
            let merged = merged(ranges.clone());
            prop_assert_eq!(bytes(&merged), bytes(&ranges));
            prop_assert!(merged.windows(2).all(|two| two[0].end() < two[1].offset));
            prop_assert_eq!(total(&merged), bytes(&ranges).len() as u64);
        }
    }
}
