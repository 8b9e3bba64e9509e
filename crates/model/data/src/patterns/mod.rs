//! Which ranks touch which blocks of a data space: what targets record, and what is seen in it.
//!
//! ```text
//! a rank reads ──► its mount ──► Touches, once a second ──► Recorder of a target: a ring of events
//!                                                                 │ mend data patterns
//!                      pairs that share (sharing, diagram) ◄──────┴── events of all targets, put together
//! ```
//! After the block access patterns of the PARTE paper: storage sees what programs do not say. `sharing` is the rule by which Mend decides, `diagram` the
//! paper's own, kept for comparison.

pub mod diagram;
pub mod sharing;

use crate::space::Id;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

/// Events that a recorder keeps, 16 bytes each: with the names of what usual jobs have less than 16 MiB.
pub const MAX_EVENTS: usize = 63 << 14;
/// By so many events its memory grows.
const GROWTH: usize = 1 << 14;
/// Ranks and files that it tells apart.
const MAX_NAMES: usize = 1 << 16;
/// Most events in one answer: with the names of all of them it has at most 2 MiB, if names are not much longer than usual.
pub const EVENTS_OF_ANSWER: usize = 1 << 15;
/// Bytes of names after which an answer ends.
const NAMES_OF_ANSWER: usize = 1 << 20;
/// Most touches in all reports of a request.
pub const MAX_TOUCHES: usize = 1 << 14;
/// Most reports in one request.
pub const MAX_REPORTS: usize = 256;
/// Longest name of a job or node.
const MAX_NAME: usize = 256;

/// Who touches a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Who {
    /// Identity of the job.
    pub job: String,
    /// `None`: a mount that is no rank's, as `mend data mount` makes it.
    pub rank: Option<u32>,
    /// Name of the node.
    pub node: String,
}

impl Who {
    /// As it goes with a mount's descriptor to the process that serves it; never empty.
    #[must_use]
    pub fn encoded(&self) -> Vec<u8> {
        // Text and numbers into memory do not fail.
        postcard::to_allocvec(self).unwrap_or_else(|_| vec![0])
    }

    /// `None` if nobody has encoded that.
    #[must_use]
    pub fn decoded(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// Blocks that were touched at once, next to each other in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// The first, counted in [`crate::space::BLOCK`].
    pub block: u32,
    /// How many, at least 1.
    pub count: u16,
    /// They were written, not read.
    pub written: bool,
    /// They came over the network for that; else the node's cache had them.
    pub fetched: bool,
}

impl Touch {
    /// True if it goes on with this block, touched in the same way.
    #[must_use]
    pub fn is_followed_by(&self, block: u32, written: bool, fetched: bool) -> bool {
        let alike = self.written == written && self.fetched == fetched && self.count < u16::MAX;
        alike && self.block.checked_add(u32::from(self.count)) == Some(block)
    }

    /// True if this block is the last of it, and was touched in the same way, but for where it came from.
    #[must_use]
    pub fn ends_with(&self, block: u32, written: bool) -> bool {
        self.written == written && self.block.checked_add(u32::from(self.count) - 1) == Some(block)
    }
}

/// What one mount tells a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Who touched them.
    pub who: Who,
    /// The file.
    pub file: Id,
    /// What was touched, in order.
    pub touches: Vec<Touch>,
    /// Microseconds for which it waited for what had to be fetched.
    pub waited_us: u32,
}

impl Report {
    /// True if a recorder can take it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let named = self.who.job.len() <= MAX_NAME && self.who.node.len() <= MAX_NAME;
        let counted = |touch: &Touch| touch.count > 0 && touch.block.checked_add(u32::from(touch.count)).is_some();
        named && self.touches.len() <= MAX_TOUCHES && self.touches.iter().all(counted)
    }
}

/// An event, as it is kept and told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Index of who it was ([`Told::who`]).
    pub who: u32,
    /// Index of the file ([`Told::files`]).
    pub file: u32,
    /// What was touched.
    pub touch: Touch,
}

/// A part of what a recorder has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Number of the first event.
    pub first: u64,
    /// Whether there are more behind the last one.
    pub more: bool,
    /// In the order in which they came.
    pub events: Vec<Event>,
    /// All that touched something, by index.
    pub who: Vec<Who>,
    /// For each of them, microseconds for which it waited for what had to be fetched, since it is known here.
    pub waited_us: Vec<u64>,
    /// All files, by index.
    pub files: Vec<Id>,
}

/// What a target has recorded: the newest events, and the names that they refer to. Bounded, whatever comes.
#[derive(Debug, Default)]
pub struct Recorder {
    events: VecDeque<Event>,
    /// Number of the first event that is kept.
    first: u64,
    who: Names<Who>,
    files: Names<Id>,
    /// As in [`Told::waited_us`], by index in `who`.
    waited_us: Vec<u64>,
}

#[derive(Debug)]
struct Names<T> {
    all: Vec<T>,
    index: HashMap<T, u32>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { all: Vec::new(), index: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Names<T> {
    /// The index of a name; `None` if there are too many.
    fn index(&mut self, name: &T) -> Option<u32> {
        if let Some(index) = self.index.get(name) {
            return Some(*index);
        }
        let index = u32::try_from(self.all.len()).ok().filter(|index| (*index as usize) < MAX_NAMES)?;
        self.all.push(name.clone());
        self.index.insert(name.clone(), index);
        Some(index)
    }
}

impl Recorder {
    /// Takes what a mount tells. When there are too many names, all is forgotten: most of them are of jobs that have ended.
    pub fn take(&mut self, report: &Report) {
        let mut names = (self.who.index(&report.who), self.files.index(&report.file));
        if names.0.is_none() || names.1.is_none() {
            self.first += self.events.len() as u64;
            self.events.clear();
            (self.who, self.files) = (Names::default(), Names::default());
            self.waited_us.clear();
            names = (self.who.index(&report.who), self.files.index(&report.file));
        }
        let (Some(who), Some(file)) = names else { return };
        self.waited_us.resize(self.waited_us.len().max(who as usize + 1), 0);
        self.waited_us[who as usize] += u64::from(report.waited_us);
        for touch in &report.touches {
            if self.events.len() == MAX_EVENTS {
                self.events.pop_front();
                self.first += 1;
            } else if self.events.len() == self.events.capacity() {
                // Not by doubling, as it would by itself: that would be more than is kept.
                self.events.reserve_exact(GROWTH);
            }
            self.events.push_back(Event { who, file, touch: *touch });
        }
    }

    /// What it has from the event of this number on, at most [`EVENTS_OF_ANSWER`], with the names of these events.
    #[must_use]
    pub fn tell(&self, from: u64) -> Told {
        let skipped = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.events.len());
        let mut told = Told { first: self.first + skipped as u64, ..Told::default() };
        let (mut who, mut files, mut bytes) = (HashMap::new(), HashMap::new(), 0);
        for event in self.events.iter().skip(skipped).take(EVENTS_OF_ANSWER) {
            if bytes > NAMES_OF_ANSWER {
                break;
            }
            let index = *who.entry(event.who).or_insert_with(|| {
                let name = self.who.all.get(event.who as usize).cloned();
                bytes += name.as_ref().map_or(0, |name| name.job.len() + name.node.len() + 8);
                told.who.extend(name);
                told.waited_us.push(self.waited_us.get(event.who as usize).copied().unwrap_or(0));
                told.who.len() as u32 - 1
            });
            let file = *files.entry(event.file).or_insert_with(|| {
                bytes += 16;
                told.files.extend(self.files.all.get(event.file as usize));
                told.files.len() as u32 - 1
            });
            told.events.push(Event { who: index, file, touch: event.touch });
        }
        told.more = skipped + told.events.len() < self.events.len();
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: u32, file: u8, blocks: std::ops::Range<u32>) -> Report {
        let who = Who { job: "a-job".into(), rank: Some(rank), node: "a".into() };
        let touches = blocks.map(|block| Touch { block, count: 1, written: false, fetched: true }).collect();
        Report { who, file: [file; 16], touches, waited_us: 5 }
    }

    #[test]
    fn the_newest_events_are_kept_and_told_in_parts() {
        let mut recorder = Recorder::default();
        for round in 0..70 {
            recorder.take(&report(round % 3, 1, 0..MAX_TOUCHES as u32));
        }
        let all = 70 * MAX_TOUCHES as u64;
        let (mut from, mut seen) = (0, 0);
        loop {
            let told = recorder.tell(from);
            assert!(told.events.len() <= EVENTS_OF_ANSWER && (1..=3).contains(&told.who.len()) && told.files.len() == 1);
            assert!(seen > 0 || told.first == all - MAX_EVENTS as u64);
            seen += told.events.len();
            from = told.first + told.events.len() as u64;
            if !told.more {
                break;
            }
        }
        assert_eq!((seen, from), (MAX_EVENTS, all));
        assert_eq!(recorder.tell(0).waited_us, [23 * 5, 23 * 5]);
        assert!(recorder.tell(all).events.is_empty() && recorder.tell(u64::MAX).events.is_empty());
        assert_eq!(std::mem::size_of::<Event>(), 16);
    }

    #[test]
    fn too_many_names_begin_anew() {
        let mut recorder = Recorder::default();
        for rank in 0..=MAX_NAMES as u32 {
            recorder.take(&report(rank, 1, 0..1));
        }
        let told = recorder.tell(0);
        assert_eq!((told.first, told.events.len(), told.who.len()), (MAX_NAMES as u64, 1, 1));
    }

    #[test]
    fn reports_that_no_mount_makes_are_refused() {
        assert!(report(0, 1, 0..5).is_sound() && report(0, 1, 0..MAX_TOUCHES as u32).is_sound());
        assert!(!report(0, 1, 0..MAX_TOUCHES as u32 + 1).is_sound());
        let touch = |block, count| Report { touches: vec![Touch { block, count, written: false, fetched: false }], ..report(0, 1, 0..0) };
        assert!(!touch(0, 0).is_sound() && !touch(u32::MAX, 1).is_sound() && touch(u32::MAX - 1, 1).is_sound());
        let mut long = report(0, 1, 0..1);
        long.who.job = "j".repeat(MAX_NAME + 1);
        assert!(!long.is_sound());
        assert_eq!((Who::decoded(&long.who.encoded()), Who::decoded(&[0])), (Some(long.who), None));
    }
}
