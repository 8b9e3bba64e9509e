//! Which checkpoint a restart begins from, and which it turns to when that one proves unusable.
//!
//! ```text
//! Load newest ── cannot be used ──► PassOver ──► Load the next older …          none is left: End
//!     └─ loads ──► Begin ── an image is bad ──► Begin again, all copies checked (with tiers) ── bad ──► PassOver …
//!                     ├─ its ranks were placed elsewhere than before ──► Begin again, where they were
//!                     └─ anything else, or it ran: End
//! ```
//! Invariants: newest first, each at most once; only what is wrong with a checkpoint itself leads to the next, never what is wrong with a
//! node, a program or a file of the job.

use crate::safeguard::{Kept, Safeguard};
use serde::{Deserialize, Serialize};

/// When a copy is checked that need not be moved. What comes from elsewhere is always checked on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Checks {
    /// By the restorer, which reads it anyway: if it is not good, nothing ran yet, and the restart is tried again with
    /// [`Checks::Before`].
    WhileRestoring,
    /// Before any process is built: one that is not good is named, and the next taken.
    Before,
}

/// Why a checkpoint was not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadFailure {
    /// The key for it is missing: others of the job want it, too.
    NoKey,
    /// It cannot be used.
    Unusable,
}

/// What is to blame that a restart failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blame {
    /// An image, and nothing ran from it.
    Image,
    /// The checkpoint in another way.
    Checkpoint,
    /// Perhaps where its ranks were placed: not where they were when the checkpoint was taken.
    Places,
    /// Something that an older checkpoint would meet as well.
    Elsewhere,
}

/// What is to be done. Candidates are named by their place among all, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Load it. → [`CheckpointChoice::loaded`]
    Load(usize),
    /// Restart from it. → [`CheckpointChoice::failed`], if it fails
    Begin(usize, Checks),
    /// Say that it is passed over, for the failure that was told last. → [`CheckpointChoice::next_candidate`]
    PassOver(usize),
    /// The failure that was told last is the restart's; if there was none, there is no checkpoint.
    End,
}

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointChoice {
    /// Those that were not tried are below this one.
    left: usize,
    /// The one that is tried has its images in tiers.
    tiered: bool,
    checks: Checks,
    kept: Kept,
}

impl CheckpointChoice {
    /// A choice among so many.
    #[must_use]
    pub fn new(candidates: usize, kept: Kept) -> Self {
        Self { left: candidates, tiered: false, checks: Checks::WhileRestoring, kept }
    }

    /// The next candidate.
    pub fn next_candidate(&mut self) -> Step {
        let Some(newest) = self.left.checked_sub(1) else { return Step::End };
        self.left = newest;
        self.checks = Checks::WhileRestoring;
        Step::Load(newest)
    }

    /// The candidate is loaded (true: its images are in tiers), or cannot be.
    pub fn loaded(&mut self, result: Result<bool, LoadFailure>) -> Step {
        match result {
            Ok(tiered) => {
                self.tiered = tiered;
                Step::Begin(self.left, self.checks)
            }
            Err(LoadFailure::NoKey) => Step::End,
            Err(LoadFailure::Unusable) => self.pass_over(),
        }
    }

    /// The restart from the candidate failed.
    pub fn failed(&mut self, blame: Blame) -> Step {
        match blame {
            Blame::Image if self.tiered && self.checks == Checks::WhileRestoring => {
                self.checks = Checks::Before;
                Step::Begin(self.left, self.checks)
            }
            Blame::Places => Step::Begin(self.left, self.checks),
            Blame::Image | Blame::Checkpoint => self.pass_over(),
            Blame::Elsewhere => Step::End,
        }
    }

    fn pass_over(&self) -> Step {
        if self.left > 0 && self.kept.keeps(Safeguard::OlderOnesWillDo) { Step::PassOver(self.left) } else { Step::End }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_with_a_checkpoint_leads_to_an_older_one() {
        let mut choice = CheckpointChoice::new(3, Kept::default());
        assert_eq!(choice.next_candidate(), Step::Load(2));
        assert_eq!(choice.loaded(Err(LoadFailure::Unusable)), Step::PassOver(2));
        assert_eq!(choice.next_candidate(), Step::Load(1));
        assert_eq!(choice.loaded(Ok(false)), Step::Begin(1, Checks::WhileRestoring));
        assert_eq!(choice.clone().failed(Blame::Elsewhere), Step::End);
        assert_eq!(choice.clone().failed(Blame::Places), Step::Begin(1, Checks::WhileRestoring));
        assert_eq!(choice.failed(Blame::Image), Step::PassOver(1));
        assert_eq!(choice.next_candidate(), Step::Load(0));
        assert_eq!(choice.clone().loaded(Err(LoadFailure::Unusable)), Step::End);
        assert_eq!(choice.loaded(Err(LoadFailure::NoKey)), Step::End);
        assert_eq!(choice.next_candidate(), Step::End);
    }

    #[test]
    fn with_tiers_all_copies_are_checked_before_an_older_one_is_taken() {
        let mut choice = CheckpointChoice::new(2, Kept::default());
        choice.next_candidate();
        assert_eq!(choice.loaded(Ok(true)), Step::Begin(1, Checks::WhileRestoring));
        assert_eq!(choice.failed(Blame::Image), Step::Begin(1, Checks::Before));
        assert_eq!(choice.failed(Blame::Image), Step::PassOver(1));
        choice.next_candidate();
        assert_eq!(choice.loaded(Ok(true)), Step::Begin(0, Checks::WhileRestoring), "the next one is begun as the first one was");
    }
}
