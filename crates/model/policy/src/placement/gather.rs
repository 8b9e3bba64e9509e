//! Moves by the PARTE paper's rule: ranks that are alike come to one node, whatever that saves.
//!
//! ```text
//! pairs that are alike, in order ──► on two nodes? ──► one goes to the other: where there is room, else in exchange for a rank that is alike to nobody there
//! ```
//! [`super::plan`] is what Mend does by itself: it moves ranks by what nodes fetch.

use super::{Placed, Step, Touchers, crossing};
use std::collections::BTreeSet;

/// What is to be moved, in the order of the pairs. `slots`: how many ranks each node may have. `most`: moves of one plan; two ranks that change places are one.
#[must_use]
pub fn gather(ranks: &[Placed], slots: &[usize], pairs: &[(usize, usize)], most: usize) -> Vec<Step> {
    let mut gathering = Gathering {
        touchers: Touchers::of(ranks),
        ranks: ranks.to_vec(),
        slots,
        pairs: pairs.iter().copied().collect(),
        moved: BTreeSet::new(),
    };
    let known = |rank: usize| ranks.get(rank).is_some_and(|rank| rank.node < slots.len());
    let mut steps = Vec::new();
    for (one, other) in pairs.iter().copied().filter(|(one, other)| known(*one) && known(*other)) {
        if steps.len() == most {
            break;
        }
        steps.extend(gathering.join(other, one).or_else(|| gathering.join(one, other)));
    }
    steps
}

struct Gathering<'a> {
    ranks: Vec<Placed>,
    touchers: Touchers,
    slots: &'a [usize],
    pairs: BTreeSet<(usize, usize)>,
    /// No rank moves twice in a plan, nor does who others came to.
    moved: BTreeSet<usize>,
}

impl Gathering<'_> {
    /// Moves a rank to the node of another one, if it may and can.
    fn join(&mut self, rank: usize, other: usize) -> Option<Step> {
        let (from, to) = (self.ranks[rank].node, self.ranks[other].node);
        if from == to || self.ranks[rank].fixed || self.moved.contains(&rank) {
            return None;
        }
        let here = self.ranks.iter().filter(|rank| rank.node == to).count();
        let back = if here < self.slots[to] { None } else { Some(self.who_makes_room(to, other)?) };
        let (mut saves, mut crosses) = (0i64, 0i64);
        for (rank, from, to) in [(Some(rank), from, to), (back, to, from)] {
            let Some(rank) = rank else { continue };
            let one = &self.ranks[rank];
            saves = saves.saturating_add(self.touchers.saves(one, from, to));
            crosses = crosses.saturating_add(crossing(one, from, to, |peer| self.ranks.get(peer).map(|peer| peer.node)));
            self.touchers.moved(one, from, to);
            self.ranks[rank].node = to;
            self.moved.insert(rank);
        }
        self.moved.insert(other);
        Some(Step { rank, from, to, back, saves: u64::try_from(saves).unwrap_or(0), crossing: crosses })
    }

    /// A rank of a node that is alike to nobody there.
    fn who_makes_room(&self, node: usize, other: usize) -> Option<usize> {
        let on_node = || (0..self.ranks.len()).filter(|rank| self.ranks[*rank].node == node);
        let is_alike = |one: usize, other: usize| self.pairs.contains(&(one, other)) || self.pairs.contains(&(other, one));
        on_node().find(|rank| {
            *rank != other && !self.ranks[*rank].fixed && !self.moved.contains(rank) && !on_node().any(|there| is_alike(*rank, there))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn placed(node: usize, blocks: std::ops::Range<u64>) -> Placed {
        Placed { node, touched: blocks.map(|block| (block, 64)).collect(), ..Placed::default() }
    }

    #[test]
    fn who_is_alike_comes_to_one_node() {
        // Ranks 0 and 2 are alike and touch the same; 1 and 3 are alike, and share nothing.
        let ranks = [placed(0, 0..10), placed(0, 10..20), placed(1, 0..10), placed(1, 30..40)];
        let step = Step { rank: 2, from: 1, to: 0, back: None, saves: 640, crossing: 0 };
        assert_eq!(gather(&ranks, &[4, 4], &[(0, 2)], 9), [step]);
        // Nodes are full: rank 1, who is alike to nobody there, makes room, and so has come to who is alike to it.
        assert_eq!(gather(&ranks, &[2, 2], &[(0, 2), (1, 3)], 9), [Step { back: Some(1), ..step }]);
        // What it saves does not count.
        assert_eq!(gather(&ranks, &[4, 4], &[(1, 3)], 9), [Step { rank: 3, from: 1, to: 0, back: None, saves: 0, crossing: 0 }]);
        assert!(gather(&ranks, &[4, 4], &[(0, 2)], 0).is_empty() && gather(&ranks, &[4, 4], &[], 9).is_empty());
    }

    #[test]
    fn nobody_makes_room_who_is_alike_to_a_neighbour() {
        let ranks = [placed(0, 0..10), placed(0, 0..10), placed(1, 0..10), placed(1, 0..10)];
        let all = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        assert!(gather(&ranks, &[2, 2], &all, 9).is_empty());
        assert_eq!(gather(&ranks, &[4, 2], &all, 9).len(), 2);
        // A rank that is not known is left out.
        assert!(gather(&ranks, &[2, 2], &[(0, 9)], 9).is_empty());
    }

    proptest! {
        #[test]
        fn slots_are_kept_and_no_rank_moves_twice(
            nodes in prop::collection::vec(0usize..4, 1..14),
            pairs in prop::collection::vec((0usize..14, 0usize..14), 0..40),
            fixed in prop::collection::btree_set(0usize..14, 0..4),
            room in 0usize..3,
        ) {
            let mut ranks: Vec<Placed> = nodes.iter().map(|node| placed(*node, 0..3)).collect();
            fixed.into_iter().filter(|rank| *rank < nodes.len()).for_each(|rank| ranks[rank].fixed = true);
            let mut slots = vec![0; 4];
            ranks.iter().for_each(|rank| slots[rank.node] += 1);
            slots[0] += room;
            let mut then: Vec<usize> = ranks.iter().map(|rank| rank.node).collect();
            let mut seen = BTreeSet::new();
            for step in gather(&ranks, &slots, &pairs, 20) {
                for (rank, from, to) in [(Some(step.rank), step.from, step.to), (step.back, step.to, step.from)] {
                    let Some(rank) = rank else { continue };
                    prop_assert!(seen.insert(rank) && !ranks[rank].fixed && then[rank] == from);
                    then[rank] = to;
                }
                for (node, slots) in slots.iter().enumerate() {
                    prop_assert!(then.iter().filter(|of| **of == node).count() <= *slots);
                }
            }
        }
    }
}
