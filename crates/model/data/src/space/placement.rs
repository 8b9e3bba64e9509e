//! Which targets a new file gets: those with most room, all different. What stands on two is on two nodes, where there are two.

use super::{COPIES, Id, Striping};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What is left free on a target beside the file, bytes: its database needs room, too.
pub const RESERVE: u64 = 4 << 20;

/// What a file gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Targets for its bytes, in the order of the stripes.
    pub targets: Vec<u16>,
    /// Targets that keep its entry and its checksums.
    pub keepers: Vec<u16>,
}

/// Why a file gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// None of the targets answers.
    #[error("no target answers")]
    NoTarget,
    /// Fewer targets than stripes are asked for.
    #[error("{wanted} targets are asked for, {there} answer")]
    TooFew {
        /// How many the striping asks for.
        wanted: usize,
        /// How many answer.
        there: usize,
    },
    /// They are too full.
    #[error("it needs {needed} bytes on each of {count} targets, and {roomy} have that free")]
    Full {
        /// Bytes on each.
        needed: u64,
        /// How many targets it would be on.
        count: usize,
        /// How many of them have so much room.
        roomy: usize,
    },
}

/// Keepers up to [`COPIES`], if there are so many: those of `known`, and then the first ones in this order, from nodes that have none before others.
pub(super) fn keepers(known: Vec<u16>, order: &[u16], node: impl Fn(u16) -> usize) -> Vec<u16> {
    let mut keepers = known;
    while keepers.len() < COPIES {
        let others = || order.iter().copied().filter(|at| !keepers.contains(at));
        let elsewhere = others().find(|at| keepers.iter().all(|keeper| node(*keeper) != node(*at)));
        let Some(next) = elsewhere.or_else(|| others().next()) else { break };
        keepers.push(next);
    }
    keepers
}

/// Chooses for a file of this size. `free` has the free bytes of each target; `None` means that it does not answer. `node` tells targets of one node by the same number.
///
/// # Errors
/// [`NoPlace`] if too few targets have room.
pub fn choose(free: &[Option<u64>], size: u64, striping: Striping, file: &Id, node: impl Fn(u16) -> usize) -> Result<Placement, NoPlace> {
    choose_for(free, (size, size), striping, file, node)
}

/// The same for a file of this size that has so many bytes but for its holes.
///
/// # Errors
/// As [`choose`].
pub fn choose_for(
    free: &[Option<u64>],
    (size, stored): (u64, u64),
    striping: Striping,
    file: &Id,
    node: impl Fn(u16) -> usize,
) -> Result<Placement, NoPlace> {
    let mut there: Vec<(u16, u64)> = free.iter().enumerate().filter_map(|(at, free)| Some((u16::try_from(at).ok()?, (*free)?))).collect();
    if there.is_empty() {
        return Err(NoPlace::NoTarget);
    }
    let wanted = if striping.count == 0 { there.len() } else { usize::from(striping.count) };
    if wanted > there.len() {
        return Err(NoPlace::TooFew { wanted, there: there.len() });
    }
    // A file of few stripes needs no more targets than it has stripes.
    let stripes = usize::try_from(size.div_ceil(striping.size.max(1))).unwrap_or(usize::MAX).max(1);
    let count = wanted.min(stripes);
    // Targets that are about as free take turns by chance, or all first stripes would be on one.
    let most = there.iter().map(|(_, free)| *free).max().unwrap_or(0);
    let grain = (most / 16).max(1);
    there.sort_unstable_by_key(|(at, free)| (std::cmp::Reverse(free / grain), xxh3_64_with_seed(file, u64::from(*at))));
    let rows = size.div_ceil(striping.size.max(1).saturating_mul(count as u64));
    let needed = rows.saturating_mul(striping.size).min(size).min(stored);
    let room = |(_, free): &&(u16, u64)| *free >= needed.saturating_add(RESERVE);
    let roomy = there.iter().filter(room).count();
    if roomy < count {
        return Err(NoPlace::Full { needed: needed.saturating_add(RESERVE), count, roomy });
    }
    let targets: Vec<u16> = there.iter().filter(room).map(|(at, _)| *at).take(count).collect();
    let others = there.iter().map(|(at, _)| *at).filter(|at| !targets.contains(at));
    let order: Vec<u16> = targets.iter().copied().chain(others).collect();
    let keepers = keepers(Vec::new(), &order, node);
    Ok(Placement { targets, keepers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    /// Each target has its node.
    fn own(at: u16) -> usize {
        at.into()
    }

    #[test]
    fn holes_need_no_room() {
        let free = [Some(GIB), Some(2 * GIB)];
        let spread =
            |stored| choose_for(&free, (1024 * GIB, stored), Striping::default(), &[0; 16], own).map(|placed| placed.targets.len());
        assert_eq!(spread(GIB / 2), Ok(2));
        assert!(matches!(spread(3 * GIB), Err(NoPlace::Full { roomy: 0, .. })));
    }

    #[test]
    fn room_decides_and_what_is_asked_for_cannot_be_had_is_told() {
        let one = Striping { size: 1 << 20, count: 1 };
        let placed = choose(&[Some(GIB), Some(9 * GIB), None, Some(2 * GIB)], 5 << 20, one, &[0; 16], own).unwrap();
        assert_eq!((placed.targets, placed.keepers), (vec![1], vec![1, 3]));
        assert_eq!(choose(&[None], 1, one, &[0; 16], own), Err(NoPlace::NoTarget));
        assert_eq!(choose(&[Some(GIB)], 1, Striping { count: 2, ..one }, &[0; 16], own), Err(NoPlace::TooFew { wanted: 2, there: 1 }));
        let all = Striping { count: 0, ..one };
        let full = choose(&[Some(GIB), Some(1000)], 10 << 20, all, &[0; 16], own);
        assert_eq!(full, Err(NoPlace::Full { needed: (5 << 20) + RESERVE, count: 2, roomy: 1 }));
        // One byte is on one target, and two keep its entry.
        let tiny = choose(&[Some(GIB), Some(GIB), Some(GIB)], 1, all, &[3; 16], own).unwrap();
        assert_eq!((tiny.targets.len(), tiny.keepers.len()), (1, 2));
        // Those with most room are on one node.
        let two = |at: u16| usize::from(at / 2);
        let placed =
            choose(&[Some(9 * GIB), Some(9 * GIB), Some(GIB), None], 5 << 20, Striping { count: 2, ..one }, &[0; 16], two).unwrap();
        assert!(placed.targets.iter().all(|at| *at < 2) && placed.keepers == [placed.targets[0], 2]);
    }

    #[test]
    fn targets_with_the_same_room_take_turns() {
        let free = [Some(GIB); 4];
        let mut first = [0; 4];
        for file in 0..=255_u8 {
            let placed = choose(&free, 1, Striping { size: 1 << 20, count: 1 }, &[file; 16], own).unwrap();
            first[usize::from(placed.targets[0])] += 1;
        }
        assert!(first.iter().all(|count| *count > 32), "{first:?}");
    }

    proptest! {
        #[test]
        fn targets_are_distinct_and_have_room(free in prop::collection::vec(prop::option::of(0_u64..4 * GIB), 0..12), size in 0_u64..8 * GIB, count in 0_u16..9, file in any::<[u8; 16]>(), hosts in prop::collection::vec(0_usize..4, 12)) {
            let striping = Striping { size: 1 << 20, count };
            if let Ok(placed) = choose(&free, size, striping, &file, |at| hosts[usize::from(at)]) {
                let there = free.iter().flatten().count();
                let most = if count == 0 { there } else { usize::from(count) };
                prop_assert!(placed.targets.len() <= most);
                prop_assert_eq!(placed.keepers.len(), there.min(COPIES));
                for list in [&placed.targets, &placed.keepers] {
                    let mut distinct = list.clone();
                    distinct.sort_unstable();
                    distinct.dedup();
                    prop_assert_eq!(distinct.len(), list.len());
                    prop_assert!(list.iter().all(|at| free[usize::from(*at)].is_some()));
                }
                let nodes = |some: &mut dyn Iterator<Item = usize>| some.map(|at| hosts[at]).collect::<std::collections::BTreeSet<_>>().len();
                let all = nodes(&mut (0..free.len()).filter(|at| free[*at].is_some()));
                prop_assert_eq!(nodes(&mut placed.keepers.iter().map(|at| usize::from(*at))), all.min(COPIES));
                let layout = crate::space::layout::Layout { size, stripe: striping.size, count: placed.targets.len() as u64 };
                for (position, at) in placed.targets.iter().enumerate() {
                    prop_assert!(layout.object_length(position) <= free[usize::from(*at)].unwrap());
                }
            }
        }
    }
}
