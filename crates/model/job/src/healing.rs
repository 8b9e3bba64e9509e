//! Whether a job that a failure has stopped goes on by itself, from its last checkpoint.
//!
//! ```text
//! it runs ── a node or messages lost, a rank killed ──► GoOn ──► it runs
//!                └── not wanted, no checkpoint, too often from this one ──► Stop
//! ```
//! Invariants: a job that ends by itself, or that its user ends (a signal, `mend kill`), does not go on; nor does one without a checkpoint.
//! From one checkpoint a job goes on a bounded number of times: what fails each time comes to an end.

use crate::event::{End, GoesOn};
use serde::{Deserialize, Serialize};

/// How often a job goes on from one checkpoint after nodes, or messages between them, were lost.
const MAX_LOSSES: u32 = 10;

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealingRules {
    /// The job goes on at all.
    pub goes_on: bool,
    /// Ranks whose processes live go back in place.
    pub in_place: bool,
    /// How often it goes on from one checkpoint after a rank was killed.
    pub retries: u32,
}

/// What becomes of a job that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It goes on; this is its newest checkpoint.
    GoOn(u64),
    /// It stays ended.
    Stop,
    /// It stays ended, since it has gone on from its newest checkpoint so many times.
    TooOften {
        /// The checkpoint.
        checkpoint: u64,
        /// How many times.
        times: u32,
    },
}

/// What is remembered of a job's failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healing {
    rules: HealingRules,
    /// The newest checkpoint when it went on last.
    newest: u64,
    /// How often it has gone on from there after something was lost.
    losses: u32,
    /// The same, after a rank was killed.
    kills: u32,
}

impl Healing {
    /// Nothing has failed yet.
    #[must_use]
    pub fn new(rules: HealingRules) -> Self {
        Self { rules, newest: 0, losses: 0, kills: 0 }
    }

    /// Whether the job goes on by itself at all.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.rules.goes_on
    }

    /// Whether ranks that live are to stand still for the next life, if the job ends in this way.
    #[must_use]
    pub fn pauses(&self, end: &End, interrupted: bool, newest: Option<u64>) -> bool {
        self.rules.in_place && matches!(self.clone().ended(Some(end), interrupted, newest), Verdict::GoOn(_))
    }

    /// The job has ended in this way. `interrupted`: its user has sent it a signal; `newest`: its newest checkpoint.
    pub fn ended(&mut self, end: Option<&End>, interrupted: bool, newest: Option<u64>) -> Verdict {
        let Some(newest) = newest.filter(|_| self.rules.goes_on && !interrupted) else { return Verdict::Stop };
        let killed = match end {
            Some(End::RankKilled { .. }) => true,
            Some(End::NodeLost { goes_on, .. } | End::MessagesLost { goes_on, .. }) => match goes_on {
                GoesOn::From(_) | GoesOn::Again => false,
                GoesOn::NoCheckpoint | GoesOn::NotAllThere => return Verdict::Stop,
            },
            _ => return Verdict::Stop,
        };
        if newest != self.newest {
            (self.newest, self.losses, self.kills) = (newest, 0, 0);
        }
        let (times, most) = if killed { (&mut self.kills, self.rules.retries) } else { (&mut self.losses, MAX_LOSSES) };
        if *times >= most {
            return match *times {
                0 => Verdict::Stop,
                times => Verdict::TooOften { checkpoint: newest, times },
            };
        }
        *times += 1;
        Verdict::GoOn(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::NodeLoss;

    const RULES: HealingRules = HealingRules { goes_on: true, in_place: true, retries: 2 };
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
