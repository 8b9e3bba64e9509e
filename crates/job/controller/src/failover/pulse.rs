//! What says that a job is still this controller's: a lease is renewed only if that was lately so ([`mend_coordination::renewal`]).

use crate::detached::lock;
use mend_coordination::renewal::Renewal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Known {
    renewal: Renewal,
    /// For each node when its lease was last renewed beside its messages.
    renewed: Vec<Option<Instant>>,
    /// Nodes that are lost: their leases are not renewed any more.
    lost: Vec<bool>,
}

/// Shared by who looks and asks, and by who renews.
#[derive(Clone, Debug)]
pub struct Pulse {
    began: Instant,
    known: Arc<Mutex<Known>>,
}

/// What a node's link has of it.
#[derive(Clone, Debug)]
pub struct NodePulse {
    pulse: Pulse,
    node: usize,
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Pulse {
    /// The lock is seen now. `limit`: for how long that is good; `timeout`: for how long confirmations of the job's `nodes` can take its place.
    #[must_use]
    pub fn begin(limit: Duration, nodes: usize, timeout: Duration) -> Self {
        let renewal = Renewal::begin(0, nodes, us(limit), us(timeout));
        let known = Known { renewal, renewed: vec![None; nodes], lost: vec![false; nodes] };
        Self { began: Instant::now(), known: Arc::new(Mutex::new(known)) }
    }

    /// That of a node's link.
    #[must_use]
    pub fn of(&self, node: usize) -> NodePulse {
        NodePulse { pulse: self.clone(), node }
    }

    fn at(&self, time: Instant) -> u64 {
        us(time.saturating_duration_since(self.began))
    }

    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// See [`Renewal::seen`].
    pub fn seen(&self, began: Instant) {
        lock(&self.known).renewal.seen(self.at(began));
    }

    /// See [`Renewal::confirmed`].
    pub fn confirmed(&self, node: usize, asked: Instant, yes: bool) {
        lock(&self.known).renewal.confirmed(node, self.at(asked), yes);
    }

    /// See [`Renewal::needs_confirmations`].
    #[must_use]
    pub fn needs_confirmations(&self) -> bool {
        let known = lock(&self.known);
        known.renewal.needs_confirmations(self.now())
    }

    /// For how long the lock has not been seen.
    #[must_use]
    pub fn unseen(&self) -> Duration {
        let known = lock(&self.known);
        Duration::from_micros(known.renewal.unseen_us(self.now()))
    }

    /// See [`Renewal::may_renew`].
    #[must_use]
    pub fn may_renew(&self) -> bool {
        let known = lock(&self.known);
        known.renewal.may_renew(self.now())
    }

    /// The time to send to a node with a word that renews its lease beside its messages, microseconds, if such a word may be sent.
    #[must_use]
    pub fn renew_us(&self, node: usize) -> Option<u64> {
        // Before the look: whoever stands still in between sends an old time.
        let now = Instant::now();
        let mut known = lock(&self.known);
        if known.lost[node] || !known.renewal.may_renew(self.now()) {
            return None;
        }
        known.renewed[node] = Some(now);
        Some(self.at(now))
    }
}

impl NodePulse {
    /// The time to send with a ping, microseconds, if one may be sent.
    #[must_use]
    pub fn ping_us(&self) -> Option<u64> {
        let now_us = self.pulse.now();
        self.pulse.may_renew().then_some(now_us)
    }

    /// The node is lost. Returns when its lease was last renewed beside its messages, if it was: it is not from now on.
    pub fn give_up(&self) -> Option<Instant> {
        let mut known = lock(&self.pulse.known);
        known.lost[self.node] = true;
        known.renewed[self.node]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_of_a_lost_node_is_not_renewed_by_anybody() {
        let pulse = Pulse::begin(Duration::from_secs(60), 2, Duration::ZERO);
        let before = Instant::now();
        assert!(pulse.renew_us(1).is_some() && pulse.of(0).give_up().is_none());
        assert!(pulse.of(1).give_up().is_some_and(|last| last >= before));
        assert_eq!((pulse.renew_us(0), pulse.renew_us(1)), (None, None));
    }
}
