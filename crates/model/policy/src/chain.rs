//! How many incremental checkpoints follow a full one.
//!
//! After N. Naksinehaboon, Y. Liu, C. Leangsuksun, R. Nassar, M. Paun, S. L. Scott, "Reliability-Aware Approach: An
//! Incremental Checkpoint/Restart Model in HPC Environments", CCGRID 2008. With full checkpoints that cost O_F, incremental
//! ones that cost μ·O_F, a failure with probability P between two checkpoints and a restart that takes δ longer for each
//! incremental, one more incremental in place of a full one saves (1 − μ)·O_F and lengthens restarts. Their rule goes on
//! while (m + 1)·P·δ is less than what the next one saves: m ≤ (1 − μ)·O_F / (P·δ) − 1. That weighs each step for
//! itself. The average over a whole cycle of one full and m incremental ones, (1 − μ)·O_F / (m + 1) + P·δ·m / 2 above what
//! incremental ones cost anyway, is least earlier, at m + 1 = √(2·(1 − μ)·O_F / (P·δ)); both agree on whether there is
//! to be any. We take the latter, which the simulation finds near the best.

use crate::interval::daly;

/// What was measured, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// What a full checkpoint costs the job.
    pub full_s: f64,
    /// What an incremental one does.
    pub incremental_s: f64,
    /// How much longer a restart takes for each incremental that it has to read.
    pub extra_recovery_s: f64,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainPlan {
    /// Seconds of computation between two checkpoints.
    pub interval_s: f64,
    /// Incremental checkpoints between two full ones.
    pub incrementals: u32,
}

/// The number of incremental checkpoints between two full ones, at most `limit`, for a failure with `probability` (0 to
/// 1) from one checkpoint to the next.
#[must_use]
pub fn incrementals(costs: &Costs, probability: f64, limit: u32) -> u32 {
    let saved = costs.full_s - costs.incremental_s;
    let risked = probability * costs.extra_recovery_s;
    if saved <= 0.0 {
        return 0;
    }
    if risked <= 0.0 {
        return limit;
    }
    let waste = |m: u32| saved / (f64::from(m) + 1.0) + risked * f64::from(m) / 2.0;
    // The conversion saturates. The best whole number is beside the best real one.
    let below = (((2.0 * saved / risked).sqrt() - 1.0).max(0.0) as u32).min(limit);
    let above = below.saturating_add(1).min(limit);
    if waste(above) < waste(below) { above } else { below }
}

/// Interval and chain together: each depends on the other, by the mean cost and by the risk between two checkpoints.
#[must_use]
pub fn plan(costs: &Costs, mtbf_s: f64, limit: u32) -> ChainPlan {
    let interval_of = |m: u32| daly((costs.full_s + f64::from(m) * costs.incremental_s) / (f64::from(m) + 1.0), mtbf_s);
    let mut best = limit;
    // It settles in a few rounds: a longer chain makes the interval shorter, that the risk smaller, that the chain longer.
    for _ in 0..16 {
        let next = incrementals(costs, failure_probability(interval_of(best), mtbf_s), limit);
        if next == best {
            break;
        }
        best = next;
    }
    ChainPlan { interval_s: interval_of(best), incrementals: best }
}

/// Probability of at least one failure in `seconds`.
#[must_use]
pub fn failure_probability(seconds: f64, mtbf_s: f64) -> f64 {
    -(-seconds / mtbf_s).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn costs(full_s: f64, incremental_s: f64, extra_recovery_s: f64) -> Costs {
        Costs { full_s, incremental_s, extra_recovery_s }
    }

    #[test]
    fn limits() {
        assert_eq!(incrementals(&costs(10.0, 10.0, 1.0), 0.1, 60), 0, "incremental ones save nothing");
        assert_eq!(incrementals(&costs(10.0, 12.0, 1.0), 0.1, 60), 0, "they cost more");
        assert_eq!(incrementals(&costs(10.0, 1.0, 0.0), 0.1, 60), 60, "restarts don't suffer");
        assert_eq!(incrementals(&costs(10.0, 1.0, 1.0), 0.0, 60), 60, "nothing ever fails");
        assert_eq!(incrementals(&costs(10.0, 1.0, 1.0), 1e-12, 60), 60);
        assert_eq!(incrementals(&costs(10.0, 9.0, 10.0), 1.0, 60), 0, "restarts suffer more than is saved");
        assert_eq!(incrementals(&costs(10.0, 1.0, 1.0), 0.18, 60), 9, "sqrt(2 * 9 / 0.18) - 1");
        assert_eq!(plan(&costs(10.0, 10.0, 1.0), 1e5, 60), ChainPlan { interval_s: daly(10.0, 1e5), incrementals: 0 });
    }

    proptest! {
        #[test]
        fn it_is_the_best_of_all_and_within_the_papers_bound(
            full in 0.01f64..100.0, ratio in 0.0f64..1.2, extra in 1e-3f64..10.0, probability in 1e-6f64..1.0,
        ) {
            let costs = costs(full, full * ratio, extra);
            let chosen = incrementals(&costs, probability, 63);
            let waste = |m: u32| (costs.full_s - costs.incremental_s) / (f64::from(m) + 1.0) + probability * extra * f64::from(m) / 2.0;
            let least = (0..=63).map(waste).fold(f64::INFINITY, f64::min);
            if ratio < 1.0 {
                prop_assert!(waste(chosen) <= least * (1.0 + 1e-9));
            }
            let bound = ((1.0 - ratio) * full / (probability * extra) - 1.0).max(0.0).ceil();
            prop_assert!(f64::from(chosen) <= bound, "{chosen} > {bound}");
        }

        #[test]
        fn dearer_full_ones_lengthen_it_and_dearer_restarts_shorten_it(
            full in 0.1f64..100.0, ratio in 0.0f64..1.0, extra in 1e-3f64..10.0, probability in 1e-6f64..1.0, more in 1.0f64..10.0,
        ) {
            let of = |full: f64, extra, probability| incrementals(&costs(full, ratio * 0.1, extra), probability, 63);
            let here = of(full, extra, probability);
            prop_assert!(of(full * more, extra, probability) >= here);
            prop_assert!(of(full, extra * more, probability) <= here);
            prop_assert!(of(full, extra, (probability * more).min(1.0)) <= here);
        }

        #[test]
        fn a_plan_is_sound(full in 1e-3f64..1e3, ratio in 0.0f64..1.2, extra in 0.0f64..100.0, mtbf in 10.0f64..1e8, limit in 0u32..63) {
            let plan = plan(&costs(full, full * ratio, extra), mtbf, limit);
            prop_assert!(plan.interval_s.is_finite() && plan.interval_s > 0.0 && plan.incrementals <= limit);
        }
    }
}
