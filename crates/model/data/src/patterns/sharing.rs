//! Which ranks of a job share blocks, and how much: by what both touch, not by what both leave alone.
//!
//! What a rank touches is cut into windows, of as many blocks as a node's cache has, or a constant. A rank that touches a block in the same window as another one
//! could have found it in the cache of the other's node. A block that was touched long before is not there any more, so ranks that are shifted in
//! time by more than a window share nothing.

use super::{Told, Touch, Who};
use crate::space::{BLOCK, Id};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Blocks that are touched in a window, if nothing else is known.
pub const WINDOW: usize = 256;
/// Windows of a rank that are kept one block after the other: the last ones. Of what was before only ranges are known, so that memory grows with what is told, and not with what ranks read.
pub const KEPT: usize = 3;
/// Ranks that touch a block, of which pairs are still made: what everybody touches brings nobody closer to another one.
const MAX_SHARERS: usize = 32;
/// Parts of what pairs share are put together after so many, 32 bytes each.
const MERGED_AFTER: usize = 1 << 20;

/// A block of a file.
pub type Block = (Id, u32);

/// What a rank touched in one window, and how often: read and written apart.
pub type Touched = HashMap<Block, Counts>;

/// How often a block was touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often it was read.
    pub read: u32,
    /// How often it was written.
    pub written: u32,
    /// How often it had to be fetched for that.
    pub fetched: u32,
}

impl Counts {
    /// How often it was read or written.
    #[must_use]
    pub fn all(self) -> u32 {
        self.read + self.written
    }

    /// True if one wrote a block and the other read it.
    fn passes_on(self, other: Self) -> bool {
        self.written > 0 && other.read > 0 || self.read > 0 && other.written > 0
    }

    /// Counts another time.
    fn add(&mut self, touch: &Touch) {
        self.read += u32::from(!touch.written);
        self.written += u32::from(touch.written);
        self.fetched += u32::from(touch.fetched);
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.read += other.read;
        self.written += other.written;
        self.fetched += other.fetched;
    }
}

/// What is known of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTouches {
    /// The node where it was last.
    pub node: String,
    /// Its last windows, at most [`KEPT`], the oldest first.
    pub windows: Vec<Touched>,
    /// Blocks in the order in which they were touched: the last ones, at most as many as [`KEPT`] windows have.
    pub order: Vec<Block>,
    /// All that it touched, in order: the file, the first block, and how many.
    pub ranges: Vec<(Id, u32, u32)>,
    /// Blocks of all that: those that were touched again are counted again.
    pub blocks: u64,
    /// How many of them had to be fetched.
    pub fetched: u64,
}

/// How much two ranks share in a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shared {
    /// Weighted Jaccard over blocks that either touches: sum of the smaller counts over sum of the larger ones, 0 to 1.
    pub likeness: f64,
    /// Bytes of blocks that both touch.
    pub bytes: u64,
    /// Of these, bytes that one wrote and the other read.
    pub passed_on: u64,
}

impl RankTouches {
    /// Takes all that it touched, in order, in windows of so many blocks.
    fn take(&mut self, touches: &[(f64, &Id, &Touch)], window: usize) {
        // A target may say anything.
        self.ranges =
            touches.iter().map(|(_, file, touch)| (**file, touch.block, u32::from(touch.count).min(u32::MAX - touch.block))).collect();
        self.blocks = self.ranges.iter().map(|(.., count)| u64::from(*count)).sum();
        let (window, kept) = (window.max(1) as u64, KEPT as u64);
        let first_of_order = self.blocks.saturating_sub(kept.saturating_mul(window));
        let first_of_windows = self.blocks.div_ceil(window).saturating_sub(kept) * window;
        let mut at = 0;
        for ((file, first, count), (.., touch)) in self.ranges.iter().zip(touches) {
            let count = u64::from(*count);
            self.fetched += if touch.fetched { count } else { 0 };
            for index in at.max(first_of_order)..at + count {
                let block = (*file, first + (index - at) as u32);
                self.order.push(block);
                if let Some(of_windows) = index.checked_sub(first_of_windows) {
                    let number = (of_windows / window) as usize;
                    self.windows.resize_with(self.windows.len().max(number + 1), Touched::default);
                    self.windows[number].entry(block).or_default().add(touch);
                }
            }
            at += count;
        }
    }

    /// What it touched in its last windows, put together.
    #[must_use]
    pub fn last(&self, windows: usize) -> Touched {
        let mut all = Touched::default();
        for (block, counts) in self.windows.iter().rev().take(windows).flatten() {
            *all.entry(*block).or_default() += *counts;
        }
        all
    }
}

/// What a target told of a rank: how often it changed the node, the last one, and what it touched.
type OfTarget<'a> = (usize, &'a str, Vec<(&'a Id, &'a Touch)>);

/// What each target told, put together: by rank of one job. Mounts that are no rank's are left out.
///
/// Targets know their own order alone. A file's stripes are on all of them, so what is as far in one target's events of a rank as in another's is taken to have
/// been at the same time. Where a rank is now is told by the target that saw it change its node most often: another one may have seen nothing since.
#[must_use]
pub fn of_job(targets: &[Vec<Told>], job: &str, window: usize) -> BTreeMap<u32, RankTouches> {
    let mut events: BTreeMap<u32, Vec<(f64, &Id, &Touch)>> = BTreeMap::new();
    // What says most of where a rank is now: how often it changed the node, how many events there are, and the last node.
    let mut nodes: BTreeMap<u32, (usize, usize, &str)> = BTreeMap::new();
    for told in targets {
        let mut of_target: HashMap<u32, OfTarget<'_>> = HashMap::new();
        for (told, event) in told.iter().flat_map(|told| told.events.iter().map(move |event| (told, event))) {
            let Some(Who { job: of, rank: Some(rank), node }) = told.who.get(event.who as usize) else { continue };
            let Some(file) = told.files.get(event.file as usize).filter(|_| of == job) else { continue };
            let (changes, last, touches) = of_target.entry(*rank).or_insert((0, node, Vec::new()));
            *changes += usize::from(last != node);
            *last = node;
            touches.push((file, &event.touch));
        }
        for (rank, (changes, node, touches)) in of_target {
            let told = (changes, touches.len(), node);
            nodes.entry(rank).and_modify(|most| *most = told.max(*most)).or_insert(told);
            let all = touches.len() as f64;
            let placed = touches.into_iter().enumerate().map(|(at, (file, touch))| ((at + 1) as f64 / all, file, touch));
            events.entry(rank).or_default().extend(placed);
        }
    }
    let of_rank = |(rank, mut events): (u32, Vec<(f64, &Id, &Touch)>)| {
        events.sort_by(|one, other| one.0.total_cmp(&other.0));
        let node = nodes.get(&rank).map_or("", |(.., node)| node).to_owned();
        let mut touches = RankTouches { node, ..RankTouches::default() };
        touches.take(&events, window);
        (rank, touches)
    };
    events.into_iter().map(of_rank).collect()
}

/// A rank, where it was, and what it touched.
pub type Placed<'a> = (&'a str, &'a Touched);

/// Bytes of each block that a node fetches whose ranks touch it, by rank: for each block its number and these. A block that nodes fetched less often than it was
/// touched on them, or not at all since their caches had it, counts less. Over all blocks and the nodes that touch them that is what was fetched; of a block that a
/// rank wrote, over all of them but one, since the node that wrote it has it.
#[must_use]
pub fn costs(ranks: &BTreeMap<u32, Placed<'_>>) -> BTreeMap<u32, Vec<(u64, u64)>> {
    let mut blocks: HashMap<Block, (u64, u64, u64, BTreeSet<&str>)> = HashMap::new();
    for (node, touched) in ranks.values() {
        for (block, counts) in *touched {
            let next = blocks.len() as u64;
            let (_, fetched, written, nodes) = blocks.entry(*block).or_insert((next, 0, 0, BTreeSet::new()));
            *fetched += u64::from(counts.fetched);
            *written += u64::from(counts.written);
            nodes.insert(node);
        }
    }
    let cost = |block: &Block| {
        let Some((number, fetched, written, nodes)) = blocks.get(block) else { return (0, 0) };
        let fetch = nodes.len().saturating_sub(usize::from(*written > 0)).max(1);
        (*number, fetched * BLOCK / fetch as u64)
    };
    let of_rank = |(_, touched): &Placed<'_>| {
        let mut all: Vec<(u64, u64)> = touched.keys().map(cost).collect();
        all.sort_unstable();
        all
    };
    ranks.iter().map(|(rank, placed)| (*rank, of_rank(placed))).collect()
}

/// Jobs that are told of, each with how many of their ranks.
#[must_use]
pub fn jobs(targets: &[Vec<Told>]) -> BTreeMap<String, usize> {
    let mut ranks: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for who in targets.iter().flatten().flat_map(|told| &told.who) {
        if let Some(rank) = who.rank {
            ranks.entry(who.job.clone()).or_default().insert(rank);
        }
    }
    ranks.into_iter().map(|(job, ranks)| (job, ranks.len())).collect()
}

/// Blocks that mounts that are no rank's read and wrote, by node: whose they are is not known, and not guessed.
#[must_use]
pub fn of_mounts(targets: &[Vec<Told>]) -> BTreeMap<String, Counts> {
    let mut mounts: BTreeMap<String, Counts> = BTreeMap::new();
    for (told, event) in targets.iter().flatten().flat_map(|told| told.events.iter().map(move |event| (told, event))) {
        let Some(Who { rank: None, node, .. }) = told.who.get(event.who as usize) else { continue };
        let counts = mounts.entry(node.clone()).or_default();
        let blocks = u32::from(event.touch.count);
        let of = if event.touch.written { &mut counts.written } else { &mut counts.read };
        *of = of.saturating_add(blocks);
        counts.fetched = counts.fetched.saturating_add(if event.touch.fetched { blocks } else { 0 });
    }
    mounts
}

/// How much two ranks share of one window.
#[must_use]
pub fn shared(one: &Touched, other: &Touched) -> Shared {
    let (few, many) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let (mut both, mut bytes, mut passed_on) = (0u64, 0, 0);
    for (block, counts) in few {
        let Some(others) = many.get(block) else { continue };
        both += u64::from(counts.all().min(others.all()));
        bytes += BLOCK;
        passed_on += if counts.passes_on(*others) { BLOCK } else { 0 };
    }
    Shared { likeness: likeness(both, touches(one) + touches(other)), bytes, passed_on }
}

/// How often all blocks were touched.
fn touches(touched: &Touched) -> u64 {
    touched.values().map(|counts| u64::from(counts.all())).sum()
}

/// Of the sum of the smaller counts, and of all counts of both ranks: the larger ones are all without the smaller ones.
fn likeness(smaller: u64, all: u64) -> f64 {
    let larger = all - smaller;
    if larger == 0 { 0.0 } else { smaller as f64 / larger as f64 }
}

/// What two ranks share in one block, or in several.
#[derive(Clone, Copy)]
struct Part {
    pair: (u32, u32),
    both: u64,
    bytes: u64,
    passed_on: u64,
}

/// Parts of the same pair are put together; afterwards they are in the order of pairs.
fn merge(parts: &mut Vec<Part>) {
    parts.sort_unstable_by_key(|part| part.pair);
    parts.dedup_by(|next, kept| {
        let same = next.pair == kept.pair;
        if same {
            kept.both += next.both;
            kept.bytes += next.bytes;
            kept.passed_on += next.passed_on;
        }
        same
    });
}

/// Pairs that share anything in a window, by rank. What ranks touch is sorted by block, and only ranks that touch a block together are looked at: so the cost grows as
/// `n log n` with what is touched, not with all pairs.
#[must_use]
pub fn pairs(ranks: &BTreeMap<u32, &Touched>) -> BTreeMap<(u32, u32), Shared> {
    let files: BTreeSet<Id> = ranks.values().flat_map(|touched| touched.keys()).map(|(file, _)| *file).collect();
    let files: BTreeMap<Id, u64> = files.into_iter().zip(0..).collect();
    let number = |(file, block): &Block| files.get(file).copied().unwrap_or(0) << 32 | u64::from(*block);
    let mut all: Vec<(u64, u32, Counts)> = Vec::with_capacity(ranks.values().map(|touched| touched.len()).sum());
    for (rank, touched) in ranks {
        all.extend(touched.iter().map(|(block, counts)| (number(block), *rank, *counts)));
    }
    all.sort_unstable_by_key(|(block, rank, _)| (*block, *rank));
    let (mut parts, mut merged): (Vec<Part>, usize) = (Vec::new(), 0);
    for of_block in all.chunk_by(|one, other| one.0 == other.0).filter(|of_block| (2..=MAX_SHARERS).contains(&of_block.len())) {
        for (at, (_, one, counts)) in of_block.iter().enumerate() {
            for (_, other, others) in &of_block[at + 1..] {
                let both = u64::from(counts.all().min(others.all()));
                parts.push(Part { pair: (*one, *other), both, bytes: BLOCK, passed_on: if counts.passes_on(*others) { BLOCK } else { 0 } });
            }
        }
        // There are not many more parts than pairs at any time.
        if parts.len() > 2 * merged + MERGED_AFTER {
            merge(&mut parts);
            merged = parts.len();
        }
    }
    merge(&mut parts);
    let touches: BTreeMap<u32, u64> = ranks.iter().map(|(rank, touched)| (*rank, touches(touched))).collect();
    let shared = |part: &Part| {
        let likeness = likeness(part.both, touches[&part.pair.0] + touches[&part.pair.1]);
        Shared { likeness, bytes: part.bytes, passed_on: part.passed_on }
    };
    parts.iter().map(|part| (part.pair, shared(part))).collect()
}

/// A rank of another job that shares blocks with one of this job.
#[derive(Clone, Debug, PartialEq)]
pub struct OfOtherJob {
    /// Rank of this job.
    pub rank: u32,
    /// The other job.
    pub job: String,
    /// The rank of that job.
    pub other: u32,
    /// Node of that rank.
    pub node: String,
    /// How much they share.
    pub shared: Shared,
}

/// Ranks of other jobs that share blocks with ranks of this one, which touched `own`, in the last windows of each; those that share most come first.
#[must_use]
pub fn of_other_jobs(targets: &[Vec<Told>], job: &str, own: &BTreeMap<u32, Touched>, window: usize, windows: usize) -> Vec<OfOtherJob> {
    let mut others: Vec<(String, u32, String, Touched)> = Vec::new();
    for name in jobs(targets).into_keys().filter(|name| name != job) {
        let ranks = of_job(targets, &name, window);
        others.extend(ranks.into_iter().map(|(rank, touches)| (name.clone(), rank, touches.node.clone(), touches.last(windows))));
    }
    if others.is_empty() {
        return Vec::new();
    }
    let numbers: Vec<u32> = own.keys().copied().collect();
    let touched: BTreeMap<u32, &Touched> = (0..).zip(own.values().chain(others.iter().map(|(.., touched)| touched))).collect();
    let mut found: Vec<OfOtherJob> = Vec::new();
    for ((one, other), shared) in pairs(&touched) {
        // The lower number comes first, and ranks of this job come before all others.
        if let Some(rank) = numbers.get(one as usize)
            && let Some((job, other, node, _)) = (other as usize).checked_sub(numbers.len()).and_then(|other| others.get(other))
        {
            found.push(OfOtherJob { rank: *rank, job: job.clone(), other: *other, node: node.clone(), shared });
        }
    }
    found.sort_by(|one, other| {
        other.shared.bytes.cmp(&one.shared.bytes).then_with(|| (one.rank, &one.job, one.other).cmp(&(other.rank, &other.job, other.other)))
    });
    found
}

#[cfg(test)]
mod tests {
    use super::super::{Recorder, Report, Touch};
    use super::*;
    use proptest::prelude::*;

    fn reads(blocks: impl IntoIterator<Item = u32>) -> Touched {
        let mut touched = Touched::default();
        blocks.into_iter().for_each(|block| touched.entry(([1; 16], block)).or_default().read += 1);
        touched
    }

    #[test]
    fn ranks_are_alike_by_what_both_touch() {
        assert_eq!(shared(&reads(0..10), &reads(0..10)), Shared { likeness: 1.0, bytes: 10 * BLOCK, passed_on: 0 });
        // Disjoint: the paper's rule finds these alike.
        assert_eq!(shared(&reads(0..10), &reads(10..20)).likeness, 0.0);
        assert!((shared(&reads(0..10), &reads(5..15)).likeness - 5.0 / 15.0).abs() < 1e-9);
        // Who reads a block twice shares more of what another reads twice.
        assert!((shared(&reads([1, 1, 2]), &reads([1, 1, 3])).likeness - 2.0 / 4.0).abs() < 1e-9);
        assert_eq!(shared(&Touched::default(), &Touched::default()).likeness, 0.0);
    }

    #[test]
    fn what_one_writes_and_the_other_reads_is_told_apart() {
        let mut writes = Touched::default();
        (0..4).for_each(|block| writes.entry(([1; 16], block)).or_default().written += 1);
        assert_eq!(shared(&writes, &reads(2..9)).passed_on, 2 * BLOCK);
        assert_eq!(shared(&writes, &writes.clone()).passed_on, 0);
    }

    #[test]
    fn events_of_several_targets_are_put_together_and_shifted_ranks_share_nothing() {
        let report = |rank, blocks: std::ops::Range<u32>| Report {
            who: Who { job: "j".into(), rank: Some(rank), node: format!("n{rank}") },
            file: [1; 16],
            touches: blocks.map(|block| Touch { block, count: 1, written: false, fetched: true }).collect(),
            waited_us: 0,
        };
        let (mut one, mut two) = (Recorder::default(), Recorder::default());
        one.take(&report(0, 0..8));
        two.take(&report(0, 100..108));
        // Rank 1 comes to the same blocks a window later.
        two.take(&report(1, 200..216));
        two.take(&report(1, 0..8));
        two.take(&Report { who: Who { job: "other".into(), rank: Some(0), node: "x".into() }, ..report(0, 0..9) });
        two.take(&Report { who: Who { job: "j".into(), rank: None, node: "x".into() }, ..report(0, 0..9) });
        let told = [vec![one.tell(0)], vec![two.tell(0)]];
        let ranks = of_job(&told, "j", 16);
        assert_eq!(ranks.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!((ranks[&0].windows.len(), ranks[&0].windows[0].len(), ranks[&1].windows.len()), (1, 16, 2));
        assert_eq!(shared(&ranks[&0].windows[0], &ranks[&1].windows[0]).bytes, 0);
        assert_eq!(shared(&ranks[&0].windows[0], &ranks[&1].windows[1]).bytes, 8 * BLOCK);
        assert_eq!(jobs(&told), [("j".to_owned(), 2), ("other".to_owned(), 1)].into());
        assert_eq!(of_mounts(&told), [("x".to_owned(), Counts { read: 9, written: 0, fetched: 9 })].into());
    }

    /// What one target tells of rank 0, by node and range.
    fn told_of(events: &[(&str, u32, u16)]) -> Vec<Told> {
        let mut target = Recorder::default();
        for (node, block, count) in events {
            let touch = Touch { block: *block, count: *count, written: false, fetched: true };
            let who = Who { job: "j".into(), rank: Some(0), node: (*node).into() };
            target.take(&Report { who, file: [1; 16], touches: vec![touch], waited_us: 0 });
        }
        vec![target.tell(0)]
    }

    #[test]
    fn a_rank_is_where_it_went_whichever_target_is_asked_last() {
        let (moved, before) = (told_of(&[("a", 0, 1), ("b", 1, 1)]), told_of(&[("a", 5, 1), ("a", 6, 1), ("a", 7, 1)]));
        for targets in [[moved.clone(), before.clone()], [before, moved]] {
            assert_eq!(of_job(&targets, "j", 4)[&0].node, "b");
        }
    }

    #[test]
    fn memory_grows_with_what_is_told_and_not_with_what_was_read() {
        let events: Vec<(&str, u32, u16)> = (0..20_000).map(|at| ("a", at * 7, u16::MAX)).collect();
        let rank = &of_job(&[told_of(&events)], "j", 256)[&0];
        let all = 20_000 * u64::from(u16::MAX);
        assert_eq!((rank.blocks, rank.fetched, rank.ranges.len()), (all, all, 20_000));
        assert_eq!((rank.windows.len(), rank.order.len()), (KEPT, KEPT * 256));
        // What is kept is what was touched last.
        let end = 19_999 * 7 + u32::from(u16::MAX);
        assert_eq!(rank.order.last(), Some(&([1; 16], end - 1)));
        assert_eq!(rank.windows[2].len() as u64, (all - 1) % 256 + 1);
        // A range that no file has.
        let sound = Touch { block: u32::MAX - 1, count: 9, written: false, fetched: false };
        let mut touches = RankTouches::default();
        touches.take(&[(1.0, &[1; 16], &sound)], 4);
        assert_eq!((touches.blocks, touches.order), (1, vec![([1; 16], u32::MAX - 1)]));
    }

    #[test]
    fn ranks_of_other_jobs_are_seen() {
        let report = |job: &str, rank, blocks: std::ops::Range<u32>| Report {
            who: Who { job: job.into(), rank: Some(rank), node: format!("n{rank}") },
            file: [1; 16],
            touches: blocks.map(|block| Touch { block, count: 1, written: false, fetched: true }).collect(),
            waited_us: 0,
        };
        let mut target = Recorder::default();
        for (job, rank, blocks) in [("a", 0, 0..8), ("a", 1, 0..8), ("b", 3, 4..12), ("b", 0, 100..108), ("c", 2, 0..2)] {
            target.take(&report(job, rank, blocks));
        }
        let told = [vec![target.tell(0)]];
        let own =
            |job| -> BTreeMap<u32, Touched> { of_job(&told, job, 16).into_iter().map(|(rank, touches)| (rank, touches.last(3))).collect() };
        let found = of_other_jobs(&told, "a", &own("a"), 16, 3);
        let named: Vec<_> =
            found.iter().map(|one| (one.rank, one.job.as_str(), one.other, one.node.as_str(), one.shared.bytes / BLOCK)).collect();
        assert_eq!(named, [(0, "b", 3, "n3", 4), (1, "b", 3, "n3", 4), (0, "c", 2, "n2", 2), (1, "c", 2, "n2", 2)]);
        assert!(of_other_jobs(&told, "d", &own("d"), 16, 3).is_empty());
    }

    #[test]
    fn what_caches_had_costs_nothing() {
        let fetches = |blocks: std::ops::Range<u32>, fetched| -> Touched {
            blocks.map(|block| (([1; 16], block), Counts { read: 3, written: 0, fetched })).collect()
        };
        let (once, never, twice) = (fetches(0..4, 1), fetches(0..4, 0), fetches(2..6, 2));
        let ranks: BTreeMap<u32, Placed<'_>> = [(0, ("a", &once)), (1, ("b", &never)), (2, ("b", &twice))].into();
        let costs = costs(&ranks);
        let bytes = |rank: u32| costs[&rank].iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>();
        // Blocks 0 and 1: fetched by one of two nodes. 2 and 3: three times by two nodes. 4 and 5: twice by the only one.
        let mut all = bytes(0);
        all.sort_unstable();
        assert_eq!(all, [BLOCK / 2, BLOCK / 2, BLOCK * 3 / 2, BLOCK * 3 / 2]);
        assert_eq!(bytes(2).iter().sum::<u64>(), BLOCK * 3 + BLOCK * 4);
        assert_eq!(costs[&0], costs[&1]);
    }

    #[test]
    fn the_node_that_wrote_a_block_need_not_fetch_it() {
        let touched =
            |read, written, fetched| -> Touched { (0..4).map(|block| (([1; 16], block), Counts { read, written, fetched })).collect() };
        let (wrote, read, had) = (touched(0, 3, 0), touched(3, 0, 3), touched(3, 0, 0));
        // All of it would be saved if the reader came to the writer.
        let apart: BTreeMap<u32, Placed<'_>> = [(0, ("a", &wrote)), (1, ("b", &read))].into();
        assert_eq!(costs(&apart)[&1].iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [3 * BLOCK; 4]);
        let together: BTreeMap<u32, Placed<'_>> = [(0, ("a", &wrote)), (1, ("a", &had))].into();
        assert!(costs(&together).values().flatten().all(|(_, bytes)| *bytes == 0));
    }

    proptest! {
        /// All pairs that share a block that not everybody touches are found: compared with looking at each pair.
        #[test]
        fn no_pair_that_shares_is_missed(seed in prop::collection::vec((0u32..40, 0u32..300), 0..400)) {
            let mut all: BTreeMap<u32, Touched> = BTreeMap::new();
            for (rank, block) in seed {
                all.entry(rank).or_default().entry(([1; 16], block)).or_default().read += 1;
            }
            let ranks: BTreeMap<u32, &Touched> = all.iter().map(|(rank, touched)| (*rank, touched)).collect();
            let found = pairs(&ranks);
            for (one, a) in &all {
                for (other, b) in all.range(one + 1..) {
                    let both = shared(a, b);
                    prop_assert_eq!(found.get(&(*one, *other)).copied(), Some(both).filter(|both| both.bytes > 0));
                }
            }
        }
    }

    #[test]
    fn ten_thousand_ranks_are_compared_by_what_they_share() {
        // Clusters of four ranks, each with 64 blocks of its own and 16 that all ranks read.
        let touched = |rank: u32| reads((0..64).map(|at| 1000 + rank / 4 * 64 + at).chain(0..16));
        let all: Vec<Touched> = (0..10_000).map(touched).collect();
        let ranks: BTreeMap<u32, &Touched> = (0..).zip(&all).collect();
        let found = pairs(&ranks);
        assert_eq!(found.len(), 10_000 / 4 * 6);
        assert!(found.keys().all(|(one, other)| one / 4 == other / 4));
    }
}
