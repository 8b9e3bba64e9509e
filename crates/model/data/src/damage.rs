//! What is wrong with a file, from what was read of it.

use crate::ranges::{Range, merged};
use serde::{Deserialize, Serialize};

/// Why a range is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The file system cannot read it: EIO, or another error of the medium.
    Unreadable,
    /// The file ends before it.
    Short,
    /// It has other bytes than its checksums, or its source.
    Differs,
    /// The file goes on where it should end.
    Longer,
}

/// A damaged range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// Where it is.
    #[serde(flatten)]
    pub range: Range,
    /// What is wrong with it.
    pub cause: Cause,
}

/// What is wrong with a file, in order, ranges of one cause merged.
///
/// `found` has the bytes that the file has, `size` those that it should have, `bad` what was found in reading, in any order.
#[must_use]
pub fn of_file(found: u64, size: u64, bad: &[(Range, Cause)]) -> Vec<Damage> {
    let mut damages = Vec::new();
    for cause in [Cause::Unreadable, Cause::Differs] {
        let ranges = bad.iter().filter(|(_, why)| *why == cause).map(|(range, _)| Range::between(range.offset, range.end().min(found)));
        damages.extend(merged(ranges.collect()).into_iter().map(|range| Damage { range, cause }));
    }
    if found < size {
        damages.push(Damage { range: Range::between(found, size), cause: Cause::Short });
    }
    if found > size {
        damages.push(Damage { range: Range::between(size, found), cause: Cause::Longer });
    }
    damages.sort_unstable_by_key(|damage| (damage.range, damage.cause));
    damages
}

/// What of a file has to be fetched: whole blocks, since only they have checksums.
#[must_use]
pub fn to_fetch(damages: &[Damage], size: u64) -> Vec<Range> {
    use crate::sums::BLOCK;
    let whole = damages.iter().filter(|damage| damage.cause != Cause::Longer).map(|damage| {
        let offset = damage.range.offset / BLOCK * BLOCK;
        Range::between(offset, damage.range.end().div_ceil(BLOCK).saturating_mul(BLOCK).min(size))
    });
    merged(whole.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sums::BLOCK;
    use proptest::prelude::*;

    fn range(offset: u64, length: u64) -> Range {
        Range { offset, length }
    }

    #[test]
    fn ranges_of_one_cause_are_merged_and_causes_kept_apart() {
        let bad = [(range(2 * BLOCK, BLOCK), Cause::Unreadable), (range(0, BLOCK), Cause::Differs), (range(BLOCK, BLOCK), Cause::Differs)];
        let found = of_file(3 * BLOCK, 3 * BLOCK + 9, &bad);
        let expected =
            [(range(0, 2 * BLOCK), Cause::Differs), (range(2 * BLOCK, BLOCK), Cause::Unreadable), (range(3 * BLOCK, 9), Cause::Short)];
        assert_eq!(found, expected.map(|(range, cause)| Damage { range, cause }));
        assert_eq!(to_fetch(&found, 3 * BLOCK + 9), [range(0, 3 * BLOCK + 9)]);
    }

    #[test]
    fn a_short_file_s_last_block_is_fetched_as_a_whole() {
        let found = of_file(BLOCK + 5, 2 * BLOCK + 1, &[]);
        assert_eq!(found, [Damage { range: range(BLOCK + 5, BLOCK - 4), cause: Cause::Short }]);
        assert_eq!(to_fetch(&found, 2 * BLOCK + 1), [range(BLOCK, BLOCK + 1)]);
    }

    #[test]
    fn what_is_too_much_is_not_fetched() {
        let found = of_file(BLOCK + 5, BLOCK, &[]);
        assert_eq!(found, [Damage { range: range(BLOCK, 5), cause: Cause::Longer }]);
        assert_eq!(to_fetch(&found, BLOCK), []);
        assert_eq!(of_file(BLOCK, BLOCK, &[]), []);
    }

    proptest! {
        #[test]
        fn what_is_fetched_covers_the_damage_in_whole_blocks(found in 0_u64..5 * BLOCK, size in 0_u64..5 * BLOCK, bad in prop::collection::vec((0_u64..5, any::<bool>()), 0..5)) {
            let bad: Vec<(Range, Cause)> = bad.into_iter()
                .map(|(block, lost)| (crate::ranges::block(block, found.min(size)), if lost { Cause::Unreadable } else { Cause::Differs })).collect();
            let damages = of_file(found, size, &bad);
            let fetch = to_fetch(&damages, size);
            prop_assert!(fetch.iter().all(|range| range.offset % BLOCK == 0 && (range.end() % BLOCK == 0 || range.end() == size)));
            for damage in damages.iter().filter(|damage| damage.cause != Cause::Longer) {
                prop_assert!(fetch.iter().any(|range| range.offset <= damage.range.offset && damage.range.end() <= range.end()));
            }
        }
    }
}
