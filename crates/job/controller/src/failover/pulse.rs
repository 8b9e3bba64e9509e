//! What says that a job is still this controller's: a lease is renewed only if that was lately so ([`mend_coordination::renewal`]).

use crate::detached::lock;
use mend_coordination::renewal::Renewal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Shared by who looks and asks, and by who renews.
#[derive(Clone, Debug)]
pub struct Pulse {
    began: Instant,
    known: Arc<Mutex<Renewal>>,
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Pulse {
    /// The lock is seen now. `limit`: for how long that is good; `timeout`: for how long confirmations of the job's `nodes` can take its place.
    #[must_use]
    pub fn begin(limit: Duration, nodes: usize, timeout: Duration) -> Self {
        Self { began: Instant::now(), known: Arc::new(Mutex::new(Renewal::begin(0, nodes, us(limit), us(timeout)))) }
    }

    fn at(&self, time: Instant) -> u64 {
        us(time.saturating_duration_since(self.began))
    }

    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// The time to send with a word that renews leases, microseconds, if such a word may be sent.
    #[must_use]
    pub fn ping_us(&self) -> Option<u64> {
        // Before the look: whoever stands still in between sends an old time.
        let now_us = self.now();
        self.may_renew().then_some(now_us)
    }

    /// See [`Renewal::seen`].
    pub fn seen(&self, began: Instant) {
        lock(&self.known).seen(self.at(began));
    }

    /// See [`Renewal::confirmed`].
    pub fn confirmed(&self, node: usize, asked: Instant, yes: bool) {
        lock(&self.known).confirmed(node, self.at(asked), yes);
    }

    /// See [`Renewal::needs_confirmations`].
    #[must_use]
    pub fn needs_confirmations(&self) -> bool {
        let known = lock(&self.known);
        known.needs_confirmations(self.now())
    }

    /// For how long the lock has not been seen.
    #[must_use]
    pub fn unseen(&self) -> Duration {
        let known = lock(&self.known);
        Duration::from_micros(known.unseen_us(self.now()))
    }

    /// See [`Renewal::may_renew`].
    #[must_use]
    pub fn may_renew(&self) -> bool {
        let known = lock(&self.known);
        known.may_renew(self.now())
    }
}
