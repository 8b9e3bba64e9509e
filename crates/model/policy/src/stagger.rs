//! Which checkpoints are copied to which tier: all of them to the near ones, every n-th to those that only rare failures need.
//!
//! A copy costs the job time while it is made. It pays by what a failure would lose that only this tier, or one farther away, outlives. So each tier has an interval of its own, by the
//! cost of a copy there and the rate of such failures, as multilevel checkpointing has it (A. Moody, G. Bronevetsky, K. Mohror, B. R. de Supinski, "Design, Modeling, and
//! Evaluation of a Scalable Multi-level Checkpointing System", SC 2010), in whole multiples of the interval between checkpoints. To first order both add up as in
//! J. W. Young's approximation: a copy of `c` seconds at every `m`th checkpoint, `t` seconds apart, and failures every `M` seconds cost `c / (m t) + m t / (2 M)` of the time.
//!
//! Invariants: the first tier, which ranks write to, has each checkpoint; no tier has more of them than one that is nearer; a tier whose copies were not measured yet has
//! all.

use serde::{Deserialize, Serialize};

/// A farther tier gets one of so many checkpoints at least, however dear a copy is.
pub const MAX_EVERY: u32 = 64;
/// What copying behind a running program costs it, as a share of the time that takes: processors, memory, the network, shared disks.
const COPY_COST_SHARE: f64 = 0.1;

/// What a copy in a tier outlives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reach {
    /// The end of processes, not of their node.
    Processes,
    /// The loss of a node.
    OneNode,
    /// The loss of any number of nodes.
    AnyNodes,
}

/// What is known of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownTier {
    /// What a copy there outlives.
    pub reach: Reach,
    /// How long it takes to copy a checkpoint there, seconds; `None`: not measured yet.
    pub copy_s: Option<f64>,
}

/// How the job's failures are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failures {
    /// Mean time between two, seconds; above 0.
    pub mtbf_s: f64,
    /// Of a hundred those that take several nodes at once, 0 to 100.
    pub wide_percent: u32,
}

/// What was decided for a tier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stagger {
    /// It gets every n-th checkpoint, 1 to [`MAX_EVERY`].
    pub every: u32,
    /// Mean time between two failures that need it, seconds; `None`: there are none, or a nearer tier outlives as much.
    pub needed_s: Option<f64>,
}

impl Failures {
    /// Mean time between two that a tier of this reach does not outlive, seconds; `None`: there are none.
    fn beyond(&self, reach: Option<Reach>) -> Option<f64> {
        match reach {
            None | Some(Reach::Processes) => Some(self.mtbf_s),
            Some(Reach::OneNode) if self.wide_percent > 0 => Some(self.mtbf_s * 100.0 / f64::from(self.wide_percent.min(100))),
            Some(Reach::OneNode | Reach::AnyNodes) => None,
        }
    }
}

/// Share of the time that copies at every `every`th checkpoint and failures cost.
fn loss(every: u32, cost_s: f64, interval_s: f64, mtbf_s: f64) -> f64 {
    let between_s = f64::from(every) * interval_s;
    cost_s / between_s + between_s / (2.0 * mtbf_s)
}

/// The whole multiple that costs least.
fn best(cost_s: f64, interval_s: f64, mtbf_s: f64) -> u32 {
    let exact = crate::interval::young(cost_s, mtbf_s) / interval_s;
    // The conversion saturates. The loss is convex: the best is beside the exact one.
    let below = (exact as u32).clamp(1, MAX_EVERY);
    let above = (below + 1).min(MAX_EVERY);
    let of = |every| loss(every, cost_s, interval_s, mtbf_s);
    if of(above) < of(below) { above } else { below }
}

/// Which checkpoints go to which of the tiers, nearest first. `interval_s`, above 0: from one checkpoint to the next.
#[must_use]
pub fn stagger(tiers: &[KnownTier], interval_s: f64, failures: Failures) -> Vec<Stagger> {
    let mut decided: Vec<Stagger> = Vec::new();
    let mut nearer: Option<Reach> = None;
    for tier in tiers {
        let before = decided.last().map_or(1, |stagger| stagger.every);
        let adds = nearer.is_none_or(|nearer| tier.reach > nearer);
        let needed_s = failures.beyond(nearer).filter(|_| adds);
        let every = match (needed_s, tier.copy_s) {
            // Ranks write there.
            _ if nearer.is_none() => 1,
            (Some(mtbf_s), Some(copy_s)) => best(copy_s * COPY_COST_SHARE, interval_s, mtbf_s).max(before),
            // No failure needs it that is reckoned with.
            (None, Some(_)) if adds => MAX_EVERY,
            (_, None) | (None, Some(_)) => before,
        };
        decided.push(Stagger { every, needed_s });
        nearer = nearer.max(Some(tier.reach));
    }
    decided
}

/// Whether a multiple takes the place of another one: what is measured goes up and down a little.
#[must_use]
pub fn differs(known: u32, found: u32) -> bool {
    known.abs_diff(found) > known / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Reach; 3] = [Reach::Processes, Reach::OneNode, Reach::AnyNodes];

    fn tiers(copies: &[Option<f64>]) -> Vec<KnownTier> {
        ALL.into_iter().zip(copies).map(|(reach, copy_s)| KnownTier { reach, copy_s: *copy_s }).collect()
    }

    fn every(tiers: &[KnownTier], interval_s: f64, failures: Failures) -> Vec<u32> {
        stagger(tiers, interval_s, failures).iter().map(|one| one.every).collect()
    }

    #[test]
    fn known_values() {
        let failures = Failures { mtbf_s: 43_200.0, wide_percent: 15 };
        // A checkpoint every minute, a failure each half day: a partner is copied to in 5 s, a shared file system in 10 minutes.
        let known = tiers(&[None, Some(5.0), Some(600.0)]);
        let found = stagger(&known, 60.0, failures);
        assert_eq!(found[0], Stagger { every: 1, needed_s: Some(43_200.0) });
        assert_eq!((found[1].every, found[2].every), (3, 64));
        assert_eq!((found[1].needed_s, found[2].needed_s), (Some(43_200.0), Some(288_000.0)));
        assert_eq!(every(&known, 600.0, failures), [1, 1, 10]);
        // Were all failures wide, it would be needed as often as the partner.
        assert_eq!(every(&known, 600.0, Failures { wide_percent: 100, ..failures }), [1, 1, 4]);
        // Were none, never; and nothing is known of what was not measured.
        assert_eq!(every(&known, 600.0, Failures { wide_percent: 0, ..failures }), [1, 1, 64]);
        assert_eq!(every(&tiers(&[None, None, None]), 600.0, failures), [1, 1, 1]);
    }

    #[test]
    fn a_tier_that_outlives_no_more_than_a_nearer_one_gets_as_much() {
        let failures = Failures { mtbf_s: 43_200.0, wide_percent: 15 };
        let tier = |reach, copy_s| KnownTier { reach, copy_s: Some(copy_s) };
        let known = [tier(Reach::Processes, 1.0), tier(Reach::Processes, 1e4), tier(Reach::AnyNodes, 600.0), tier(Reach::AnyNodes, 1.0)];
        // Nothing is between processes and all nodes: each failure needs it.
        assert_eq!(every(&known, 600.0, failures), [1, 1, 4, 4]);
        assert_eq!(every(&[tier(Reach::AnyNodes, 600.0)], 1.0, failures), [1]);
    }

    #[test]
    fn small_changes_change_nothing() {
        assert!(!differs(8, 10) && differs(8, 11) && differs(1, 2) && !differs(3, 3));
    }

    proptest! {
        #[test]
        fn no_other_multiple_costs_less(copy_s in 1e-3f64..1e4, interval_s in 1.0f64..1e4, mtbf_s in 1e3f64..1e8) {
            let cost_s = copy_s * COPY_COST_SHARE;
            let chosen = loss(best(cost_s, interval_s, mtbf_s), cost_s, interval_s, mtbf_s);
            for every in 1..=MAX_EVERY {
                prop_assert!(chosen <= loss(every, cost_s, interval_s, mtbf_s) * 1.000_001, "{every}");
            }
        }

        #[test]
        fn farther_tiers_never_get_more(near in 1e-3f64..1e4, far in 1e-3f64..1e4, interval_s in 1.0f64..1e4, mtbf_s in 1e3f64..1e8, wide_percent in 0u32..=100) {
            let found = every(&tiers(&[None, Some(near), Some(far)]), interval_s, Failures { mtbf_s, wide_percent });
            prop_assert!(found[0] == 1 && found[0] <= found[1] && found[1] <= found[2] && found[2] <= MAX_EVERY);
            let dearer = every(&tiers(&[None, Some(near), Some(far * 4.0)]), interval_s, Failures { mtbf_s, wide_percent });
            prop_assert!(dearer[2] >= found[2]);
        }
    }
}
