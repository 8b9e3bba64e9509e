//! Sets of ranks as runs: a job of many thousand ranks on a few nodes takes a few numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Ranks, as ascending runs that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u32, u32)>", into = "Vec<(u32, u32)>")]
pub struct Ranks(Vec<(u32, u32)>);

impl Ranks {
    /// True for no rank.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Whether it holds this one.
    #[must_use]
    pub fn contains(&self, rank: u32) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&rank))
    }

    /// Adds a rank.
    pub fn insert(&mut self, rank: u32) {
        if !self.contains(rank) {
            self.0.push((rank, rank));
            *self = Self::from(std::mem::take(&mut self.0));
        }
    }

    /// Takes one away.
    pub fn remove(&mut self, rank: u32) {
        let Some(at) = self.0.iter().position(|(first, last)| (*first..=*last).contains(&rank)) else { return };
        let (first, last) = self.0.remove(at);
        if rank < last {
            self.0.insert(at, (rank + 1, last));
        }
        if first < rank {
            self.0.insert(at, (first, rank - 1));
        }
    }

    /// Those that are in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::from([&self.0[..], &other.0[..]].concat())
    }

    /// Those that are in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut one, mut two) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = Vec::new();
        while let (Some((first, last)), Some((from, to))) = (one.peek(), two.peek()) {
            let (begin, end) = (*first.max(from), *last.min(to));
            if begin <= end {
                common.push((begin, end));
            }
            let passed = if last <= to { &mut one } else { &mut two };
            passed.next();
        }
        Self(common)
    }

    /// Those that are not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for (first, last) in &self.0 {
            // What is left of the run begins there; nothing, past the last rank that there can be.
            let mut begin = Some(*first);
            for (from, to) in other.0.iter().filter(|(from, to)| from <= last && to >= first) {
                if let Some(begin) = begin.filter(|begin| begin < from) {
                    left.push((begin, from - 1));
                }
                begin = to.checked_add(1);
            }
            left.extend(begin.filter(|begin| begin <= last).map(|begin| (begin, *last)));
        }
        Self(left)
    }
}

impl From<Vec<(u32, u32)>> for Ranks {
    /// Whatever a file said becomes proper runs.
    fn from(mut runs: Vec<(u32, u32)>) -> Self {
        runs.retain(|(first, last)| first <= last);
        runs.sort_unstable();
        let mut proper: Vec<(u32, u32)> = Vec::new();
        for (first, last) in runs {
            match proper.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
                _ => proper.push((first, last)),
            }
        }
        Self(proper)
    }
}

impl From<Ranks> for Vec<(u32, u32)> {
    fn from(ranks: Ranks) -> Self {
        ranks.0
    }
}

impl FromIterator<u32> for Ranks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        Self::from(ranks.into_iter().map(|rank| (rank, rank)).collect::<Vec<_>>())
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        formatter.write_str(&self.0.iter().map(run).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn they_are_a_set(steps in proptest::collection::vec((any::<bool>(), 0u32..12), 0..60)) {
            let (mut ranks, mut model) = (Ranks::default(), BTreeSet::new());
            for (add, rank) in steps {
                if add { ranks.insert(rank); model.insert(rank); } else { ranks.remove(rank); model.remove(&rank); }
                prop_assert_eq!(ranks.count(), model.len() as u64);
                prop_assert_eq!(&ranks, &model.iter().copied().collect::<Ranks>());
                prop_assert!((0..12).all(|rank| ranks.contains(rank) == model.contains(&rank)));
            }
        }
    }

    proptest! {
        #[test]
        fn they_are_compared_as_sets(one in proptest::collection::btree_set(0u32..20, 0..20), other in proptest::collection::btree_set(0u32..20, 0..20)) {
            let ranks = |set: &BTreeSet<u32>| set.iter().copied().collect::<Ranks>();
            prop_assert_eq!(ranks(&one).intersection(&ranks(&other)), ranks(&(&one & &other)));
            prop_assert_eq!(ranks(&one).without(&ranks(&other)), ranks(&(&one - &other)));
        }
    }

    #[test]
    fn the_last_rank_that_there_can_be_is_no_exception() {
        let all = Ranks::from(vec![(0, u32::MAX)]);
        let last = Ranks::from(vec![(u32::MAX, u32::MAX)]);
        assert_eq!(all.without(&last), Ranks::from(vec![(0, u32::MAX - 1)]));
        assert_eq!(all.intersection(&last), last);
        assert!(all.without(&all).is_empty());
    }

    #[test]
    fn they_read_as_runs() {
        assert_eq!([3, 0, 1, 2, 7].into_iter().collect::<Ranks>().to_string(), "0-3,7");
        assert_eq!(Ranks::from(vec![(u32::MAX, u32::MAX), (5, 3), (0, u32::MAX)]).to_string(), "0-4294967295");
    }
}
