//! Access counting diagrams, as the PARTE paper compares ranks.
//!
//! ```text
//! a rank's blocks in order ──► its last 3 windows ──► a diagram each ──► mu of two ranks, compressed first ──► alike, the largest scale first
//! ```
//! A diagram counts a rank's accesses of one window: a row for 32 blocks, a column for an eighth of the window. Two diagrams A and B of m rows and n columns are alike by
//! `mu = 1 - sum |A - B| / max / (m n)`, where max is the largest count of both. They are compared compressed by N = 2 in both directions, and exactly: both
//! have to be alike. Candidates come in the order of their scale, `sum A`.
//!
//! Cells that both leave empty count as agreement here: two ranks that each read a part of their own of a large file are alike. So Mend decides by
//! [`super::sharing`], and shows this for who wants to compare it with the paper.

use super::sharing::{Block, KEPT, RankTouches};
use crate::space::Id;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Blocks of a row.
pub const BLOCKS_OF_ROW: u64 = 32;
/// Columns: parts of a window.
pub const INTERVALS: usize = 8;
/// By how much diagrams are compressed for the first look.
const COMPRESSION: usize = 2;
/// Diagrams at least so alike are of ranks that belong together.
pub const LEAST_LIKENESS: f64 = 0.90;

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
        let numbers: BTreeSet<u64> = self.0.keys().chain(other.0.keys()).copied().collect();
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

    /// How alike two are that are compressed.
    fn compressed_likeness(&self, other: &Self, blocks: u64) -> f64 {
        self.likeness_of(other, blocks.div_ceil(BLOCKS_OF_ROW).div_ceil(COMPRESSION as u64), INTERVALS / COMPRESSION)
    }
}

/// The last patterns of a rank, the newest first: each exact and compressed.
struct Patterns(Vec<(Diagram, Diagram)>);

impl Patterns {
    /// Of what a rank touched, in order, by windows of so many blocks. A rank that touched less than a window has one pattern, of all of it.
    fn of(order: &[u64], window: usize) -> Self {
        let windows = order.rchunks(window.max(1)).take(KEPT).enumerate().filter(|(at, blocks)| *at == 0 || blocks.len() == window);
        let exact = windows.map(|(_, blocks)| Diagram::of(blocks));
        Self(exact.map(|exact| (exact.clone(), exact.compressed())).collect())
    }

    /// Accesses of all that is kept.
    fn scale(&self) -> u64 {
        self.0.iter().map(|(exact, _)| exact.scale()).sum()
    }

    /// How alike two ranks are, 0 to 1, in files of so many blocks together, and whether they belong together by the paper's rule, both compressed and exactly: the
    /// mean of the patterns that both have.
    fn compare(&self, other: &Self, blocks: u64) -> (f64, bool) {
        let both = self.0.len().min(other.0.len()).max(1) as f64;
        let (mut exactly, mut compressed) = (0.0, 0.0);
        for (one, other) in self.0.iter().zip(&other.0) {
            exactly += one.0.likeness(&other.0, blocks) / both;
            compressed += one.1.compressed_likeness(&other.1, blocks) / both;
        }
        (exactly, compressed >= LEAST_LIKENESS && exactly >= LEAST_LIKENESS)
    }
}

/// Two ranks by the paper's rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Which ranks, the lower number first.
    pub ranks: (u32, u32),
    /// `mu`, 0 to 1.
    pub likeness: f64,
    /// They belong together.
    pub alike: bool,
}

/// All pairs of ranks, those that touch most first.
#[must_use]
pub fn compare(ranks: &BTreeMap<u32, RankTouches>, window: usize) -> Vec<Compared> {
    // Blocks of all files are numbered through: each file has room for its longest.
    let mut lengths: BTreeMap<Id, u64> = BTreeMap::new();
    for (file, first, count) in ranks.values().flat_map(|rank| rank.ranges.iter()) {
        let length = lengths.entry(*file).or_default();
        *length = (*length).max(u64::from(*first) + u64::from(*count));
    }
    let mut blocks = 0;
    let mut begins: HashMap<Id, u64> = HashMap::new();
    for (file, length) in lengths {
        begins.insert(file, blocks);
        blocks += length;
    }
    let number = |(file, block): &Block| begins.get(file).copied().unwrap_or(0) + u64::from(*block);
    let patterns = |rank: &RankTouches| Patterns::of(&rank.order.iter().map(number).collect::<Vec<u64>>(), window);
    let all: Vec<(u32, Patterns)> = ranks.iter().map(|(rank, touches)| (*rank, patterns(touches))).collect();
    let mut found = Vec::new();
    for (at, (one, first)) in all.iter().enumerate() {
        for (other, second) in &all[at + 1..] {
            let (likeness, alike) = first.compare(second, blocks);
            found.push((first.scale() + second.scale(), Compared { ranks: (*one, *other), likeness, alike }));
        }
    }
    found.sort_by_key(|(scale, compared)| (std::cmp::Reverse(*scale), compared.ranks));
    found.into_iter().map(|(_, compared)| compared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(one: &Diagram, other: &Diagram, blocks: u64) -> bool {
        let [one, other] = [one, other].map(|exact| Patterns(vec![(exact.clone(), exact.compressed())]));
        one.compare(&other, blocks).1
    }

    fn coarse_likeness(one: &Diagram, other: &Diagram, blocks: u64) -> f64 {
        one.compressed().compressed_likeness(&other.compressed(), blocks)
    }

    #[test]
    fn the_same_accesses_are_alike_and_opposite_ones_are_not() {
        let one: Vec<u64> = (0..256).collect();
        let diagram = Diagram::of(&one);
        assert_eq!((diagram.scale(), diagram.likeness(&Diagram::of(&one), 256)), (256, 1.0));
        // Both fill all cells, at other times and places.
        let all = |counts: [u32; INTERVALS]| Diagram((0..8).map(|row| (row, counts)).collect());
        assert!(all([4; INTERVALS]).likeness(&all([0; INTERVALS]), 256) < 0.01);
        assert!(!alike(&all([4; INTERVALS]), &all([1; INTERVALS]), 256));
    }

    #[test]
    fn empty_cells_make_strangers_alike() {
        // Two ranks that read the two halves of 16 rows in order share nothing. This is why the rule is not Mend's.
        let first = Diagram::of(&(0..256).collect::<Vec<_>>());
        let second = Diagram::of(&(256..512).collect::<Vec<_>>());
        assert_eq!(first.likeness(&second, 512), 1.0 - 2.0 * 8.0 / 128.0);
        // In 32 rows the same two ranks have 0.94, which would be enough. It is 0.875 compressed.
        assert_eq!((first.likeness(&second, 1024), coarse_likeness(&first, &second, 1024)), (1.0 - 16.0 / 256.0, 1.0 - 8.0 / 64.0));
        assert!(!alike(&first, &second, 1024));
        // The fewer of many cells both touch, the more alike they are.
        assert!(first.likeness(&second, 4096) > 0.98 && alike(&first, &second, 4096));
    }

    #[test]
    fn compression_joins_two_rows_and_two_columns() {
        // 256 accesses in order: each row has 32 of them in one column. Compressed, a cell has two of these.
        let diagram = Diagram::of(&(0..256).collect::<Vec<_>>());
        let cells = |diagram: &Diagram| -> Vec<(u64, Vec<u32>)> { diagram.0.iter().map(|(row, counts)| (*row, counts.to_vec())).collect() };
        let one = |at: usize, count: u32| (0..INTERVALS).map(|column| if column == at { count } else { 0 }).collect::<Vec<u32>>();
        assert_eq!(cells(&diagram), (0..8).map(|row| (row as u64, one(row, 32))).collect::<Vec<_>>());
        assert_eq!(cells(&diagram.compressed()), (0..4).map(|row| (row as u64, one(row, 64))).collect::<Vec<_>>());
        // Which is 4 rows of 4 columns, so that two strangers in 8 rows of 4 have 8 cells of 32 apart, and in 16 rows of 8 columns 16 of 128.
        let other = Diagram::of(&(256..512).collect::<Vec<_>>());
        assert_eq!((coarse_likeness(&diagram, &other, 512), diagram.likeness(&other, 512)), (1.0 - 8.0 / 32.0, 1.0 - 16.0 / 128.0));
    }

    #[test]
    fn compression_hides_small_shifts_only() {
        // One reads a block after the other; its partner the same blocks, each two in the other order. All that is exact is alike compressed, too.
        let first: Vec<u64> = (0..256).collect();
        let second: Vec<u64> = (0..256).map(|at| at ^ 1).collect();
        let (first, second) = (Diagram::of(&first), Diagram::of(&second));
        assert_eq!((coarse_likeness(&first, &second, 256), first.likeness(&second, 256)), (1.0, 1.0));
        // Shifted by half an interval, a third of all cells that are touched differ by half.
        let late: Vec<u64> = (16..272).collect();
        let late = Diagram::of(&late);
        assert!(coarse_likeness(&first, &late, 288) < 1.0 && first.likeness(&late, 288) < 1.0);
    }

    #[test]
    fn what_is_not_alike_compressed_is_not_looked_at_exactly() {
        let dense = |count| Diagram((0..16).map(|row| (row, [count; INTERVALS])).collect());
        assert!(alike(&dense(10), &dense(10), 512) && !alike(&dense(10), &dense(8), 512));
        assert!((dense(10).likeness(&dense(9), 512) - 0.9).abs() < 1e-9);
        // Alike by 0.875 compressed and by more exactly, or the other way round: neither is enough.
        let one = Diagram::of(&(0..256).collect::<Vec<_>>());
        let other = Diagram::of(&(256..512).collect::<Vec<_>>());
        assert!(
            coarse_likeness(&one, &other, 800) < LEAST_LIKENESS && one.likeness(&other, 800) >= LEAST_LIKENESS && !alike(&one, &other, 800)
        );
    }

    #[test]
    fn the_last_three_windows_are_compared_and_who_touches_most_comes_first() {
        let touches = |order: Vec<u32>| RankTouches {
            ranges: order.iter().map(|block| ([1; 16], *block, 1)).collect(),
            order: order.into_iter().map(|block| ([1; 16], block)).collect(),
            ..RankTouches::default()
        };
        // All read blocks 0 to 63 at last. Rank 2 read others in the two windows before, and rank 3 less than a window.
        let same = || (0..4).flat_map(|_| 0..64).collect::<Vec<u32>>();
        let other = (0..64).chain(64..128).chain(64..128).chain(0..64).collect();
        let ranks = BTreeMap::from([(0, touches(same())), (1, touches(same())), (2, touches(other)), (3, touches((0..32).collect()))]);
        let found = compare(&ranks, 64);
        assert_eq!(found.len(), 6);
        assert_eq!(found[0], Compared { ranks: (0, 1), likeness: 1.0, alike: true });
        let of = |pair| *found.iter().find(|one| one.ranks == pair).unwrap();
        assert!(of((0, 2)).likeness < 0.9 && !of((0, 2)).alike, "{:?}", of((0, 2)));
        assert!(found[3..].iter().all(|one| one.ranks.1 == 3), "who touched least comes last");
        assert_eq!(Patterns::of(&[1, 2, 3], 2).scale(), 2);
    }
}
