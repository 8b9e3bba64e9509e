//! Copies of what changed since the image to build on, made while the threads stand still.
//!
//! A copy of the process has page tables of its own, and to copy those of small pages takes 20 ms per GiB, however little of it
//! changed. Where copying the changes themselves takes less, that is done instead, into memory that was made ready while the program
//! ran. A process that shares the program's memory then writes them from there.
//!
//! ```text
//! made ready: ┌ pages, one after the other ─► ...                 ... ◄─ where each belongs, what is left to the base ┐
//! ```
//! Source: madvise(2), `MADV_POPULATE_WRITE` (Linux 5.14).

use crate::dirty::{Entry, within};
use crate::layout::{Content, Plan};
use crate::writer::{Job, PAGE, Part, WriteError, fetch};
use mend_image::record::MAX_PAGES;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::time::{Duration, Instant};

/// Bytes of a huge page.
const BLOCK: usize = 2 << 20;
/// Bytes that are made ready at a time: the program's calls for memory may wait for them.
const PIECE: usize = 4 * BLOCK;
/// How long it is kept ready for an image that does not come.
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes beside a quarter that are made ready for what the program changes until it stands still.
const SLACK: usize = 8 << 20;
/// To copy a page costs as much as to copy the page table entries of so many.
const WORTH: u64 = 4;

/// Memory that was made ready.
pub(crate) struct Staging {
    base: usize,
    /// All of the mapping, and what of it is used: whole blocks.
    mapped: usize,
    start: usize,
    length: usize,
    made: Instant,
}

/// Pages that are alike.
#[derive(Clone, Copy)]
#[repr(C)]
struct Run {
    start: u64,
    /// End, and in its low bits [`ZEROS`], [`KEPT`].
    end: u64,
}
const RUN: usize = size_of::<Run>();

/// Pages of zeros are stored, too.
const ZEROS: u64 = 1;
/// Left to the base.
const KEPT: u64 = 2;

/// What is in the memory that was made ready.
#[derive(Clone, Copy)]
pub(crate) struct Filled {
    runs: usize,
}

/// Whether to copy `changed` pages is quicker than the page tables of `small` pages.
pub(crate) fn worth_while(changed: u64, small: u64) -> bool {
    changed.saturating_mul(WORTH) < small
}

impl Staging {
    /// Maps and populates room for so many pages and some more, in a tenth of a second per 200 MiB.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` or `EFAULT` where it cannot be populated.
    pub fn new(pages: u64) -> Result<Self, Errno> {
        let wanted = pages as usize * (PAGE as usize + RUN);
        let length = (wanted + wanted / 4 + SLACK).next_multiple_of(BLOCK);
        let mapped = length + BLOCK;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), mapped, protection, flags)? } as usize;
        let staging = Self { base, mapped, start: base.next_multiple_of(BLOCK), length, made: Instant::now() };
        // SAFETY: advice on the mapping made above, which nobody else knows.
        unsafe {
            let _ = madvise(staging.start as *mut _, length, Advice::LinuxHugepage);
            for at in (0..length).step_by(PIECE) {
                madvise((staging.start + at) as *mut _, PIECE.min(length - at), Advice::LinuxPopulateWrite)?;
            }
        }
        Ok(staging)
    }

    /// Address range, not to be saved.
    pub fn range(&self) -> (u64, u64) {
        (self.base as u64, (self.base + self.mapped) as u64)
    }

    /// The image did not come.
    pub fn is_stale(&self) -> bool {
        self.made.elapsed() > LIMIT
    }

    /// Copies what changed of the memory that a copy of the process would have for itself. `None`: there is too little room.
    pub fn fill(&self, job: &Job, changes: &[Entry]) -> Result<Option<Filled>, WriteError> {
        let mut filling = Filling { staging: self, filled: 0, runs: 0 };
        for plan in job.plans.iter().filter(|plan| Part::of(plan) == Part::Private) {
            for entry in within(changes, (plan.mapping.start, plan.mapping.end)).iter().filter(|entry| entry.changed()) {
                if !filling.add(job, plan, entry)? {
                    return Ok(None);
                }
            }
        }
        for entry in changes.iter().filter(|entry| !entry.changed()) {
            if !filling.fits(0) {
                return Ok(None);
            }
            filling.push(entry.range(), KEPT);
        }
        Ok(Some(Filled { runs: filling.runs }))
    }

    fn table(&self, index: usize) -> *mut Run {
        ((self.start + self.length) as *mut Run).wrapping_sub(index + 1)
    }

    /// Calls with each run of copied pages: where they belong (start and end), where they are, whether pages of zeros are stored.
    pub fn each_copied<E>(&self, filled: Filled, mut each: impl FnMut((u64, u64), u64, bool) -> Result<(), E>) -> Result<(), E> {
        let mut from = self.start as u64;
        for run in self.runs(filled).filter(|run| run.end & KEPT == 0) {
            let end = run.end / PAGE * PAGE;
            each((run.start, end), from, run.end & ZEROS != 0)?;
            from += end - run.start;
        }
        Ok(())
    }

    /// What is left to the base.
    pub fn kept(&self, filled: Filled) -> impl Iterator<Item = (u64, u64)> {
        self.runs(filled).filter(|run| run.end & KEPT != 0).map(|run| (run.start, run.end / PAGE * PAGE))
    }

    fn runs(&self, filled: Filled) -> impl Iterator<Item = Run> {
        // SAFETY: written by `fill`, within the mapping.
        (0..filled.runs).map(|index| unsafe { self.table(index).read() })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, no longer borrowed.
        let _ = unsafe { munmap(self.base as *mut _, self.mapped) };
    }
}

struct Filling<'a> {
    staging: &'a Staging,
    filled: usize,
    runs: usize,
}

impl Filling<'_> {
    /// False if there is no room for it.
    fn add(&mut self, job: &Job, plan: &Plan, entry: &Entry) -> Result<bool, WriteError> {
        let (start, end) = entry.range();
        let readable = plan.mapping.protection & libc::PROT_READ as u32 != 0;
        let zeros = if plan.content == Content::Changed { ZEROS } else { 0 };
        if readable && !entry.absent() && plan.content != Content::Fleeting {
            let length = (end - start) as usize;
            if !self.fits(length) {
                return Ok(false);
            }
            // SAFETY: populated, readable pages of the parked process, into room of this mapping.
            unsafe { core::ptr::copy_nonoverlapping(start as *const u8, self.room(), length) };
            self.filled += length;
            self.push((start, end), zeros);
            return Ok(true);
        }
        let may_lack = plan.content == Content::Fleeting || readable && entry.absent();
        let mut at = start;
        while at < end {
            let length = (end - at).min(MAX_PAGES) as usize;
            if !self.fits(length) {
                return Ok(false);
            }
            // SAFETY: room of this mapping, which nobody else writes to.
            let room = unsafe { core::slice::from_raw_parts_mut(self.room(), length) };
            let got = fetch(job.memory, at, room, may_lack)?;
            if got != 0 {
                self.filled += got as usize;
                self.push((at, at + got), zeros);
            }
            at += got.max(PAGE);
        }
        Ok(true)
    }

    /// Whether there is room for so many bytes more, and for the run that tells of them.
    fn fits(&self, bytes: usize) -> bool {
        self.filled + bytes + (self.runs + 1) * RUN <= self.staging.length
    }

    fn room(&self) -> *mut u8 {
        (self.staging.start + self.filled) as *mut u8
    }

    /// After [`Filling::fits`].
    fn push(&mut self, (start, end): (u64, u64), flags: u64) {
        // SAFETY: within the mapping, behind all pages.
        unsafe { self.staging.table(self.runs).write(Run { start, end: end | flags }) };
        self.runs += 1;
    }
}
