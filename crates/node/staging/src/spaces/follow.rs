//! What a job's ranks read is looked at again and again for its controller, which decides who moves: a line of JSON for each look
//! ([`mend_policy::follow::Scan`]).
//!
//! Ends when nobody reads the lines any more. Faults assumed: targets that do not answer for a while; what they recorded meanwhile comes with the next look.

use super::scan::{Scanner, fetched, last_windows, placed};
use super::{client, descriptor};
use crate::failure::Failure;
use mend_data::patterns::sharing::{self, WINDOW};
use mend_data::space::BLOCK;
use mend_policy::follow::{Scan, Wish};
use mend_policy::placement::{PlacementRules, plan};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// What a move has to save to be suggested. Whether it pays is decided elsewhere.
const RULES: PlacementRules = PlacementRules { least_bytes: BLOCK, least_share: 0.1, most: 32 };
/// Most blocks of a window.
const MOST_OF_WINDOW: u64 = 4096;

/// Looks until nobody reads.
pub fn run(job: &str, spaces: &[String], slots: &BTreeMap<String, u32>, pause: Duration) -> Result<i32, Failure> {
    let mut opened = Vec::new();
    for name in spaces {
        opened.push((name.clone(), client(descriptor::load(name)?, false)?));
    }
    let cache = mend_settings::SPACE_CACHE.number().map_err(|error| Failure::bad_value(error.to_string(), "see `mend settings`"))? << 20;
    // What is in a cache of that size together may be shared through it.
    let window = usize::try_from((cache / BLOCK).min(MOST_OF_WINDOW)).unwrap_or(WINDOW).max(WINDOW / 4);
    let mut scanner = Scanner::new(opened);
    // What was recorded before is of another time.
    let told = scanner.ask(|_| {});
    scanner.waited_us(&told, job);
    let mut since = Instant::now();
    loop {
        std::thread::sleep(pause);
        let told = scanner.ask(|_| {});
        let waited_s = scanner.waited_us(&told, job) as f64 / 1e6;
        let ranks = sharing::of_job(&told, job, window);
        let seconds = since.elapsed().as_secs_f64();
        since = Instant::now();
        let last = last_windows(&ranks);
        let (nodes, placed) = placed(&ranks, &last);
        let mut room = vec![0usize; nodes.len()];
        placed.iter().for_each(|rank| room[rank.node] += 1);
        for (name, room) in nodes.iter().zip(&mut room) {
            *room = (*room).max(slots.get(name).map_or(0, |slots| *slots as usize));
        }
        let numbers: Vec<u32> = ranks.keys().copied().collect();
        let all = fetched(last.values());
        let wish = |step: mend_policy::placement::Step| Wish {
            rank: numbers[step.rank],
            from: nodes[step.from].clone(),
            to: nodes[step.to].clone(),
            back: step.back.map(|back| numbers[back]),
            share: step.saves as f64 / all.max(1) as f64,
        };
        let wishes = plan(&placed, &room, &RULES).into_iter().map(wish).collect();
        let scan = Scan { seconds, waited_s, fetched: fetched(ranks.values().flat_map(|rank| &rank.windows)), wishes };
        let line = serde_json::to_string(&scan).unwrap_or_default();
        let mut output = io::stdout().lock();
        if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
            return Ok(0);
        }
    }
}
