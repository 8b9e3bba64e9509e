//! Standard input, which goes to rank 0: where what it was not given comes back from when it moves.
//!
//! Invariants: as long as the process that rank 0 left has not told what it was not given, nothing more is passed on, and no image of rank 0
//! is taken. Faults assumed: that process ends, or its node is lost, before it has told.

use super::Job;
use crate::event::{Effect, StdinEffect};
use crate::roster::Process;
use crate::safeguard::Safeguard;
use mend_messages::daemon::{ExitStatus, ToDaemon};
use mend_messages::job::NodeIndex;
use serde::{Deserialize, Serialize};

/// What is known of rank 0's input as it moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovingInput {
    /// The process that rank 0 left, as long as it may tell what it was not given.
    left: Option<Process>,
    /// Bytes that only the node has on which rank 0 was when it was saved last: its process was to be given them again.
    again: u64,
    /// It goes on once that is told.
    release: bool,
}

impl Job {
    /// Nothing is passed on until [`Job::release_input`].
    pub(crate) fn freeze_input(&mut self) {
        self.input.release = false;
        self.effect(Effect::Stdin(StdinEffect::Freeze));
    }

    /// Input goes on, behind what comes back.
    pub(crate) fn release_input(&mut self) {
        self.input.release = true;
        self.release_if_told();
    }

    fn release_if_told(&mut self) {
        if !self.awaits_left_input() && std::mem::take(&mut self.input.release) {
            self.effect(Effect::Stdin(StdinEffect::Release));
        }
    }

    /// Whether the process that rank 0 left has still to tell what it was not given.
    pub(crate) fn awaits_left_input(&self) -> bool {
        self.input.left.is_some() && self.keeps(Safeguard::LeftInputIsAwaited)
    }

    /// Rank 0 is about to be saved.
    pub(crate) fn input_held(&mut self, again: u64, begun: u64) {
        self.input.again = again;
        self.effect(Effect::Stdin(StdinEffect::Held { again, begun }));
    }

    /// Rank 0 goes on as another process.
    pub(crate) fn input_moves(&mut self, left: Process) {
        self.input.left = Some(left);
    }

    /// A process of rank 0 that was discarded was not given these bytes. What a migration built in vain had them from the image of a rank
    /// that has them still.
    pub(crate) fn input_left(&mut self, process: Process, bytes: Vec<u8>) {
        let from_source = self.input.left.take_if(|left| *left == process).is_some();
        if !bytes.is_empty() && (from_source || !self.keeps(Safeguard::OnlyTheSourceLeavesInput)) {
            self.effect(Effect::Stdin(StdinEffect::Left(bytes)));
        }
        self.release_if_told();
    }

    /// A node is lost. True if something is lost with it that rank 0 was to be given again: it is nowhere else.
    pub(crate) fn left_input_lost(&mut self, node: NodeIndex) -> bool {
        let lost = self.input.left.take_if(|left| left.node == node).is_some();
        if lost {
            self.give_lost_input_again();
        }
        lost && self.input.again > 0
    }

    fn give_lost_input_again(&mut self) {
        if self.keeps(Safeguard::LostInputIsGivenAgain) {
            self.effect(Effect::Stdin(StdinEffect::Lost));
        }
        self.release_if_told();
    }

    /// The process that rank 0 left ended before it could be discarded, and tells no more what it was not given.
    pub(crate) fn source_ended(&mut self, process: Process, status: ExitStatus) {
        if self.input.left.take_if(|left| *left == process).is_none() {
            return;
        }
        if self.input.again > 0 && self.keeps(Safeguard::LostInputIsGivenAgain) {
            // What rank 0 was to be given again is nowhere else: it is as if the process had ended before the rank left it.
            return self.exited(process.rank, status);
        }
        self.give_lost_input_again();
    }

    pub(crate) fn feed(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            // From now on its processes read the end after what they had not read.
            self.stdin = false;
        }
        self.send_to_rank(0, ToDaemon::Stdin { rank: 0, bytes });
    }
}
