//! Which huge pages are better left without protection.
//!
//! The first write to a protected huge page splits it into small ones, and a program that streams through its memory is slower
//! from then on (by a third on the machines this was measured on), for as long as it runs. A block the size of a huge page that
//! was protected and of which a good part was written to since is called hot: it is not protected any more, so that all of it
//! counts as changed each time, and it is made one huge page again. Now and then hot blocks get another chance.
//!
//! Nothing here decides whether a page changed: what is not protected was written to, says the kernel.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst; madvise(2), `MADV_COLLAPSE` (Linux 6.1).

use super::entries::{Entry, Sink};
use super::page_list::LentPages;
use super::regions::Run;
use crate::memory::pages::PAGE;
use mend_freestanding::syscall;
use mend_kernel::userfault::release;

/// Bytes of a huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const PAGES_PER_HUGE_PAGE: u64 = HUGE_PAGE_BYTES / PAGE;
/// Written pages of a protected block that make it hot. Fewer are worth the faults, since the others need not be stored.
const HOT_WRITTEN_PAGES: u64 = PAGES_PER_HUGE_PAGE / 4;
/// Bytes that are made huge pages again at a time, while the program runs.
const COLLAPSE_BYTES: u64 = 8 * HUGE_PAGE_BYTES;
/// Of so many full images one gives hot blocks another chance.
const HOT_RETRY_IMAGES: u32 = 8;

/// Whether hot blocks get another chance with the n-th full image.
pub(super) fn retries_hot_blocks(fulls: u32) -> bool {
    fulls.is_multiple_of(HOT_RETRY_IMAGES)
}

/// The blocks of one scan, ascending.
pub(super) struct Blocks {
    /// Blocks that were protected, or hot, at the last scan.
    before: &'static [Entry],
    /// The same at this one.
    after: Sink,
    list: LentPages<Entry>,
    /// Hot blocks may stay so.
    keep_hot: bool,
    block: Block,
    /// Where the list stood when the part under way began.
    first: usize,
}

/// What was seen of one block.
#[derive(Clone, Copy, Default)]
struct Block {
    start: u64,
    pages: u64,
    written: u64,
    huge: bool,
}

impl Blocks {
    pub fn new(before: (LentPages<Entry>, usize), after: LentPages<Entry>, keep_hot: bool) -> Self {
        // SAFETY: the tracker lent both lists for this scan; only `after` is written to.
        let before = unsafe { before.0.items(before.1) };
        Self { before, after: Sink::into(Some(after)), list: after, keep_hot, block: Block::default(), first: 0 }
    }

    /// How many entries there are.
    pub fn count(&self) -> usize {
        if self.after.full() { 0 } else { self.after.count() }
    }

    /// Before the first region of a part of a mapping.
    pub fn begin(&mut self) {
        self.first = self.after.count();
    }

    /// Populated pages of it.
    pub fn add(&mut self, run: &Run) {
        let mut at = run.start;
        while at < run.end {
            let start = at / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            if start != self.block.start {
                self.judge();
                self.block = Block { start, huge: true, ..Block::default() };
            }
            let next = run.end.min(start + HUGE_PAGE_BYTES);
            let pages = (next - at) / PAGE;
            self.block.pages += pages;
            self.block.written += if run.written { pages } else { 0 };
            self.block.huge &= run.huge;
            at = next;
        }
    }

    /// After the last one.
    pub fn end(&mut self) {
        self.judge();
        self.block = Block::default();
        self.after.flush();
    }

    fn judge(&mut self) {
        let Block { start, pages, written, huge } = self.block;
        if pages < PAGES_PER_HUGE_PAGE {
            return;
        }
        let index = self.before.partition_point(|entry| entry.range().1 <= start);
        let hot = match self.before.get(index).filter(|entry| entry.range().0 <= start) {
            Some(entry) if entry.changed() => self.keep_hot,
            Some(_) => written >= HOT_WRITTEN_PAGES,
            None => false,
        };
        self.after.push(start, start + HUGE_PAGE_BYTES, hot, hot && !huge);
    }

    /// Calls with each range of it that is to be protected.
    pub fn each_cold(&self, (start, end): (u64, u64), mut each: impl FnMut(u64, u64) -> Result<(), i32>) -> Result<(), i32> {
        // SAFETY: written to by `judge` alone, which this borrow excludes.
        let entries = unsafe { self.list.items(self.count()) };
        let mut at = start;
        for entry in entries.iter().skip(self.first).filter(|entry| entry.changed()) {
            let (from, to) = entry.range();
            if at < from {
                each(at, from)?;
            }
            at = to;
        }
        if at < end { each(at, end) } else { Ok(()) }
    }
}

/// Hot blocks that are in small pages, to be made huge pages again.
pub(super) struct Split {
    /// Of the tracker's list: the next one, and where in it.
    at: (usize, u64),
}

impl Split {
    pub const NONE: Self = Self { at: (usize::MAX, 0) };

    /// All of the list.
    pub fn all() -> Self {
        Self { at: (0, 0) }
    }

    /// Whether anything is left.
    pub fn any(&self, list: &[Entry]) -> bool {
        list.iter().skip(self.at.0).any(Entry::absent)
    }

    /// Makes some huge pages again, in a few milliseconds. The program runs; what it does meanwhile is the kernel's concern.
    /// What cannot be joined (memory is short, or in pieces; the mapping is another one by now) stays as it is.
    pub fn join_some(&mut self, list: &[Entry], userfault: i32) {
        const MADV_COLLAPSE: usize = 25;
        while let Some(entry) = list.get(self.at.0) {
            let (start, end) = entry.range();
            let from = start.max(self.at.1);
            if !entry.absent() || from >= end {
                self.at = (self.at.0 + 1, 0);
                continue;
            }
            let to = end.min(from + COLLAPSE_BYTES);
            self.at.1 = to;
            // What still is protected would forbid it. Without protection it counts as changed.
            let _ = release(userfault, from, to);
            // SAFETY: advice that changes no content.
            let _ = unsafe { syscall(libc::SYS_madvise, [from as usize, (to - from) as usize, MADV_COLLAPSE, 0, 0, 0]) };
            return;
        }
    }
}
