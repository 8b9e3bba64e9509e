//! Memory that changes while it is copied, round by round: what was sent and what the last scan lists make up what memory is.

use super::*;
use crate::track::{LiveScan, Noticed};
use std::sync::atomic::AtomicBool;

/// Small, so that many windows begin and end within what an operation changes.
const WINDOW: u64 = 64 << 12;

/// How many operations a thread began and ended: odd while it is in one.
#[derive(Default)]
struct Steps(AtomicU64);

/// An operation under way. It ends by a panic, too, which nobody must wait for.
struct Step<'a>(&'a Steps);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Steps {
    fn begin(&self) -> Step<'_> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Step(self)
    }

    /// Waits until what is under way now has ended. A copy of a program waits for a fixed time instead, and has an image hold all of memory
    /// where a device may write for longer; here devices do, on machines with much else to do.
    fn wait(&self) {
        let now = self.0.load(Ordering::Acquire);
        while now % 2 == 1 && self.0.load(Ordering::Acquire) == now {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
}

/// What the receiver has: pages that are not zeros, by the hash of their content.
struct Copied {
    pages: Chain,
    live: LiveScan,
    /// A round comes to its end only now and then.
    random: ChaCha8Rng,
}

impl Copied {
    fn round(&mut self, bench: &Bench, arenas: &[std::ops::Range<u64>], threads: &[Steps]) {
        let areas: Vec<_> =
            maps::read().unwrap().into_iter().filter(|area| arenas.iter().any(|arena| arena.contains(&area.start))).collect();
        // The receiver forgets what is mapped no more.
        self.pages.retain(|page, _| areas.iter().any(|area| (area.start..area.end).contains(page)));
        for area in areas.iter().filter(|area| !area.shared) {
            let (range, anonymous) = ((area.start, area.end), area.is_anonymous());
            let Some(end) = self.live.enter(bench.pagemap.as_raw_fd(), range, anonymous) else { continue };
            let (mut at, mut waiting) = (area.start, Vec::new());
            while at < end {
                let mut found = [Region::default(); 512];
                let window = self.live.window(bench.pagemap.as_raw_fd(), bench.pagemap_method, (at, end), (anonymous, WINDOW), &mut found);
                let Some((count, next, noticed)) = window else { break };
                match noticed {
                    Noticed::ByProtection => waiting.extend_from_slice(&found[..count]),
                    Noticed::ByHash => found[..count].iter().for_each(|region| self.take(bench, *region, noticed)),
                }
                at = next;
                if self.random.random_range(0..200) == 0 {
                    waiting.iter().for_each(|region| self.live.withdraw((region.start, region.end), noticed));
                    return;
                }
            }
            if !waiting.is_empty() {
                // Whoever had hold of a page has written to it by then.
                threads.iter().for_each(Steps::wait);
            }
            waiting.iter().for_each(|region| self.take(bench, *region, Noticed::ByProtection));
        }
        self.live.end_round();
    }

    fn take(&mut self, bench: &Bench, region: Region, noticed: Noticed) {
        let mut content = vec![0; (region.end - region.start) as usize];
        if bench.memory.read_exact_at(&mut content, region.start).is_err() {
            if content.len() as u64 == PAGE {
                return self.live.withdraw((region.start, region.end), noticed);
            }
            let mut page = region;
            for start in (region.start..region.end).step_by(PAGE as usize) {
                (page.start, page.end) = (start, start + PAGE);
                self.take(bench, page, noticed);
            }
            return;
        }
        for (page, content) in (region.start..).step_by(PAGE as usize).zip(content.chunks(PAGE as usize)) {
            let zero = xxh3_64(content) == bench.zero;
            match noticed {
                Noticed::ByProtection if zero => drop(self.pages.remove(&page)),
                Noticed::ByProtection => drop(self.pages.insert(page, xxh3_64(content))),
                Noticed::ByHash => {
                    if self.live.differs(page, content) {
                        self.pages.insert(page, xxh3_64(content));
                    }
                }
            }
        }
    }
}

/// One sequence: arenas change by threads of their own while rounds are taken; then they stand still for the last scan.
fn live_sequence(bench: &mut Bench, seed: u64) -> usize {
    SEED.store(seed, Ordering::Relaxed);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut arenas: Vec<Arena> = (0..THREADS).map(|number| Arena::new(seed ^ (number as u64) << 56)).collect();
    if random.random_range(0..3) == 0 {
        // A chain of checkpoints was begun before.
        let plans = bench.plans(&arenas);
        bench.image(&arenas, &plans, true, true);
    }
    let ranges: Vec<_> = arenas.iter().map(Arena::range).collect();
    let live = bench.tracker.begin_rounds(pinned).unwrap();
    let mut copied = Copied { pages: Chain::new(), live, random: ChaCha8Rng::seed_from_u64(!seed) };
    let (rounds, operations) = (1 + random.random_range(0..5), 2 + random.random_range(0..30));
    let over = AtomicBool::new(false);
    let threads: [Steps; THREADS] = Default::default();
    std::thread::scope(|scope| {
        for (arena, steps) in arenas.iter_mut().zip(&threads) {
            let over = &over;
            scope.spawn(move || {
                for _ in (0..operations).take_while(|_| !over.load(Ordering::Relaxed)) {
                    let _step = steps.begin();
                    arena.operate();
                }
            });
        }
        for _ in 0..rounds {
            copied.round(bench, &ranges, &threads);
        }
        over.store(true, Ordering::Relaxed);
    });
    let plans = bench.plans(&arenas);
    let mut prepared = bench.tracker.prepare_rest(&mut copied.live, ImageId([7; 16]));
    prepared.on_quiesced();
    let scan = prepared.scan.expect("nothing is pinned");
    let mut regions = vec![Region::default(); 64];
    let mut running = RunningScan::new(scan);
    running.complete(&plans, &mut scan.context(bench.pagemap.as_raw_fd(), bench.pagemap_method, &[], &mut regions));
    let result = running.result();
    assert!(!result.armed);
    // SAFETY: the slice is gone before the next scan.
    let entries = unsafe { scan.entries(&result) }.expect("a list");
    let (mut image, mut kept) = (Chain::new(), 0);
    for plan in plans.iter().filter(|plan| tracked(plan)) {
        for entry in within(entries, (plan.mapping.start, plan.mapping.end)) {
            let (start, end) = entry.range();
            for page in (start..end).step_by(PAGE as usize) {
                let content = if entry.changed() { bench.page(page) } else { copied.pages.get(&page).copied() };
                kept += usize::from(!entry.changed());
                content
                    .filter(|content| plan.content == Content::Changed || *content != bench.zero)
                    .map(|content| image.insert(page, content));
            }
        }
    }
    bench.compare(&arenas, &plans, &image);
    // And a chain of images begins anew.
    let before = bench.tracker.since;
    assert_eq!(before, None);
    kept
}

fn run_live(method: &str) {
    run_sequences(method, "live", live_sequence);
}

#[test]
fn rounds_and_the_rest_say_what_memory_says_by_write_protection() {
    run_live("write-protect");
}

#[test]
fn rounds_and_the_rest_say_what_memory_says_by_hashes() {
    run_live("hash");
}

/// Else a part of it may be, the kernel has two mappings where the program has one, and its mremap fails.
#[test]
fn what_is_mapped_after_the_threads_stood_still_is_not_observed() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(mut bench) = Bench::new("write-protect") else { return };
    const HALF: usize = 8 * PAGE as usize;
    let map = |at: *mut libc::c_void, length: usize, fixed: i32| {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed);
        // SAFETY: a new mapping, or one over what this test has mapped.
        let base = unsafe { libc::mmap(at, length, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: just mapped.
        unsafe { base.cast::<u8>().write_bytes(7, length) };
        base
    };
    let base = map(std::ptr::null_mut(), 4 * HALF, 0);
    // SAFETY: a part of it; the last quarter is another mapping's neighbour.
    unsafe { libc::munmap(base.cast::<u8>().add(HALF).cast(), 2 * HALF) };
    let start = base as u64;
    let middle = start + HALF as u64;
    let mut live = bench.tracker.begin_rounds(pinned).unwrap();
    let pagemap = bench.pagemap.as_raw_fd();
    live.observe_at_rest(pagemap, [(start, middle)].into_iter());
    // The program goes on.
    map(middle as *mut libc::c_void, HALF, libc::MAP_FIXED);
    let end = middle + HALF as u64;
    assert_eq!(live.enter(pagemap, (start, end), true), Some(middle));
    assert_eq!(live.enter(pagemap, (middle, end), true), None);
    assert!(!mend_kernel::pagemap::observed(pagemap, middle));
    // With the next round's list it is.
    live.observe_at_rest(pagemap, [(start, end)].into_iter());
    assert_eq!(live.enter(pagemap, (start, end), true), Some(end));
}
