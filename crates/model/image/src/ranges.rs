//! Sorted lists of address ranges: which pages an image stores, which it keeps, which are still to be found in older ones.
//!
//! The restorer and [`crate::chain`] restore a chain of images with the same few steps: the newest image first, then
//! each older one, and of each only the pages that no newer one decided.
//!
//! ```text
//! wanted = kept(newest)
//! for each older image: take stored ∩ wanted; wanted = wanted ∩ kept(image)
//! ```
//! Within one image no page may be both stored and kept, or either twice ([`consistent`]): so what is left in `wanted`
//! was never stored by any of them, and after the full image it is as a fresh mapping gives it. Nothing is allocated
//! here; the lists live where the caller has room.

/// First address and first address after it, both page-aligned.
pub type Range = (u64, u64);

/// Sorts a list unless it is sorted. False if ranges overlap.
pub fn settle(ranges: &mut [Range]) -> bool {
    let good = |pair: &[Range]| pair[0].1 <= pair[1].0;
    if ranges.windows(2).all(good) {
        return true;
    }
    ranges.sort_unstable();
    ranges.windows(2).all(good)
}

/// Settles the lists of one image. False if it holds or keeps a page more than once.
pub fn consistent(stored: &mut [Range], kept: &mut [Range]) -> bool {
    settle(stored) && settle(kept) && meet(stored, kept).next().is_none()
}

/// What two settled lists have in common, ascending.
pub fn meet<'a>(one: &'a [Range], other: &'a [Range]) -> impl Iterator<Item = Range> + 'a {
    let (mut a, mut b) = (0, 0);
    core::iter::from_fn(move || {
        loop {
            let (left, right) = (*one.get(a)?, *other.get(b)?);
            let common = (left.0.max(right.0), left.1.min(right.1));
            if left.1 <= right.1 {
                a += 1;
            } else {
                b += 1;
            }
            if common.0 < common.1 {
                return Some(common);
            }
        }
    })
}

/// What one settled list has and the other has not, ascending.
pub fn without<'a>(one: &'a [Range], other: &'a [Range]) -> impl Iterator<Item = Range> + 'a {
    let (mut a, mut b, mut from) = (0, 0, 0);
    core::iter::from_fn(move || {
        loop {
            let (start, end) = *one.get(a)?;
            let at = start.max(from);
            if at >= end {
                a += 1;
                continue;
            }
            while other.get(b).is_some_and(|known| known.1 <= at) {
                b += 1;
            }
            // The next that the other list has ends what is given out now.
            let next = other.get(b).filter(|known| known.0 < end);
            from = next.map_or(end, |known| known.1);
            let until = next.map_or(end, |known| known.0);
            if at < until {
                return Some((at, until));
            }
        }
    })
}

/// The parts of a settled list that lie in `range`, ascending.
pub fn parts(ranges: &[Range], range: Range) -> impl Iterator<Item = Range> + Clone + '_ {
    let first = ranges.partition_point(|known| known.1 <= range.0);
    let of_it = ranges[first..].iter().take_while(move |known| known.0 < range.1);
    of_it.map(move |known| (known.0.max(range.0), known.1.min(range.1)))
}

/// Bytes in a settled list.
#[must_use]
pub fn length(ranges: &[Range]) -> u64 {
    ranges.iter().map(|range| range.1 - range.0).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn runs(pages: &BTreeSet<u64>) -> Vec<Range> {
        let mut ranges: Vec<Range> = Vec::new();
        for page in pages {
            match ranges.last_mut() {
                Some(last) if last.1 == *page => last.1 += 1,
                _ => ranges.push((*page, page + 1)),
            }
        }
        ranges
    }

    fn pages(ranges: impl Iterator<Item = Range>) -> Vec<u64> {
        ranges.flat_map(|(start, end)| start..end).collect()
    }

    proptest! {
        #[test]
        fn lists_are_sets(one in proptest::collection::btree_set(0u64..60, 0..40), other in proptest::collection::btree_set(0u64..60, 0..40),
                          start in 0u64..60, length in 0u64..30) {
            let (a, b) = (runs(&one), runs(&other));
            prop_assert_eq!(pages(meet(&a, &b)), one.intersection(&other).copied().collect::<Vec<_>>());
            prop_assert_eq!(pages(without(&a, &b)), one.difference(&other).copied().collect::<Vec<_>>());
            prop_assert_eq!(pages(parts(&a, (start, start + length))), one.range(start..start + length).copied().collect::<Vec<_>>());
            prop_assert_eq!(super::length(&a), one.len() as u64);
            let mut shuffled: Vec<Range> = a.iter().rev().copied().collect();
            prop_assert!(settle(&mut shuffled));
            prop_assert_eq!(&shuffled, &a);
            prop_assert_eq!(consistent(&mut a.clone(), &mut b.clone()), one.is_disjoint(&other));
            shuffled.extend(a.first());
            prop_assert_eq!(settle(&mut shuffled), a.is_empty());
        }
    }
}
