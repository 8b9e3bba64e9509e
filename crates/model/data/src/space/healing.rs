//! What a file gets instead of targets that were lost, and when that is begun.
//!
//! Stripes of a lost target go onto targets that have none of the file, those with most room first; if there is none, onto one that has few. What
//! is on targets that answer stays where it is.

use super::layout::Layout;
use super::placement::{NoPlace, RESERVE, keepers};
use super::{File, Id};
use std::collections::{BTreeSet, HashMap};

/// The file with targets that answer in the place of those that are lost; what has a second copy that is good has been [swapped](File::swapped) before. `free` has the free bytes of each target; `None` means that it does not answer: it is lost, unless it `is_away`. Then it keeps
/// what it has, and gets nothing. `node` tells targets of one node by the same number.
///
/// # Errors
/// [`NoPlace`] if no target has room.
pub fn moved(file: &File, free: &[Option<u64>], is_away: impl Fn(u16) -> bool, node: impl Fn(u16) -> usize) -> Result<File, NoPlace> {
    let mut free = free.to_vec();
    let there = |free: &[Option<u64>], at: u16| free.get(usize::from(at)).copied().flatten();
    if free.iter().all(Option::is_none) {
        return Err(NoPlace::NoTarget);
    }
    let layout = Layout::of(file);
    let mut new = file.clone();
    for position in 0..new.targets.len() {
        if there(&free, new.targets[position]).is_some() || is_away(new.targets[position]) {
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
    new.keepers.retain(|keeper| there(&free, *keeper).is_some() || is_away(*keeper));
    // Those that hold its bytes know of it anyway.
    let all = (0..free.len()).filter_map(|at| u16::try_from(at).ok());
    let others: Vec<u16> = new.targets.iter().copied().chain(all).filter(|at| there(&free, *at).is_some()).collect();
    if is_crowded(&new.keepers, &others, &node) && !new.keepers.iter().any(|keeper| is_away(*keeper)) {
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

/// What a look at a target showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It answers, and has all that it must have.
    Whole,
    /// It answers, and lacks something.
    Lacking,
    /// It does not answer.
    Silent,
}

/// Tells targets that are lost from those that are away for a while, by looks at a space that nobody may be using: nodes are started one after the other, and networks fail for minutes.
///
/// What a target lacks that answers is lost at once. One that says nothing is lost if it has answered before, and then was silent for long while this node reached half of the targets of other nodes, or more.
/// A node that reaches fewer is cut off itself: to it nothing is lost, and all silence begins anew.
#[derive(Clone, Debug, Default)]
pub struct Silences {
    /// For how long those have been silent that have answered before, milliseconds; 0 of those that answered last.
    silent_ms: HashMap<u16, u64>,
    /// When the last look was.
    looked_ms: Option<u64>,
    is_cut_off: bool,
}

impl Silences {
    /// True if at the last look fewer than half of the targets of other nodes answered.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// What a look showed of all targets, which begun so late by a clock that only goes on. Of the time since the look before, `longest_ms` counts at most: this node may have stood still itself. `is_own` is true of targets that tell nothing of other nodes: those of this one, and those in buckets. Those that are lost for it, or lack something.
    pub fn looked(
        &mut self,
        now_ms: u64,
        seen: &[Seen],
        is_own: impl Fn(u16) -> bool,
        longest_ms: u64,
        lost_after_ms: u64,
    ) -> BTreeSet<u16> {
        let passed = self.looked_ms.map_or(0, |before| now_ms.saturating_sub(before).min(longest_ms));
        self.looked_ms = Some(now_ms);
        let others = || (0_u16..).zip(seen).filter(|(at, _)| !is_own(*at));
        let reached = others().filter(|(_, seen)| **seen != Seen::Silent).count();
        let is_cut_off = 2 * reached < others().count();
        self.is_cut_off = is_cut_off;
        let mut bad = BTreeSet::new();
        for (at, seen) in (0_u16..).zip(seen) {
            match (seen, self.silent_ms.get_mut(&at)) {
                (Seen::Silent, None) => {}
                (Seen::Silent, Some(silent)) if is_cut_off => *silent = 0,
                (Seen::Silent, Some(silent)) => {
                    *silent = silent.saturating_add(passed);
                    if *silent >= lost_after_ms {
                        bad.insert(at);
                    }
                }
                (Seen::Whole | Seen::Lacking, _) => {
                    self.silent_ms.insert(at, 0);
                    if *seen == Seen::Lacking && !is_cut_off {
                        bad.insert(at);
                    }
                }
            }
        }
        bad
    }
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
            let new = moved(&file, &free, |_| false, node).unwrap();
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
            prop_assert_eq!(moved(&new, &free, |_| false, node).unwrap(), new);
        }
    }

    #[test]
    fn keepers_that_share_a_node_part_when_another_one_answers() {
        let pairs = |at: u16| usize::from(at / 2);
        let file = File { size: BLOCK, stripe: BLOCK, targets: vec![0], keepers: vec![0, 1], sources: Vec::new(), replicas: Vec::new() };
        let keepers = |free: &[Option<u64>]| moved(&file, free, |_| false, pairs).unwrap().keepers;
        assert_eq!(keepers(&[Some(1 << 40), Some(1 << 40), None]), [0, 1]);
        assert_eq!(keepers(&[Some(1 << 40), Some(1 << 40), Some(0)]), [0, 2]);
        assert!(is_crowded(&[0, 1], &[0, 2], pairs) && !is_crowded(&[0, 1], &[0, 1], pairs));
        assert!(!is_crowded(&[0, 2], &[0, 1, 2], pairs) && !is_crowded(&[0], &[2], pairs) && !is_crowded(&[], &[2], pairs));
    }

    #[test]
    fn a_target_that_is_away_keeps_what_it_has_and_gets_nothing() {
        let own = |at: u16| usize::from(at);
        let file =
            File { size: 6 * BLOCK, stripe: BLOCK, targets: vec![0, 1, 2], keepers: vec![0, 1], sources: Vec::new(), replicas: Vec::new() };
        let new = moved(&file, &[None, None, Some(1 << 40), Some(1 << 40), None], |at| at == 0 || at == 4, own).unwrap();
        assert_eq!((new.targets, new.keepers), (vec![0, 3, 2], vec![0, 3]));
    }

    const MINUTE_MS: u64 = 60_000;
    const WHOLE: Seen = Seen::Whole;
    const SILENT: Seen = Seen::Silent;

    /// What looks, one a minute, of the node that has the first target find lost after ten minutes.
    fn looks(silences: &mut Silences, from: u64, count: u64, seen: &[Seen]) -> Vec<BTreeSet<u16>> {
        let mut look = |minute| silences.looked(minute * MINUTE_MS, seen, |at| at == 0, 2 * MINUTE_MS, 10 * MINUTE_MS);
        (from..from + count).map(&mut look).collect()
    }

    #[test]
    fn a_silent_target_is_lost_after_its_time_and_what_one_lacks_that_answers_at_once() {
        let mut silences = Silences::default();
        assert!(looks(&mut silences, 0, 1, &[WHOLE; 4])[0].is_empty());
        let found = looks(&mut silences, 1, 12, &[WHOLE, WHOLE, Seen::Lacking, SILENT]);
        assert!(found[..9].iter().all(|found| *found == BTreeSet::from([2])), "{found:?}");
        assert!(found[9..].iter().all(|found| *found == BTreeSet::from([2, 3])), "{found:?}");
        assert!(looks(&mut silences, 13, 1, &[WHOLE; 4])[0].is_empty());
        assert!(looks(&mut silences, 14, 1, &[WHOLE, WHOLE, WHOLE, SILENT])[0].is_empty());
    }

    #[test]
    fn what_has_never_answered_is_never_lost() {
        let mut silences = Silences::default();
        assert!(looks(&mut silences, 0, 100, &[WHOLE, WHOLE, WHOLE, SILENT]).iter().all(BTreeSet::is_empty));
        assert!(looks(&mut silences, 100, 1, &[WHOLE; 4])[0].is_empty());
        assert_eq!(looks(&mut silences, 101, 11, &[WHOLE, WHOLE, WHOLE, SILENT])[10], BTreeSet::from([3]));
    }

    #[test]
    fn a_node_that_is_cut_off_finds_nothing_lost_and_silence_begins_anew_afterwards() {
        let mut silences = Silences::default();
        looks(&mut silences, 0, 1, &[WHOLE; 5]);
        assert!(looks(&mut silences, 1, 60, &[Seen::Lacking, WHOLE, SILENT, SILENT, SILENT]).iter().all(BTreeSet::is_empty));
        // Half of the others are enough. Those that are back later than they have their time.
        let back = looks(&mut silences, 61, 11, &[WHOLE, WHOLE, WHOLE, SILENT, SILENT]);
        assert!(back[..9].iter().all(BTreeSet::is_empty) && back[9] == BTreeSet::from([3, 4]), "{back:?}");
        // It has all targets itself, or none of them.
        assert_eq!(Silences::default().looked(0, &[Seen::Lacking], |_| true, 1, 1), BTreeSet::from([0]));
    }

    #[test]
    fn the_time_for_which_a_node_stood_still_itself_is_nobody_s_silence() {
        let mut silences = Silences::default();
        looks(&mut silences, 0, 1, &[WHOLE; 4]);
        assert!(looks(&mut silences, 600, 4, &[WHOLE, WHOLE, WHOLE, SILENT]).iter().all(BTreeSet::is_empty));
    }

    #[test]
    fn full_targets_get_nothing() {
        let own = |at: u16| usize::from(at);
        let file =
            File { size: 10 * BLOCK, stripe: BLOCK, targets: vec![0, 1], keepers: vec![0, 1], sources: Vec::new(), replicas: Vec::new() };
        assert_eq!(
            moved(&file, &[None, Some(RESERVE), Some(RESERVE)], |_| false, own),
            Err(NoPlace::Full { needed: 5 * BLOCK, count: 1, roomy: 0 })
        );
        assert_eq!(moved(&file, &[None, None], |_| false, own), Err(NoPlace::NoTarget));
        assert_eq!(moved(&file, &[None, Some(0), Some(1 << 40)], |_| false, own).unwrap().targets, [2, 1]);
    }
}
