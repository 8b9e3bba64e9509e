//! With whom the program exchanges how much, as the fabric counts it: the daemon is told from time to time, if it has asked for that.
//!
//! The fabric's counters move with the process and go back with it to a checkpoint, so only differences are told, of two readings in the same process. After a
//! rollback in place counters are smaller than they were: that reading is the first one again.

use mend_messages::job::Rank;
use mend_messages::progress::{MOST_PEERS, Sent, Traffic};
use std::time::{Duration, Instant};

/// From one reading to the next.
const INTERVAL: Duration = Duration::from_secs(2);

/// What was read last, and what the daemon knows.
#[derive(Default)]
pub(crate) struct TrafficReports {
    /// The daemon wants to know.
    wanted: bool,
    last: Option<(Instant, Vec<(u64, u64)>)>,
    /// Memory of the reading before the last.
    spare: Vec<(u64, u64)>,
}

impl TrafficReports {
    /// The daemon wants to know from now on.
    pub fn begin(&mut self) {
        self.wanted = true;
    }

    /// Whether it does.
    pub fn are_wanted(&self) -> bool {
        self.wanted
    }

    /// In a restored process: nothing was read in it.
    pub fn begin_anew(&mut self) {
        *self = Self::default();
    }

    /// What is to be told, if it is time for that: what was sent by this rank to others since the last reading. The first reading has nothing to compare with, and only
    /// says that the rank is here: it is over no time.
    pub fn due(&mut self, me: Rank, read: impl FnOnce(&mut Vec<(u64, u64)>)) -> Option<Traffic> {
        let now = Instant::now();
        if !self.wanted || self.last.as_ref().is_some_and(|(at, _)| now.saturating_duration_since(*at) < INTERVAL) {
            return None;
        }
        let mut counts = std::mem::take(&mut self.spare);
        counts.clear();
        read(&mut counts);
        let last = self.last.replace((now, counts));
        let (_, counts) = self.last.as_ref()?;
        let Some((at, before)) = last else { return Some(Traffic::default()) };
        let sent = differences(me, &before, counts);
        self.spare = before;
        let over_us = u64::try_from((now - at).as_micros()).unwrap_or(u64::MAX);
        Some(sent.map_or_else(Traffic::default, |sent| Traffic { over_us, sent }))
    }
}

/// What was sent to others between two readings, to those who got most; `None`: counters have gone back.
fn differences(me: Rank, before: &[(u64, u64)], counts: &[(u64, u64)]) -> Option<Vec<Sent>> {
    if counts.len() < before.len() {
        return None;
    }
    let mut all = Vec::new();
    for ((peer, count), before) in (0..).zip(counts).zip(before.iter().chain(std::iter::repeat(&(0, 0)))) {
        let sent = Sent { peer, bytes: count.0.checked_sub(before.0)?, messages: count.1.checked_sub(before.1)? };
        if peer != me && sent.messages > 0 {
            all.push(sent);
        }
    }
    all.sort_by_key(|sent| std::cmp::Reverse(sent.weight()));
    all.truncate(MOST_PEERS);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if the last reading were older.
    fn later(reports: &mut TrafficReports) {
        reports.last = reports.last.take().map(|(at, counts)| (at.checked_sub(INTERVAL).unwrap(), counts));
    }

    fn told(reports: &mut TrafficReports, counts: &[(u64, u64)]) -> Option<Vec<(Rank, u64, u64)>> {
        later(reports);
        let traffic = reports.due(1, |into| into.extend_from_slice(counts)).unwrap();
        assert!(traffic.over_us == 0 && traffic.sent.is_empty() || traffic.over_us >= 2_000_000);
        (traffic.over_us > 0).then(|| traffic.sent.iter().map(|sent| (sent.peer, sent.bytes, sent.messages)).collect())
    }

    #[test]
    fn nothing_is_read_unless_it_is_wanted_and_due() {
        let mut reports = TrafficReports::default();
        assert_eq!(reports.due(0, |_| panic!()), None);
        reports.begin();
        assert_eq!(reports.due(0, |_| {}), Some(Traffic::default()));
        assert_eq!(reports.due(0, |_| panic!()), None, "a moment later");
    }

    #[test]
    fn differences_are_told() {
        let mut reports = TrafficReports::default();
        reports.begin();
        assert_eq!(told(&mut reports, &[(100, 1)]), None);
        assert_eq!(told(&mut reports, &[(100, 1)]), Some(vec![]));
        // To itself it sends nothing that could go over a network.
        assert_eq!(told(&mut reports, &[(110, 2), (7, 1), (0, 0), (1000, 4)]), Some(vec![(3, 1000, 4), (0, 10, 1)]));
        assert_eq!(told(&mut reports, &[(110, 2), (7, 1), (0, 0), (1000, 4)]), Some(vec![]));
    }

    #[test]
    fn a_rank_that_goes_back_begins_anew() {
        let mut reports = TrafficReports::default();
        reports.begin();
        for (counts, sent) in [
            (&[(500, 5), (0, 0), (9, 1)][..], None),
            // Peers that it has not sent to yet, then less to those that it has.
            (&[(900, 9)], None),
            (&[(950, 10)], Some(vec![(0, 50, 1)])),
            (&[(100, 1)], None),
            (&[(300, 2)], Some(vec![(0, 200, 1)])),
        ] {
            assert_eq!(told(&mut reports, counts), sent);
        }
        reports.begin_anew();
        later(&mut reports);
        assert_eq!(reports.due(1, |_| panic!()), None, "its new daemon has not asked yet");
        reports.begin();
        assert_eq!(told(&mut reports, &[(900, 9)]), None);
    }

    #[test]
    fn those_with_whom_most_is_exchanged_are_told() {
        let mut reports = TrafficReports::default();
        reports.begin();
        assert_eq!(told(&mut reports, &[]), None);
        let counts: Vec<(u64, u64)> = (0..200).map(|peer| (peer * 1000, 1)).collect();
        let sent = told(&mut reports, &counts).unwrap();
        assert_eq!((sent.len(), sent[0], sent[63]), (MOST_PEERS, (199, 199_000, 1), (136, 136_000, 1)));
    }
}
