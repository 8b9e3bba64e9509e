//! Where ranks run, by the data that they touch: on nodes whose caches have it already.
//!
//! A node fetches each block that its ranks touch in a window once, whoever of them asks first. So what a placement costs is the sum, over all blocks, of the nodes that
//! touch it. A rank moves where that sum becomes smaller by enough, or changes places with a rank of a full node. What everybody touches, or nobody else does, costs the
//! same wherever the ranks are; so nobody moves for it.
//!
//! Greedy: the best move first, then what is best after it. Moves are few and each is worth its own cost, so that a plan need not be the best possible one.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// How often all ranks are looked at: moves make others worth it.
const ROUNDS: usize = 4;

/// A rank, where it runs, and what it touched in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Number of its node.
    pub node: usize,
    /// Blocks by a number, each once, with the bytes of it that go over the network.
    pub touched: Vec<(u64, u64)>,
}

/// What a move must be worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacementRules {
    /// Bytes that it saves in a window, at least: of what the move itself costs.
    pub least_bytes: u64,
    /// Share of what the rank touches that it saves, at least, 0 to 1.
    pub least_share: f64,
    /// Moves of one plan, at most; two ranks that change places are one.
    pub most: usize,
}

/// A rank moves, or changes places with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the rank that moves.
    pub rank: usize,
    /// From which node.
    pub from: usize,
    /// To which one.
    pub to: usize,
    /// Who goes the other way, since the node is full.
    pub back: Option<usize>,
    /// Bytes that need not be fetched in a window.
    pub saves: u64,
}

/// How many ranks of each node touch a block.
#[derive(Debug, Default)]
struct Touchers(HashMap<u64, Vec<(usize, u32)>>);

impl Touchers {
    fn of(ranks: &[Placed]) -> Self {
        let mut all = Self::default();
        ranks.iter().for_each(|rank| all.count(rank, rank.node, 1));
        all
    }

    fn on(&self, block: u64, node: usize) -> u32 {
        self.0.get(&block).and_then(|nodes| nodes.iter().find(|(of, _)| *of == node)).map_or(0, |(_, count)| *count)
    }

    fn count(&mut self, rank: &Placed, node: usize, change: i64) {
        for (block, _) in &rank.touched {
            let nodes = self.0.entry(*block).or_default();
            let at = nodes.iter().position(|(of, _)| *of == node).unwrap_or_else(|| {
                nodes.push((node, 0));
                nodes.len() - 1
            });
            nodes[at].1 = u32::try_from(i64::from(nodes[at].1) + change).unwrap_or(0);
            nodes.retain(|(_, count)| *count > 0);
        }
    }

    fn moved(&mut self, rank: &Placed, from: usize, to: usize) {
        self.count(rank, from, -1);
        self.count(rank, to, 1);
    }

    /// Bytes that are fetched less if a rank moves; negative: more.
    fn saves(&self, rank: &Placed, from: usize, to: usize) -> i64 {
        let change = |(block, bytes): &(u64, u64)| {
            let leaves = i64::from(self.on(*block, from) == 1);
            let comes = i64::from(self.on(*block, to) == 0);
            i64::try_from(*bytes).unwrap_or(i64::MAX) * (leaves - comes)
        };
        rank.touched.iter().map(change).sum()
    }

    /// Other nodes that touch what only this rank touches on its own.
    fn near(&self, rank: &Placed) -> BTreeSet<usize> {
        let alone = rank.touched.iter().filter(|(block, _)| self.on(*block, rank.node) == 1);
        let nodes = alone.filter_map(|(block, _)| self.0.get(block)).flatten();
        nodes.map(|(node, _)| *node).filter(|node| *node != rank.node).collect()
    }
}

/// What is to be moved, the best first. `slots`: how many ranks each node may have.
#[must_use]
pub fn plan(ranks: &[Placed], slots: &[usize], rules: &PlacementRules) -> Vec<Step> {
    let mut ranks = ranks.to_vec();
    let mut touchers = Touchers::of(&ranks);
    let mut here: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); slots.len()];
    for (number, rank) in ranks.iter().enumerate() {
        if let Some(node) = here.get_mut(rank.node) {
            node.insert(number);
        }
    }
    let (mut steps, mut moved): (Vec<Step>, BTreeSet<usize>) = (Vec::new(), BTreeSet::new());
    for _ in 0..ROUNDS {
        let begun = steps.len();
        // What a move saves is looked at again when its turn comes: others may have moved meanwhile.
        let mut waiting: BinaryHeap<(u64, Reverse<usize>)> = (0..ranks.len())
            .filter(|rank| ranks[*rank].node < slots.len())
            .filter_map(|rank| Some((best_of(rank, &ranks, &mut touchers, &here, slots, &moved)?.saves, Reverse(rank))))
            .collect();
        while steps.len() < rules.most
            && let Some((saves, Reverse(rank))) = waiting.pop()
        {
            let Some(step) = best_of(rank, &ranks, &mut touchers, &here, slots, &moved) else { continue };
            if step.saves < saves {
                waiting.push((step.saves, Reverse(rank)));
                continue;
            }
            if !is_worth_it(&step, &ranks, rules) {
                continue;
            }
            for (rank, from, to) in [(Some(step.rank), step.from, step.to), (step.back, step.to, step.from)] {
                let Some(rank) = rank else { continue };
                touchers.moved(&ranks[rank], from, to);
                ranks[rank].node = to;
                here[from].remove(&rank);
                here[to].insert(rank);
                moved.insert(rank);
            }
            steps.push(step);
        }
        if steps.len() == begun {
            break;
        }
    }
    steps
}

fn is_worth_it(step: &Step, ranks: &[Placed], rules: &PlacementRules) -> bool {
    let movers = std::iter::once(step.rank).chain(step.back);
    let touched: u64 = movers.map(|rank| ranks[rank].touched.iter().map(|(_, bytes)| bytes).sum::<u64>()).sum();
    let cost = rules.least_bytes.saturating_mul(1 + u64::from(step.back.is_some()));
    step.saves > cost && step.saves as f64 >= rules.least_share * touched as f64
}

/// The best move of a rank, if one saves anything.
fn best_of(
    rank: usize,
    ranks: &[Placed],
    touchers: &mut Touchers,
    here: &[BTreeSet<usize>],
    slots: &[usize],
    moved: &BTreeSet<usize>,
) -> Option<Step> {
    // No rank moves twice in a plan.
    if moved.contains(&rank) {
        return None;
    }
    let (one, from) = (&ranks[rank], ranks[rank].node);
    let mut best: Option<Step> = None;
    for to in touchers.near(one) {
        let Some(room) = slots.get(to) else { continue };
        let saves = touchers.saves(one, from, to);
        // To make room for it costs something as a rule: then it is not looked at.
        if saves <= best.map_or(0, |step| step.saves as i64) {
            continue;
        }
        let (saves, back) = if here[to].len() < *room {
            (saves, None)
        } else {
            touchers.moved(one, from, to);
            let others = here[to].iter().filter(|other| !moved.contains(other));
            let other = others
                .map(|other| (touchers.saves(&ranks[*other], to, from), *other))
                .max_by_key(|(saves, other)| (*saves, Reverse(*other)));
            touchers.moved(one, to, from);
            let Some((gains, other)) = other else { continue };
            (saves + gains, Some(other))
        };
        if let Some(saves) = u64::try_from(saves).ok().filter(|saves| *saves > best.map_or(0, |step| step.saves)) {
            best = Some(Step { rank, from, to, back, saves });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const RULES: PlacementRules = PlacementRules { least_bytes: 0, least_share: 0.05, most: 100 };

    fn placed(node: usize, blocks: impl IntoIterator<Item = u64>) -> Placed {
        Placed { node, touched: blocks.into_iter().map(|block| (block, 64)).collect() }
    }

    /// Bytes that all nodes fetch in a window.
    fn fetched(ranks: &[Placed]) -> u64 {
        let touchers = Touchers::of(ranks);
        let bytes: BTreeMap<u64, u64> = ranks.iter().flat_map(|rank| rank.touched.iter().copied()).collect();
        bytes.into_iter().map(|(block, bytes)| bytes * touchers.0.get(&block).map_or(0, |nodes| nodes.len() as u64)).sum()
    }

    fn after(ranks: &[Placed], steps: &[Step]) -> Vec<Placed> {
        let mut ranks = ranks.to_vec();
        for step in steps {
            ranks[step.rank].node = step.to;
            step.back.into_iter().for_each(|back| ranks[back].node = step.from);
        }
        ranks
    }

    #[test]
    fn partners_come_together_by_changing_places() {
        // Ranks 0 and 2, 1 and 3 touch the same; the nodes are full.
        let ranks = [placed(0, 0..10), placed(0, 10..20), placed(1, 0..10), placed(1, 10..20)];
        let steps = plan(&ranks, &[2, 2], &RULES);
        assert_eq!(steps.len(), 1);
        assert!(steps[0].back.is_some() && steps[0].saves == 20 * 64);
        assert_eq!((fetched(&ranks), fetched(&after(&ranks, &steps))), (40 * 64, 20 * 64));
    }

    #[test]
    fn a_rank_goes_where_there_is_room() {
        let ranks = [placed(0, 0..10), placed(1, 0..10)];
        assert_eq!(plan(&ranks, &[1, 2], &RULES), [Step { rank: 0, from: 0, to: 1, back: None, saves: 640 }]);
        assert!(plan(&ranks, &[1, 1], &RULES).is_empty());
        // Too little for what it costs.
        assert!(plan(&ranks, &[1, 2], &PlacementRules { least_bytes: 640, ..RULES }).is_empty());
        assert!(plan(&ranks, &[1, 2], &PlacementRules { most: 0, ..RULES }).is_empty());
    }

    #[test]
    fn nobody_moves_where_there_is_nothing_to_be_gained() {
        // All read all; all read one file; each reads its own; and what is drawn at random is shared by nobody in particular.
        let all: Vec<_> = (0..8).map(|rank| placed(rank % 4, 0..50)).collect();
        let own: Vec<_> = (0..8).map(|rank| placed(rank % 4, (rank as u64 * 100..).take(50))).collect();
        let random: Vec<_> = (0..8).map(|rank| placed(rank % 4, (0..50).map(|at| (at * 7919 + rank as u64 * 104_729) % 100_003))).collect();
        for ranks in [all, own, random] {
            assert!(plan(&ranks, &[4; 4], &RULES).is_empty() && plan(&ranks, &[2; 4], &RULES).is_empty());
        }
    }

    #[test]
    fn groups_larger_than_pairs_come_together() {
        // Four groups of four, one rank of each group on each node.
        let ranks: Vec<_> = (0..16).map(|rank| placed(rank % 4, (rank as u64 / 4 * 100..).take(50))).collect();
        let steps = plan(&ranks, &[4; 4], &RULES);
        let gathered = after(&ranks, &steps);
        assert_eq!(fetched(&gathered), 4 * 50 * 64);
        // And then all is well.
        assert!(plan(&gathered, &[4; 4], &RULES).is_empty());
    }

    #[test]
    fn ten_thousand_ranks_are_placed() {
        // Partners are 5000 ranks apart, on 625 full nodes.
        let ranks: Vec<_> = (0..10_000).map(|rank| placed(rank / 16, (rank as u64 % 5000 * 64..).take(64))).collect();
        let steps = plan(&ranks, &[16; 625], &PlacementRules { most: usize::MAX, ..RULES });
        assert!(fetched(&after(&ranks, &steps)) * 10 < fetched(&ranks) * 6, "{} of {}", fetched(&after(&ranks, &steps)), fetched(&ranks));
    }

    proptest! {
        #[test]
        fn plans_save_what_they_say_and_keep_to_the_slots(
            ranks in prop::collection::vec((0usize..4, prop::collection::btree_set(0u64..60, 0..25)), 1..14),
            room in 0usize..3,
            most in 0usize..6,
        ) {
            let ranks: Vec<Placed> = ranks.into_iter().map(|(node, blocks)| placed(node, blocks)).collect();
            let mut slots = vec![0; 4];
            ranks.iter().for_each(|rank| slots[rank.node] += 1);
            slots[0] += room;
            let steps = plan(&ranks, &slots, &PlacementRules { most, ..RULES });
            let then = after(&ranks, &steps);
            let saved: u64 = steps.iter().map(|step| step.saves).sum();
            prop_assert_eq!(fetched(&ranks) - fetched(&then), saved);
            prop_assert!(steps.len() <= most);
            for (node, slots) in slots.iter().enumerate() {
                prop_assert!(then.iter().filter(|rank| rank.node == node).count() <= *slots);
            }
        }
    }
}
