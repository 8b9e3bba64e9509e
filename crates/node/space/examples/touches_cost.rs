//! What it costs a mount to note what ranks read: processor time for each block of 64 KiB, of nothing else.
//!
//! ```text
//! cargo run --release -p mend-space --example touches_cost      a line of JSON
//! ```
//! Eight ranks read a file of 64 GiB on four targets, two blocks at a time: one block after the other (`sequential_ns`), or so that no two reads are next to each other
//! (`strided_ns`). Each second of a mount is one of [`Touches`], with 16,384 blocks: a GiB. What is told to targets then is 16 bytes for each read, and not part of this.
//!
//! Times are of this thread alone, as the kernel counts them (`/proc/thread-self/schedstat`), so that a busy machine changes them less.

use mend_data::patterns::Who;
use mend_data::space::{BLOCK, Entry, File, Kind};
use mend_space::client::{Seen, Touches};
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 64 << 30;
const RANKS: u64 = 8;
/// Blocks of a second, of all ranks.
const BLOCKS: u64 = 16_384;
const SECONDS: u64 = 200;
/// Blocks that are read at once.
const AT_ONCE: u64 = 2;

/// Nanoseconds for which this thread had a processor.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Nanoseconds for a block, `apart` blocks being left out behind each read.
fn note(entry: &Entry, ranks: &[Arc<Who>], apart: u64) -> f64 {
    let begun = processor_ns();
    for second in 0..SECONDS {
        let touches = Touches::default();
        for read in 0..BLOCKS / RANKS / AT_ONCE {
            for (rank, who) in (0..).zip(ranks) {
                let part = SIZE / BLOCK / RANKS;
                let block = (second * BLOCKS + read * (AT_ONCE + apart)) % part + rank * part;
                touches.note(who, entry, block * BLOCK, &Seen::Read(&[true; AT_ONCE as usize], Duration::from_micros(100)));
            }
        }
    }
    (processor_ns() - begun) as f64 / (SECONDS * BLOCKS) as f64
}

fn main() {
    let file =
        File { size: SIZE, stripe: 1 << 20, targets: vec![0, 1, 2, 3], keepers: vec![0, 1], sources: Vec::new(), replicas: Vec::new() };
    let entry = Entry { id: [7; 16], version: 1, path: "in.dat".into(), made_ns: 0, kind: Kind::File(file) };
    let who = |rank| Arc::new(Who { job: "job-1".into(), rank: Some(rank), node: "node1".into() });
    let ranks: Vec<Arc<Who>> = (0..RANKS as u32).map(who).collect();
    println!("{}", serde_json::json!({ "sequential_ns": note(&entry, &ranks, 0), "strided_ns": note(&entry, &ranks, 3) }));
}
