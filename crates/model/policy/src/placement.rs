//! Where ranks run, by the data that they touch: on nodes whose caches have it already.
//!
//! A node fetches each block that its ranks touch in a window once, whoever of them asks first. So what a placement costs is the sum, over all blocks, of the nodes that
//! touch it. A rank moves where that sum becomes smaller by enough, or changes places with a rank of a full node. What everybody touches, or nobody else does, costs the
//! same wherever the ranks are; so nobody moves for it.
//!
//! What ranks send each other counts, too, in the same bytes: what two ranks of a node exchange goes over the network when one of them leaves. So a rank moves where that and
//! what is fetched become less together. Nobody moves for messages alone.
//!
//! Greedy: the best move first, then what is best after it. Moves are few and each is worth its own cost, so that a plan need not be the best possible one.

mod gather;

pub use gather::gather;

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
    /// Ranks, by their index, with which it exchanges messages, each once, and how many bytes in a window. Either of two ranks has the other one.
    pub exchanges: Vec<(usize, u64)>,
    /// It stays where it is: too little is known of it.
    pub fixed: bool,
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
    /// Bytes of messages that begin to cross nodes in a window; less than 0: that cease to.
    pub crossing: i64,
}

impl Step {
    /// Bytes of messages that begin to cross nodes by this move alone, with all others where these ranks are.
    #[must_use]
    pub fn crossing_of(&self, ranks: &[Placed]) -> i64 {
        let node_of = |peer: usize| ranks.get(peer).map(|peer| peer.node);
        let one = ranks.get(self.rank).map_or(0, |rank| crossing(rank, self.from, self.to, node_of));
        let then = |peer: usize| if peer == self.rank { Some(self.to) } else { node_of(peer) };
        let other = self.back.and_then(|back| ranks.get(back)).map_or(0, |rank| crossing(rank, self.to, self.from, then));
        one.saturating_add(other)
    }

    /// Bytes that the network is spared.
    fn value(&self) -> i64 {
        signed(self.saves).saturating_sub(self.crossing)
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Bytes that begin to cross nodes if a rank moves, `node_of` telling where others are by then; less than 0: that cease to.
fn crossing(rank: &Placed, from: usize, to: usize, node_of: impl Fn(usize) -> Option<usize>) -> i64 {
    let change = |(peer, bytes): &(usize, u64)| match node_of(*peer) {
        Some(node) if node == from => signed(*bytes),
        Some(node) if node == to => -signed(*bytes),
        _ => 0,
    };
    rank.exchanges.iter().map(change).fold(0, i64::saturating_add)
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
            signed(*bytes) * (leaves - comes)
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
    // Who is fixed counts as having moved: no rank moves twice.
    let fixed = ranks.iter().enumerate().filter(|(_, rank)| rank.fixed).map(|(number, _)| number);
    let (mut steps, mut moved): (Vec<Step>, BTreeSet<usize>) = (Vec::new(), fixed.collect());
    for _ in 0..ROUNDS {
        let begun = steps.len();
        // What a move saves is looked at again when its turn comes: others may have moved meanwhile.
        let mut waiting: BinaryHeap<(i64, Reverse<usize>)> = (0..ranks.len())
            .filter(|rank| ranks[*rank].node < slots.len())
            .filter_map(|rank| Some((best_of(rank, &ranks, &mut touchers, &here, slots, &moved)?.value(), Reverse(rank))))
            .collect();
        while steps.len() < rules.most
            && let Some((value, Reverse(rank))) = waiting.pop()
        {
            let Some(step) = best_of(rank, &ranks, &mut touchers, &here, slots, &moved) else { continue };
            if step.value() < value {
                waiting.push((step.value(), Reverse(rank)));
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
    step.value() > signed(cost) && step.value() as f64 >= rules.least_share * touched as f64
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
        let alone =
            Way { saves: touchers.saves(one, from, to), crossing: crossing(one, from, to, |peer| ranks.get(peer).map(|peer| peer.node)) };
        // To make room for it costs something as a rule: then it is not looked at.
        if alone.value() <= best.map_or(0, |step| step.value()) {
            continue;
        }
        let (way, back) = if here[to].len() < *room {
            (alone, None)
        } else {
            touchers.moved(one, from, to);
            let then = |peer: usize| if peer == rank { Some(to) } else { ranks.get(peer).map(|peer| peer.node) };
            let others = here[to].iter().filter(|other| !moved.contains(other));
            let other = others
                .map(|other| {
                    let leaves = &ranks[*other];
                    let way = Way { saves: touchers.saves(leaves, to, from), crossing: crossing(leaves, to, from, then) };
                    (way, *other)
                })
                .max_by_key(|(way, other)| (way.value(), Reverse(*other)));
            touchers.moved(one, to, from);
            let Some((way, other)) = other else { continue };
            (Way { saves: alone.saves + way.saves, crossing: alone.crossing.saturating_add(way.crossing) }, Some(other))
        };
        // Nobody moves for messages alone.
        let Some(saves) = u64::try_from(way.saves).ok().filter(|saves| *saves > 0) else { continue };
        let step = Step { rank, from, to, back, saves, crossing: way.crossing };
        if step.value() > best.map_or(0, |step| step.value()) {
            best = Some(step);
        }
    }
    best
}

/// What a rank's way to another node changes.
#[derive(Clone, Copy)]
struct Way {
    /// Bytes that are fetched less.
    saves: i64,
    /// Bytes of messages that begin to cross nodes.
    crossing: i64,
}

impl Way {
    fn value(self) -> i64 {
        self.saves.saturating_sub(self.crossing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const RULES: PlacementRules = PlacementRules { least_bytes: 0, least_share: 0.05, most: 100 };

    fn placed(node: usize, blocks: impl IntoIterator<Item = u64>) -> Placed {
        Placed { node, touched: blocks.into_iter().map(|block| (block, 64)).collect(), ..Placed::default() }
    }

    /// Two ranks exchange so many bytes.
    fn exchange(ranks: &mut [Placed], one: usize, other: usize, bytes: u64) {
        ranks[one].exchanges.push((other, bytes));
        ranks[other].exchanges.push((one, bytes));
    }

    /// Bytes of messages that go from node to node.
    fn crossed(ranks: &[Placed]) -> i64 {
        let of =
            |rank: &Placed| rank.exchanges.iter().filter(|(peer, _)| ranks[*peer].node != rank.node).map(|(_, bytes)| *bytes).sum::<u64>();
        ranks.iter().map(of).sum::<u64>() as i64 / 2
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
        assert_eq!(plan(&ranks, &[1, 2], &RULES), [Step { rank: 0, from: 0, to: 1, back: None, saves: 640, crossing: 0 }]);
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
    fn who_exchanges_more_with_a_neighbour_stays() {
        // Ranks 0 and 2 touch the same. Rank 0 exchanges messages with rank 1 on its node.
        let shared = || [placed(0, 0..10), placed(0, 10..20), placed(1, 0..10)];
        let step = |rank, from, to, crossing| Step { rank, from, to, back: None, saves: 640, crossing };
        // There is room on node 1 alone: it goes, unless what would cross then is more.
        for (bytes, stays) in [(0, false), (639, false), (640, true), (5000, true)] {
            let mut ranks = shared();
            exchange(&mut ranks, 0, 1, bytes);
            let steps = plan(&ranks, &[2, 2], &PlacementRules { least_share: 0.0, ..RULES });
            assert_eq!(steps, if stays { vec![] } else { vec![step(0, 0, 1, bytes as i64)] }, "{bytes}");
        }
        // With room on node 0 its partner comes to it instead, which crosses nothing.
        let mut ranks = shared();
        exchange(&mut ranks, 0, 1, 5000);
        assert_eq!(plan(&ranks, &[3, 2], &RULES), [step(2, 1, 0, 0)]);
        // Of those who could make room, the one goes who exchanges less where it is.
        let mut ranks = [placed(0, 0..10), placed(0, []), placed(1, 0..10), placed(1, []), placed(1, [])];
        exchange(&mut ranks, 2, 3, 300);
        exchange(&mut ranks, 0, 1, 5000);
        let steps = plan(&ranks, &[2, 3], &RULES);
        assert_eq!(steps, [], "rank 1 would have to leave, or rank 0");
        ranks[0].exchanges.clear();
        ranks[1].exchanges.clear();
        assert_eq!(plan(&ranks, &[2, 3], &RULES), [Step { back: Some(4), ..step(0, 0, 1, 0) }]);
    }

    #[test]
    fn messages_that_cease_to_cross_add_to_what_is_saved() {
        let rules = PlacementRules { least_bytes: 1000, ..RULES };
        let mut ranks = [placed(0, 0..10), placed(1, 0..10)];
        assert_eq!(plan(&ranks, &[1, 2], &rules), []);
        exchange(&mut ranks, 0, 1, 500);
        assert_eq!(plan(&ranks, &[1, 2], &rules), [Step { rank: 0, from: 0, to: 1, back: None, saves: 640, crossing: -500 }]);
        // Messages alone move nobody, and what too little is known of stays.
        ranks[0].fixed = true;
        assert_eq!(plan(&ranks, &[1, 2], &rules), []);
        let mut ranks = [placed(0, 0..10), placed(1, 10..20)];
        exchange(&mut ranks, 0, 1, 1 << 40);
        assert_eq!(plan(&ranks, &[2, 2], &rules), []);
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
            messages in prop::collection::btree_map((0usize..14, 0usize..14), 1u64..3000, 0..30),
            fixed in prop::collection::btree_set(0usize..14, 0..4),
            room in 0usize..3,
            most in 0usize..6,
        ) {
            let mut ranks: Vec<Placed> = ranks.into_iter().map(|(node, blocks)| placed(node, blocks)).collect();
            let size = ranks.len();
            for ((one, other), bytes) in messages.into_iter().filter(|((one, other), _)| one < other && *other < size) {
                exchange(&mut ranks, one, other, bytes);
            }
            fixed.into_iter().filter(|rank| *rank < size).for_each(|rank| ranks[rank].fixed = true);
            let mut slots = vec![0; 4];
            ranks.iter().for_each(|rank| slots[rank.node] += 1);
            slots[0] += room;
            let steps = plan(&ranks, &slots, &PlacementRules { most, ..RULES });
            let then = after(&ranks, &steps);
            let saved: u64 = steps.iter().map(|step| step.saves).sum();
            prop_assert_eq!(fetched(&ranks) - fetched(&then), saved);
            prop_assert_eq!(crossed(&then) - crossed(&ranks), steps.iter().map(|step| step.crossing).sum::<i64>());
            prop_assert!(steps.iter().all(|step| step.saves > 0 && step.value() > 0));
            for (before, after) in ranks.iter().zip(&then) {
                prop_assert!(!before.fixed || before.node == after.node);
            }
            prop_assert!(steps.len() <= most);
            for (node, slots) in slots.iter().enumerate() {
                prop_assert!(then.iter().filter(|rank| rank.node == node).count() <= *slots);
            }
        }
    }
}
