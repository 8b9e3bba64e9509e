//! Chains of images against what a map of pages says; all at once, and only what has changed.

use crate::image::{Image, PAGE, Place, TwoThreads, restore_files};
use crate::page_of;
use mend_image::launch::Mode;
use mend_image::ranges::Range;
use mend_image::record::MAX_PAGES;
use mend_restore::RestoreError;
use mend_restore::arena::Arena;
use mend_restore::fill::{OneWorker, Resources, Target, Workers, rewrite};
use mend_restore::stream::{Progress, Record, Stream};
use mend_restore::tables::Tables;
use proptest::prelude::*;
use std::fs::File;
use std::os::fd::AsRawFd;

const PAGES: u64 = 40;

/// What an image says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Holds,
    Keeps,
    Nothing,
}

fn says() -> impl Strategy<Value = Vec<Says>> {
    proptest::collection::vec(prop_oneof![Just(Says::Holds), Just(Says::Keeps), Just(Says::Nothing)], PAGES as usize)
}

/// What image `number`, counted from the newest, holds of a page.
fn byte(number: usize, page: u64) -> u8 {
    (number as u64 * PAGES + page + 1) as u8
}

/// Images of which each builds on the next; the last is full. What each page is in the end: `None`, if it is fresh.
fn chain(place: &Place, all: &[Vec<Says>], run: u64) -> (Vec<File>, Vec<Option<u8>>) {
    let mut images: Vec<Image> = Vec::new();
    for (number, says) in all.iter().enumerate().rev() {
        let mut image = Image::new(place, PAGES);
        if let Some(older) = images.last() {
            image = image.builds_on(older);
            image.kept = (0..PAGES)
                .filter(|page| says[*page as usize] == Says::Keeps)
                .map(|page| (place.page(page), place.page(page + 1)))
                .collect();
        }
        let mut page = 0;
        while page < PAGES {
            let held = (page..PAGES).take_while(|page| says[*page as usize] == Says::Holds).take(run as usize).count() as u64;
            if held > 0 {
                image.pages.push((place.page(page), (page..page + held).flat_map(|page| page_of(byte(number, page))).collect()));
            }
            page += held.max(1);
        }
        images.push(image);
    }
    let found = |page: u64| {
        for (number, says) in all.iter().enumerate() {
            match says[page as usize] {
                Says::Holds => return Some(byte(number, page)),
                Says::Nothing => return None,
                Says::Keeps => {}
            }
        }
        None
    };
    (images.iter().rev().map(Image::file).collect(), (0..PAGES).map(found).collect())
}

/// Memory that is there.
struct Present(Range);

// SAFETY: the test's own mapping, which nobody uses meanwhile.
unsafe impl Target for Present {
    fn admits(&mut self, record: &Record) -> Result<bool, RestoreError<'static>> {
        let end = record.head.address + record.head.length;
        if self.0.0 <= record.head.address && end <= self.0.1 { Ok(true) } else { Err(record.inconsistent()) }
    }

    fn open_private(&mut self, (start, end): Range) -> Result<bool, RestoreError<'static>> {
        Ok(self.0.0 <= start && end <= self.0.1)
    }

    fn object_of(&self, _: &Record) -> Result<Option<usize>, RestoreError<'static>> {
        Ok(None)
    }
}

/// Rewrites pages of memory that is there. Which of them no image holds.
fn rewrite_present(files: &[File], place: &Place, only: &[Range], workers: &dyn Workers) -> Result<Vec<Range>, String> {
    let (arena, progress) = (Arena::reserve(1 << 30).unwrap(), Progress::new());
    let all = || -> Result<Vec<Range>, RestoreError<'_>> {
        let mut stream = Stream::open(files[0].as_raw_fd(), 0, &progress)?;
        let room = arena.take(MAX_PAGES as usize + 8)?;
        let (_, first) = Tables::read(&mut stream, &arena, room, |_, _| {})?;
        let older: Vec<i32> = files[1..].iter().map(AsRawFd::as_raw_fd).collect();
        let mut target = Present((place.start, place.page(PAGES)));
        let with = Resources { arena: &arena, progress: &progress, workers };
        Ok(rewrite(stream, first, &older, &mut target, only, with)?.all().to_vec())
    };
    all().map_err(|error| error.to_string())
}

proptest! {
    #[test]
    fn each_page_comes_from_the_newest_image_that_decides(all in proptest::collection::vec(says(), 1..5), run in 1u64..6) {
        let place = Place::new(PAGES);
        let (files, expected) = chain(&place, &all, run);
        let told = restore_files(&files, Mode::Restart).unwrap();
        for (page, byte) in (0..).zip(&expected) {
            prop_assert!(place.content(page) == page_of(byte.unwrap_or(0)), "page {}", page);
        }
        // Each page once.
        prop_assert_eq!(told.placed, expected.iter().flatten().count() as u64 * PAGE);
    }

    #[test]
    fn only_what_is_asked_for_is_rewritten(
        all in proptest::collection::vec(says(), 1..5),
        run in 1u64..6,
        changed in proptest::collection::vec(any::<bool>(), PAGES as usize),
        two in any::<bool>(),
    ) {
        const OLD_BYTE: u8 = 0; // no image holds it
        let place = Place::new(PAGES);
        place.map(OLD_BYTE);
        let (files, expected) = chain(&place, &all, run);
        let only: Vec<Range> =
            (0..PAGES).filter(|page| changed[*page as usize]).map(|page| (place.page(page), place.page(page + 1))).collect();
        let workers: &dyn Workers = if two { &TwoThreads } else { &OneWorker };
        let missing = rewrite_present(&files, &place, &only, workers).unwrap();
        for page in 0..PAGES {
            let (changed, held) = (changed[page as usize], expected[page as usize]);
            prop_assert!(place.content(page) == page_of(held.filter(|_| changed).unwrap_or(OLD_BYTE)), "page {}", page);
            let told = missing.iter().any(|range| range.0 <= place.page(page) && place.page(page) < range.1);
            prop_assert_eq!(told, changed && held.is_none(), "page {}", page);
        }
    }
}
