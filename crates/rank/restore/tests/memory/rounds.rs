//! Memory that comes in rounds, before its image: whatever the source does to its memory between them.

use crate::image::{Image, PAGE, Place, TwoThreads};
use mend_image::fixed::Fixed;
use mend_image::handoff::{Kept, MAX_KEPT};
use mend_image::launch::Mode;
use mend_image::record::{HEAD_SIZE, MAX_PAGES, Mapping, RecordHead, mapping};
use mend_image::rounds::{RoundEnd, RoundKind, Rounds, TAKEN, head};
use mend_image::{Header, kept};
use mend_restore::arena::Arena;
use mend_restore::fill::Resources;
use mend_restore::rounds::{fill_rest, receive};
use mend_restore::space::Building;
use mend_restore::stream::{Progress, Stream};
use mend_restore::tables::Tables;
use proptest::prelude::*;
use rustix::mm::{MprotectFlags, mprotect};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

const ROUNDS_ID: [u8; 16] = [9; 16];

/// The sender's side: bytes, and after which of them it waits for an answer.
pub struct Sender {
    rounds: Rounds,
    parts: Vec<Vec<u8>>,
}

impl Sender {
    pub fn new() -> Self {
        let header = Header { id: ROUNDS_ID, rounds: 1, ..Header::default() }.to_bytes();
        Self { rounds: Rounds::new(&header), parts: vec![header.to_vec()] }
    }

    fn record(&mut self, kind: RoundKind, address: u64, payload: &[u8]) {
        self.put(head(kind, address, payload), payload);
    }

    pub fn put(&mut self, head: RecordHead, payload: &[u8]) {
        let raw: [u8; HEAD_SIZE] = head.to_bytes();
        self.rounds.admit(&raw).unwrap();
        let part = self.parts.last_mut().unwrap();
        part.extend(raw);
        part.extend(payload);
        part.resize(part.len() + head.padded_length() as usize - payload.len(), 0);
    }

    pub fn areas(&mut self, areas: &[(u64, u64, u32)]) {
        let mut payload = vec![0; areas.len() * Mapping::SIZE];
        for (area, raw) in areas.iter().zip(payload.chunks_exact_mut(Mapping::SIZE)) {
            let (start, end, flags) = *area;
            let record = Mapping { start, end, offset: 0, protection: 3, flags, object: mapping::NO_OBJECT, page_shift: 0 };
            record.encode(raw).unwrap();
        }
        self.record(RoundKind::Areas, 0, &payload);
    }

    fn zeros(&mut self, ranges: &[(u64, u64)]) {
        let mut payload = vec![0; ranges.len() * kept::RANGE];
        kept::fill(&mut ranges.iter().copied(), &mut payload).unwrap();
        self.record(RoundKind::Zeros, 0, &payload);
    }

    pub fn done(&mut self) {
        let end = self.rounds.end();
        let mut payload = [0; RoundEnd::SIZE];
        end.encode(&mut payload).unwrap();
        self.record(RoundKind::Done, 0, &payload);
        self.rounds.close(&end).unwrap();
        self.parts.push(Vec::new());
    }

    /// Sends all, with the image behind it, to a restore. An error as it is said.
    pub fn restore(mut self, image: &[u8]) -> Result<(), String> {
        self.record(RoundKind::Rest, 0, &[]);
        self.parts.last_mut().unwrap().extend(image);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let sending = std::thread::spawn(move || {
            for (number, part) in self.parts.iter().enumerate() {
                let mut answer = [0];
                if number > 0 && (ours.read_exact(&mut answer).is_err() || answer != [TAKEN]) {
                    return;
                }
                let _ = ours.write_all(part);
            }
        });
        let (arena, progress) = (Arena::reserve(1 << 30).unwrap(), Progress::new());
        let all = || -> Result<(), mend_restore::RestoreError<'_>> {
            let mut early = receive(Stream::open(theirs.as_raw_fd(), 0, &progress)?, &arena)?;
            let mut stream = Stream::open(theirs.as_raw_fd(), 0, &progress)?;
            let room = arena.take(MAX_PAGES as usize + 8)?;
            let (tables, first) = Tables::read(&mut stream, &arena, room, |_, _| ())?;
            tables.check(&stream)?;
            let mut building = Building::map_over(tables, &arena, Mode::Migrate, 0, &mut early)?;
            let resources = Resources { arena: &arena, progress: &progress, workers: &TwoThreads };
            fill_rest(stream, first, &early, &mut building, resources)?;
            building.finish(&mut [Kept::default(); MAX_KEPT])?;
            Ok(())
        };
        let result = all().map_err(|error| error.to_string());
        drop(theirs);
        sending.join().unwrap();
        result
    }
}

fn page_of(byte: u8) -> Vec<u8> {
    vec![byte; PAGE as usize]
}

/// An image that builds on the rounds.
pub fn rest(place: &Place, pages: u64) -> Image {
    let mut image = Image::new(place, pages);
    (image.header.base, image.header.sequence) = (ROUNDS_ID, 1);
    image
}

#[test]
fn what_is_kept_stays_what_is_stored_counts_and_the_rest_is_gone() {
    let place = Place::new(6);
    let mut sender = Sender::new();
    sender.areas(&[(place.page(0), place.page(6), 0)]);
    for page in 0..5 {
        sender.record(RoundKind::Pages, place.page(page), &page_of(page as u8 + 1));
    }
    sender.done();
    sender.record(RoundKind::Pages, place.page(1), &page_of(11));
    sender.zeros(&[(place.page(4), place.page(5))]);
    sender.done();
    let mut image = rest(&place, 6);
    image.kept = vec![(place.page(0), place.page(2)), (place.page(4), place.page(5))];
    image.pages = vec![(place.page(2), page_of(22)), (place.page(5), page_of(66))];
    sender.restore(&image.stream()).unwrap();
    let found: Vec<u8> = (0..6).map(|page| place.content(page)[7]).collect();
    assert_eq!(found, [1, 11, 22, 0, 0, 66]);
    assert!((0..6).all(|page| place.content(page) == page_of(found[page as usize])));
}

#[test]
fn a_full_image_keeps_nothing_of_the_rounds() {
    let place = Place::new(3);
    let mut sender = Sender::new();
    sender.areas(&[(place.page(0), place.page(3), 0)]);
    sender.record(RoundKind::Pages, place.page(0), &[page_of(1), page_of(2), page_of(3)].concat());
    let mut image = Image::new(&place, 3);
    image.pages = vec![(place.page(1), page_of(9))];
    sender.restore(&image.stream()).unwrap();
    assert!(place.content(0) == page_of(0) && place.content(1) == page_of(9) && place.content(2) == page_of(0));
}

#[test]
fn what_is_mapped_otherwise_in_the_end_gets_its_copies() {
    let place = Place::new(8);
    let mut sender = Sender::new();
    sender.areas(&[(place.page(0), place.page(8), 0)]);
    for page in 0..8 {
        sender.record(RoundKind::Pages, place.page(page), &page_of(page as u8 + 1));
    }
    sender.done();
    // Another class, another protection, nothing at all.
    let mut image = rest(&place, 2);
    let first = image.mappings[0];
    image.mappings.push(Mapping { start: place.page(2), end: place.page(5), flags: mapping::NO_DUMP, protection: 1, ..first });
    image.mappings.push(Mapping { start: place.page(6), end: place.page(8), protection: 1, ..first });
    image.kept = vec![(place.page(0), place.page(1)), (place.page(3), place.page(5)), (place.page(6), place.page(7))];
    image.pages = vec![(place.page(2), page_of(33)), (place.page(7), page_of(88))];
    sender.restore(&image.stream()).unwrap();
    for (page, byte) in [(0, 1), (1, 0), (2, 33), (3, 4), (4, 5), (6, 7), (7, 88)] {
        assert!(place.content(page) == page_of(byte), "page {page}");
    }
    assert_eq!((place.permissions(0), place.permissions(3), place.permissions(6)), ("rw-p".into(), "r--p".into(), "r--p".into()));
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::new(4);
    let image = rest(&place, 4).stream();
    // Pages for no area, areas out of order, an image of something else.
    let mut sender = Sender::new();
    sender.areas(&[(place.page(0), place.page(2), 0)]);
    sender.record(RoundKind::Pages, place.page(1), &[page_of(1), page_of(2)].concat());
    assert!(sender.restore(&image).is_err());
    let _ = std::panic::catch_unwind(|| place.clear());
    let mut sender = Sender::new();
    sender.areas(&[(place.page(2), place.page(3), 0), (place.page(1), place.page(2), 0)]);
    assert!(sender.restore(&image).is_err());
    let mut sender = Sender::new();
    sender.areas(&[(place.page(0), place.page(4), 0)]);
    let mut other = rest(&place, 4);
    other.header.base = [8; 16];
    assert!(sender.restore(&other.stream()).is_err());
}

/// One page of the source, as its kernel and its tracking know it.
#[derive(Clone, Copy, Default)]
struct Page {
    mapped: bool,
    populated: bool,
    dirty: bool,
    byte: u8,
}

#[derive(Clone, Debug)]
enum Step {
    Map(usize, usize),
    Unmap(usize, usize),
    Write(usize, usize, u8),
    Drop(usize, usize),
    /// Sends what is dirty from this page on; a round that is stopped early sends less.
    Round(usize),
}

const PAGES: usize = 48;
/// Pages that are always mapped: context and hand-over lie there.
const ALWAYS_PAGES: usize = 8;

fn step() -> impl Strategy<Value = Step> {
    let range = || (ALWAYS_PAGES..PAGES, 1usize..16);
    prop_oneof![
        2 => range().prop_map(|(start, count)| Step::Map(start, count)),
        1 => range().prop_map(|(start, count)| Step::Unmap(start, count)),
        5 => (range(), 0u8..4).prop_map(|((start, count), byte)| Step::Write(start, count, byte)),
        1 => range().prop_map(|(start, count)| Step::Drop(start, count)),
        3 => (0usize..PAGES).prop_map(Step::Round),
    ]
}

/// Runs of pages that are alike.
fn runs(pages: &[Page], alike: impl Fn(&Page) -> bool) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (number, _) in pages.iter().enumerate().filter(|(_, page)| alike(page)) {
        match found.last_mut() {
            Some(last) if last.1 == number => last.1 += 1,
            _ => found.push((number, number + 1)),
        }
    }
    found
}

/// A mapping: its pages, protection, and the run that it is of.
type Part = (usize, usize, u32, usize);

/// Mappings of an image: runs of pages that are mapped, cut in places, every third part of a run read-only. Parts of different protection
/// are one mapping to the program, and come back as a range each.
fn cut(mapped: Vec<(usize, usize)>, cuts: &[usize]) -> (Vec<Part>, Vec<(usize, usize)>) {
    let (mut parts, mut wholes) = (Vec::new(), Vec::<(usize, usize)>::new());
    for (run, (from, to)) in mapped.into_iter().enumerate() {
        let mut at = from;
        let inner: BTreeSet<usize> = cuts.iter().copied().filter(|cut| (from + 1..to).contains(cut)).chain([to]).collect();
        let mut before = None;
        for (number, end) in inner.into_iter().enumerate() {
            let protection = if at >= ALWAYS_PAGES && number % 3 == 1 { 1 } else { 3 };
            match wholes.last_mut() {
                Some(last) if before.is_some_and(|before| before != protection) => last.1 = end,
                _ => wholes.push((at, end)),
            }
            parts.push((at, end, protection, run));
            (at, before) = (end, Some(protection));
        }
    }
    (parts, wholes)
}

/// Whether the kernel has a range in one mapping once all of it has one protection.
fn is_one(start: u64, end: u64) -> bool {
    // SAFETY: memory of the place, which nobody else uses.
    unsafe { mprotect(start as *mut _, (end - start) as usize, MprotectFlags::READ | MprotectFlags::WRITE).unwrap() };
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        at(from) <= start && end <= at(to)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_the_source_does_the_target_is_the_same_in_the_end(
        steps in proptest::collection::vec(step(), 1..40),
        class in 0usize..4,
        cuts in proptest::collection::vec(ALWAYS_PAGES..PAGES, 0..8),
    ) {
        let place = Place::new(PAGES as u64);
        let mut pages = [Page::default(); PAGES];
        pages[..ALWAYS_PAGES].iter_mut().for_each(|page| page.mapped = true);
        let mut sender = Sender::new();
        for step in steps {
            let (start, count) = match step {
                Step::Map(start, count) | Step::Unmap(start, count) | Step::Drop(start, count) | Step::Write(start, count, _) => (start, count),
                Step::Round(start) => (start, 0),
            };
            let all = &mut pages[start..(start + count).min(PAGES)];
            match step {
                Step::Map(..) => all.iter_mut().filter(|page| !page.mapped).for_each(|page| *page = Page { mapped: true, ..Page::default() }),
                Step::Unmap(..) => all.fill(Page::default()),
                Step::Write(.., byte) => {
                    all.iter_mut().filter(|page| page.mapped).for_each(|page| *page = Page { mapped: true, populated: true, dirty: true, byte });
                }
                Step::Drop(..) => all.iter_mut().for_each(|page| *page = Page { mapped: page.mapped, ..Page::default() }),
                Step::Round(_) => {
                    let areas: Vec<_> = runs(&pages, |page| page.mapped)
                        .into_iter()
                        .map(|(from, to)| (place.page(from as u64), place.page(to as u64), 0))
                        .collect();
                    sender.areas(&areas);
                    for (number, page) in pages.iter_mut().enumerate().skip(start) {
                        if !(page.populated && page.dirty) {
                            continue;
                        }
                        page.dirty = false;
                        let address = place.page(number as u64);
                        match page.byte {
                            0 => sender.zeros(&[(address, address + PAGE)]),
                            byte => sender.record(RoundKind::Pages, address, &page_of(byte)),
                        }
                    }
                    sender.done();
                }
            }
        }
        let mut image = rest(&place, 1);
        let template = image.mappings[0];
        let (parts, wholes) = cut(runs(&pages, |page| page.mapped), &cuts);
        image.mappings = parts
            .into_iter()
            .map(|(from, to, protection, run)| {
                let flags = if run % 4 == class { mapping::NO_DUMP } else { 0 };
                Mapping { start: place.page(from as u64), end: place.page(to as u64), flags, protection, ..template }
            })
            .collect();
        let ranges = |found: Vec<(usize, usize)>| found.into_iter().map(|(from, to)| (place.page(from as u64), place.page(to as u64)));
        image.kept = ranges(runs(&pages, |page| page.populated && !page.dirty)).collect();
        let stored = (0..PAGES).filter(|&number| pages[number].populated && pages[number].dirty && pages[number].byte != 0);
        image.pages = stored.map(|number| (place.page(number as u64), page_of(pages[number].byte))).collect();
        sender.restore(&image.stream()).unwrap();
        for (number, page) in pages.iter().enumerate().filter(|(_, page)| page.mapped) {
            prop_assert!(place.content(number as u64) == page_of(page.byte), "page {number}");
        }
        for (from, to) in wholes {
            prop_assert!(is_one(place.page(from as u64), place.page(to as u64)), "pages {from} to {to}");
        }
    }
}
