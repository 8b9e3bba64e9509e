//! Which checkpoints may go, and which are to be merged so that others may.
//!
//! A checkpoint whose images are incremental needs those it builds on, down to full ones. What is *kept*: those that
//! somebody asked for, until somebody removes them; of the periodic ones the newest few that can be restarted; always the
//! newest that can be restarted at all. What those need stays, too. Everything else may go.
//!
//! Merging turns a kept incremental checkpoint into a full one with the same content: those that only it (and others that
//! build on it) needed may then go. So the newest chain takes a bounded multiple of a full checkpoint.
//!
//! Invariants: nothing that is kept ever loses something that it needs, whatever the order of calls; what cannot be read
//! is never a reason to remove something, and is not removed.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A checkpoint as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCheckpoint {
    /// Its number; larger is newer.
    pub number: u64,
    /// Taken by the schedule, not because somebody asked.
    pub periodic: bool,
    /// All its images and all they build on are there.
    pub restorable: bool,
    /// Numbers of the checkpoints its images build on directly; empty: it is full.
    pub bases: BTreeSet<u64>,
    /// Length of its images.
    pub bytes: u64,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Periodic checkpoints that can be restarted; at least one is kept whatever it says.
    pub keep: u32,
    /// The newest chain is merged when it takes more than this, per cent of what a full checkpoint takes.
    pub space_percent: u32,
}

/// A merge to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The checkpoint that becomes full.
    pub at: u64,
    /// What may go afterwards, ascending.
    pub frees: Vec<u64>,
    /// Bytes that go then: of what it frees, and of its own images.
    pub goes: u64,
    /// Bytes of the newest checkpoint and all that it builds on, as they are.
    pub chain: u64,
}

/// A merge that was weighed and found not to be worth its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weighed {
    /// Bytes of the chain then.
    chain: u64,
    /// Bytes of a chain for which it is to be weighed again.
    again: u64,
}

impl Weighed {
    /// Whether what was found still holds. A chain that became shorter is another one.
    #[must_use]
    pub fn holds(self, wanted: &Merge) -> bool {
        (self.chain..self.again).contains(&wanted.chain)
    }
}

impl Merge {
    /// Whether it is worth its work if the merged images take `merged` bytes: what is superseded is too much, and more goes
    /// than comes. [`merge`] takes the largest full checkpoint for that size; the images' tables tell it exactly.
    fn is_worth(&self, merged: u64, bounds: Bounds) -> bool {
        self.goes > merged && u128::from(self.chain) * 100 > u128::from(merged) * u128::from(bounds.space_percent)
    }

    /// Weighs it by what the merged images take, `merged` bytes. `None`: it is worth its work. Else it is to be weighed again
    /// half the way to where it will be, since by then less of the chain may be needed.
    #[must_use]
    pub fn weigh(&self, merged: u64, bounds: Bounds) -> Option<Weighed> {
        if self.is_worth(merged, bounds) {
            return None;
        }
        let more = merged.saturating_sub(self.goes).saturating_add(1);
        let space = u128::from(merged) * u128::from(bounds.space_percent) / 100;
        let worth = u64::try_from(space).unwrap_or(u64::MAX).max(self.chain.saturating_add(more));
        Some(Weighed { chain: self.chain, again: self.chain.midpoint(worth).max(self.chain.saturating_add(1)) })
    }
}

/// All that `numbers` build on, directly or not, without themselves unless they build on each other.
#[must_use]
pub fn needed(all: &[KnownCheckpoint], numbers: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
    let bases: BTreeMap<u64, &BTreeSet<u64>> = all.iter().map(|one| (one.number, &one.bases)).collect();
    let mut found = BTreeSet::new();
    let mut open: Vec<u64> = numbers.into_iter().collect();
    while let Some(number) = open.pop() {
        open.extend(bases.get(&number).into_iter().flat_map(|below| below.iter()).filter(|base| found.insert(**base)));
    }
    found
}

/// Whether a checkpoint was given up: for each pair of `abandoned` those after its first number, up to its second.
#[must_use]
pub fn is_given_up(abandoned: &[(u64, u64)], number: u64) -> bool {
    abandoned.iter().any(|(after, last)| number > *after && number <= *last)
}

/// Checkpoints that build on `number` directly, ascending.
#[must_use]
pub fn builders(all: &[KnownCheckpoint], number: u64) -> Vec<u64> {
    all.iter().filter(|one| one.bases.contains(&number)).map(|one| one.number).collect()
}

/// Those kept for their own sake.
fn kept(all: &[KnownCheckpoint], keep: u32) -> BTreeSet<u64> {
    let newest_first = || {
        let mut order: Vec<&KnownCheckpoint> = all.iter().collect();
        order.sort_unstable_by_key(|one| std::cmp::Reverse(one.number));
        order.into_iter()
    };
    let newest = newest_first().find(|one| one.restorable);
    let Some(newest) = newest else { return all.iter().map(|one| one.number).collect() };
    let periodic = newest_first().filter(|one| one.periodic && one.restorable).take(keep.max(1) as usize);
    // What is newer than all that can be restarted may only look damaged, or be under way.
    let other = all.iter().filter(|one| !one.periodic || one.number >= newest.number);
    periodic.chain(other).map(|one| one.number).collect()
}

/// What may go, in the order in which it is to be removed: what builds on others before those.
///
/// With `unreadable`, there are checkpoints besides `all` of which nothing is known, and nothing goes: they may need
/// anything.
#[must_use]
pub fn superseded(all: &[KnownCheckpoint], unreadable: bool, bounds: Bounds) -> Vec<u64> {
    if unreadable {
        return Vec::new();
    }
    let mut stay = kept(all, bounds.keep);
    stay.extend(needed(all, stay.iter().copied()));
    let mut going: Vec<u64> = all.iter().filter(|one| !stay.contains(&one.number)).map(|one| one.number).collect();
    going.sort_unstable_by(|a, b| b.cmp(a));
    going
}

/// The merge that is worth its work now, if any.
#[must_use]
pub fn merge(all: &[KnownCheckpoint], unreadable: bool, bounds: Bounds) -> Option<Merge> {
    if unreadable {
        return None;
    }
    let known: BTreeMap<u64, &KnownCheckpoint> = all.iter().map(|one| (one.number, one)).collect();
    let newest = all.iter().filter(|one| one.restorable).max_by_key(|one| one.number)?;
    let mut chain = needed(all, [newest.number]);
    chain.insert(newest.number);
    let size = |number: &u64| known.get(number).map_or(0, |one| one.bytes);
    let full = chain.iter().filter(|number| known.get(number).is_some_and(|one| one.bases.is_empty())).map(size).max()?;
    let total: u64 = chain.iter().map(size).fold(0, u64::saturating_add);
    let kept = kept(all, bounds.keep);
    // The oldest that is kept for its own sake and builds on others.
    let at = *chain.iter().find(|number| kept.contains(number) && known.get(number).is_some_and(|one| !one.bases.is_empty()))?;
    let merged: Vec<KnownCheckpoint> = all
        .iter()
        .map(|one| if one.number == at { KnownCheckpoint { bases: BTreeSet::new(), bytes: full, ..one.clone() } } else { one.clone() })
        .collect();
    let mut frees = superseded(&merged, false, bounds);
    let before: BTreeSet<u64> = superseded(all, false, bounds).into_iter().collect();
    frees.retain(|number| !before.contains(number));
    frees.reverse();
    let goes = frees.iter().map(size).fold(size(&at), u64::saturating_add);
    Some(Merge { at, frees, goes, chain: total }).filter(|wanted| !wanted.frees.is_empty() && wanted.is_worth(full, bounds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(number: u64, periodic: bool, bases: &[u64], bytes: u64) -> KnownCheckpoint {
        KnownCheckpoint { number, periodic, restorable: true, bases: bases.iter().copied().collect(), bytes }
    }

    const TWO: Bounds = Bounds { keep: 2, space_percent: 200 };

    #[test]
    fn the_newest_stay_with_what_they_need() {
        let all = [one(1, true, &[], 100), one(2, true, &[1], 10), one(3, true, &[], 100), one(4, true, &[3], 10), one(5, true, &[4], 10)];
        assert_eq!(superseded(&all, false, TWO), [2, 1], "what builds on another goes first");
        assert_eq!(superseded(&all[..3], false, TWO), [] as [u64; 0], "2 still needs 1");
        assert_eq!(superseded(&all, false, Bounds { keep: 0, ..TWO }), [2, 1]);
        assert_eq!(superseded(&all, true, TWO), [] as [u64; 0]);
        assert_eq!(builders(&all, 3), [4]);
        assert_eq!(needed(&all, [5]), [3, 4].into());
    }

    #[test]
    fn what_was_asked_for_stays_and_damaged_ones_do_not_count() {
        let mut all = vec![one(1, false, &[], 9), one(2, true, &[], 9), one(3, true, &[], 9), one(4, true, &[], 9), one(5, true, &[], 9)];
        assert_eq!(superseded(&all, false, TWO), [3, 2]);
        all[4].restorable = false;
        assert_eq!(superseded(&all, false, TWO), [2]);
        all.iter_mut().for_each(|one| one.restorable = false);
        assert_eq!(superseded(&all, false, TWO), [] as [u64; 0]);
    }

    #[test]
    fn a_long_chain_is_merged_at_the_oldest_that_is_kept() {
        let merge = |all: &[KnownCheckpoint], unreadable, bounds| merge(all, unreadable, bounds).map(|wanted| (wanted.at, wanted.frees));
        let mut all = vec![one(1, true, &[], 100)];
        for number in 2..8 {
            all.push(one(number, true, &[number - 1], 15));
        }
        assert_eq!(merge(&all, false, TWO), None, "190 of 200");
        all.push(one(8, true, &[7], 15));
        assert_eq!(merge(&all, false, TWO), Some((7, vec![1, 2, 3, 4, 5, 6])));
        assert_eq!(merge(&all, true, TWO), None);
        assert_eq!(merge(&all, false, Bounds { keep: 1, ..TWO }), Some((8, (1..8).collect())));
        // Kept by hand: it can be merged itself, and those above it.
        all[0].periodic = false;
        assert_eq!(merge(&all, false, TWO), None, "90 of increments for 100 more");
        all[0].periodic = true;
        all[3].periodic = false;
        assert_eq!(merge(&all, false, TWO), Some((4, vec![1, 2, 3])));
    }

    #[test]
    fn a_merge_that_supersedes_little_is_not_worth_it() {
        // Each took as much as the first, and all of it is still needed.
        let all: Vec<KnownCheckpoint> = (1..6).map(|number| one(number, true, if number == 1 { &[] } else { &[1] }, 100)).collect();
        let bounds = Bounds { keep: 1, ..TWO };
        let chain: Vec<KnownCheckpoint> =
            all.iter().map(|one| KnownCheckpoint { bases: (1..one.number).rev().take(1).collect(), ..one.clone() }).collect();
        let wanted = merge(&chain, false, bounds).unwrap();
        assert_eq!((wanted.at, wanted.goes, wanted.chain), (5, 500, 500));
        assert!(wanted.weigh(249, bounds).is_none() && wanted.weigh(500, bounds).is_some());
        let weighed = wanted.weigh(400, bounds).unwrap();
        let of = |chain| Merge { chain, ..wanted.clone() };
        // It takes 800 bytes of a chain whose full image takes 400; half of those to come are 150.
        assert_eq!([499, 500, 649, 650].map(|bytes| weighed.holds(&of(bytes))), [false, true, true, false]);
        let close = wanted.weigh(250, bounds).unwrap();
        assert!(close.holds(&wanted) && !close.holds(&of(501)));
    }

    fn histories() -> impl Strategy<Value = Vec<KnownCheckpoint>> {
        let step = (any::<bool>(), 0u8..10, 0u64..200, proptest::collection::vec(0usize..4, 0..3));
        proptest::collection::vec(step, 0..24).prop_map(|steps| {
            let mut all: Vec<KnownCheckpoint> = Vec::new();
            for (at, (periodic, luck, bytes, back)) in steps.into_iter().enumerate() {
                let bases: BTreeSet<u64> = back.iter().filter_map(|back| all.iter().rev().nth(*back)).map(|one| one.number).collect();
                let whole = bases.iter().all(|base| all.iter().any(|one| one.number == *base && one.restorable));
                all.push(KnownCheckpoint { number: at as u64 + 1, periodic, restorable: luck > 0 && whole, bases, bytes });
            }
            all
        })
    }

    proptest! {
        /// After removal in the given order, stopped at any point, nothing has lost what it needs.
        #[test]
        fn nothing_loses_what_it_needs(all in histories(), keep in 0u32..5, percent in 100u32..500, stop in 0usize..24) {
            let bounds = Bounds { keep, space_percent: percent };
            let going = superseded(&all, false, bounds);
            let left: Vec<KnownCheckpoint> = all.iter().filter(|one| !going.iter().take(stop).any(|gone| *gone == one.number)).cloned().collect();
            let there: BTreeSet<u64> = left.iter().map(|one| one.number).collect();
            for one in &left {
                let stays = !going.contains(&one.number);
                prop_assert!(one.bases.is_subset(&there) || !stays, "{one:?}");
                prop_assert!(one.bases.is_subset(&there) || going.iter().take(stop).any(|gone| one.bases.contains(gone)));
            }
            // In the order given, even those that still go have what they need.
            prop_assert!(left.iter().all(|one| one.bases.is_subset(&there)));
            let newest = all.iter().filter(|one| one.restorable).map(|one| one.number).max();
            prop_assert!(newest.is_none_or(|newest| there.contains(&newest)));
            let periodic = |all: &[KnownCheckpoint]| all.iter().filter(|one| one.periodic && one.restorable).count().min(keep.max(1) as usize);
            prop_assert_eq!(periodic(&left), periodic(&all));
            prop_assert!(all.iter().all(|one| one.periodic || there.contains(&one.number)));
        }

        /// A merge frees what it says, shrinks the whole, and is not wanted again at once.
        #[test]
        fn a_merge_is_worth_it(all in histories(), keep in 0u32..5, percent in 100u32..500) {
            let bounds = Bounds { keep, space_percent: percent };
            let Some(Merge { at, frees, .. }) = merge(&all, false, bounds) else { return Ok(()) };
            let full = all.iter().filter(|one| one.bases.is_empty()).map(|one| one.bytes).max().unwrap_or(0);
            let mut after = all.clone();
            for one in &mut after {
                if one.number == at {
                    prop_assert!(one.restorable && !one.bases.is_empty());
                    one.bases.clear();
                    one.bytes = one.bytes.max(full);
                }
            }
            let going = superseded(&after, false, bounds);
            prop_assert!(frees.iter().all(|number| going.contains(number)));
            after.retain(|one| !going.contains(&one.number));
            prop_assert!(merge(&after, false, bounds).is_none_or(|again| again.at != at));
        }
    }
}
