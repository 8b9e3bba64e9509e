//! Where the bytes of a striped file are: round robin, as in RAID 0 and Lustre.
//!
//! ```text
//! file:     │ stripe 0 │ stripe 1 │ stripe 2 │ stripe 3 │ …        three targets
//! object 0: │ stripe 0 │ stripe 3 │ …      object 1: │ stripe 1 │ …      object 2: │ stripe 2 │ …
//! ```
//! Invariant: stripes are whole blocks, so no block is on two targets.

use super::{BLOCK, File};
use crate::ranges::Range;

/// How a file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the file.
    pub size: u64,
    /// Bytes of a stripe, not 0.
    pub stripe: u64,
    /// Number of objects, not 0.
    pub count: u64,
}

/// Bytes of a file that are next to each other in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Which object: its place among the file's targets.
    pub position: usize,
    /// Where they begin in the object.
    pub offset: u64,
    /// Which bytes of the file.
    pub range: Range,
}

impl Layout {
    /// That of a file.
    #[must_use]
    pub fn of(file: &File) -> Self {
        Self { size: file.size, stripe: file.stripe.max(1), count: file.targets.len().max(1) as u64 }
    }

    /// Where a byte is: the object's place, and the byte's in it.
    #[must_use]
    pub fn place(&self, offset: u64) -> (usize, u64) {
        let stripe = offset / self.stripe;
        ((stripe % self.count) as usize, stripe / self.count * self.stripe + offset % self.stripe)
    }

    /// Which byte of the file one of an object is.
    #[must_use]
    pub fn file_offset(&self, position: usize, offset: u64) -> u64 {
        let stripe = (offset / self.stripe).saturating_mul(self.count).saturating_add(position as u64);
        stripe.saturating_mul(self.stripe).saturating_add(offset % self.stripe)
    }

    /// Bytes of an object.
    #[must_use]
    pub fn object_length(&self, position: usize) -> u64 {
        let row = self.stripe.saturating_mul(self.count);
        let rest = self.size % row;
        let before = (position as u64).saturating_mul(self.stripe);
        self.size / row * self.stripe + rest.saturating_sub(before).min(self.stripe)
    }

    /// The pieces of a range, in order, cut at the file's end.
    pub fn extents(&self, range: Range) -> impl Iterator<Item = Extent> + use<> {
        let (layout, end) = (*self, range.end().min(self.size));
        let mut at = range.offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (position, offset) = layout.place(at);
            // One object holds all of it in order.
            let until = if layout.count == 1 { end } else { (at / layout.stripe + 1).saturating_mul(layout.stripe).min(end) };
            let range = Range::between(at, until);
            at = until;
            Some(Extent { position, offset, range })
        })
    }

    /// How many blocks the file has.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK)
    }

    /// The bytes of a block; empty behind the end.
    #[must_use]
    pub fn block(&self, index: u64) -> Range {
        let offset = index.saturating_mul(BLOCK);
        Range::between(offset.min(self.size), offset.saturating_add(BLOCK).min(self.size))
    }

    /// The blocks from `first` on that lie next to each other in one object, at most `most`: what one request can fetch.
    #[must_use]
    pub fn run(&self, first: u64, most: u64) -> std::ops::Range<u64> {
        let at = first.saturating_mul(BLOCK);
        let until = if self.count == 1 { self.size } else { (at / self.stripe + 1).saturating_mul(self.stripe).min(self.size) };
        first..until.div_ceil(BLOCK).min(first.saturating_add(most)).max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        (0_u64..100 * BLOCK, 1_u64..5, 1_u64..7).prop_map(|(size, stripe, count)| Layout { size, stripe: stripe * BLOCK, count })
    }

    #[test]
    fn stripes_go_round() {
        let layout = Layout { size: 7 * BLOCK + 5, stripe: 2 * BLOCK, count: 3 };
        assert_eq!([0, 1, 2].map(|position| layout.object_length(position)), [2 * BLOCK + BLOCK + 5, 2 * BLOCK, 2 * BLOCK]);
        assert_eq!(layout.place(6 * BLOCK + 1), (0, 2 * BLOCK + 1));
        let found: Vec<Extent> = layout.extents(Range { offset: BLOCK, length: 2 * BLOCK }).collect();
        let expected = [(0, BLOCK, BLOCK), (1, 0, 2 * BLOCK)];
        assert_eq!(found, expected.map(|(position, offset, at)| Extent { position, offset, range: Range { offset: at, length: BLOCK } }));
        assert_eq!((layout.run(0, 16), layout.run(1, 16), layout.run(6, 16), layout.run(2, 1)), (0..2, 1..2, 6..8, 2..3));
    }

    proptest! {
        #[test]
        fn every_byte_has_one_place_and_objects_have_no_others(layout in layouts(), offset in any::<u64>()) {
            prop_assume!(layout.size > 0);
            let offset = offset % layout.size;
            let (position, within) = layout.place(offset);
            prop_assert_eq!(layout.file_offset(position, within), offset);
            prop_assert!(within < layout.object_length(position));
            let total: u64 = (0..layout.count).map(|position| layout.object_length(position as usize)).sum();
            prop_assert_eq!(total, layout.size);
        }

        #[test]
        fn extents_are_the_range_in_order(layout in layouts(), offset in 0_u64..110 * BLOCK, length in 0_u64..110 * BLOCK) {
            let range = Range { offset, length };
            let mut at = offset;
            for extent in layout.extents(range) {
                prop_assert_eq!((extent.range.offset, layout.place(at)), (at, (extent.position, extent.offset)));
                prop_assert_eq!(layout.place(extent.range.end() - 1), (extent.position, extent.offset + extent.range.length - 1));
                at = extent.range.end();
            }
            prop_assert_eq!(at.max(offset), range.end().min(layout.size).max(offset));
        }

        #[test]
        fn a_run_is_within_one_object_and_goes_on(layout in layouts(), first in 0_u64..100, most in 1_u64..40) {
            prop_assume!(first < layout.blocks());
            let run = layout.run(first, most);
            prop_assert!(run.start == first && run.end > first && run.end - first <= most && run.end <= layout.blocks());
            let range = Range::between(first * BLOCK, layout.block(run.end - 1).end());
            prop_assert_eq!(layout.extents(range).count(), 1);
        }

        #[test]
        fn no_layout_of_a_stranger_makes_it_panic(size in any::<u64>(), stripe in 1_u64.., count in 1_u64.., offset in any::<u64>(), position in any::<usize>()) {
            let layout = Layout { size, stripe, count };
            let _ = (layout.place(offset), layout.file_offset(position, offset), layout.object_length(position), layout.block(offset), layout.run(offset, 16));
            let _ = layout.extents(Range { offset, length: 1 << 20 }).next();
        }
    }
}
