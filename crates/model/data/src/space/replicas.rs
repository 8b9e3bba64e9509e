//! Second copies of files that were staged: where they are, which targets get them, and what follows when one of both copies is lost.
//!
//! ```text
//! file:      │ stripe 0 │ stripe 1 │ stripe 2 │ …      targets [a, b, c]      replicas [b, c, a]
//! object 0:  on a, the same bytes on b                   object 1: on b and c   …
//! ```
//! A copy of an object is never on the target that has the other one, and on the same node only if there is no other. Whatever is lost, the map says what is left:
//! if the first copy is, the second one takes its place; the place of the second one is empty then, and is filled again ([`choose`]) after a while ([`Pause`]).

use super::layout::Layout;
use super::placement::{NoPlace, RESERVE};
use super::{COPIES, File, Id};
use std::collections::BTreeSet;

impl File {
    pub(super) fn replicas_are_sound(&self, targets: usize) -> bool {
        let good = |(first, second): (&u16, &Option<u16>)| second.is_none_or(|at| at != *first && usize::from(at) < targets);
        self.replicas.is_empty() || self.replicas.len() == self.targets.len() && self.targets.iter().zip(&self.replicas).all(good)
    }

    /// Target with the second copy of an object, if it has one.
    #[must_use]
    pub fn replica(&self, position: usize) -> Option<u16> {
        self.replicas.get(position).copied().flatten()
    }

    /// Targets that have an object, the first copy before the second.
    pub fn copies(&self, position: usize) -> impl Iterator<Item = u16> + use<> {
        self.targets.get(position).copied().into_iter().chain(self.replica(position))
    }

    /// Places of objects of which a target has a copy.
    pub fn positions(&self, target: u16) -> impl Iterator<Item = u16> + '_ {
        (0_u16..)
            .zip(&self.targets)
            .filter(move |(position, first)| **first == target || self.replica((*position).into()) == Some(target))
            .map(|(position, _)| position)
    }

    /// Places of objects that are to have a second copy and have none.
    #[must_use]
    pub fn without_replica(&self) -> Vec<u16> {
        (0_u16..).zip(&self.replicas).filter(|(_, second)| second.is_none()).map(|(position, _)| position).collect()
    }

    /// Bytes of second copies that are there.
    #[must_use]
    pub fn replicated_bytes(&self) -> u64 {
        let layout = Layout::of(self);
        let there = self.replicas.iter().enumerate().filter(|(_, second)| second.is_some());
        there.map(|(position, _)| layout.object_length(position)).sum()
    }

    /// The file as it is when these copies are lost or damaged: a second copy takes the place of a first one, and what is not good is no second copy.
    /// Where both are bad the first one stays: its bytes have to be fetched.
    #[must_use]
    pub fn swapped(&self, is_good: impl Fn(u16, u16) -> bool) -> Self {
        let mut new = self.clone();
        for (position, first) in (0_u16..).zip(&mut new.targets) {
            let Some(second) = new.replicas.get_mut(usize::from(position)) else { break };
            *second = second.filter(|at| is_good(position, *at));
            if let (false, Some(at)) = (is_good(position, *first), *second) {
                (*first, *second) = (at, None);
            }
        }
        new
    }
}

/// The file with a target for each second copy that is missing: not the one with the first copy; on another node, if one answers; with as few objects of the file as
/// can be; with most room. `free` has the free bytes of each target (`None`: it is lost), `node` tells targets of one node by the same number.
///
/// # Errors
/// [`NoPlace`] if there is no other target, or none of them has room.
pub fn choose(file: &File, free: &[Option<u64>], node: impl Fn(u16) -> usize) -> Result<File, NoPlace> {
    let mut free = free.to_vec();
    let layout = Layout::of(file);
    let mut new = file.clone();
    new.replicas.resize(new.targets.len(), None);
    let there = free.iter().flatten().count();
    for position in 0..new.targets.len() {
        if new.replicas[position].is_some() {
            continue;
        }
        let (first, needed) = (new.targets[position], layout.object_length(position));
        let others: Vec<(u16, u64)> =
            (0_u16..).zip(&free).filter_map(|(at, free)| Some((at, (*free)?))).filter(|(at, _)| *at != first).collect();
        if others.is_empty() {
            return Err(NoPlace::TooFew { wanted: COPIES, there });
        }
        let objects = |at: u16| new.targets.iter().chain(new.replicas.iter().flatten()).filter(|other| **other == at).count();
        let roomy = others.iter().filter(|(_, free)| *free >= needed.saturating_add(RESERVE));
        let chosen = roomy.min_by_key(|(at, free)| (node(*at) == node(first), objects(*at), std::cmp::Reverse(*free), *at));
        let Some((at, _)) = chosen else { return Err(NoPlace::Full { needed, count: 1, roomy: 0 }) };
        new.replicas[position] = Some(*at);
        if let Some(left) = free.get_mut(usize::from(*at)) {
            *left = left.map(|left| left.saturating_sub(needed));
        }
    }
    Ok(new)
}

/// Longest time between two tries that fail, in delays.
const MAX_DELAYS: u32 = 64;

/// When second copies that were lost are made again: a while after that was seen first, since what is lost for a moment comes back; and later and later if it fails.
#[derive(Clone, Debug, Default)]
pub struct Pause {
    lacking: BTreeSet<Id>,
    /// Milliseconds, of the clock of who asks.
    next_ms: u64,
    delays: u32,
}

impl Pause {
    /// What lacks a second copy now. True if it is time to make it again.
    pub fn is_over(&mut self, lacking: BTreeSet<Id>, now_ms: u64, delay_ms: u64) -> bool {
        // Fewer than before is progress, and no reason to begin anew.
        let more = lacking.difference(&self.lacking).next().is_some();
        self.lacking = lacking;
        if self.lacking.is_empty() {
            return false;
        }
        if more {
            (self.delays, self.next_ms) = (1, now_ms.saturating_add(delay_ms));
        }
        if now_ms < self.next_ms {
            return false;
        }
        self.delays = (self.delays * 2).clamp(1, MAX_DELAYS);
        self.next_ms = now_ms.saturating_add(delay_ms.saturating_mul(self.delays.into()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::BLOCK;
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn file(size: u64, targets: Vec<u16>) -> File {
        File { size, stripe: BLOCK, keepers: targets.iter().copied().take(2).collect(), targets, sources: Vec::new(), replicas: Vec::new() }
    }

    #[test]
    fn a_second_copy_is_on_another_node_if_there_is_one() {
        let of = |hosts: [usize; 4]| move |at: u16| hosts[usize::from(at)];
        let one = file(9, vec![0]);
        assert_eq!(choose(&one, &[Some(GIB), Some(9 * GIB), Some(2 * GIB), None], of([0, 0, 1, 2])).unwrap().replicas, [Some(2)]);
        assert_eq!(choose(&one, &[Some(GIB), Some(9 * GIB), None, None], of([0, 0, 1, 2])).unwrap().replicas, [Some(1)]);
        assert_eq!(choose(&one, &[Some(GIB), None, None, None], of([0, 1, 2, 3])), Err(NoPlace::TooFew { wanted: 2, there: 1 }));
        let full = choose(&one, &[Some(GIB), Some(RESERVE), Some(5), None], of([0, 1, 2, 3]));
        assert_eq!(full, Err(NoPlace::Full { needed: 9, count: 1, roomy: 0 }));
        // Targets that have none of it come first.
        let two = file(2 * BLOCK, vec![0, 1]);
        assert_eq!(choose(&two, &[Some(GIB), Some(9 * GIB), Some(GIB), Some(GIB)], of([0, 1, 2, 3])).unwrap().replicas, [Some(2), Some(3)]);
    }

    #[test]
    fn what_is_left_takes_the_place_of_what_is_lost() {
        let both = File { replicas: vec![Some(1), Some(2), None], ..file(9 * BLOCK, vec![0, 1, 2]) };
        assert_eq!(both.copies(0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((both.positions(1).collect::<Vec<_>>(), both.without_replica()), (vec![0, 1], vec![2]));
        assert_eq!(both.replicated_bytes(), 6 * BLOCK);
        let lost = |target: u16| both.swapped(|_, at| at != target);
        assert_eq!((lost(0).targets, lost(0).replicas), (vec![1, 1, 2], vec![None, Some(2), None]));
        assert_eq!((lost(1).targets, lost(1).replicas), (vec![0, 2, 2], vec![None, None, None]));
        assert_eq!(lost(3), both);
        let all = both.swapped(|_, _| false);
        assert_eq!((all.targets, all.replicas), (vec![0, 1, 2], vec![None, None, None]));
        let without = file(9, vec![0]);
        assert_eq!(without.swapped(|_, _| false), without);
    }

    #[test]
    fn a_copy_is_made_again_after_a_while_and_later_and_later_if_it_fails() {
        let mut pause = Pause::default();
        let (none, one, two) = (BTreeSet::new(), BTreeSet::from([[1; 16]]), BTreeSet::from([[1; 16], [2; 16]]));
        assert!(!pause.is_over(one.clone(), 0, 5000) && !pause.is_over(one.clone(), 4999, 5000));
        assert!(pause.is_over(one.clone(), 5000, 5000));
        assert!(!pause.is_over(one.clone(), 14_999, 5000) && pause.is_over(one.clone(), 15_000, 5000));
        // Another one is lost: that is a new loss.
        assert!(!pause.is_over(two.clone(), 15_001, 5000) && pause.is_over(two, 20_001, 5000));
        // One is there again: what was waited for the other one counts.
        assert!(!pause.is_over(one.clone(), 30_000, 5000) && pause.is_over(one.clone(), 30_001, 5000));
        assert!(!pause.is_over(none, 99_000, 5000) && !pause.is_over(one.clone(), 99_001, 5000));
        let tries = (99_001..4_000_000).step_by(100).filter(|now| pause.is_over(one.clone(), *now, 5000)).count();
        assert!((10..30).contains(&tries), "{tries}");
    }

    proptest! {
        #[test]
        fn copies_are_never_on_one_target_and_whole_again_after_any_loss(
            free in prop::collection::vec(prop::option::of(RESERVE..4 * GIB), 2..8), hosts in prop::collection::vec(0_usize..4, 8),
            size in 0_u64..300 * BLOCK, count in 1_u16..8, lost in 0_u16..8,
        ) {
            let targets: Vec<u16> = (0..count.min(free.len() as u16)).collect();
            let file = file(size, targets);
            let node = |at: u16| hosts[usize::from(at)];
            if let Ok(copied) = choose(&file, &free, node) {
                prop_assert!(copied.replicas_are_sound(free.len()) && copied.without_replica().is_empty());
                prop_assert_eq!(copied.replicated_bytes(), size);
                let mut room: Vec<u64> = free.iter().map(|free| free.unwrap_or(0)).collect();
                for (position, at) in copied.replicas.iter().enumerate() {
                    let at = at.unwrap();
                    prop_assert!(free[usize::from(at)].is_some());
                    let needed = Layout::of(&copied).object_length(position);
                    prop_assert!(room[usize::from(at)] >= needed);
                    room[usize::from(at)] -= needed;
                    // Only if no other node has room.
                    if node(at) == node(copied.targets[position]) {
                        let elsewhere = (0..free.len()).filter(|other| node(*other as u16) != node(at)).filter_map(|other| free[other]);
                        prop_assert!(elsewhere.into_iter().all(|free| free < RESERVE + size));
                    }
                }
                let swapped = copied.swapped(|_, at| at != lost);
                prop_assert!(swapped.replicas_are_sound(free.len()));
                prop_assert!(swapped.targets.iter().chain(swapped.replicas.iter().flatten()).all(|at| *at != lost));
                let left: Vec<Option<u64>> = (0_u16..).zip(&free).map(|(at, free)| free.filter(|_| at != lost)).collect();
                if let Ok(again) = choose(&swapped, &left, node) {
                    prop_assert!(again.without_replica().is_empty() && again.copies(0).all(|at| at != lost));
                }
                prop_assert_eq!(choose(&copied, &free, node).unwrap(), copied);
            }
        }
    }
}
