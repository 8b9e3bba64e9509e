//! The target of a move is asked first whether what the rank uses is there: its files, its libraries, the kernel's vdso. A target that somebody
//! has named and that differs is refused; else the next one is asked.
//!
//! Invariants: nothing is stopped or sent before a target has answered that it differs in nothing; no node is asked twice for one move.

use super::Job;
use crate::questions::Purpose;
use crate::safeguard::Safeguard;
use mend_coordination::failure::{Failure, Refusal, TargetTrouble, Trouble};
use mend_journal::event::Code;
use mend_messages::agent::Reply;
use mend_messages::daemon::ToDaemon;
use mend_messages::job::Rank;
use mend_messages::needs::Difference;

/// Longest time that a target may take to look at files, microseconds: file systems may be slow.
const MAX_COMPARE_US: u64 = 60_000_000;

impl Job {
    /// Asks the target of a rank's move.
    pub(crate) fn compare(&mut self, rank: Rank) {
        let Some(one) = self.move_of(rank) else { return };
        let (target, needs) = (one.target, one.needs.clone());
        let seq = self.new_seq(rank, Purpose::Move(rank), MAX_COMPARE_US);
        self.send(target, ToDaemon::Compare { seq, rank, needs });
    }

    /// Whether the next answer for a rank's move is its target's.
    pub(crate) fn is_compared(&mut self, rank: Rank) -> bool {
        self.move_of(rank).is_some_and(|one| one.machine.compares())
    }

    /// The target of a rank's move has answered, or has not in time.
    pub(crate) fn compared(&mut self, rank: Rank, reply: Reply) {
        let now_us = self.now_us;
        let Some(node) = self.move_of(rank).map(|one| one.target) else { return };
        let trouble = |why| (Code::Target, Failure::NotRebuilt { rank, node, why });
        let found = match reply {
            Reply::Compared(found) if self.keeps(Safeguard::FilesAreCompared) => found.split_first().map(|(first, rest)| {
                let code = if matches!(first, Difference::Kernel { .. }) { Code::Kernel } else { Code::Files };
                (code, Failure::Differs { rank, node, first: first.clone(), more: rest.len() as u32 })
            }),
            reply => match Refusal::of(reply) {
                Some(Refusal::Told { error, hint }) => Some(trouble(TargetTrouble::Told(Trouble { error, hint }))),
                Some(Refusal::Unasked(_)) => Some(trouble(TargetTrouble::Silent)),
                None => None,
            },
        };
        // Its daemon may have told of its processor only since it was chosen.
        let found = found.or_else(|| self.roster.runs_on(rank, node).err().map(|failure| (Code::Processor, failure)));
        if let Some((Code::Files, _)) = &found
            && let Some(actions) = self.move_of(rank).and_then(|one| one.machine.inspect_again())
        {
            // Some programs open, close and remove files all the time.
            return self.step_move(rank, |_| actions);
        }
        if found.is_some() && self.goes_elsewhere(rank) {
            return self.step_move(rank, |machine| machine.compare_again());
        }
        if let Some((code, _)) = &found {
            self.blame_for_move(rank, *code);
        }
        self.step_move(rank, |machine| {
            if let Some((_, failure)) = found {
                machine.refuse(failure);
            }
            machine.reply(now_us, rank, Reply::Compared(Vec::new()))
        });
    }

    /// The target of a move will not do. True if there is another, which is to be asked.
    fn goes_elsewhere(&mut self, rank: Rank) -> bool {
        let coming = self.coming(rank);
        let Some(one) = self.move_of(rank).filter(|one| !one.named) else { return false };
        let (target, bytes, mut avoid) = (one.target, one.bytes, one.avoid.clone());
        avoid.push(self.roster.node_name(target).to_owned());
        let other = self.roster.find_other((rank, bytes), &avoid, &coming);
        if let (Some(one), Some(other)) = (self.move_of(rank), other) {
            (one.target, one.avoid) = (other, avoid);
        }
        other.is_some()
    }
}
