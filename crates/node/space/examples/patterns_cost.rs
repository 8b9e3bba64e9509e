//! What it costs to note and record which ranks touch what, and to compare them: processor time and memory, of nothing else.
//!
//! ```text
//! cargo run --release -p mend-space --example patterns_cost      a line of JSON
//! ```
//! **Noting:** eight ranks read a file of 64 GiB on four targets through a mount, two blocks at a time: one block after the other (`sequential_ns`), or so that no two reads are
//! next to each other (`strided_ns`). Each second of a mount is one of [`Touches`], with 16,384 blocks: a GiB. What is told to targets then is not part of this.
//! **Recording:** a target is told by 160 ranks, 64 blocks a report, each apart from the one before, so that no two of them are one event, until its ring has gone round eight
//! times. **Comparing:** 10,000, 20,000 and 40,000 ranks with 64 blocks each. `clustered`: four ranks have the same blocks. `random`: blocks are drawn, four times as many as
//! there are in all ranks together, by a fixed seed. **Recall:** pairs that share a block and are found, of those that looking at all pairs of 2,000 ranks finds.
//!
//! Times are of this thread alone, as the kernel counts them (`/proc/thread-self/schedstat`), so that a busy machine changes them less.

use mend_data::patterns::sharing::{Touched, pairs, shared};
use mend_data::patterns::{MAX_EVENTS, Recorder, Report, Touch, Who};
use mend_data::space::{BLOCK, Entry, File, Kind};
use mend_space::client::{Seen, Touches};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const RANKS: u32 = 160;
const BLOCKS: u32 = 64;
const ROUNDS: usize = 8;
const SEED: u64 = 22;
/// Bytes of the file that is read through a mount.
const SIZE: u64 = 64 << 30;
const READERS: u64 = 8;
/// Blocks that a mount gives in a second, to all ranks.
const BLOCKS_PER_SECOND: u64 = 16_384;
const SECONDS: u64 = 200;
/// Blocks that are read at once.
const AT_ONCE: u64 = 2;

/// Nanoseconds for which this thread had a processor.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Bytes of memory that are there.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    pages * 4096
}

fn record() -> (f64, u64) {
    let report = |rank: u32, first: u32| Report {
        who: Who { job: "job-1".into(), rank: Some(rank), node: format!("node{}", rank / 16) },
        file: [7; 16],
        touches: (0..BLOCKS).map(|at| Touch { block: first + 2 * at, count: 1, written: false, fetched: true }).collect(),
        waited_us: 1000,
    };
    let reports: Vec<Report> = (0..RANKS).map(|rank| report(rank, rank * 1000)).collect();
    let mut recorder = Recorder::default();
    let (before, begun) = (resident(), processor_ns());
    let mut events = 0;
    while events < ROUNDS * MAX_EVENTS {
        for report in &reports {
            recorder.take(report);
            events += report.touches.len();
        }
    }
    let taken = processor_ns() - begun;
    let memory = resident() - before;
    assert!(!recorder.tell(0).events.is_empty());
    (taken as f64 / events as f64, memory)
}

/// Nanoseconds for a block, `apart` blocks being left out behind each read.
fn note(apart: u64) -> f64 {
    let file =
        File { size: SIZE, stripe: 1 << 20, targets: vec![0, 1, 2, 3], keepers: vec![0, 1], sources: Vec::new(), replicas: Vec::new() };
    let entry = Entry { id: [7; 16], version: 1, path: "in.dat".into(), made_ns: 0, kind: Kind::File(file) };
    let who = |rank| Arc::new(Who { job: "job-1".into(), rank: Some(rank), node: "node1".into() });
    let ranks: Vec<Arc<Who>> = (0..READERS as u32).map(who).collect();
    let begun = processor_ns();
    for second in 0..SECONDS {
        let touches = Touches::default();
        for read in 0..BLOCKS_PER_SECOND / READERS / AT_ONCE {
            for (rank, who) in (0..).zip(&ranks) {
                let part = SIZE / BLOCK / READERS;
                let block = (second * BLOCKS_PER_SECOND + read * (AT_ONCE + apart)) % part + rank * part;
                touches.note(who, &entry, block * BLOCK, &Seen::Read(&[true; AT_ONCE as usize], Duration::from_micros(100)));
            }
        }
    }
    (processor_ns() - begun) as f64 / (SECONDS * BLOCKS_PER_SECOND) as f64
}

fn ranks(count: u32, clustered: bool) -> Vec<Touched> {
    let pool = u64::from(count) * u64::from(BLOCKS) * 4;
    let block = |rank: u32, at: u32| {
        if clustered {
            rank / 4 * BLOCKS + at
        } else {
            (xxh3_64_with_seed(&(u64::from(rank) << 32 | u64::from(at)).to_le_bytes(), SEED) % pool) as u32
        }
    };
    let touched = |rank: u32| {
        let mut touched = Touched::default();
        (0..BLOCKS).for_each(|at| touched.entry(([1; 16], block(rank, at))).or_default().read += 1);
        touched
    };
    (0..count).map(touched).collect()
}

/// Milliseconds, and how many pairs share something.
fn compare(count: u32, clustered: bool) -> (f64, usize) {
    let all = ranks(count, clustered);
    let ranks: BTreeMap<u32, &Touched> = (0..).zip(&all).collect();
    let begun = processor_ns();
    let found = pairs(&ranks);
    ((processor_ns() - begun) as f64 / 1e6, found.len())
}

/// Of the pairs that share something, the share that is found.
fn recall(clustered: bool) -> f64 {
    let all = ranks(2000, clustered);
    let ranks: BTreeMap<u32, &Touched> = (0..).zip(&all).collect();
    let found = pairs(&ranks);
    let (mut share, mut hit) = (0u64, 0u64);
    for (one, first) in &ranks {
        for (other, second) in ranks.range(one + 1..) {
            if shared(first, second).bytes > 0 {
                share += 1;
                hit += u64::from(found.contains_key(&(*one, *other)));
            }
        }
    }
    hit as f64 / share.max(1) as f64
}

fn main() {
    let (event_ns, memory) = record();
    let compared = |clustered: bool| -> Vec<serde_json::Value> {
        let one = |count: u32| {
            let (ms, pairs) = compare(count, clustered);
            serde_json::json!({ "ranks": count, "ms": ms, "pairs": pairs })
        };
        [10_000, 20_000, 40_000].map(one).into()
    };
    let told = serde_json::json!({
        "event_ns": event_ns,
        "sequential_ns": note(0),
        "strided_ns": note(3),
        "memory": memory,
        "clustered": compared(true),
        "random": compared(false),
        "recall": { "clustered": recall(true), "random": recall(false) },
    });
    println!("{told}");
}
