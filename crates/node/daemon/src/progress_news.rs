//! How far the ranks here have come, and to whom they send how much: what their agents told, on its way to the controller. One message for all of them, once a
//! second at most, whatever the number of pings.

use crate::outbox::Urgent;
use mend_data::space::mounts;
use mend_messages::daemon::{FromDaemon, JobIntroduction};
use mend_messages::job::Rank;
use mend_messages::progress::{RankProgress, RankTraffic};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A bit less than agents wait: what each of them tells comes through.
const PAUSE: Duration = Duration::from_millis(900);

/// What was told and not passed on.
#[derive(Debug, Default)]
pub struct ProgressNews {
    fresh: BTreeMap<Rank, RankProgress>,
    traffic: BTreeMap<Rank, RankTraffic>,
    passed: Option<Instant>,
}

/// Whether ranks of this job may follow their data, so that somebody wants to know to whom they send.
pub fn may_follow_data(job: &JobIntroduction) -> bool {
    let env = &job.program.env;
    let off = |(name, word): &(String, String)| name == mend_settings::FOLLOW_DATA.name && word == "off";
    !mounts::of_environment(env).is_empty() && !env.iter().any(off)
}

impl ProgressNews {
    /// An agent tells how far its rank has come.
    pub fn note(&mut self, progress: RankProgress) {
        self.fresh.insert(progress.rank, progress);
    }

    /// An agent tells to whom its rank sends.
    pub fn note_traffic(&mut self, traffic: RankTraffic) {
        self.traffic.insert(traffic.rank, traffic);
    }

    /// Passes it on, if it is time for that.
    pub fn tell(&mut self, controller: &Urgent) {
        let (progress, traffic) = self.take();
        if !progress.is_empty() {
            controller.send(FromDaemon::Progress(progress));
        }
        if !traffic.is_empty() {
            controller.send(FromDaemon::Traffic(traffic));
        }
    }

    fn take(&mut self) -> (Vec<RankProgress>, Vec<RankTraffic>) {
        if self.fresh.is_empty() && self.traffic.is_empty() || self.passed.is_some_and(|at| at.elapsed() < PAUSE) {
            return (Vec::new(), Vec::new());
        }
        self.passed = Some(Instant::now());
        (std::mem::take(&mut self.fresh).into_values().collect(), std::mem::take(&mut self.traffic).into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::progress::{Progress, Sent, Traffic};

    #[test]
    fn the_newest_of_each_rank_is_passed_on_once() {
        let mut news = ProgressNews::default();
        let nothing = (vec![], vec![]);
        assert_eq!(news.take(), nothing);
        let told = |rank, calls| RankProgress { rank, attempt: 1, progress: Progress { calls, ..Progress::default() } };
        let sends = |rank, bytes| {
            let sent = vec![Sent { peer: 7, bytes, messages: 1 }];
            RankTraffic { rank, attempt: 1, traffic: Traffic { over_us: 2_000_000, sent } }
        };
        for one in [told(3, 1), told(2, 5), told(3, 2)] {
            news.note(one);
        }
        [sends(3, 10), sends(3, 20)].into_iter().for_each(|one| news.note_traffic(one));
        assert_eq!(news.take(), (vec![told(2, 5), told(3, 2)], vec![sends(3, 20)]));
        news.note(told(2, 6));
        assert_eq!(news.take(), nothing, "a moment later");
        news.passed = news.passed.and_then(|at| at.checked_sub(PAUSE));
        assert_eq!(news.take(), (vec![told(2, 6)], vec![]));
    }
}
