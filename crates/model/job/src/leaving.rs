//! Nodes that ranks are to leave, and when those that did not get away are tried again.
//!
//! Invariant: a node is here as long as anybody has a reason for it; it takes no ranks meanwhile.

use mend_messages::control::MoveMode;
use mend_messages::health::{LeaveReason, Leaving};
use mend_messages::job::{NodeIndex, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Bounds of the pause after which a rank that did not get away is tried again; it doubles from one to the other.
const PAUSES_US: (u64, u64) = (2_000_000, 256_000_000);

/// One reason to leave a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Departure {
    mode: MoveMode,
    deadline_us: Option<u64>,
    /// Ranks of which it was said that they have nowhere to go.
    stuck: BTreeSet<Rank>,
}

/// How urgently ranks leave a node: what is more urgent is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Urgency {
    live: bool,
    /// When they are to be gone, on the machine's clock.
    pub(crate) deadline_us: u64,
    pub(crate) reason: LeaveReason,
}

impl Urgency {
    pub(crate) fn mode(self) -> MoveMode {
        if self.live { MoveMode::Live } else { MoveMode::Frozen }
    }
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Departures {
    nodes: BTreeMap<NodeIndex, BTreeMap<LeaveReason, Departure>>,
    /// Ranks that did not get away: how often, and when they are tried again.
    tried: BTreeMap<Rank, (u32, u64)>,
    /// Nodes that are drained are being looked up.
    pub(crate) looking: bool,
    /// When they were looked up last.
    pub(crate) looked_us: Option<u64>,
}

impl Departures {
    /// Somebody says how ranks are to leave a node. True if that is news: there was no such reason, or it has become more or less urgent.
    pub(crate) fn begin(&mut self, now_us: u64, node: NodeIndex, reason: LeaveReason, leaving: &Leaving) -> bool {
        let deadline_us = leaving.left_ms.map(|ms| now_us.saturating_add(ms.saturating_mul(1000)));
        let known = self.nodes.entry(node).or_default();
        match known.get_mut(&reason) {
            Some(departure) => {
                departure.deadline_us = deadline_us;
                std::mem::replace(&mut departure.mode, leaving.mode) != leaving.mode
            }
            None => {
                known.insert(reason, Departure { mode: leaving.mode, deadline_us, stuck: BTreeSet::new() });
                true
            }
        }
    }

    /// A reason is no more. False if there was none.
    pub(crate) fn end(&mut self, node: NodeIndex, reason: LeaveReason) -> bool {
        let ended = self.nodes.get_mut(&node).is_some_and(|known| known.remove(&reason).is_some());
        self.nodes.retain(|_, known| !known.is_empty());
        // There is one more node to go to.
        self.try_again();
        ended
    }

    /// Whoever did not get away is tried again at once.
    pub(crate) fn try_again(&mut self) {
        self.tried.clear();
    }

    /// A node is no more.
    pub(crate) fn forget(&mut self, node: NodeIndex) {
        self.nodes.remove(&node);
    }

    /// How urgently ranks are to leave a node, if they are.
    pub(crate) fn of(&self, node: NodeIndex) -> Option<Urgency> {
        let urgency = |(&reason, departure): (&LeaveReason, &Departure)| Urgency {
            live: departure.mode != MoveMode::Frozen,
            deadline_us: departure.deadline_us.unwrap_or(u64::MAX),
            reason,
        };
        self.nodes.get(&node)?.iter().map(urgency).min()
    }

    /// The nodes, the most urgent first.
    pub(crate) fn nodes(&self) -> Vec<(Urgency, NodeIndex)> {
        let mut all: Vec<_> = self.nodes.keys().filter_map(|&node| Some((self.of(node)?, node))).collect();
        all.sort_unstable();
        all
    }

    /// The nodes that are to be left for this reason.
    pub(crate) fn for_reason(&self, reason: LeaveReason) -> Vec<NodeIndex> {
        self.nodes.iter().filter(|(_, known)| known.contains_key(&reason)).map(|(node, _)| *node).collect()
    }

    /// Whether a rank may be tried by now.
    pub(crate) fn may_try(&self, now_us: u64, rank: Rank) -> bool {
        self.tried.get(&rank).is_none_or(|(_, due)| *due <= now_us)
    }

    /// A rank did not get away.
    pub(crate) fn failed(&mut self, now_us: u64, rank: Rank) {
        let (times, due) = self.tried.entry(rank).or_default();
        let pause = PAUSES_US.0.saturating_mul(1 << (*times).min(16)).min(PAUSES_US.1);
        (*times, *due) = (*times + 1, now_us.saturating_add(pause));
    }

    /// A rank got away.
    pub(crate) fn left(&mut self, rank: Rank) {
        self.tried.remove(&rank);
        self.nodes.values_mut().flat_map(BTreeMap::values_mut).for_each(|departure| departure.stuck.retain(|stuck| *stuck != rank));
    }

    /// Of these ranks on a node, those of which nobody has said yet that they have nowhere to go; from now on that is said.
    pub(crate) fn newly_stuck(&mut self, node: NodeIndex, ranks: Vec<Rank>) -> Vec<Rank> {
        let Some(departure) = self.nodes.get_mut(&node).and_then(|known| known.values_mut().next()) else { return Vec::new() };
        ranks.into_iter().filter(|rank| departure.stuck.insert(*rank)).collect()
    }

    /// When somebody is to be tried again.
    pub(crate) fn due(&self) -> Option<u64> {
        if self.nodes.is_empty() { None } else { self.tried.values().map(|(_, due)| *due).min() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaving(mode: MoveMode, left_ms: Option<u64>) -> Leaving {
        Leaving { mode, left_ms, why: String::new() }
    }

    #[test]
    fn a_node_is_left_for_the_most_urgent_of_its_reasons_until_none_is_there() {
        let mut all = Departures::default();
        assert!(all.begin(1_000_000, 3, LeaveReason::BatchSystem, &leaving(MoveMode::Live, None)));
        assert!(!all.begin(1_000_000, 3, LeaveReason::BatchSystem, &leaving(MoveMode::Live, Some(60_000))));
        assert!(all.begin(1_000_000, 3, LeaveReason::Health, &leaving(MoveMode::Live, Some(2000))));
        assert_eq!(all.of(3).map(|found| (found.reason, found.deadline_us)), Some((LeaveReason::Health, 3_000_000)));
        assert!(all.begin(1_000_000, 3, LeaveReason::Health, &leaving(MoveMode::Frozen, None)));
        assert!(all.begin(1_000_000, 1, LeaveReason::Health, &leaving(MoveMode::Live, Some(1))));
        assert_eq!(all.nodes().iter().map(|(_, node)| *node).collect::<Vec<_>>(), [3, 1]);
        assert!(all.end(3, LeaveReason::Health) && !all.end(3, LeaveReason::Health));
        assert_eq!(all.of(3).map(Urgency::mode), Some(MoveMode::Live));
        assert!(all.end(3, LeaveReason::BatchSystem) && all.of(3).is_none());
    }

    #[test]
    fn who_does_not_get_away_is_tried_ever_more_seldom_and_is_told_of_once() {
        let mut all = Departures::default();
        all.begin(0, 0, LeaveReason::Health, &leaving(MoveMode::Live, None));
        assert_eq!((all.newly_stuck(0, vec![4, 5]), all.newly_stuck(0, vec![5, 6])), (vec![4, 5], vec![6]));
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            all.failed(now, 4);
            let due = all.due().unwrap();
            assert!(!all.may_try(due - 1, 4) && all.may_try(due, 4));
            pauses.push((due - now) / 1_000_000);
            now = due;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 256]);
        all.left(4);
        assert_eq!((all.may_try(now, 4), all.newly_stuck(0, vec![4])), (true, vec![4]));
    }
}
