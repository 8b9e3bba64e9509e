//! Whether a job that a failure has stopped goes on by itself, and how: its ranks go back in place (pause), or all are restarted.
//!
//! ```text
//! it runs ── a node or messages lost, a rank killed ──► GoOn ──► it runs
//!                └── not wanted, no checkpoint, too often from this one ──► Stop
//! ```
//! Invariant: from one checkpoint a job goes on a bounded number of times: what fails each time comes to an end.

use serde::{Deserialize, Serialize};

/// How often a job goes on from one checkpoint after nodes, or messages between them, were lost.
pub const MAX_LOSSES: u32 = 10;

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealingRules {
    /// The job goes on at all.
    pub goes_on: bool,
    /// Ranks whose processes live go back in place.
    pub in_place: bool,
    /// How often it goes on from one checkpoint after a rank was killed.
    pub retries: u32,
    /// It waits for nodes that are missing.
    pub waits: bool,
}

/// What has stopped a job that may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A signal has killed a rank.
    Killed,
    /// A node, or messages between two, were lost.
    Lost,
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
pub struct Recovery {
    rules: HealingRules,
    /// The newest checkpoint when it went on last.
    newest: u64,
    /// How often it has gone on from there after something was lost.
    losses: u32,
    /// The same, after a rank was killed.
    kills: u32,
}

impl Recovery {
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

    /// Whether it waits for nodes that are missing, those among them that have the only copy of an image.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.rules.waits
    }

    /// Whether ranks that live are to stand still for the next life, after this failure.
    #[must_use]
    pub fn pauses(&self, failed: Failed, newest: Option<u64>) -> bool {
        self.rules.in_place && self.goes_on(failed, newest)
    }

    /// Whether there will be a next life, after this failure.
    #[must_use]
    pub fn goes_on(&self, failed: Failed, newest: Option<u64>) -> bool {
        matches!(self.clone().failed(failed, newest), Verdict::GoOn(_))
    }

    /// The job has failed in this way; `newest`: its newest checkpoint.
    pub fn failed(&mut self, failed: Failed, newest: Option<u64>) -> Verdict {
        let Some(newest) = newest.filter(|_| self.rules.goes_on) else { return Verdict::Stop };
        if newest != self.newest {
            (self.newest, self.losses, self.kills) = (newest, 0, 0);
        }
        let (times, most) = match failed {
            Failed::Killed => (&mut self.kills, self.rules.retries),
            Failed::Lost => (&mut self.losses, MAX_LOSSES),
        };
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

    const RULES: HealingRules = HealingRules { goes_on: true, in_place: true, retries: 2, waits: false };

    #[test]
    fn kills_and_losses_are_counted_apart_and_anew_from_each_checkpoint() {
        let mut recovery = Recovery::new(RULES);
        for newest in [3, 4] {
            let verdicts = [Failed::Killed, Failed::Killed, Failed::Killed].map(|failed| recovery.failed(failed, Some(newest)));
            assert_eq!(verdicts, [Verdict::GoOn(newest), Verdict::GoOn(newest), Verdict::TooOften { checkpoint: newest, times: 2 }]);
            let went_on = (0..20).filter(|_| recovery.failed(Failed::Lost, Some(newest)) == Verdict::GoOn(newest)).count();
            assert_eq!(went_on, MAX_LOSSES as usize);
        }
        assert_eq!(recovery.failed(Failed::Lost, None), Verdict::Stop);
        assert!(!recovery.pauses(Failed::Lost, Some(4)) && recovery.pauses(Failed::Lost, Some(5)));
        let all_restarted = Recovery::new(HealingRules { in_place: false, ..RULES });
        assert!(!all_restarted.pauses(Failed::Lost, Some(5)) && all_restarted.goes_on(Failed::Lost, Some(5)));
        assert_eq!(Recovery::new(HealingRules { goes_on: false, ..RULES }).failed(Failed::Lost, Some(1)), Verdict::Stop);
    }
}
