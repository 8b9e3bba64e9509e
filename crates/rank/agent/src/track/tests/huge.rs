//! Blocks of huge pages that are written to all the time: left alone, joined, and tried again.

use super::*;
use mend_image::record::Mapping;

const HUGE_PAGE_BYTES: usize = 2 << 20;
const BLOCKS: usize = 4;

/// Whole blocks of memory that may be in huge pages.
struct Memory {
    base: *mut u8,
    plan: MappingPlan,
}

impl Memory {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let length = (BLOCKS + 1) * HUGE_PAGE_BYTES;
        // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let start = (base as u64).next_multiple_of(HUGE_PAGE_BYTES as u64);
        // SAFETY: advice on the mapping made above.
        unsafe { libc::madvise(start as *mut _, BLOCKS * HUGE_PAGE_BYTES, libc::MADV_HUGEPAGE) };
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u32;
        let end = start + (BLOCKS * HUGE_PAGE_BYTES) as u64;
        let mapping =
            Mapping { start, end, offset: 0, protection, flags: 0, object: mend_image::record::mapping::NO_OBJECT, page_shift: 0 };
        Self { base: start as *mut u8, plan: MappingPlan { mapping, content: Content::Populated, huge: true } }
    }

    /// Writes to every n-th page of a block.
    fn write(&self, block: usize, every: usize) {
        for page in (0..512).step_by(every) {
            // SAFETY: within the mapping.
            unsafe { self.base.add(block * HUGE_PAGE_BYTES + page * 4096).write_volatile(7) };
        }
    }

    /// Whether a block is one huge page.
    fn huge(&self, pagemap: &File, block: usize) -> bool {
        let start = self.plan.mapping.start + (block * HUGE_PAGE_BYTES) as u64;
        let mut found = [Region::default(); 4];
        let (count, _) =
            mend_kernel::pagemap::missing(pagemap.as_raw_fd(), start, start + HUGE_PAGE_BYTES as u64, true, &mut found).unwrap();
        count == 1 && found[0].huge() && (found[0].start, found[0].end) == (start, start + HUGE_PAGE_BYTES as u64)
    }
}

/// Takes an image; how many pages of each block count as changed, and the tracker as it is then.
fn image(tracker: &mut Tracker, pagemap: &File, memory: &Memory, number: u8, full: bool) -> [u64; BLOCKS] {
    let base = (!full).then(|| ImageId([number - 1; 16]));
    let scan = tracker.prepare(base, true).scan.unwrap();
    tracker.begin(&scan);
    let result = scan.take(pagemap.as_raw_fd(), pagemap::Method::Scan, &[memory.plan], &[], &mut [Region::default(); 64]);
    // SAFETY: the slice is gone before the next scan.
    let entries = unsafe { scan.entries(&result) }.unwrap_or_default();
    let mut changed = [0; BLOCKS];
    for entry in entries.iter().filter(|entry| entry.changed()) {
        for page in (entry.range().0..entry.range().1).step_by(PAGE as usize) {
            changed[(page - memory.plan.mapping.start) as usize / HUGE_PAGE_BYTES] += 1;
        }
    }
    assert!(result.armed);
    tracker.settle(ImageId([number; 16]), u32::from(number), &scan, &result);
    changed
}

#[test]
fn what_is_written_all_the_time_is_left_alone() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut tracker = Tracker::new("write-protect");
    if tracker.describe().method != "write-protect" {
        return;
    }
    let (memory, pagemap) = (Memory::new(), File::open("/proc/self/pagemap").unwrap());
    (0..BLOCKS).for_each(|block| memory.write(block, 1));
    image(&mut tracker, &pagemap, &memory, 1, true);
    let huge: Vec<bool> = (0..BLOCKS).map(|block| memory.huge(&pagemap, block)).collect();
    assert!(!tracker.has_split(), "new blocks are protected, not left alone");
    // All of one, half of one, a little of one, nothing of one.
    for (block, every) in [(0, 1), (1, 2), (2, 32)] {
        memory.write(block, every);
    }
    assert_eq!(image(&mut tracker, &pagemap, &memory, 2, false), [512, 256, 16, 0]);
    assert!(tracker.has_split());
    while tracker.has_split() {
        tracker.join_some();
    }
    let joined: Vec<bool> = (0..BLOCKS).map(|block| memory.huge(&pagemap, block)).collect();
    if huge == [true; BLOCKS] {
        assert_eq!(joined, [true, true, false, true]);
    }
    // Left alone, they count as changed; the others do not.
    assert_eq!(image(&mut tracker, &pagemap, &memory, 3, false), [512, 512, 0, 0]);
    if huge == [true; BLOCKS] {
        assert!(!tracker.has_split(), "they are huge pages");
    }
    // Also by full images, until one of those gives them another chance.
    let mut number = 4;
    loop {
        image(&mut tracker, &pagemap, &memory, number, true);
        number += 1;
        let changed = image(&mut tracker, &pagemap, &memory, number, false);
        number += 1;
        if changed == [0; BLOCKS] {
            break;
        }
        assert_eq!(changed, [512, 512, 0, 0]);
        assert!(number < 40, "they never get another chance");
    }
    assert!(number > 8, "they were tried again at once");
}

#[test]
fn a_look_that_fails_half_way_lists_what_it_saw_and_ends_the_tracking() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(Bench { pagemap, mut tracker, .. }) = Bench::new("write-protect") else {
        return eprintln!("write-protect is not to be had here");
    };
    let memory = Memory::new();
    (0..BLOCKS).for_each(|block| memory.write(block, 1));
    image(&mut tracker, &pagemap, &memory, 1, true);
    // One entry for the first part; the second has more than there is room for.
    memory.write(1, 2);
    let mut few = PageList::EMPTY;
    few.reserve(2).unwrap();
    let prepared = tracker.prepare(Some(ImageId([1; 16])), true);
    let scan = DirtyScan { list: Some(few.lend()), ..prepared.scan.unwrap() };
    tracker.begin(&scan);
    let Mapping { start, end, .. } = memory.plan.mapping;
    let (plans, mut regions) = ([memory.plan], [Region::default(); 64]);
    let mut context = scan.context(pagemap.as_raw_fd(), pagemap::Method::Scan, &[], &mut regions);
    let mut running = RunningScan::new(scan);
    let second = start + HUGE_PAGE_BYTES as u64;
    assert_eq!(running.beyond(start, &plans, &mut context), Some(second));
    assert_eq!(running.beyond(second, &plans, &mut context), None);
    running.complete(&plans, &mut context);
    assert_eq!(running.beyond(end - PAGE, &plans, &mut context), None);
    // SAFETY: the slice is gone before the next scan.
    let listed: Vec<_> = unsafe { running.listed() }.iter().map(|entry| (entry.range(), entry.changed())).collect();
    assert_eq!(listed, [((start, second), false)]);
    let result = running.result();
    assert!(result.entries.is_none() && !result.armed && !running.in_turn());
    tracker.settle(ImageId([2; 16]), 1, &scan, &result);
    assert!(tracker.prepare(Some(ImageId([2; 16])), true).base.is_none());
}
