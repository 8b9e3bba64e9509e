//! How far the ranks here have come: what their agents told, on its way to the controller. One message for all of them, once a second at most,
//! whatever the number of pings.

use mend_messages::job::Rank;
use mend_messages::progress::RankProgress;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A bit less than agents wait: what each of them tells comes through.
const PAUSE: Duration = Duration::from_millis(900);

/// What was told and not passed on.
#[derive(Debug, Default)]
pub struct ProgressNews {
    fresh: BTreeMap<Rank, RankProgress>,
    passed: Option<Instant>,
}

impl ProgressNews {
    /// An agent tells.
    pub fn note(&mut self, progress: RankProgress) {
        self.fresh.insert(progress.rank, progress);
    }

    /// What is to be passed on, if it is time for that.
    pub fn take(&mut self) -> Option<Vec<RankProgress>> {
        if self.fresh.is_empty() || self.passed.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        self.passed = Some(Instant::now());
        Some(std::mem::take(&mut self.fresh).into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::progress::Progress;

    #[test]
    fn the_newest_of_each_rank_is_passed_on_once() {
        let mut news = ProgressNews::default();
        assert_eq!(news.take(), None);
        let told = |rank, calls| RankProgress { rank, attempt: 1, progress: Progress { calls, ..Progress::default() } };
        for one in [told(3, 1), told(2, 5), told(3, 2)] {
            news.note(one);
        }
        assert_eq!(news.take(), Some(vec![told(2, 5), told(3, 2)]));
        news.note(told(2, 6));
        assert_eq!(news.take(), None, "a moment later");
        news.passed = news.passed.and_then(|at| at.checked_sub(PAUSE));
        assert_eq!(news.take(), Some(vec![told(2, 6)]));
    }
}
