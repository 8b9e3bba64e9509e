//! Who exchanges how much with whom over MPI, and where those ranks are: what their agents told, put together for whoever weighs where ranks belong.
//!
//! Each rank tells what it sent, every two seconds. What two ranks exchange is what either sent the other. What a rank sends belongs to the rank, wherever it runs: a
//! move changes its node alone. A rank that tells nothing for long has ended, or stands still, and nothing is known of it.
//!
//! Faults assumed: readings that are lost, late, or of a process that is gone.

use mend_messages::job::Rank;
use mend_messages::progress::{RankTraffic, Traffic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// After so many seconds without a word nothing is known of a rank.
const FORGOTTEN_S: f64 = 30.0;

/// What ranks of a node told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeTraffic {
    /// The node, by name.
    pub node: String,
    /// Its ranks.
    pub ranks: Vec<RankTraffic>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    node: String,
    /// Bytes per second to each rank, a message weighing as in `mend_messages::progress::Sent`; `None`: nothing is known yet.
    rates: Option<BTreeMap<Rank, f64>>,
    /// What was told since the last look: microseconds, and bytes in them.
    fresh_us: u64,
    fresh: BTreeMap<Rank, u64>,
    /// Since it told something, at the last look.
    silent_s: f64,
}

impl Known {
    fn add(&mut self, traffic: &Traffic) {
        // A process tells nothing of what was before its first reading.
        if traffic.over_us == 0 {
            return;
        }
        self.fresh_us = self.fresh_us.saturating_add(traffic.over_us);
        for sent in &traffic.sent {
            let bytes = self.fresh.entry(sent.peer).or_default();
            *bytes = bytes.saturating_add(sent.weight());
        }
    }

    fn settle(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        let us = std::mem::take(&mut self.fresh_us);
        if us > 0 {
            self.rates = Some(fresh.into_iter().map(|(peer, bytes)| (peer, bytes as f64 * 1e6 / us as f64)).collect());
        }
    }
}

/// What is known of all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchanges {
    ranks: BTreeMap<Rank, Known>,
}

impl Exchanges {
    /// Ranks of a node tell.
    pub fn note(&mut self, told: NodeTraffic) {
        for RankTraffic { rank, traffic, .. } in told.ranks {
            let known = self.ranks.entry(rank).or_default();
            known.node.clone_from(&told.node);
            known.silent_s = 0.0;
            known.add(&traffic);
        }
    }

    /// From now on, what was told since this was called last counts, each rank's in the mean; that is so many seconds ago.
    pub fn settle(&mut self, seconds: f64) {
        self.ranks.retain(|_, known| {
            known.settle();
            known.silent_s += seconds;
            known.silent_s <= FORGOTTEN_S + seconds
        });
    }

    /// Where a rank is, as it told last; `None`: it told nothing.
    #[must_use]
    pub fn node_of(&self, rank: Rank) -> Option<&str> {
        self.ranks.get(&rank).map(|known| known.node.as_str())
    }

    /// Ranks of which anything was told.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        self.ranks.keys().copied()
    }

    /// Whether it is known to whom a rank sends.
    #[must_use]
    pub fn is_known(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_some_and(|known| known.rates.is_some())
    }

    /// Bytes per second that two ranks exchange, once for each pair that exchanges anything.
    #[must_use]
    pub fn pairs(&self) -> BTreeMap<(Rank, Rank), f64> {
        let mut pairs = BTreeMap::new();
        for (rank, known) in &self.ranks {
            for (peer, rate) in known.rates.iter().flatten().filter(|(peer, _)| *peer != rank) {
                *pairs.entry((*rank.min(peer), *rank.max(peer))).or_default() += rate;
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::progress::Sent;

    fn told(node: &str, rank: Rank, over_us: u64, sent: &[(Rank, u64)]) -> NodeTraffic {
        let sent = sent.iter().map(|(peer, bytes)| Sent { peer: *peer, bytes: *bytes, messages: 0 }).collect();
        NodeTraffic { node: node.into(), ranks: vec![RankTraffic { rank, attempt: 1, traffic: Traffic { over_us, sent } }] }
    }

    #[test]
    fn a_pair_exchanges_what_either_sends() {
        let mut all = Exchanges::default();
        all.note(told("a", 0, 2_000_000, &[(1, 1000), (2, 10)]));
        all.note(told("b", 1, 2_000_000, &[(0, 3000)]));
        assert!(!all.is_known(0) && all.pairs().is_empty());
        all.settle(2.0);
        assert_eq!(all.pairs(), BTreeMap::from([((0, 1), 2000.0), ((0, 2), 5.0)]));
        assert!(all.is_known(0) && !all.is_known(2));
        // Two readings count in the mean; who tells nothing sends as before.
        all.note(told("a", 0, 1_000_000, &[(1, 1000)]));
        all.note(told("a", 0, 3_000_000, &[]));
        all.settle(2.0);
        assert_eq!(all.pairs(), BTreeMap::from([((0, 1), 1750.0)]));
    }

    #[test]
    fn what_a_rank_sends_goes_with_it() {
        let mut all = Exchanges::default();
        all.note(told("a", 3, 1_000_000, &[(1, 500)]));
        all.settle(2.0);
        // Its process on the other node says that it is there, and has no reading yet.
        all.note(told("b", 3, 0, &[]));
        all.settle(2.0);
        assert_eq!((all.node_of(3), all.pairs()), (Some("b"), BTreeMap::from([((1, 3), 500.0)])));
        all.note(told("b", 3, 1_000_000, &[]));
        all.settle(2.0);
        assert!(all.pairs().is_empty() && all.is_known(3));
        for _ in 0..14 {
            all.settle(2.0);
        }
        assert!(all.is_known(3));
        all.settle(2.0);
        all.settle(2.0);
        assert_eq!((all.node_of(3), all.ranks().count()), (None, 0), "it has ended");
    }

    #[test]
    fn messages_weigh_more_than_what_is_in_them() {
        let sent = vec![Sent { peer: 1, bytes: 8, messages: 1000 }];
        let ranks = vec![RankTraffic { rank: 0, attempt: 1, traffic: Traffic { over_us: 1_000_000, sent } }];
        let mut all = Exchanges::default();
        all.note(NodeTraffic { node: "a".into(), ranks });
        all.settle(2.0);
        assert!(all.pairs()[&(0, 1)] > 1000.0 * 1024.0);
    }
}
