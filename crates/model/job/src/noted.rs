//! What has to be remembered from one event to the next so that the job's journal tells it whole.

use crate::course::{Course, phase_of};
use crate::operation::Operation;
use mend_journal::event::Phase;
use mend_messages::agent::{ImageId, Saved};
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Noted {
    /// Of a checkpoint.
    pub(crate) course: Course,
    /// Images that are being written behind their ranks.
    pub(crate) behind: BTreeMap<(Rank, ImageId), Saved>,
}

/// The phase of the checkpoint that is under way, and its number. One in the background counts where no other is.
pub(crate) fn phase(operation: Option<&Operation>, background: Option<&Operation>) -> (Option<Phase>, Option<u64>) {
    let shown = operation.filter(|operation| matches!(operation, Operation::Checkpoint { .. }));
    match shown.or(background) {
        Some(Operation::Checkpoint { machine, number, .. }) => (machine.phase().and_then(phase_of), Some(*number)),
        _ => (None, None),
    }
}
