//! Access counting diagrams, as the PARTE paper compares ranks.
//!
//! A diagram counts a rank's accesses of one window: a row for 32 blocks, a column for an eighth of the window. Two diagrams A and B of m rows and n columns are alike by
//! `mu = 1 - sum |A - B| / max / (m n)`, where max is the largest count of both. They are compared compressed by N = 2 in both directions first, which is cheaper, and exactly
//! only if they are alike so. Candidates come in the order of their scale, `sum A`.
//!
//! Cells that both leave empty count as agreement here: two ranks that each read a part of their own of a large file are alike. So Mend decides by
//! [`super::sharing`], and shows this for who wants to compare it with the paper.

use std::collections::BTreeMap;

/// Blocks of a row.
pub const BLOCKS_OF_ROW: u64 = 32;
/// Columns: parts of a window.
pub const INTERVALS: usize = 8;
/// By how much diagrams are compressed for the first look.
const COMPRESSION: usize = 2;
/// Diagrams at least so alike are of ranks that belong together.
pub const ALIKE: f64 = 0.90;

/// Counts of one window; rows that are not there are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagram(BTreeMap<u64, [u32; INTERVALS]>);

impl Diagram {
    /// Of a window's accesses, blocks in their order. Blocks of all files are numbered through.
    #[must_use]
    pub fn of(window: &[u64]) -> Self {
        let mut rows: BTreeMap<u64, [u32; INTERVALS]> = BTreeMap::new();
        for (at, block) in window.iter().enumerate() {
            rows.entry(block / BLOCKS_OF_ROW).or_default()[at * INTERVALS / window.len()] += 1;
        }
        Self(rows)
    }

    /// All accesses: eps of the paper.
    #[must_use]
    pub fn scale(&self) -> u64 {
        self.0.values().flatten().map(|count| u64::from(*count)).sum()
    }

    /// Rows and columns joined, [`COMPRESSION`] at a time.
    fn compressed(&self) -> Self {
        let mut rows: BTreeMap<u64, [u32; INTERVALS]> = BTreeMap::new();
        for (row, counts) in &self.0 {
            let joined = rows.entry(row / COMPRESSION as u64).or_default();
            for (column, count) in counts.iter().enumerate() {
                joined[column / COMPRESSION] += count;
            }
        }
        Self(rows)
    }

    /// `mu` of two diagrams with so many rows and columns.
    fn likeness_of(&self, other: &Self, rows: u64, columns: usize) -> f64 {
        let largest = self.0.values().chain(other.0.values()).flatten().copied().max().unwrap_or(0);
        if largest == 0 || rows == 0 {
            return 1.0;
        }
        let none = [0; INTERVALS];
        let numbers: std::collections::BTreeSet<u64> = self.0.keys().chain(other.0.keys()).copied().collect();
        let difference: u64 = numbers
            .iter()
            .map(|row| {
                let (one, two) = (self.0.get(row).unwrap_or(&none), other.0.get(row).unwrap_or(&none));
                one.iter().zip(two).map(|(one, two)| u64::from(one.abs_diff(*two))).sum::<u64>()
            })
            .sum();
        1.0 - difference as f64 / f64::from(largest) / (rows as f64 * columns as f64)
    }

    /// How alike two ranks are, 0 to 1, in files of so many blocks together.
    #[must_use]
    pub fn likeness(&self, other: &Self, blocks: u64) -> f64 {
        self.likeness_of(other, blocks.div_ceil(BLOCKS_OF_ROW), INTERVALS)
    }

    /// Whether two ranks belong together by the paper's rule: compressed first, then exactly.
    #[must_use]
    pub fn is_alike(&self, other: &Self, blocks: u64) -> bool {
        let rows = blocks.div_ceil(BLOCKS_OF_ROW);
        let coarse = self.compressed().likeness_of(&other.compressed(), rows.div_ceil(COMPRESSION as u64), INTERVALS / COMPRESSION);
        coarse >= ALIKE && self.likeness(other, blocks) >= ALIKE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_accesses_are_alike_and_opposite_ones_are_not() {
        let one: Vec<u64> = (0..256).collect();
        let diagram = Diagram::of(&one);
        assert_eq!((diagram.scale(), diagram.likeness(&Diagram::of(&one), 256)), (256, 1.0));
        // Both fill all cells, at other times and places.
        let all = |counts: [u32; INTERVALS]| Diagram((0..8).map(|row| (row, counts)).collect());
        assert!(all([4; INTERVALS]).likeness(&all([0; INTERVALS]), 256) < 0.01);
        assert!(!all([4; INTERVALS]).is_alike(&all([1; INTERVALS]), 256));
    }

    #[test]
    fn empty_cells_make_strangers_alike() {
        // Two ranks that read the two halves of 16 rows in order share nothing. This is why the rule is not Mend's.
        let first = Diagram::of(&(0..256).collect::<Vec<_>>());
        let second = Diagram::of(&(256..512).collect::<Vec<_>>());
        assert_eq!(first.likeness(&second, 512), 1.0 - 2.0 * 8.0 / 128.0);
        // The fewer of many cells both touch, the more alike they are.
        assert!(first.likeness(&second, 4096) > 0.98 && first.is_alike(&second, 4096));
    }

    #[test]
    fn what_is_not_alike_compressed_is_not_looked_at_exactly() {
        let dense = |count| Diagram((0..16).map(|row| (row, [count; INTERVALS])).collect());
        assert!(dense(10).is_alike(&dense(10), 512) && !dense(10).is_alike(&dense(8), 512));
        assert!((dense(10).likeness(&dense(9), 512) - 0.9).abs() < 1e-9);
    }
}
