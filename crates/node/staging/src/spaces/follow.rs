//! What a job's ranks read is looked at again and again for its controller, which decides who moves: a line of JSON for each look
//! ([`mend_policy::follow::Scan`]). The controller says first what is to be looked at, and then what ranks send each other
//! ([`mend_policy::exchanges::NodeTraffic`]), a line of JSON each: moves that would cost more messages between nodes than they save are not suggested.
//!
//! Ends when nobody reads the lines any more. Faults assumed: targets that do not answer for a while; what they recorded meanwhile comes with the next look.

use super::scan::{Scanner, WINDOWS, fetched, last_windows, placed};
use super::{client, descriptor};
use crate::failure::Failure;
use mend_data::patterns::Told;
use mend_data::patterns::diagram;
use mend_data::patterns::sharing::{self, OfOtherJob, RankTouches, Touched, WINDOW};
use mend_data::request::FollowRequest;
use mend_data::space::BLOCK;
use mend_policy::exchanges::{Exchanges, NodeTraffic};
use mend_policy::follow::{ForeignRank, Scan, Wish};
use mend_policy::placement::{Placed, PlacementRules, Step, gather, plan};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a move has to save to be suggested. Whether it pays is decided elsewhere.
const RULES: PlacementRules = PlacementRules { least_bytes: BLOCK, least_share: 0.1, most: 32 };
/// Most blocks of a window.
const MOST_OF_WINDOW: u64 = 4096;
/// Ranks of other jobs of which one look tells, at most.
const MOST_FOREIGN_RANKS: usize = 32;
/// Share of what a rank touches that a rank of another job touches, too, from which on it is told.
const TOLD_SHARE: f64 = 0.5;

/// Looks until nobody reads. `misused`: what is told whoever asks for something else.
pub fn run(misused: impl Fn() -> Failure) -> Result<i32, Failure> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|_| misused())?;
    let wanted: FollowRequest = serde_json::from_str(&line).map_err(|_| misused())?;
    let exchanges = listen();
    let mut opened = Vec::new();
    for name in &wanted.spaces {
        opened.push((name.clone(), client(descriptor::usable(name)?, false)?));
    }
    let cache = mend_settings::SPACE_CACHE.number().map_err(|error| Failure::bad_value(error.to_string(), "see `mend settings`"))? << 20;
    // What is in a cache of that size together may be shared through it.
    let window = usize::try_from((cache / BLOCK).min(MOST_OF_WINDOW)).unwrap_or(WINDOW).max(WINDOW / 4);
    let mut scanner = Scanner::new(opened);
    // What was recorded before is of another time.
    let told = scanner.ask(|_| {});
    scanner.waited_us(&told, &wanted.job);
    let mut since = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(wanted.pause_ms));
        let told = scanner.ask(|_| {});
        let waited_s = scanner.waited_us(&told, &wanted.job) as f64 / 1e6;
        let ranks = sharing::of_job(&told, &wanted.job, window);
        let seconds = since.elapsed().as_secs_f64();
        since = Instant::now();
        let exchanges = {
            let mut exchanges = exchanges.lock().unwrap_or_else(PoisonError::into_inner);
            exchanges.settle(seconds);
            exchanges.clone()
        };
        let fetched = ranks.values().map(|rank| rank.fetched * BLOCK).sum();
        let last = last_windows(&ranks);
        let alike = wanted.diagrams.then(|| alike(&ranks, window));
        let seen = Seen { ranks: &ranks, last: &last, alike, exchanges: &exchanges, slots: &wanted.slots, rate: fetched as f64 / seconds };
        let scan =
            Scan { seconds, waited_s, fetched, foreign_ranks: foreign_ranks(&told, &wanted.job, window, &ranks, &last), ..seen.suggest() };
        let line = serde_json::to_string(&scan).unwrap_or_default();
        let mut output = io::stdout().lock();
        if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
            return Ok(0);
        }
    }
}

/// Takes what is told of messages, for as long as anything is.
fn listen() -> Arc<Mutex<Exchanges>> {
    let exchanges = Arc::new(Mutex::new(Exchanges::default()));
    let told = exchanges.clone();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if let Ok(traffic) = serde_json::from_str::<NodeTraffic>(&line) {
                told.lock().unwrap_or_else(PoisonError::into_inner).note(traffic);
            }
        }
    });
    exchanges
}

/// Pairs of ranks that belong together by their access counting diagrams.
fn alike(ranks: &BTreeMap<u32, RankTouches>, window: usize) -> Vec<(u32, u32)> {
    diagram::compare(ranks, window).into_iter().filter(|one| one.alike).map(|one| one.ranks).collect()
}

/// Ranks of other jobs that touch much of what a rank does, on other nodes.
fn foreign_ranks(
    told: &[Vec<Told>],
    job: &str,
    window: usize,
    ranks: &BTreeMap<u32, RankTouches>,
    last: &BTreeMap<u32, Touched>,
) -> Vec<ForeignRank> {
    let much = |one: &OfOtherJob| {
        let touches = last.get(&one.rank).map_or(0, |touched| touched.len() as u64 * BLOCK);
        one.shared.bytes as f64 >= TOLD_SHARE * touches as f64 && ranks.get(&one.rank).is_some_and(|rank| rank.node != one.node)
    };
    let found = sharing::of_other_jobs(told, job, last, window, WINDOWS).into_iter().filter(much).take(MOST_FOREIGN_RANKS);
    found.map(|one| ForeignRank { rank: one.rank, job: one.job, other: one.other, node: one.node, bytes: one.shared.bytes }).collect()
}

/// What is known when moves are suggested.
struct Seen<'a> {
    /// What ranks touched since the last look.
    ranks: &'a BTreeMap<u32, RankTouches>,
    /// Of that, the last windows.
    last: &'a BTreeMap<u32, Touched>,
    /// Ranks that belong together, if moves are suggested by that.
    alike: Option<Vec<(u32, u32)>>,
    /// What they send each other.
    exchanges: &'a Exchanges,
    /// Ranks that each node may have.
    slots: &'a BTreeMap<String, u32>,
    /// Bytes per second that nodes fetched.
    rate: f64,
}

impl Seen<'_> {
    fn suggest(&self) -> Scan {
        let all = fetched(self.last.values());
        let (mut nodes, mut placed) = placed(self.ranks, self.last);
        let mut numbers: Vec<u32> = self.ranks.keys().copied().collect();
        // Who touches nothing has a slot, too, and may be whom others send messages.
        for rank in self.exchanges.ranks().filter(|rank| !self.ranks.contains_key(rank)) {
            let name = self.exchanges.node_of(rank).unwrap_or_default();
            let node = nodes.iter().position(|node| node == name).unwrap_or_else(|| {
                nodes.push(name.to_owned());
                nodes.len() - 1
            });
            numbers.push(rank);
            placed.push(Placed { node, ..Placed::default() });
        }
        self.connect(&numbers, &mut placed, all);
        let mut room = vec![0usize; nodes.len()];
        placed.iter().for_each(|rank| room[rank.node] += 1);
        for (name, room) in nodes.iter().zip(&mut room) {
            *room = (*room).max(self.slots.get(name).map_or(0, |slots| *slots as usize));
        }
        let wish = |step: &Step| Wish {
            rank: numbers[step.rank],
            from: nodes[step.from].clone(),
            to: nodes[step.to].clone(),
            back: step.back.map(|back| numbers[back]),
            share: step.saves as f64 / all.max(1) as f64,
            messages: step.crossing as f64 / all.max(1) as f64,
        };
        if let Some(alike) = &self.alike {
            let index: BTreeMap<u32, usize> = numbers.iter().enumerate().map(|(index, rank)| (*rank, index)).collect();
            let pairs: Vec<(usize, usize)> = alike.iter().filter_map(|(one, other)| Some((*index.get(one)?, *index.get(other)?))).collect();
            // Who saves nothing would not go in any case.
            let steps = gather(&placed, &room, &pairs, RULES.most).into_iter().filter(|step| step.saves > 0);
            return Scan { wishes: steps.map(|step| wish(&step)).collect(), ..Scan::default() };
        }
        let steps = plan(&placed, &room, &RULES);
        let movers: BTreeSet<usize> = steps.iter().flat_map(|step| std::iter::once(step.rank).chain(step.back)).collect();
        let kept = self.kept(&placed, &room);
        let kept = kept.iter().filter(|step| !movers.contains(&step.rank) && step.back.is_none_or(|back| !movers.contains(&back)));
        Scan { wishes: steps.iter().map(wish).collect(), kept: kept.map(wish).collect(), ..Scan::default() }
    }

    /// Adds what ranks exchange in the time in which so many bytes are fetched. Who has not told to whom it sends stays where it is.
    fn connect(&self, numbers: &[u32], placed: &mut [Placed], all: u64) {
        let index: BTreeMap<u32, usize> = numbers.iter().enumerate().map(|(index, rank)| (*rank, index)).collect();
        for (rank, index) in &index {
            placed[*index].fixed = !self.exchanges.is_known(*rank);
        }
        // Nothing is fetched: nothing is to be suggested.
        let seconds = if self.rate > 0.0 { all as f64 / self.rate } else { 0.0 };
        for ((one, other), rate) in self.exchanges.pairs() {
            if let (Some(one), Some(other)) = (index.get(&one), index.get(&other)) {
                let bytes = (rate * seconds) as u64;
                placed[*one].exchanges.push((*other, bytes));
                placed[*other].exchanges.push((*one, bytes));
            }
        }
    }

    /// Moves that would be suggested if ranks sent each other nothing, and that would have more of it cross nodes.
    fn kept(&self, placed: &[Placed], room: &[usize]) -> Vec<Step> {
        let silent: Vec<Placed> = placed.iter().map(|rank| Placed { exchanges: Vec::new(), ..rank.clone() }).collect();
        let steps = plan(&silent, room, &RULES).into_iter();
        steps.map(|step| Step { crossing: step.crossing_of(placed), ..step }).filter(|step| step.crossing > 0).collect()
    }
}
