//! Dirty copies: copies of the pages that changed since the image to build on, made while the threads stand still.
//!
//! A copy of the process has page tables of its own, and to copy those of small pages takes 20 ms per GiB, however little of it
//! changed. Where copying the changes themselves takes less, that is done instead, into memory that was made ready while the program
//! ran. A process that shares the program's memory then writes them from there.
//!
//! ```text
//! made ready: ┌ pages, one after the other ─► ...                 ... ◄─ where each belongs, what is left to the base ┐
//! ```
//! A processor has only so many lines of scattered memory under way at a time. Where there is another one for it, a process beside
//! this one copies the second half, into the second half.
//!
//! Source: madvise(2), `MADV_POPULATE_WRITE` (Linux 5.14).

use crate::capture::memory_headroom;
use crate::capture::sender;
use crate::capture::write_error::WriteError;
use crate::capture::write_job::{MemoryPart, WriteJob};
use crate::memory::layout::{Content, MappingPlan};
use crate::memory::pages::PAGE;
use crate::track::{Entry, within};
use core::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128};
use core::ffi::c_void;
use mend_freestanding::syscall;
use mend_image::record::MAX_PAGES;
use mend_kernel::copy::{self, Copy, End, end_with, leave};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::time::{Duration, Instant};

/// Bytes of a huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes that are populated at a time: the program's calls for memory may wait for them.
const POPULATE_BYTES: usize = 4 * HUGE_PAGE_BYTES;
/// How long memory is kept ready for an image that does not come.
const MAX_READY_TIME: Duration = Duration::from_secs(20);
/// Bytes beside a quarter that are made ready for what the program changes until it stands still.
const SLACK_BYTES: usize = 8 << 20;
/// Copying a page costs as much as copying this many page table entries.
const PAGE_COPY_COST_ENTRIES: u64 = 4;

/// Bytes that are copied in the time that another process takes to begin: fewer are not worth a second one.
const MIN_HALVED_BYTES: u64 = 2 << 20;

/// Memory for dirty copies, made ready while the program runs.
pub(crate) struct DirtyCopyMemory {
    base: usize,
    /// All of the mapping, and what of it is used: whole blocks.
    mapped: usize,
    start: usize,
    length: usize,
    made: Instant,
    /// There is a processor for a second process that copies.
    in_halves: bool,
}

/// Pages that are alike.
#[derive(Clone, Copy)]
#[repr(C)]
struct Run {
    start: u64,
    /// End, and in its low bits [`ZEROS`], [`KEPT`].
    end: u64,
}
const RUN_BYTES: usize = size_of::<Run>();

/// Pages of zeros are stored, too.
const ZEROS: u64 = 1;
/// Left to the base.
const KEPT: u64 = 2;

/// One half of the memory, and how much of it is taken by pages and by what tells of them.
#[derive(Clone, Copy)]
struct Half {
    start: usize,
    end: usize,
    filled: usize,
    runs: usize,
}

/// What is in the memory, by ascending addresses.
#[derive(Clone, Copy)]
pub(crate) struct DirtyCopies([Half; 2]);

impl DirtyCopyMemory {
    /// Memory for so many pages, if copying them is quicker than copying the page tables of `small` pages, and if this node has enough memory
    /// for `ranks` that do so.
    pub fn for_changes(changed: u64, small: u64, ranks: u64) -> Option<Self> {
        let quicker = changed.saturating_mul(PAGE_COPY_COST_ENTRIES) < small;
        let fits = quicker && memory_headroom::shortage(changed * PAGE, ranks).is_none();
        fits.then(|| Self::new(changed, sender::may_use(2 * ranks)).ok())?
    }

    /// Maps and populates memory for so many pages and some more, in a tenth of a second per 200 MiB. `in_halves`: a second process may
    /// fill one half of it.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` or `EFAULT` where it cannot be populated.
    fn new(pages: u64, in_halves: bool) -> Result<Self, Errno> {
        let wanted = pages as usize * (PAGE as usize + RUN_BYTES);
        let length = (wanted + wanted / 4 + SLACK_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
        let mapped = length + HUGE_PAGE_BYTES;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), mapped, protection, flags)? } as usize;
        let memory = Self { base, mapped, start: base.next_multiple_of(HUGE_PAGE_BYTES), length, made: Instant::now(), in_halves };
        // SAFETY: advice on the mapping made above, which nobody else knows.
        unsafe {
            let _ = madvise(memory.start as *mut _, length, Advice::LinuxHugepage);
            for at in (0..length).step_by(POPULATE_BYTES) {
                madvise((memory.start + at) as *mut _, POPULATE_BYTES.min(length - at), Advice::LinuxPopulateWrite)?;
            }
        }
        Ok(memory)
    }

    /// Address range, not to be saved.
    pub fn range(&self) -> (u64, u64) {
        (self.base as u64, (self.base + self.mapped) as u64)
    }

    /// The image did not come.
    pub fn is_stale(&self) -> bool {
        self.made.elapsed() > MAX_READY_TIME
    }

    /// Copies what changed of the private memory. `None`: it does not fit.
    ///
    /// # Safety
    /// Nobody uses the stack that ends at `stack`, and nothing changes what is copied, until this returns.
    pub unsafe fn fill(&self, job: &WriteJob, changes: &[Entry], stack: usize) -> Result<Option<DirtyCopies>, WriteError> {
        let end = self.start + self.length;
        let Some(border) = halfway(changes).filter(|_| self.in_halves) else {
            let mut all = Half::new(self.start, end);
            return Ok(all.fill(job, changes, (0, u64::MAX))?.then_some(DirtyCopies([all, Half::new(end, end)])));
        };
        let middle = self.start + self.length / 2;
        let (mut first, mut second) = (Half::new(self.start, middle), Half::new(middle, end));
        let rest = (border, u64::MAX);
        // SAFETY: the caller's word.
        let copier = unsafe { HalfCopier::start(job, changes, rest, second, stack) };
        let fits = first.fill(job, changes, (0, border));
        // Killed, or there was none: then this process does it all.
        let done = copier.and_then(HalfCopier::finish);
        let (rest_fits, filled) = done.unwrap_or_else(|| (second.fill(job, changes, rest), second));
        Ok((fits? && rest_fits?).then_some(DirtyCopies([first, filled])))
    }

    /// Calls with each run of copied pages: where they belong (start and end), where they are, whether pages of zeros are stored.
    pub fn each_copied<E>(&self, filled: DirtyCopies, mut each: impl FnMut((u64, u64), u64, bool) -> Result<(), E>) -> Result<(), E> {
        for half in filled.0 {
            let mut from = half.start as u64;
            for run in half.runs().filter(|run| run.end & KEPT == 0) {
                let end = run.end / PAGE * PAGE;
                each((run.start, end), from, run.end & ZEROS != 0)?;
                from += end - run.start;
            }
        }
        Ok(())
    }

    /// What is left to the base.
    pub fn kept(&self, filled: DirtyCopies) -> impl Iterator<Item = (u64, u64)> {
        let runs = filled.0.into_iter().flat_map(|half| half.runs());
        runs.filter(|run| run.end & KEPT != 0).map(|run| (run.start, run.end / PAGE * PAGE))
    }
}

/// The address before which half of what changed lies. `None` if it is little.
fn halfway(changes: &[Entry]) -> Option<u64> {
    let changed = || changes.iter().filter(|entry| entry.changed()).map(Entry::range);
    let total: u64 = changed().map(|(start, end)| end - start).sum();
    let mut before = total / 2 / PAGE * PAGE;
    let (start, _) = changed().find(|(start, end)| {
        let reaches = before < end - start;
        before -= if reaches { 0 } else { end - start };
        reaches
    })?;
    (total >= MIN_HALVED_BYTES).then_some(start + before)
}

impl Drop for DirtyCopyMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, no longer borrowed.
        let _ = unsafe { munmap(self.base as *mut _, self.mapped) };
    }
}

/// Copies a page without fetching what is where the copy goes, which is read next when much else has been, and asks for the memory of
/// the `next` one meanwhile: scattered pages are in no cache.
///
/// # Safety
/// Both begin a page; the first is readable, the copy's writable.
unsafe fn copy_past_cache(page: u64, copy: *mut u8, next: u64) {
    const CACHE_LINE_BYTES: usize = 64;
    for line in (0..PAGE as usize).step_by(CACHE_LINE_BYTES) {
        // SAFETY: within the page, and aligned as it is; what is only asked for may be anything.
        unsafe {
            _mm_prefetch((next as *const i8).wrapping_add(line), _MM_HINT_T0);
            for part in (line..line + CACHE_LINE_BYTES).step_by(size_of::<__m128i>()) {
                _mm_stream_si128(copy.wrapping_add(part).cast(), _mm_load_si128((page as *const u8).wrapping_add(part).cast()));
            }
        }
    }
}

impl Half {
    fn new(start: usize, end: usize) -> Self {
        Self { start, end, filled: 0, runs: 0 }
    }

    /// Copies what changed within a range. False: it does not fit.
    fn fill(&mut self, job: &WriteJob, changes: &[Entry], (from, to): (u64, u64)) -> Result<bool, WriteError> {
        let clipped = |(start, end): (u64, u64)| (start.max(from), end.min(to));
        for plan in job.plans.iter().filter(|plan| MemoryPart::of(plan) == MemoryPart::Private) {
            let of_plan = within(changes, (plan.mapping.start, plan.mapping.end));
            let meets = |entry: &&Entry| entry.changed() && entry.range().1 > from && entry.range().0 < to;
            let mut changed = of_plan.iter().filter(meets).peekable();
            while let Some(entry) = changed.next() {
                let next = changed.peek().map(|next| next.range().0);
                if !self.add(job, plan, clipped(entry.range()), entry.absent(), next)? {
                    return Ok(false);
                }
            }
        }
        for entry in changes.iter().filter(|entry| !entry.changed() && (from..to).contains(&entry.range().0)) {
            if !self.fits(0) {
                return Ok(false);
            }
            self.push(entry.range(), KEPT);
        }
        // SAFETY: an instruction of every processor of 64 bits: the copies are in memory before anything else is written.
        unsafe { _mm_sfence() };
        Ok(true)
    }

    /// False if it does not fit. `next` is the page after it, for its memory to be asked for.
    fn add(
        &mut self,
        job: &WriteJob,
        plan: &MappingPlan,
        (start, end): (u64, u64),
        absent: bool,
        next: Option<u64>,
    ) -> Result<bool, WriteError> {
        let readable = plan.mapping.protection & libc::PROT_READ as u32 != 0;
        let zeros = if plan.content == Content::Changed { ZEROS } else { 0 };
        if readable && !absent && plan.content != Content::Fleeting {
            let length = (end - start) as usize;
            if !self.fits(length) {
                return Ok(false);
            }
            for at in (start..end).step_by(PAGE as usize) {
                let next = Some(at + PAGE).filter(|next| *next < end).or(next).unwrap_or(at);
                // SAFETY: populated, readable pages of the parked process, into free memory of this mapping, both whole ones.
                unsafe { copy_past_cache(at, self.free().wrapping_add((at - start) as usize), next) };
            }
            self.filled += length;
            self.push((start, end), zeros);
            return Ok(true);
        }
        let may_lack = plan.content == Content::Fleeting || readable && absent;
        let mut at = start;
        while at < end {
            let length = (end - at).min(MAX_PAGES) as usize;
            if !self.fits(length) {
                return Ok(false);
            }
            // SAFETY: free memory of this mapping, which nobody else writes to.
            let free = unsafe { core::slice::from_raw_parts_mut(self.free(), length) };
            let got = job.fetch(at, free, may_lack)?;
            if got != 0 {
                self.filled += got as usize;
                self.push((at, at + got), zeros);
            }
            at += got.max(PAGE);
        }
        Ok(true)
    }

    /// Whether so many bytes more fit, and the run that tells of them.
    fn fits(&self, bytes: usize) -> bool {
        self.start + self.filled + bytes + (self.runs + 1) * RUN_BYTES <= self.end
    }

    fn free(&self) -> *mut u8 {
        (self.start + self.filled) as *mut u8
    }

    fn table(&self, index: usize) -> *mut Run {
        (self.end as *mut Run).wrapping_sub(index + 1)
    }

    /// After [`Half::fits`].
    fn push(&mut self, (start, end): (u64, u64), flags: u64) {
        // SAFETY: within the mapping, behind all pages.
        unsafe { self.table(self.runs).write(Run { start, end: end | flags }) };
        self.runs += 1;
    }

    fn runs(self) -> impl Iterator<Item = Run> {
        // SAFETY: written by `push`, within the mapping.
        (0..self.runs).map(move |index| unsafe { self.table(index).read() })
    }
}

/// What a process beside this one copies.
struct HalfTask {
    original: i32,
    job: *const WriteJob<'static>,
    changes: *const [Entry],
    range: (u64, u64),
    half: Half,
    result: Option<Result<bool, WriteError>>,
}

/// That process.
struct HalfCopier {
    copy: Copy,
    task: *mut HalfTask,
}

impl HalfCopier {
    /// `None`: there can be no such process.
    ///
    /// # Safety
    /// What is passed, and the stack that ends at `stack`, is nobody else's until [`HalfCopier::finish`] has returned.
    unsafe fn start(job: &WriteJob, changes: &[Entry], range: (u64, u64), half: Half, stack: usize) -> Option<Self> {
        let task = ((stack - size_of::<HalfTask>()) & !63) as *mut HalfTask;
        // SAFETY: no arguments.
        let original = unsafe { syscall(libc::SYS_getpid, [0; 6]) } as i32;
        // SAFETY: the caller's word on the stack.
        unsafe { task.write(HalfTask { original, job: (&raw const *job).cast(), changes, range, half, result: None }) };
        // SAFETY: `copy_half` uses that stack, what the task names and system calls alone, and ends by `leave`.
        let copy = unsafe { copy::beside(task as usize, copy_half, task.cast()) }.ok()?;
        Some(Self { copy, task })
    }

    /// Waits until it has ended. `None`: it was killed before it was done.
    fn finish(self) -> Option<(Result<bool, WriteError>, Half)> {
        let end = self.copy.await_end();
        // SAFETY: written by `start`; the process that may have changed it has ended.
        let HalfTask { half, result, .. } = unsafe { self.task.read() };
        result.filter(|_| end == End::Exited(0)).map(|result| (result, half))
    }
}

/// The life of a process that copies the second half.
unsafe extern "C" fn copy_half(task: *mut c_void) -> ! {
    // SAFETY: `HalfCopier::start` put it there, and lends it and what it names until this process has ended.
    let task = unsafe { &mut *task.cast::<HalfTask>() };
    // SAFETY: as above.
    let (job, changes) = unsafe { (&*task.job, &*task.changes) };
    if !end_with(task.original) {
        leave(1);
    }
    let fill = || task.result = Some(task.half.fill(job, changes, task.range));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill));
    leave(i32::from(result.is_err()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_image::HEADER_SIZE;
    use mend_image::record::{Kind, Mapping, mapping};
    use mend_kernel::pagemap::Method;
    use proptest::prelude::*;
    use rustix::fd::AsFd;
    use std::fs::File;

    /// Memory for a stack of its own, and its end.
    fn stack() -> (Vec<u8>, usize) {
        let stack = vec![0; 256 << 10];
        let end = stack.as_ptr() as usize + stack.len();
        (stack, end)
    }

    fn job<'a>(memory: &'a File, plans: &'a [MappingPlan]) -> WriteJob<'a> {
        let tables = [Kind::Strings, Kind::Objects, Kind::Mappings, Kind::Threads, Kind::Process].map(|kind| (kind, &[][..]));
        let (out, pagemap, memory) = (memory.as_fd(), memory.as_fd(), memory.as_fd());
        let (method, header) = (Method::Entries, [0; HEADER_SIZE]);
        WriteJob { out, pagemap, memory, method, header, tables, unread: &[], summary: &[], plans, volatile: &[], held: &[], scan: None }
    }

    /// Its address, whether it counts if it is zero, and its bytes.
    type Page = (u64, bool, Vec<u8>);

    /// What is in it: pages, and what is left to the base.
    fn content(memory: &DirtyCopyMemory, filled: DirtyCopies) -> (Vec<Page>, Vec<(u64, u64)>) {
        let mut pages = Vec::new();
        let each = |(start, end): (u64, u64), from: u64, zeros: bool| {
            for at in (0..end - start).step_by(PAGE as usize) {
                // SAFETY: within the memory, as it says.
                let page = unsafe { core::slice::from_raw_parts((from + at) as *const u8, PAGE as usize) };
                pages.push((start + at, zeros, page.to_vec()));
            }
            Ok::<(), ()>(())
        };
        memory.each_copied(filled, each).unwrap();
        (pages, memory.kept(filled).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Two processes copy what one does, whatever the memory is like and whatever becomes of the second one.
        #[test]
        fn halves_are_the_whole(
            runs in prop::collection::vec((1u64..60, 0u8..8), 1..120), border in 0usize..120, killed in any::<bool>(), halves_of_memory in 1u64..3
        ) {
            let total: u64 = runs.iter().map(|(pages, _)| pages).sum();
            let mut area = vec![0u64; ((total + 1) * PAGE / 8) as usize];
            for (number, word) in area.iter_mut().enumerate() {
                *word = (number as u64 / 512 % 3) * number as u64;
            }
            let base = (area.as_ptr() as u64).next_multiple_of(PAGE);
            let (mut entries, mut at, mut middle) = (Vec::new(), base, base);
            for (index, (pages, kind)) in runs.iter().enumerate() {
                if index <= border {
                    middle = at;
                }
                let end = at + pages * PAGE;
                if *kind > 0 {
                    entries.push(Entry::new(at, end, *kind > 2, *kind > 6));
                }
                at = end;
            }
            let place = |start, end| Mapping { start, end, offset: 0, protection: 3, flags: 0, object: mapping::NO_OBJECT, page_shift: 0 };
            let plan = |start, end, content| MappingPlan { mapping: place(start, end), content, huge: false };
            let plans = [plan(base, middle, Content::Populated), plan(middle, at, Content::Changed)];
            let memory = File::open("/proc/self/mem").unwrap();
            let job = job(&memory, &plans);
            let (_stack, stack) = stack();
            let changed: u64 = entries.iter().filter(|entry| entry.changed()).map(|entry| (entry.range().1 - entry.range().0) / PAGE).sum();
            let [whole, halves] = [false, true].map(|in_halves| DirtyCopyMemory::new(changed * halves_of_memory / 2, in_halves).unwrap());
            // SAFETY: the stack is this test's, as is the memory.
            let [one, two] = [&whole, &halves].map(|memory| unsafe { memory.fill(&job, &entries, stack) }.unwrap());
            let one = one.unwrap();
            if let Some(two) = two {
                prop_assert_eq!(content(&whole, one), content(&halves, two));
            }
            let half = Half::new(halves.start, halves.start + halves.length);
            // SAFETY: as above.
            let copier = unsafe { HalfCopier::start(&job, &entries, (0, u64::MAX), half, stack) }.unwrap();
            if killed {
                copier.copy.kill();
            }
            match copier.finish() {
                Some((fits, half)) => {
                    prop_assert_eq!(fits, Ok(true));
                    prop_assert_eq!(content(&whole, one), content(&halves, DirtyCopies([half, Half::new(0, 0)])));
                }
                None => prop_assert!(killed),
            }
        }
    }

    #[test]
    fn half_of_what_changed_lies_before_the_middle() {
        let entry = |start: u64, pages: u64, changed| Entry::new(start * PAGE, (start + pages) * PAGE, changed, false);
        assert_eq!(halfway(&[]), None);
        assert_eq!(halfway(&[entry(1, 511, true), entry(5000, 9000, false)]), None);
        assert_eq!(halfway(&[entry(0, 512, true)]), Some(256 * PAGE));
        let entries = [entry(100, 50, true), entry(150, 900, false), entry(2000, 900, true), entry(3000, 50, true)];
        assert_eq!(halfway(&entries), Some(2450 * PAGE));
        assert_eq!(halfway(&[entry(0, 300, true), entry(400, 300, true)]), Some(400 * PAGE));
    }
}
