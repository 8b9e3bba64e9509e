//! When a controller may renew the job's leases: as long as no successor can have the job.
//!
//! ```text
//!                 ┌─ the job's lock is seen to be this controller's ──────────────┐
//! leases renewed ─┤                                                               ├─ within a quarter of the lease
//!                 └─ the lock cannot be seen, and more than half of the nodes ────┘
//!                    confirm the controller: for at most the directory's timeout
//! ```
//! A successor takes the lock of a controller that has it only with the votes of more than half of the nodes, and a node that has voted confirms nobody
//! any more: so not both have a majority. A successor that finds the lock free has no votes. Half of the nodes, once they obey it, confirm nobody else either; with
//! fewer it waits until the controller cannot go by confirmations any more ([`confirmed_us`]).
//!
//! Faults assumed: the job's directory hangs, for all or for the controller alone, whose lock its file server may give up; the controller stands still at any moment, for any
//! time; messages are late or lost.

/// What a controller knows of its own standing. Times are microseconds of a clock of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// When the lock was last seen to be this controller's.
    seen_us: u64,
    /// For each node when it was last asked for a confirmation that it gave.
    confirmed_us: Vec<Option<u64>>,
    /// For how long either is good.
    limit_us: u64,
    /// How long the lock may be out of sight.
    timeout_us: u64,
}

impl Renewal {
    /// The lock is seen now. `limit_us`: for how long that is good; `timeout_us`: for how long confirmations of the job's `nodes` can take its place.
    #[must_use]
    pub fn begin(now_us: u64, nodes: usize, limit_us: u64, timeout_us: u64) -> Self {
        Self { seen_us: now_us, confirmed_us: vec![None; nodes], limit_us, timeout_us }
    }

    /// A look that began at this time has found the lock to be this controller's.
    pub fn seen(&mut self, began_us: u64) {
        self.seen_us = self.seen_us.max(began_us);
    }

    /// A node that was asked at this time has confirmed this controller, or has not.
    pub fn confirmed(&mut self, node: usize, asked_us: u64, yes: bool) {
        if let Some(known) = self.confirmed_us.get_mut(node) {
            *known = yes.then_some(asked_us);
        }
    }

    /// For how long the lock has not been seen, microseconds.
    #[must_use]
    pub fn unseen_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.seen_us)
    }

    /// Whether the nodes are to be asked: before the last look is too old, and as long as their answers count.
    #[must_use]
    pub fn needs_confirmations(&self, now_us: u64) -> bool {
        let unseen_us = self.unseen_us(now_us);
        unseen_us > self.limit_us / 2 && unseen_us < self.timeout_us
    }

    /// Whether leases may be renewed.
    #[must_use]
    pub fn may_renew(&self, now_us: u64) -> bool {
        let unseen_us = self.unseen_us(now_us);
        let confirm = |asked_us: &&Option<u64>| asked_us.is_some_and(|asked_us| now_us.saturating_sub(asked_us) < self.limit_us);
        let confirming = self.confirmed_us.iter().filter(confirm).count();
        unseen_us < self.limit_us || (unseen_us < self.timeout_us && is_majority(confirming, self.confirmed_us.len()))
    }
}

/// More than half.
fn is_majority(some: usize, of: usize) -> bool {
    2 * some > of
}

/// Whether a successor may take the lock of a controller that has it. `votes`: those of the nodes that have answered.
#[must_use]
pub fn may_seize(votes: &[bool], nodes: usize) -> bool {
    votes.iter().all(|vote| *vote) && is_majority(votes.len(), nodes)
}

/// For how long a lost controller may still go by the confirmations of nodes, microseconds, if so many `unknown` of them may give some: those that neither obey a
/// successor, nor have voted for it, nor have left the job. `voted`: the successor took the lock with votes. `timeout_us`: the directory's.
#[must_use]
pub fn confirmed_us(unknown: usize, nodes: usize, voted: bool, timeout_us: u64) -> u64 {
    if !voted && is_majority(unknown, nodes) { timeout_us } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    #[test]
    fn more_than_half_of_the_nodes_take_the_place_of_the_lock() {
        for (nodes, enough) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            let (mut known, now) = (Renewal::begin(0, nodes, LIMIT, 10 * LIMIT), 2 * LIMIT);
            for node in 0..enough {
                assert!(!known.may_renew(now), "{node} of {nodes}");
                known.confirmed(node, now, true);
            }
            assert!(known.may_renew(now + LIMIT - 1) && !known.may_renew(now + LIMIT));
            // One that has voted for a successor since.
            known.confirmed(0, now, false);
            assert!(!known.may_renew(now));
            known.seen(now);
            assert!(known.may_renew(now));
        }
    }

    #[test]
    fn confirmations_count_for_so_long_after_the_last_look() {
        let mut known = Renewal::begin(0, 1, LIMIT, 5 * LIMIT);
        assert!(!known.needs_confirmations(LIMIT / 2) && known.needs_confirmations(LIMIT / 2 + 1));
        known.confirmed(0, 5 * LIMIT - 1, true);
        assert!(known.may_renew(5 * LIMIT - 1) && known.needs_confirmations(5 * LIMIT - 1));
        assert!(!known.may_renew(5 * LIMIT) && !known.needs_confirmations(5 * LIMIT));
        let never = Renewal::begin(0, 1, LIMIT, 0);
        assert!(never.may_renew(LIMIT - 1) && !never.needs_confirmations(LIMIT - 1));
    }

    #[test]
    fn who_has_half_of_the_nodes_waits_for_no_confirmations() {
        assert_eq!((confirmed_us(1, 2, false, 7), confirmed_us(2, 4, false, 7)), (0, 0));
        assert_eq!((confirmed_us(1, 1, false, 7), confirmed_us(2, 3, false, 7)), (7, 7));
        assert_eq!(confirmed_us(2, 3, true, 7), 0);
    }

    #[test]
    fn all_that_answer_and_most_of_all_vote() {
        assert!(may_seize(&[true], 1) && may_seize(&[true, true], 3));
        assert!(!may_seize(&[true], 2) && !may_seize(&[true, true, false], 3) && !may_seize(&[], 0));
    }
}
