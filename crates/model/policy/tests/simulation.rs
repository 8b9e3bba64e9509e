//! A job in fast motion, with seeded failures: the interval and the chain that the policy chooses do about as well as the
//! best of a grid. Every choice sees the same failures.

use mend_policy::chain::{Costs, plan};
use mend_policy::restarts::{Restart, Restarts};
use mend_policy::schedule::{CheckpointKind, Incremental, Interval, Rules, Schedule, Taken};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;

/// Time to the next failure.
fn failure(random: &mut ChaCha8Rng, mtbf_s: f64) -> f64 {
    -mtbf_s * (1.0 - random.random::<f64>()).ln()
}

/// What happens to a job.
#[derive(Clone, Copy)]
struct Job {
    work_s: f64,
    costs: Costs,
    /// Of a restart from a full checkpoint.
    restart_s: f64,
    mtbf_s: f64,
    seed: u64,
}

/// Seconds until the work is done. `next` says how long to compute and whether the checkpoint after that builds on the
/// last one; `taken` hears of each, and `restarted` of each restart that came about, with the incrementals that it read.
fn run(
    job: &Job,
    mut next: impl FnMut(f64, u32) -> (f64, bool),
    mut taken: impl FnMut(f64, f64, bool, u32),
    mut restarted: impl FnMut(u32),
) -> f64 {
    let Job { work_s, costs, restart_s, mtbf_s, seed } = *job;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut now, mut done, mut chain, mut any) = (0.0, 0.0, 0u32, false);
    let mut fails = failure(&mut random, mtbf_s);
    while done < work_s {
        let (compute, builds) = next(now, chain);
        let compute = compute.min(work_s - done);
        let builds = builds && any;
        let cost = if builds { costs.incremental_s } else { costs.full_s };
        let end = now + compute + cost;
        if fails >= end {
            (chain, any) = (if builds { chain + 1 } else { 0 }, true);
            (now, done) = (end, done + compute);
            taken(end - cost, end, builds, chain);
            continue;
        }
        now = fails;
        loop {
            let restart = restart_s + costs.extra_recovery_s * f64::from(chain);
            fails = now + failure(&mut random, mtbf_s);
            now = fails.min(now + restart);
            if now < fails {
                restarted(chain);
                break;
            }
        }
    }
    now
}

fn fixed(job: &Job, interval_s: f64, incrementals: u32) -> f64 {
    run(job, |_, chain| (interval_s, chain < incrementals), |_, _, _, _| {}, |_| {})
}

/// One that is long enough to fail 1500 times.
fn long_job(costs: Costs, mtbf_s: f64, seed: u64) -> Job {
    Job { work_s: 1500.0 * mtbf_s, costs, restart_s: 2.0 * costs.full_s, mtbf_s, seed }
}

const CASES: [(Costs, f64); 5] = [
    // A small job with rare failures, a large one, one that fails all the time, one whose restarts suffer much, and one
    // whose incremental checkpoints save little.
    (Costs { full_s: 10.0, incremental_s: 1.0, extra_recovery_s: 1.0 }, 1e6),
    (Costs { full_s: 60.0, incremental_s: 10.0, extra_recovery_s: 8.0 }, 2e4),
    (Costs { full_s: 20.0, incremental_s: 5.0, extra_recovery_s: 5.0 }, 600.0),
    (Costs { full_s: 20.0, incremental_s: 10.0, extra_recovery_s: 40.0 }, 5e3),
    (Costs { full_s: 30.0, incremental_s: 28.0, extra_recovery_s: 25.0 }, 1e4),
];

#[test]
fn the_chosen_interval_and_chain_are_near_the_best_of_a_grid() {
    for (at, (costs, mtbf_s)) in CASES.iter().enumerate() {
        let job = long_job(*costs, *mtbf_s, 11 + at as u64);
        let chosen = plan(costs, *mtbf_s, 31);
        let time = |interval_s: f64, incrementals| fixed(&job, interval_s, incrementals);
        let ours = time(chosen.interval_s, chosen.incrementals);
        let mut best = (f64::INFINITY, 0.0, 0);
        for step in -8i32..=8 {
            let interval_s = chosen.interval_s * 1.25f64.powi(step);
            for incrementals in [0, 1, 2, 3, 5, 8, 12, 18, 25, 31] {
                let took = time(interval_s, incrementals);
                if took < best.0 {
                    best = (took, interval_s, incrementals);
                }
            }
        }
        // What is lost beyond the work itself, and the whole.
        let (lost, least) = (ours - job.work_s, best.0 - job.work_s);
        assert!(ours <= best.0 * 1.02 && lost <= least * 1.1, "case {at}: {chosen:?} takes {ours}, best {best:?}");
    }
}

#[test]
fn a_schedule_that_has_to_learn_its_costs_does_as_well() {
    for (at, (costs, mtbf_s)) in CASES.iter().enumerate() {
        let job = long_job(*costs, *mtbf_s, 11 + at as u64);
        let rules = Rules {
            interval: Interval::Auto,
            incremental: Incremental::Auto,
            node_mtbf_s: (mtbf_s * 8.0) as u64,
            averted_percent: 0,
            nodes: 8,
            space_percent: None,
        };
        let schedule = RefCell::new(Schedule::new(rules, 0));
        let us = |seconds: f64| (seconds * 1e6) as u64;
        let next = |_, _| {
            let schedule = schedule.borrow();
            (schedule.interval_s().unwrap(), schedule.builds())
        };
        let taken = |begun: f64, ended: f64, builds, chain| {
            let (begun_us, ended_us) = (us(begun), us(ended));
            let (kind, bytes) =
                if builds { (CheckpointKind::Incremental, us(costs.extra_recovery_s)) } else { (CheckpointKind::Full, us(costs.full_s)) };
            let stopped_us = ended_us - begun_us;
            schedule.borrow_mut().taken(&Taken { begun_us, ended_us, stopped_us, write_us: stopped_us, bytes, kind, chain });
        };
        let ours = run(&job, next, taken, |_| {});
        let planned = plan(costs, *mtbf_s, 31);
        let known = fixed(&job, planned.interval_s, planned.incrementals);
        assert!(ours <= known * 1.02, "case {at}: {ours} against {known}");
    }
}

/// The time that a schedule needs which takes images to be read as fast as they are written, and, if it `learns`, hears what
/// restarts took. They read `slower` times as slowly.
fn scheduled(job: &Job, slower: f64, learns: bool) -> f64 {
    let rules = Rules {
        interval: Interval::Auto,
        incremental: Incremental::Auto,
        node_mtbf_s: (job.mtbf_s * 8.0) as u64,
        averted_percent: 0,
        nodes: 8,
        space_percent: None,
    };
    // A byte is written in a microsecond.
    let us = |seconds: f64| (seconds * 1e6) as u64;
    let (full, incremental) = (us(job.costs.full_s), us(job.costs.incremental_s));
    let schedule = RefCell::new(Schedule::new(rules, 0));
    let next = |_, _| {
        let schedule = schedule.borrow();
        (schedule.interval_s().unwrap(), schedule.builds())
    };
    let taken = |begun: f64, ended: f64, builds, chain| {
        let (kind, bytes) = if builds { (CheckpointKind::Incremental, incremental) } else { (CheckpointKind::Full, full) };
        let (begun_us, ended_us, stopped_us) = (us(begun), us(ended), us(ended) - us(begun));
        schedule.borrow_mut().taken(&Taken { begun_us, ended_us, stopped_us, write_us: stopped_us, bytes, kind, chain });
    };
    let mut restarts = Restarts::default();
    let restarted = |chain: u32| {
        let incremental = incremental * u64::from(chain);
        restarts.add(Restart { read_us: ((full + incremental) as f64 * slower) as u64, full, incremental });
        if learns {
            schedule.borrow_mut().restarted(&restarts);
        }
    };
    run(job, next, taken, restarted)
}

#[test]
fn a_schedule_that_hears_what_restarts_took_does_as_well_as_one_that_knows_and_better_than_by_its_estimate() {
    // Cost of full and incremental ones, mean time between failures, how much slower images are read than written (from another
    // node, or with a check before), and how much of what is lost beyond the work hearing of it saves at least.
    let cases = [(20.0, 10.0, 5e3, 8.0, 0.1), (60.0, 20.0, 2e4, 10.0, 0.1), (10.0, 2.0, 600.0, 6.0, 0.1), (10.0, 1.0, 1e5, 1.0, 0.0)];
    for (at, (full_s, incremental_s, mtbf_s, slower, saves)) in cases.into_iter().enumerate() {
        let costs = Costs { full_s, incremental_s, extra_recovery_s: slower * incremental_s };
        let job = Job { restart_s: slower * full_s, ..long_job(costs, mtbf_s, 31 + at as u64) };
        let planned = plan(&costs, mtbf_s, 31);
        let known = fixed(&job, planned.interval_s, planned.incrementals);
        let [measured, estimated] = [true, false].map(|learns| scheduled(&job, slower, learns));
        assert!(measured <= known * 1.005, "case {at}: {measured} against {known}");
        let [lost, by_estimate] = [measured, estimated].map(|took| took - job.work_s);
        assert!(lost <= by_estimate * (1.0 - saves), "case {at}: {lost} against {by_estimate}");
    }
}
