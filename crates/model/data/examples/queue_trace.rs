//! What second copies cost that follow the queue: a generated trace of jobs is replayed through [`mend_data::space::window::urgent`], and compared with copies of all
//! staged files for as long as they are staged.
//!
//! ```text
//! cargo run --release -p mend-data --example queue_trace [SEED]      a line of JSON
//! ```
//! 128 nodes. Jobs come one by one (exponential times between them), ask for 1, 2, 4, … 64 nodes (each as likely), run for 5 minutes to 12 hours and read 1 to 200 GiB
//! (both log-uniform). Data is staged when a job is submitted, and goes when it ends, or a week later. Jobs start in their order; one that can end before the first one in line could
//! start goes before it (EASY backfilling, with true run times). A copy is made with 1 GiB a second. The policy is asked when a job comes, starts or ends.

use mend_data::space::window::{Job, Rules, urgent};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const NODES: u64 = 128;
const JOBS: usize = 5000;
/// How many seconds it has.
const WEEK: f64 = 7.0 * 86_400.0;
/// How many bytes are copied in a second.
const COPYING: f64 = (1_u64 << 30) as f64;

struct Submitted {
    comes: f64,
    nodes: u64,
    runs_for: f64,
    bytes: f64,
}

/// Numbers from 0 to 1, the same for a seed everywhere.
struct Drawn(u64, u64);

impl Drawn {
    fn next(&mut self) -> f64 {
        self.1 += 1;
        (xxh3_64_with_seed(&self.1.to_le_bytes(), self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn log_uniform(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.next())
    }
}

/// Jobs that together ask for this share of the system.
fn trace(load: f64, seed: u64) -> Vec<Submitted> {
    let mut drawn = Drawn(seed, 0);
    let mut jobs: Vec<Submitted> = (0..JOBS)
        .map(|_| Submitted {
            comes: -(1.0 - drawn.next()).ln(),
            nodes: 1 << (drawn.next() * 7.0) as u32,
            runs_for: drawn.log_uniform(300.0, 12.0 * 3600.0),
            bytes: drawn.log_uniform(1.0, 200.0) * (1_u64 << 30) as f64,
        })
        .collect();
    let work: f64 = jobs.iter().map(|job| job.nodes as f64 * job.runs_for).sum();
    let pause = work / (load * NODES as f64) / JOBS as f64;
    let mut now = 0.0;
    for job in &mut jobs {
        now += job.comes * pause;
        job.comes = now;
    }
    jobs
}

/// Which of the waiting jobs start now, with what is free.
fn starting(jobs: &[Submitted], running: &[(f64, usize)], waiting: &[usize], now: f64) -> Vec<usize> {
    let mut free = NODES - running.iter().map(|(_, job)| jobs[*job].nodes).sum::<u64>();
    let mut start = Vec::new();
    let mut line = waiting.iter().copied();
    let mut first = None;
    for job in line.by_ref() {
        if jobs[job].nodes > free {
            first = Some(job);
            break;
        }
        free -= jobs[job].nodes;
        start.push(job);
    }
    let Some(first) = first else { return start };
    // When the first one in line can start, and what it leaves free then.
    let mut ends: Vec<(f64, u64)> = running.iter().map(|(ends, job)| (*ends, jobs[*job].nodes)).collect();
    ends.extend(start.iter().map(|job| (now + jobs[*job].runs_for, jobs[*job].nodes)));
    ends.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut at, mut then) = (now, free);
    for (ends, nodes) in ends {
        if then >= jobs[first].nodes {
            break;
        }
        (at, then) = (ends, then + nodes);
    }
    let mut spare = then.saturating_sub(jobs[first].nodes);
    for job in line {
        let nodes = jobs[job].nodes;
        let ends_before = now + jobs[job].runs_for <= at;
        if nodes <= free && (ends_before || nodes <= spare) {
            free -= nodes;
            spare -= if ends_before { 0 } else { nodes };
            start.push(job);
        }
    }
    start
}

/// What was measured. Room is in byte seconds.
#[derive(Default)]
struct Cost {
    /// Of second copies.
    copies: f64,
    /// Of files, until their jobs end.
    staged: f64,
    /// Jobs that waited for longer than copying takes, and those of them whose copy was there when they started.
    waited: usize,
    ready: usize,
    /// Jobs that wait, on average, and those of them that have a copy.
    line: f64,
    window: f64,
    /// How long the trace is.
    seconds: f64,
}

fn replay(jobs: &[Submitted], rules: &Rules) -> Cost {
    let mut cost = Cost::default();
    let (mut now, mut next) = (0.0, 0);
    let mut running: Vec<(f64, usize)> = Vec::new();
    let mut waiting: Vec<usize> = Vec::new();
    // Since when jobs have a copy.
    let mut copied: HashMap<usize, f64> = HashMap::new();
    while next < jobs.len() || !running.is_empty() {
        let ends = running.iter().map(|(ends, _)| *ends).fold(f64::INFINITY, f64::min);
        let comes = jobs.get(next).map_or(f64::INFINITY, |job| job.comes);
        let then = ends.min(comes);
        let took = then - now;
        for job in waiting.iter().chain(running.iter().map(|(_, job)| job)) {
            cost.staged += jobs[*job].bytes * took;
            cost.copies += copied.get(job).map_or(0.0, |_| jobs[*job].bytes * took);
        }
        cost.line += waiting.len() as f64 * took;
        cost.window += copied.len().saturating_sub(running.len()) as f64 * took;
        now = then;
        if ends <= comes {
            running.retain(|(ends, job)| {
                let over = *ends <= now;
                if over {
                    copied.remove(job);
                }
                !over
            });
        } else {
            waiting.push(next);
            next += 1;
        }
        for job in starting(jobs, &running, &waiting, now) {
            waiting.retain(|other| *other != job);
            running.push((now + jobs[job].runs_for, job));
            let takes = jobs[job].bytes / COPYING;
            if jobs[job].comes + takes <= now {
                cost.waited += 1;
                cost.ready += usize::from(copied.get(&job).is_some_and(|since| since + takes <= now));
            }
        }
        let line: Vec<usize> = running.iter().map(|(_, job)| *job).chain(waiting.iter().copied()).collect();
        let told: Vec<Job> = line
            .iter()
            .enumerate()
            .map(|(place, job)| Job {
                name: String::new(),
                nodes: jobs[*job].nodes,
                runs: place < running.len(),
                reads: Vec::new(),
                is_unsure: false,
            })
            .collect();
        let chosen: Vec<usize> = urgent(&told, NODES, rules).into_iter().map(|at| line[at]).collect();
        copied.retain(|job, _| chosen.contains(job));
        for job in chosen {
            copied.entry(job).or_insert(now);
        }
    }
    cost.seconds = now;
    cost.line /= now;
    cost.window /= now;
    cost
}

fn main() {
    let seed = std::env::args().nth(1).map_or(1, |seed| seed.parse().expect("a number as the seed"));
    let mut rows = Vec::new();
    for load in [0.75, 0.95, 1.2] {
        let jobs = trace(load, seed);
        let cost = replay(&jobs, &Rules::default());
        let kept = cost.staged + jobs.iter().map(|job| job.bytes * WEEK).sum::<f64>();
        let tib = |byte_seconds: f64| byte_seconds / cost.seconds / (1_u64 << 40) as f64;
        rows.push(format!(
            "{{\"load\":{load},\"waiting\":{:.1},\"waiting_with_copies\":{:.1},\"copies_tib\":{:.3},\"all_tib\":{:.3},\"all_for_a_week_tib\":{:.3},\"ready_percent\":{:.1}}}",
            cost.line,
            cost.window,
            tib(cost.copies),
            tib(cost.staged),
            tib(kept),
            100.0 * cost.ready as f64 / cost.waited as f64,
        ));
    }
    println!("{{\"seed\":{seed},\"rows\":[{}]}}", rows.join(","));
}
