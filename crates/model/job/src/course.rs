//! How far an operation has come, as the journal tells it.

use mend_journal::event::{Code, Phase};
use serde::{Deserialize, Serialize};

/// How far an operation has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Course {
    /// The phase that it is in, and when that began.
    phase: Option<(Phase, u64)>,
    /// What is to blame for its failure; the first that was found.
    pub(crate) blamed: Option<Code>,
}

impl Course {
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

/// A phase by the name that the machines have for it.
pub(crate) fn phase_of(name: &str) -> Option<Phase> {
    Some(match name {
        "inspect" => Phase::Inspect,
        "compare" => Phase::Compare,
        "wait" => Phase::Wait,
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
