//! What has to be remembered from one event to the next so that the job's journal tells it whole.

use crate::operation::Operation;
use mend_journal::event::{Code, Phase};
use mend_messages::agent::{ImageId, Saved};
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Noted {
    /// The phase of the operation under way, and when it began.
    phase: Option<(Phase, u64)>,
    /// Images that are being written behind their ranks.
    pub(crate) behind: BTreeMap<(Rank, ImageId), Saved>,
    /// What is to blame for the failure of what is under way; the first that was found.
    pub(crate) blamed: Option<Code>,
}

impl Noted {
    /// An operation begins.
    pub(crate) fn begin(&mut self, now_us: u64) {
        self.blamed = None;
        self.phase = Some((Phase::Inspect, now_us));
    }

    /// What is under way is in this phase now. Returns the one that it leaves, and how long that was.
    pub(crate) fn enter(&mut self, phase: Option<Phase>, now_us: u64) -> Option<(Phase, u64)> {
        let left = self.phase.filter(|(before, _)| Some(*before) != phase);
        if left.is_some() || self.phase.is_none() {
            self.phase = phase.map(|phase| (phase, now_us));
        }
        left.map(|(phase, since)| (phase, now_us.saturating_sub(since)))
    }

    /// The first that was found to blame.
    pub(crate) fn take_blame(&mut self) -> Code {
        self.blamed.take().unwrap_or(Code::Other)
    }
}

/// The phase of what is under way, and the checkpoint's number if it is one. What goes on in the background counts where nothing else does.
pub(crate) fn phase(operation: Option<&Operation>, background: Option<&Operation>) -> (Option<Phase>, Option<u64>) {
    let shown = operation.filter(|operation| matches!(operation, Operation::Migration { .. } | Operation::Checkpoint { .. }));
    match shown.or(background) {
        Some(Operation::Migration { machine, .. }) => (machine.phase().and_then(phase_of), None),
        Some(Operation::Checkpoint { machine, number, .. }) => (machine.phase().and_then(phase_of), Some(*number)),
        _ => (None, None),
    }
}

/// A phase by the name that the machines have for it.
fn phase_of(name: &str) -> Option<Phase> {
    Some(match name {
        "inspect" => Phase::Inspect,
        "suspend" => Phase::Suspend,
        "save" => Phase::Save,
        "keep" => Phase::Keep,
        "resume" => Phase::Resume,
        "write" => Phase::Write,
        "precopy" => Phase::Precopy,
        "withdraw" => Phase::Undo,
        "move" => Phase::Move,
        "connect" => Phase::Connect,
        "undo" => Phase::Undo,
        _ => return None,
    })
}
