//! What nodes tell of the data spaces that the job uses, each event once, however many nodes see it.
//!
//! ```text
//! node1: lost ─► told     node2: lost ─► known     node1: back ─► node2 still sees none     node2: back ─► told
//! ```
//! A target counts as lost from the first node that sees it so to the last one. What one node reads from a source, and heals, is its own. That a file is not made whole is told when
//! the reason changes. Invariant: bounded, whatever daemons say. Faults assumed: a node tells of a target's return and never told of its loss; it is lost itself.

use mend_messages::job::NodeIndex;
use mend_messages::space_report::{HealingFault, SpaceEvent, SpaceReport};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};

/// Targets, and files, of which something is remembered. What comes beyond that is told each time.
const MAX_KNOWN: usize = 4096;

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataLosses {
    /// Nodes that see a target as lost, by space and target.
    lost: BTreeMap<(String, String), BTreeSet<NodeIndex>>,
    /// Files that were not made whole, by space, and why.
    unhealed: BTreeMap<(String, String), HealingFault>,
}

/// What a fault is, without what differs from try to try.
fn kind(fault: &HealingFault) -> Discriminant<HealingFault> {
    discriminant(fault)
}

impl DataLosses {
    /// A node tells of something. What of that is new.
    pub(crate) fn hear(&mut self, node: NodeIndex, report: SpaceReport) -> Option<SpaceReport> {
        let named = |name: &str| (report.space.clone(), name.to_owned());
        let is_new = match &report.event {
            SpaceEvent::Begun => {
                self.lost.retain(|(space, _), nodes| *space != report.space || !nodes.remove(&node) || !nodes.is_empty());
                false
            }
            SpaceEvent::TargetLost { target, .. } => {
                let key = named(target);
                let is_new = !self.lost.contains_key(&key);
                if !is_new || self.lost.len() < MAX_KNOWN {
                    self.lost.entry(key).or_default().insert(node);
                }
                is_new
            }
            SpaceEvent::TargetBack { target, .. } => {
                let key = named(target);
                let nodes = self.lost.get_mut(&key);
                let was_last = nodes.is_some_and(|nodes| nodes.remove(&node) && nodes.is_empty());
                if was_last {
                    self.lost.remove(&key);
                }
                was_last
            }
            SpaceEvent::ReadFromSource { .. } => true,
            SpaceEvent::Healed(healed) => {
                self.unhealed.remove(&named(&healed.file));
                self.unhealed.remove(&named(""));
                true
            }
            SpaceEvent::NotHealed { file, why } => {
                let key = named(file);
                let before = self.unhealed.get(&key);
                let is_new = before.is_none_or(|before| kind(before) != kind(why));
                if before.is_some() || self.unhealed.len() < MAX_KNOWN {
                    self.unhealed.insert(key, why.clone());
                }
                is_new
            }
        };
        is_new.then_some(report)
    }

    /// A node is lost: what it saw counts no more.
    pub(crate) fn node_lost(&mut self, node: NodeIndex) {
        self.lost.retain(|_, nodes| !nodes.remove(&node) || !nodes.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::space_report::{Healed, TargetFault};

    fn of(space: &str, event: SpaceEvent) -> SpaceReport {
        SpaceReport { space: space.into(), event }
    }

    fn lost(target: &str) -> SpaceReport {
        of("input", SpaceEvent::TargetLost { target: target.into(), why: TargetFault::Silent { ms: 5000 } })
    }

    fn back(target: &str) -> SpaceReport {
        of("input", SpaceEvent::TargetBack { target: target.into(), lost_ms: 7000 })
    }

    fn not_healed(error: &str) -> SpaceReport {
        of("input", SpaceEvent::NotHealed { file: "in.dat".into(), why: HealingFault::Target { error: error.into() } })
    }

    #[test]
    fn a_loss_is_told_by_the_first_node_that_sees_it_and_its_end_by_the_last() {
        let mut losses = DataLosses::default();
        assert_eq!(losses.hear(1, lost("a")), Some(lost("a")));
        assert_eq!(losses.hear(2, lost("a")), None);
        assert_eq!(losses.hear(2, lost("b")), Some(lost("b")));
        assert_eq!(losses.hear(1, back("a")), None);
        assert_eq!(losses.hear(1, back("a")), None, "it has said so");
        assert_eq!(losses.hear(2, back("a")), Some(back("a")));
        assert_eq!(losses.hear(2, back("a")), None);
        assert_eq!(losses.hear(1, lost("a")), Some(lost("a")), "it is lost once more");
    }

    #[test]
    fn what_a_lost_node_saw_counts_no_more_and_a_process_that_begins_looks_anew() {
        let mut losses = DataLosses::default();
        [1, 2].into_iter().for_each(|node| drop(losses.hear(node, lost("a"))));
        losses.node_lost(1);
        assert_eq!(losses.hear(2, back("a")), Some(back("a")));
        losses.hear(3, lost("a"));
        let other = SpaceReport { space: "other".into(), ..lost("a") };
        losses.hear(3, other.clone());
        assert_eq!(losses.hear(3, of("input", SpaceEvent::Begun)), None);
        assert_eq!((losses.hear(4, lost("a")), losses.hear(4, other)), (Some(lost("a")), None));
    }

    #[test]
    fn a_file_that_is_not_made_whole_is_told_of_when_the_reason_changes_or_after_it_was_whole() {
        let mut losses = DataLosses::default();
        assert!(losses.hear(1, not_healed("it broke")).is_some());
        assert_eq!(losses.hear(2, not_healed("it broke after 7 ms")), None);
        let gone = || of("input", SpaceEvent::NotHealed { file: "in.dat".into(), why: HealingFault::NoCopy { lacked: vec![] } });
        assert!(losses.hear(1, gone()).is_some());
        assert!(losses.hear(1, of("input", SpaceEvent::Healed(Healed { file: "in.dat".into(), ..Healed::default() }))).is_some());
        assert!(losses.hear(1, gone()).is_some());
    }

    #[test]
    fn it_remembers_no_more_than_it_may() {
        let mut losses = DataLosses::default();
        for number in 0..MAX_KNOWN + 10 {
            assert!(losses.hear(1, lost(&number.to_string())).is_some());
        }
        assert_eq!(losses.lost.len(), MAX_KNOWN);
        assert!(losses.hear(2, lost("0")).is_none());
    }
}
