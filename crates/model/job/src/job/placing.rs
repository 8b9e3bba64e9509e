//! A restart's ranks go to nodes whose processors will do: when every node has told what its processor offers, those that cannot run where
//! they were placed are placed elsewhere. Where they were before, the processor had all that they need; so this is for hosts that have changed.
//!
//! Invariant: nothing is ordered of a restart before all ranks have their places.

use super::Job;
use crate::event::{End, Notice};
use crate::safeguard::Safeguard;
use mend_coordination::failure::{Failure, TargetTrouble};
use mend_image::cpu::CpuNeeds;

impl Job {
    /// Waits for the nodes if anything depends on what they tell.
    pub(crate) fn begin_placing(&mut self) {
        let needs = self.restoring.as_ref().map(|restoring| restoring.needs.clone()).unwrap_or_default();
        self.placing = needs.iter().any(|needs| *needs != CpuNeeds::default());
        if !self.placing {
            return self.begin_images();
        }
        for (state, needs) in self.roster.ranks.iter_mut().zip(needs) {
            state.needs = needs;
        }
    }

    /// A node has told, or is lost.
    pub(crate) fn place_when_known(&mut self) {
        let unknown = self.roster.nodes.iter().any(|node| node.alive && node.processor.is_none());
        if !self.placing || unknown || self.ending.is_some() {
            return;
        }
        self.placing = false;
        let placed = if self.keeps(Safeguard::ProcessorsAreCompared) { self.roster.place_by_processor() } else { Ok(Vec::new()) };
        match placed {
            Ok(elsewhere) => {
                for failure in elsewhere {
                    if let Failure::Processor { rank, .. } = failure {
                        let node = self.roster.ranks[rank as usize].node;
                        self.tell(Notice::PlacedElsewhere { failure, node });
                    }
                }
                self.begin_images();
            }
            Err(Failure::Processor { rank, node, why }) => {
                self.end(End::NotRestored { rank, node, why: TargetTrouble::Processor(why), image: false });
            }
            Err(_) => {}
        }
    }
}
