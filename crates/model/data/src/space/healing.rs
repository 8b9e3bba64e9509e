//! What a file gets instead of targets that were lost, and when that is begun.
//!
//! Stripes of a lost target go onto targets that have none of the file, those with most room first; if there is none, onto one that has few. What
//! is on targets that answer stays where it is.

use super::layout::Layout;
use super::placement::{NoPlace, RESERVE, keepers};
use super::{File, Id};
use std::collections::{BTreeSet, HashMap};

/// The file with targets that answer in the place of those that do not; what has a second copy that is good has been [swapped](File::swapped) before. `free` has the free bytes of each target; `None` means that it is lost. `node` tells targets of one node by the same number.
///
/// # Errors
/// [`NoPlace`] if no target has room.
pub fn moved(file: &File, free: &[Option<u64>], node: impl Fn(u16) -> usize) -> Result<File, NoPlace> {
    let mut free = free.to_vec();
    let there = |free: &[Option<u64>], at: u16| free.get(usize::from(at)).copied().flatten();
    if free.iter().all(Option::is_none) {
        return Err(NoPlace::NoTarget);
    }
    let layout = Layout::of(file);
    let mut new = file.clone();
    for position in 0..new.targets.len() {
        if there(&free, new.targets[position]).is_some() {
            continue;
        }
        let needed = layout.object_length(position);
        let stripes = |at: usize| new.targets.iter().filter(|other| usize::from(**other) == at).count();
        let roomy = free.iter().enumerate().filter_map(|(at, free)| Some((at, (*free)?)));
        let chosen = roomy
            .filter(|(_, free)| *free >= needed.saturating_add(RESERVE))
            .min_by_key(|(at, free)| (stripes(*at), std::cmp::Reverse(*free), *at))
            .map(|(at, _)| at);
        let Some(at) = chosen else { return Err(NoPlace::Full { needed, count: 1, roomy: 0 }) };
        new.targets[position] = u16::try_from(at).map_err(|_| NoPlace::NoTarget)?;
        free[at] = free[at].map(|free| free.saturating_sub(needed));
    }
    new.keepers.retain(|keeper| there(&free, *keeper).is_some());
    // Those that hold its bytes know of it anyway.
    let all = (0..free.len()).filter_map(|at| u16::try_from(at).ok());
    let others: Vec<u16> = new.targets.iter().copied().chain(all).filter(|at| there(&free, *at).is_some()).collect();
    if is_crowded(&new.keepers, &others, &node) {
        new.keepers.truncate(1);
    }
    new.keepers = keepers(new.keepers, &others, node);
    Ok(new)
}

/// True if a node has all keepers of a file, and one of these targets, which answer, is on another one: that comes of losses while no other node answered.
pub fn is_crowded(keepers: &[u16], there: &[u16], node: impl Fn(u16) -> usize) -> bool {
    let Some((first, rest)) = keepers.split_first().filter(|(_, rest)| !rest.is_empty()) else { return false };
    let own = node(*first);
    rest.iter().all(|at| node(*at) == own) && there.iter().any(|at| node(*at) != own)
}

/// Tells a loss from a moment without an answer: what is seen in two looks in a row is lost. After a try that failed the next ones come later.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    before: BTreeSet<u16>,
    /// What was lost at the last look.
    lost: BTreeSet<u16>,
    /// Looks that are passed over, and how many it will be next.
    pause: u32,
    next_pause: u32,
}

/// Most looks between two tries.
const LONGEST_PAUSE: u32 = 64;

impl Watch {
    /// What a look showed: targets that do not answer, or lack something. Those of them that are lost, if it is time to heal; else none.
    pub fn looked(&mut self, bad: BTreeSet<u16>) -> BTreeSet<u16> {
        let lost: BTreeSet<u16> = bad.intersection(&self.before).copied().collect();
        self.before = bad;
        if lost != self.lost {
            (self.pause, self.next_pause) = (0, 0);
            self.lost = lost;
        }
        if self.lost.is_empty() {
            return BTreeSet::new();
        }
        if self.pause > 0 {
            self.pause -= 1;
            return BTreeSet::new();
        }
        self.next_pause = (self.next_pause * 2).clamp(1, LONGEST_PAUSE);
        self.pause = self.next_pause;
        self.lost.clone()
    }
}

/// Files of which something was tried that failed: each is tried again later and later.
#[derive(Clone, Debug, Default)]
pub struct Tries(HashMap<Id, (u32, u32)>);

impl Tries {
    /// What is to be tried at a look, of these files. Those that are not among them need it no more.
    pub fn due(&mut self, files: Vec<Id>) -> Vec<Id> {
        self.0.retain(|file, _| files.contains(file));
        let mut is_due = |file: &Id| match self.0.get_mut(file) {
            Some((pause, _)) if *pause > 0 => {
                *pause -= 1;
                false
            }
            _ => true,
        };
        files.into_iter().filter(&mut is_due).collect()
    }

    /// It failed.
    pub fn failed(&mut self, file: Id) {
        let (pause, next) = self.0.entry(file).or_default();
        *next = (*next * 2).clamp(1, LONGEST_PAUSE);
        *pause = *next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::BLOCK;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_loss_is_what_is_seen_twice_and_tries_become_rarer() {
        let mut watch = Watch::default();
        let [none, one, both] = [BTreeSet::new(), BTreeSet::from([1]), BTreeSet::from([1, 2])];
        assert!([&one, &none, &one].into_iter().all(|bad| watch.looked(bad.clone()).is_empty()));
        let begun: Vec<bool> = (0..12).map(|_| watch.looked(one.clone()) == one).collect();
        assert_eq!(begun.iter().filter(|begun| **begun).count(), 4, "{begun:?}");
        assert!(begun[0] && begun[2] && begun[5] && begun[10]);
        // What says nothing for a moment is not lost because another one is. If it stays so, it is not made to wait for that one.
        assert!(watch.looked(both.clone()).is_empty());
        assert_eq!(watch.looked(both.clone()), both);
        assert!(watch.looked(BTreeSet::from([2, 3])).len() == 1 && watch.looked(none).is_empty());
    }

    #[test]
    fn a_file_is_tried_again_later_and_later_and_no_other_one_waits_for_it() {
        let mut tries = Tries::default();
        let [bad, good] = [[1; 16], [2; 16]];
        let mut when = Vec::new();
        for look in 0..12 {
            let due = tries.due(vec![bad, good]);
            assert!(due.contains(&good));
            if due.contains(&bad) {
                when.push(look);
                tries.failed(bad);
            }
        }
        assert_eq!(when, [0, 2, 5, 10]);
        assert!(tries.due(vec![good]) == [good] && tries.due(vec![bad]) == [bad], "it was done meanwhile, and is another matter");
    }

    proptest! {
        #[test]
        fn what_answers_keeps_its_stripes_and_the_others_go_where_none_are(
            lost in prop::collection::vec(any::<bool>(), 2..7), count in 1_usize..7, size in 1_u64..200 * BLOCK,
            hosts in prop::collection::vec(0_usize..3, 7),
        ) {
            prop_assume!(lost.iter().any(|lost| !lost));
            let count = count.min(lost.len());
            let targets: Vec<u16> = (0..count as u16).collect();
            let keepers: Vec<u16> = (0..lost.len().min(2) as u16).collect();
            let file = File { size, stripe: BLOCK, targets, keepers, sources: Vec::new(), replicas: Vec::new() };
            let free: Vec<Option<u64>> = lost.iter().map(|lost| (!lost).then_some(1 << 40)).collect();
            let node = |at: u16| hosts[usize::from(at)];
            let new = moved(&file, &free, node).unwrap();
            prop_assert!(new.targets.iter().chain(&new.keepers).all(|at| !lost[usize::from(*at)]));
            for (old, new) in file.targets.iter().zip(&new.targets) {
                prop_assert!(lost[usize::from(*old)] || old == new);
            }
            let there = lost.iter().filter(|lost| !**lost).count();
            let distinct: BTreeSet<&u16> = new.targets.iter().collect();
            prop_assert_eq!(distinct.len(), count.min(there));
            prop_assert_eq!(new.keepers.len(), there.min(2));
            let nodes = |some: &mut dyn Iterator<Item = u16>| some.map(node).collect::<BTreeSet<_>>().len();
            let all = nodes(&mut (0..lost.len() as u16).filter(|at| !lost[usize::from(*at)]));
            prop_assert_eq!(nodes(&mut new.keepers.iter().copied()), all.min(2));
            prop_assert_eq!(moved(&new, &free, node).unwrap(), new);
        }
    }

    #[test]
    fn keepers_that_share_a_node_part_when_another_one_answers() {
        let pairs = |at: u16| usize::from(at / 2);
        let file = File { size: BLOCK, stripe: BLOCK, targets: vec![0], keepers: vec![0, 1], sources: Vec::new(), replicas: Vec::new() };
        let keepers = |free: &[Option<u64>]| moved(&file, free, pairs).unwrap().keepers;
        assert_eq!(keepers(&[Some(1 << 40), Some(1 << 40), None]), [0, 1]);
        assert_eq!(keepers(&[Some(1 << 40), Some(1 << 40), Some(0)]), [0, 2]);
        assert!(is_crowded(&[0, 1], &[0, 2], pairs) && !is_crowded(&[0, 1], &[0, 1], pairs));
        assert!(!is_crowded(&[0, 2], &[0, 1, 2], pairs) && !is_crowded(&[0], &[2], pairs) && !is_crowded(&[], &[2], pairs));
    }

    #[test]
    fn full_targets_get_nothing() {
        let own = |at: u16| usize::from(at);
        let file =
            File { size: 10 * BLOCK, stripe: BLOCK, targets: vec![0, 1], keepers: vec![0, 1], sources: Vec::new(), replicas: Vec::new() };
        assert_eq!(moved(&file, &[None, Some(RESERVE), Some(RESERVE)], own), Err(NoPlace::Full { needed: 5 * BLOCK, count: 1, roomy: 0 }));
        assert_eq!(moved(&file, &[None, None], own), Err(NoPlace::NoTarget));
        assert_eq!(moved(&file, &[None, Some(0), Some(1 << 40)], own).unwrap().targets, [2, 1]);
    }
}
