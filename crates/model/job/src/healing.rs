//! Which ends of a job are failures that it may go on after by itself, from its last checkpoint. Whether it does is [`mend_policy::recovery`]'s to say.
//!
//! Invariant: a job that ends by itself, or that its user ends (a signal, `mend kill`), does not go on; nor does one without a checkpoint.

use crate::event::{End, GoesOn};
use mend_policy::recovery::{Failed, Recovery};
pub use mend_policy::recovery::{HealingRules, Verdict};
use serde::{Deserialize, Serialize};

/// What is remembered of a job's failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healing(Recovery);

impl Healing {
    fn failure(&self, end: Option<&End>) -> Option<Failed> {
        match end? {
            End::RankKilled { .. } => Some(Failed::Killed),
            End::NodeLost { goes_on, .. } | End::MessagesLost { goes_on, .. } => match goes_on {
                GoesOn::From(_) | GoesOn::Again => Some(Failed::Lost),
                GoesOn::NotAllThere => self.0.waits().then_some(Failed::Lost),
                GoesOn::NoCheckpoint => None,
            },
            _ => None,
        }
    }

    /// Nothing has failed yet.
    #[must_use]
    pub fn new(rules: HealingRules) -> Self {
        Self(Recovery::new(rules))
    }

    /// Whether the job goes on by itself at all.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.is_wanted()
    }

    /// Whether ranks that live are to stand still for the next life, if the job ends in this way.
    #[must_use]
    pub fn pauses(&self, end: &End, interrupted: bool, newest: Option<u64>) -> bool {
        self.failure(Some(end)).filter(|_| !interrupted).is_some_and(|failed| self.0.pauses(failed, newest))
    }

    /// Whether the job is about to go on, if it ends in this way.
    #[must_use]
    pub fn goes_on(&self, end: &End, interrupted: bool, newest: Option<u64>) -> bool {
        self.failure(Some(end)).filter(|_| !interrupted).is_some_and(|failed| self.0.goes_on(failed, newest))
    }

    /// The job has ended in this way. `interrupted`: its user has sent it a signal; `newest`: its newest checkpoint.
    pub fn ended(&mut self, end: Option<&End>, interrupted: bool, newest: Option<u64>) -> Verdict {
        match self.failure(end).filter(|_| !interrupted) {
            Some(failed) => self.0.failed(failed, newest),
            None => Verdict::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::NodeLoss;
    use mend_policy::recovery::MAX_LOSSES;

    const RULES: HealingRules = HealingRules { goes_on: true, in_place: true, retries: 2, waits: false };
    const KILLED: End = End::RankKilled { rank: 1, signal: 9 };

    fn lost(goes_on: GoesOn) -> End {
        End::NodeLost { node: 1, how: NodeLoss::Silent(1000), ranks: vec![1], goes_on }
    }

    #[test]
    fn only_a_failure_of_a_job_with_a_checkpoint_is_healed() {
        let verdict = |end: &End, interrupted, newest| Healing::new(RULES).ended(Some(end), interrupted, newest);
        for end in [lost(GoesOn::From(3)), lost(GoesOn::Again), KILLED] {
            assert_eq!(verdict(&end, false, Some(3)), Verdict::GoOn(3));
            assert_eq!(verdict(&end, true, Some(3)), Verdict::Stop);
            assert_eq!(verdict(&end, false, None), Verdict::Stop);
            let mut unwanted = Healing::new(HealingRules { goes_on: false, ..RULES });
            assert_eq!(unwanted.ended(Some(&end), false, Some(3)), Verdict::Stop);
        }
        for end in [lost(GoesOn::NoCheckpoint), lost(GoesOn::NotAllThere), End::Code(0), End::Code(137), End::Interrupted(2)] {
            assert_eq!(verdict(&end, false, Some(3)), Verdict::Stop);
        }
        assert_eq!(Healing::new(RULES).ended(None, false, Some(3)), Verdict::Stop);
        // A node may come back with the only copy of an image.
        let waits = HealingRules { waits: true, ..RULES };
        assert_eq!(Healing::new(waits).ended(Some(&lost(GoesOn::NotAllThere)), false, Some(3)), Verdict::GoOn(3));
        assert_eq!(Healing::new(waits).ended(Some(&lost(GoesOn::NoCheckpoint)), false, Some(3)), Verdict::Stop);
    }

    #[test]
    fn ranks_stand_still_only_for_a_life_that_follows() {
        let healing = Healing::new(RULES);
        assert!(healing.pauses(&KILLED, false, Some(3)) && healing.pauses(&lost(GoesOn::From(3)), false, Some(3)));
        assert!(!healing.pauses(&KILLED, true, Some(3)) && !healing.pauses(&End::Code(0), false, Some(3)));
        assert!(!Healing::new(HealingRules { in_place: false, ..RULES }).pauses(&KILLED, false, Some(3)));
        // It decides nothing.
        assert_eq!(healing, Healing::new(RULES));
    }

    #[test]
    fn from_one_checkpoint_it_goes_on_so_many_times() {
        let mut healing = Healing::new(RULES);
        for newest in [1, 2] {
            for _ in 0..2 {
                assert_eq!(healing.ended(Some(&KILLED), false, Some(newest)), Verdict::GoOn(newest));
            }
            assert_eq!(healing.ended(Some(&KILLED), false, Some(newest)), Verdict::TooOften { checkpoint: newest, times: 2 });
            // What is lost is counted by itself.
            for _ in 0..MAX_LOSSES {
                assert_eq!(healing.ended(Some(&lost(GoesOn::From(1))), false, Some(newest)), Verdict::GoOn(newest));
            }
            let verdict = healing.ended(Some(&lost(GoesOn::From(1))), false, Some(newest));
            assert_eq!(verdict, Verdict::TooOften { checkpoint: newest, times: MAX_LOSSES });
        }
        let mut never = Healing::new(HealingRules { retries: 0, ..RULES });
        assert_eq!(never.ended(Some(&KILLED), false, Some(1)), Verdict::Stop);
    }
}
