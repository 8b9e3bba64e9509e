//! How long to compute between two checkpoints.
//!
//! J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974: √(2δM) for a
//! checkpoint that costs δ and failures every M on average. J. T. Daly, "A higher order estimate of the optimum
//! checkpoint interval for restart dumps", FGCS 22(3), 2006, adds the terms that matter once δ is not small against M.
//! Both assume failures at random moments (a Poisson process); the optimum is flat, so that a wrong M by half costs little.

/// Mean time between failures of a job, seconds, on `nodes` nodes that each fail every `node_mtbf_s` seconds on average: any
/// of them ends it.
#[must_use]
pub fn job_mtbf(node_mtbf_s: f64, nodes: u32) -> f64 {
    node_mtbf_s / f64::from(nodes.max(1))
}

/// Mean time between the failures that a job does not leave in time, seconds: of every hundred, `averted_percent` (below 100) are foreseen, and its
/// ranks have left the node by then. The interval grows with the square root of it (C. Wang, "Transparent Fault Tolerance for Job Healing in HPC
/// Environments", dissertation, NC State 2009, chapter 4).
#[must_use]
pub fn unforeseen_mtbf(mtbf_s: f64, averted_percent: u32) -> f64 {
    mtbf_s * 100.0 / f64::from(100 - averted_percent.min(99))
}

/// Young's interval, seconds of computation between two checkpoints; `cost_s`, `mtbf_s` > 0.
#[must_use]
pub fn young(cost_s: f64, mtbf_s: f64) -> f64 {
    (2.0 * cost_s * mtbf_s).sqrt()
}

/// Daly's interval, seconds of computation between two checkpoints; `cost_s`, `mtbf_s` > 0. `mtbf_s` itself if a
/// checkpoint costs twice that or more.
#[must_use]
pub fn daly(cost_s: f64, mtbf_s: f64) -> f64 {
    if cost_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let ratio = cost_s / (2.0 * mtbf_s);
    young(cost_s, mtbf_s) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost_s
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        // 5 minutes to write, a failure a day: Young 7200 s, Daly 300 s less and a little more.
        assert_eq!(young(300.0, 86_400.0), 7200.0);
        assert!((daly(300.0, 86_400.0) - 7001.4).abs() < 0.1, "{}", daly(300.0, 86_400.0));
        assert_eq!(daly(200.0, 100.0), 100.0);
        assert_eq!((job_mtbf(1000.0, 4), job_mtbf(1000.0, 0)), (250.0, 1000.0));
    }

    #[test]
    fn failures_that_moves_avert_prolong_it() {
        // The dissertation's figures: 455 s without foresight, 831 s where 70 of 100 failures are foreseen.
        let mtbf = 455.0f64.powi(2) / 2.0;
        assert!((young(1.0, mtbf) - 455.0).abs() < 0.1);
        assert!((young(1.0, unforeseen_mtbf(mtbf, 70)) - 831.0).abs() < 0.5);
        assert_eq!((unforeseen_mtbf(mtbf, 0), unforeseen_mtbf(1.0, 200)), (mtbf, 100.0));
    }

    proptest! {
        #[test]
        fn dearer_checkpoints_and_rarer_failures_lengthen_it(cost in 1e-4f64..1e4, mtbf in 1.0f64..1e8, more in 1.0f64..100.0) {
            let here = daly(cost, mtbf);
            prop_assert!(here.is_finite() && here > 0.0);
            // Rarer failures, always; dearer checkpoints, as long as they are cheap against the failures' distance.
            prop_assert!(daly(cost, mtbf * more) >= here * 0.999_999);
            if cost * more < mtbf / 4.0 {
                prop_assert!(daly(cost * more, mtbf) >= here * 0.999_999);
            }
        }

        #[test]
        fn cheap_checkpoints_make_it_youngs(cost in 1e-6f64..1e-2, mtbf in 1e5f64..1e8) {
            let (young, daly) = (young(cost, mtbf), daly(cost, mtbf));
            prop_assert!((daly / young - 1.0).abs() < 0.01, "{daly} {young}");
        }
    }
}
