//! What users ask, and what the job tells them.
//!
//! What is asserted: every verb is answered, once; what nobody disturbs succeeds.

use super::check::is_expected;
use super::{Asked, World};
use mend_job::event::{Event, Notice, Outcome, VerbId};
use mend_messages::control::Ask;

impl World {
    /// A verb comes, now.
    pub fn ask(&mut self, ask: Ask) -> Result<(), String> {
        if self.job.is_none() {
            return Ok(());
        }
        self.next += 1;
        let verb = self.next;
        if ask == Ask::Kill {
            self.reasons.insert("killed");
        }
        self.verbs.insert(verb, Asked { ask: ask.clone(), answers: 0 });
        self.feed(Event::Ask { verb, ask })
    }

    pub(super) fn answered(&mut self, verb: VerbId, outcome: Outcome) -> Result<(), String> {
        if self.failovers.has_lost(verb) {
            return Ok(());
        }
        let Some(asked) = self.verbs.get_mut(&verb) else { return Err("an answer to nobody".into()) };
        if matches!(outcome, Outcome::Progress | Outcome::Moving(_)) {
            return Ok(());
        }
        self.killed |= outcome == Outcome::Killed;
        asked.answers += 1;
        if asked.answers > 1 {
            return Err(format!("{:?} was answered twice", asked.ask));
        }
        if let Outcome::Migrated(done) = &outcome {
            self.summary.migrations += 1;
            self.summary.live += u64::from(done.precopied.is_some());
        }
        match outcome {
            Outcome::Failed(failure) if !self.disturbed && !is_expected(&failure) => {
                Err(format!("{:?} failed though nothing was wrong: {failure:?}", asked.ask))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn told(&mut self, notice: &Notice) -> Result<(), String> {
        match notice {
            Notice::PeriodicFailed { failure, .. } if failure.is_an_end() || !self.failed_for_real => {
                Err(format!("the end of a rank is told as a failed checkpoint: {failure:?}"))
            }
            Notice::NoRoom { .. } => self.story.told_of_free_space(true, self.failed_for_real),
            Notice::RoomAgain => self.story.told_of_free_space(false, self.failed_for_real),
            _ => Ok(()),
        }
    }

    /// All verbs were answered.
    pub fn check_verbs(&self) -> Result<(), String> {
        match self.verbs.values().find(|asked| asked.answers == 0) {
            Some(asked) => Err(format!("{:?} was never answered", asked.ask)),
            None => Ok(()),
        }
    }
}
