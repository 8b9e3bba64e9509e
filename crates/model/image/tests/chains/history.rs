//! A process that lives in the test: mappings and pages that change at random, and the images of it that a writer which
//! knows what changed would write.

use mend_image::fixed::Fixed;
use mend_image::ranges::Range;
use mend_image::record::{Kind, Mapping, mapping};
use mend_image::write::StreamWriter;
use mend_image::{Header, kept};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

pub const PAGE: u64 = 4096;
/// Where the process has its memory.
pub const BASE: u64 = 0x10_0000;
pub const PAGES: u64 = 48;

/// Something that the process does to its memory.
#[derive(Clone, Debug)]
pub enum Step {
    Write {
        page: u64,
        fill: u8,
    },
    Zero {
        page: u64,
    },
    Unmap {
        page: u64,
        count: u64,
    },
    Map {
        page: u64,
        count: u64,
    },
    /// The first half of what is mapped becomes a mapping of its own (as after mprotect), or one with the rest again.
    Split {
        page: u64,
    },
}

pub fn step() -> impl Strategy<Value = Step> {
    let page = 0..PAGES;
    prop_oneof![
        6 => (page.clone(), 1..5u8).prop_map(|(page, fill)| Step::Write { page, fill }),
        2 => page.clone().prop_map(|page| Step::Zero { page }),
        1 => (page.clone(), 1..12u64).prop_map(|(page, count)| Step::Unmap { page, count }),
        2 => (page.clone(), 1..12u64).prop_map(|(page, count)| Step::Map { page, count }),
        1 => page.prop_map(|page| Step::Split { page }),
    ]
}

#[derive(Clone, Default)]
pub struct Process {
    /// Content of each mapped page.
    pub memory: BTreeMap<u64, u8>,
    /// Pages at which a mapping begins although the page before is mapped.
    splits: BTreeSet<u64>,
    dirty: BTreeSet<u64>,
}

impl Process {
    pub fn act(&mut self, step: &Step) {
        match *step {
            Step::Write { page, fill } if self.memory.contains_key(&page) => {
                self.memory.insert(page, fill);
                self.dirty.insert(page);
            }
            Step::Zero { page } if self.memory.contains_key(&page) => {
                self.memory.insert(page, 0);
                self.dirty.insert(page);
            }
            Step::Unmap { page, count } => (page..(page + count).min(PAGES)).for_each(|page| {
                self.memory.remove(&page);
            }),
            Step::Map { page, count } => {
                // Over what is there, as MAP_FIXED does.
                for page in page..(page + count).min(PAGES) {
                    self.memory.insert(page, 0);
                    self.dirty.insert(page);
                }
            }
            Step::Split { page } if !self.splits.remove(&page) => {
                self.splits.insert(page);
            }
            _ => {}
        }
    }

    fn runs(&self, mut wanted: impl FnMut(u64) -> bool, split: bool) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for page in self.memory.keys().copied().filter(|page| wanted(*page)) {
            match runs.last_mut() {
                Some(last) if last.1 == page && !(split && self.splits.contains(&page)) => last.1 += 1,
                _ => runs.push((page, page + 1)),
            }
        }
        runs
    }

    /// Writes an image, full or on `base`, and begins to track. `seed` decides what a writer is free to decide.
    pub fn save(&mut self, base: Option<&Header>, id: u8, seed: u64) -> Vec<u8> {
        let header = Header {
            id: [id; 16],
            base: base.map_or([0; 16], |base| base.id),
            sequence: base.map_or(0, |base| base.sequence + 1),
            pid: 7,
            ..Header::default()
        };
        let mut chance = Chance(seed);
        // A page that did not change may be stored all the same.
        let stored: BTreeSet<u64> =
            self.memory.keys().copied().filter(|page| base.is_none() || self.dirty.contains(page) || chance.one_in(8)).collect();
        let kept = self.runs(|page| !stored.contains(&page), false);
        let mut records: Vec<(Kind, u64, Vec<u8>)> = Vec::new();
        for (start, end) in self.runs(|page| stored.contains(&page) && self.memory[&page] != 0, true) {
            let mut at = start;
            while at < end {
                let until = end.min(at + 1 + chance.below(6));
                let bytes = (at..until).flat_map(|page| vec![self.memory[&page]; PAGE as usize]).collect();
                records.push((Kind::Pages, BASE + at * PAGE, bytes));
                at = until;
            }
        }
        for ranges in kept.chunks(1 + chance.below(4) as usize) {
            records.push((
                Kind::Kept,
                0,
                kept_payload(&ranges.iter().map(|(a, b)| (BASE + a * PAGE, BASE + b * PAGE)).collect::<Vec<_>>()),
            ));
        }
        for index in (1..records.len()).rev() {
            records.swap(index, chance.below(index as u64 + 1) as usize);
        }
        self.dirty.clear();
        image(&header, &self.mappings(), &records)
    }

    fn mappings(&self) -> Vec<Mapping> {
        self.runs(|_| true, true).into_iter().map(|(start, end)| private(BASE + start * PAGE, BASE + end * PAGE)).collect()
    }
}

/// A small generator of numbers: what a seed gives must not depend on a library's release.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

pub fn private(start: u64, end: u64) -> Mapping {
    Mapping { start, end, offset: 0, protection: 3, flags: 0, object: mapping::NO_OBJECT, page_shift: 0 }
}

pub fn kept_payload(ranges: &[Range]) -> Vec<u8> {
    let mut payload = vec![0; ranges.len() * kept::RANGE];
    for (range, raw) in ranges.iter().zip(payload.chunks_exact_mut(kept::RANGE)) {
        kept::put(*range, raw).unwrap();
    }
    payload
}

/// An image with these mappings and this content.
pub fn image(header: &Header, mappings: &[Mapping], content: &[(Kind, u64, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::new(&mut bytes, header).unwrap();
    writer.record(Kind::Strings, 0, 0, b"").unwrap();
    writer.record(Kind::Objects, 0, 0, b"").unwrap();
    let mut table = vec![0; mappings.len() * Mapping::SIZE];
    for (mapping, raw) in mappings.iter().zip(table.chunks_exact_mut(Mapping::SIZE)) {
        mapping.encode(raw).unwrap();
    }
    writer.record(Kind::Mappings, 0, 0, &table).unwrap();
    writer.record(Kind::Threads, 0, 0, b"thread").unwrap();
    writer.record(Kind::Process, 0, 0, b"process").unwrap();
    for (kind, address, payload) in content {
        writer.record(*kind, 0, *address, payload).unwrap();
    }
    writer.finish().unwrap();
    bytes
}
