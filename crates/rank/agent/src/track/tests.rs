//! Differential test: whatever is done to memory, a chain of incremental images says the same as memory itself.
//!
//! Threads change their own arenas at random, by every means that is known to touch tracking; then they stand still, a scan
//! is made, the image that would be written is put on top of the chain, and each page is compared. A failure names its seed:
//! `MEND_DIFFERENTIAL_SEED=n cargo test -p mend-agent dirty`. `MEND_DIFFERENTIAL_SEQUENCES` says how many.

mod arena;
mod huge;
mod live;
mod peers;
mod pinned;

use super::*;
use crate::memory::file_fingerprints::FileFingerprints;
use crate::memory::layout::{Content, Layout, MappingPlan};
use crate::memory::maps;
use arena::Arena;
use mend_image::record::Mapping;
use mend_kernel::pagemap::{self, Region};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: u64 = 4096;
const THREADS: usize = 3;
/// Sequences of operations and images, for each method.
const SEQUENCES: u64 = 50;

/// Says what is not shown here, so that it is seen although the test passes: what is printed as usual is not.
fn skipped(what: &str, why: &str) {
    // In one piece: other tests print, too.
    let _ = std::io::stderr().write_all(format!("skipped: {what}: {why}\n").as_bytes());
}

/// Only one test at a time: soft-dirty bits are the process's.
static TURN: Mutex<()> = Mutex::new(());

/// What the chain of images says: pages that are not as a fresh mapping gives them, by the hash of their content.
type Chain = HashMap<u64, u64>;

struct Bench {
    memory: File,
    pagemap: File,
    /// How this kernel tells of pages.
    pagemap_method: pagemap::Method,
    tracker: Tracker,
    chain: Chain,
    images: u8,
    zero: u64,
    /// Some memory is pinned for a device.
    pinned: bool,
}

impl Bench {
    fn new(method: &str) -> Option<Self> {
        let open = |path| File::open(path).unwrap();
        let mut tracker = Tracker::new(method);
        let there = tracker.describe().method == method;
        let (memory, pagemap, zero) = (open("/proc/self/mem"), open("/proc/self/pagemap"), xxh3_64(&[0; PAGE as usize]));
        let pagemap_method = pagemap::probe(pagemap.as_raw_fd());
        if !there {
            skipped(&format!("changes by {method}"), &tracker.describe().why.join("; "));
        }
        there.then(|| Self { memory, pagemap, pagemap_method, tracker, chain: Chain::new(), images: 0, zero, pinned: false })
    }

    fn page(&self, address: u64) -> Option<u64> {
        let mut content = [0; PAGE as usize];
        self.memory.read_exact_at(&mut content, address).is_ok().then(|| xxh3_64(&content))
    }

    /// What a mapping made anew would show.
    fn fresh(&self, arenas: &[Arena], plan: &MappingPlan, address: u64) -> Option<u64> {
        if plan.content != Content::Changed {
            return Some(self.zero);
        }
        let arena = arenas.iter().find(|arena| arena.range().contains(&address))?;
        let mut content = [0; PAGE as usize];
        let got = arena.file().read_at(&mut content, plan.mapping.offset + (address - plan.mapping.start)).unwrap();
        (got > 0).then(|| xxh3_64(&content))
    }

    fn plans(&self, arenas: &[Arena]) -> Vec<MappingPlan> {
        let areas: Vec<_> =
            maps::read().unwrap().into_iter().filter(|area| arenas.iter().any(|arena| arena.range().contains(&area.start))).collect();
        let mut plans = Layout::plan(&areas, &maps::Advice::new(), &[], &mut FileFingerprints::default().files(&[])).unwrap().plans;
        // Whether or not there are huge pages: which pages are protected must not matter.
        plans.iter_mut().for_each(|plan| plan.huge = self.images.is_multiple_of(2) || !(plan.mapping.start / PAGE).is_multiple_of(3));
        plans
    }

    /// Takes an image as a save does. Returns how many pages it left to its base.
    fn image(&mut self, arenas: &[Arena], plans: &[MappingPlan], full: bool, track: bool) -> usize {
        let base = self.tracker.since.map(|(id, _)| id).filter(|_| !full);
        let mut prepared = self.tracker.prepare(base, track);
        prepared.on_quiesced();
        assert_eq!(prepared.base.map(|(id, _)| id), base, "{:?}", prepared.note);
        let Some(scan) = prepared.scan else { return 0 };
        self.tracker.begin(&scan);
        let mut regions = vec![Region::default(); 64];
        let mut running = RunningScan::new(scan);
        let mut context = scan.context(self.pagemap.as_raw_fd(), self.pagemap_method, &[], &mut regions);
        if self.images.is_multiple_of(2) {
            running.defer();
        }
        let in_turn = (running.in_turn() && !self.images.is_multiple_of(3)).then(|| told_in_turn(&mut running, plans, &mut context));
        running.complete(plans, &mut context);
        let result = running.result();
        // SAFETY: the slice is gone before the next scan.
        let entries = unsafe { scan.entries(&result) };
        assert!(in_turn.is_none() || in_turn.as_deref() == entries);
        assert!(entries.is_some() || base.is_none());
        assert_eq!(result.armed, track && !self.pinned);
        let (mut image, mut kept) = (Chain::new(), 0);
        match entries {
            None => self.store_everything(plans, &mut image),
            Some(entries) => {
                assert!(entries.windows(2).all(|pair| pair[0].range().1 <= pair[1].range().0));
                for plan in plans.iter().filter(|plan| tracked(plan)) {
                    for entry in within(entries, (plan.mapping.start, plan.mapping.end)) {
                        let (start, end) = entry.range();
                        assert!(start < end && end <= plan.mapping.end);
                        for page in (start..end).step_by(PAGE as usize) {
                            let content = if entry.changed() { self.page(page) } else { self.chain.get(&page).copied() };
                            kept += usize::from(!entry.changed());
                            content
                                .filter(|content| plan.content == Content::Changed || *content != self.zero)
                                .map(|content| image.insert(page, content));
                        }
                    }
                }
            }
        }
        self.compare(arenas, plans, &image);
        if result.armed {
            self.chain = image;
            self.images = self.images.wrapping_add(1);
        }
        let id = ImageId([self.images; 16]);
        self.tracker.settle(id, prepared.base.map_or(0, |(_, sequence)| sequence), &scan, &result);
        if !result.complete() {
            // As a copy of the process does, while the agent goes on.
            let made = scan.make_hashes(plans, &mut context, || ()).unwrap();
            self.tracker.take_hashes(id, Some(made));
        }
        while !self.images.is_multiple_of(3) && self.tracker.has_split() {
            self.tracker.join_some();
        }
        kept
    }

    fn store_everything(&self, plans: &[MappingPlan], image: &mut Chain) {
        let mut regions = vec![Region::default(); 64];
        let mut context = regions::ScanContext {
            pagemap: self.pagemap.as_raw_fd(),
            method: self.pagemap_method,
            regions: &mut regions,
            volatile: &[],
            arm: false,
        };
        for plan in plans.iter().filter(|plan| tracked(plan)) {
            let store = |_: &mut regions::ScanContext, region: Region| {
                for page in (region.start..region.end).step_by(PAGE as usize) {
                    let content = self.page(page).filter(|content| plan.content == Content::Changed || *content != self.zero);
                    content.map(|content| image.insert(page, content));
                }
            };
            regions::each_populated(plan, &mut context, store).unwrap();
        }
    }

    /// What a restart would make of it is what is in memory.
    fn compare(&self, arenas: &[Arena], plans: &[MappingPlan], image: &Chain) {
        for plan in plans.iter().filter(|plan| tracked(plan)) {
            let mut content = vec![0; (plan.mapping.end - plan.mapping.start) as usize];
            let whole = self.memory.read_exact_at(&mut content, plan.mapping.start).is_ok();
            for (page, content) in (plan.mapping.start..).step_by(PAGE as usize).zip(content.chunks(PAGE as usize)) {
                // Parts of it may be there and others not.
                let actual = if whole { Some(xxh3_64(content)) } else { self.page(page) };
                let Some(actual) = actual else { continue };
                let said = image.get(&page).copied().or_else(|| self.fresh(arenas, plan, page));
                assert_eq!(said, Some(actual), "page {page:#x} of {:#x}..{:#x} ({:?})", plan.mapping.start, plan.mapping.end, plan.content);
            }
        }
    }
}

/// What a writer is told that asks while it writes.
fn told_in_turn(running: &mut RunningScan, plans: &[MappingPlan], context: &mut ScanContext) -> Vec<Entry> {
    let mut told = Vec::new();
    for plan in plans.iter().filter(|plan| tracked(plan)) {
        let Mapping { start: mut at, end, .. } = plan.mapping;
        while at < end {
            let to = running.beyond(at, plans, context).unwrap().min(end);
            // SAFETY: the slice is gone before the next scan.
            told.extend(within(unsafe { running.listed() }, (at, to)));
            at = to;
        }
    }
    told
}

/// The sequence under way, for a test that dies.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Says which sequence it was.
extern "C" fn on_fault(signal: i32) {
    let mut text = *b"died with MEND_DIFFERENTIAL_SEED=00000000000000000000\n";
    let (mut seed, mut at) = (SEED.load(Ordering::Relaxed), text.len() - 2);
    while seed != 0 {
        text[at] = b'0' + (seed % 10) as u8;
        (seed, at) = (seed / 10, at - 1);
    }
    // SAFETY: writes from `text`; then as if there had been no handler.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::signal(signal, libc::SIG_DFL);
    }
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs sequences by seed, and says which failed. Each returns how many pages were left to what came before, some of which there must be.
fn run_sequences(method: &str, what: &str, sequence: fn(&mut Bench, u64) -> usize) {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(mut bench) = Bench::new(method) else { return };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler makes system calls alone.
        unsafe { libc::signal(signal, on_fault as *const () as usize) };
    }
    let chosen = std::env::var("MEND_DIFFERENTIAL_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    let first = chosen.unwrap_or(std::process::id().into());
    let count = if chosen.is_some() { 1 } else { number("MEND_DIFFERENTIAL_SEQUENCES", SEQUENCES) };
    let mut kept = 0;
    for seed in first..first + count {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sequence(&mut bench, seed)));
        match result {
            Ok(pages) => kept += pages,
            Err(panic) => {
                eprintln!("{method}, {what}: failed with MEND_DIFFERENTIAL_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(kept != 0, "nothing was ever left to what came before");
}

fn run(method: &str) {
    run_sequences(method, "images", sequence);
}

/// One sequence: a full image, then incremental ones, with operations between.
fn sequence(bench: &mut Bench, seed: u64) -> usize {
    SEED.store(seed, Ordering::Relaxed);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut arenas: Vec<Arena> = (0..THREADS).map(|number| Arena::new(seed ^ (number as u64) << 56)).collect();
    let mut kept = 0;
    for step in 0..1 + random.random_range(0..6) {
        let operations = 1 + random.random_range(0..12);
        std::thread::scope(|scope| {
            for arena in &mut arenas {
                scope.spawn(move || (0..operations).for_each(|_| arena.operate()));
            }
        });
        let full = step == 0 || random.random_range(0..8) == 0;
        let plans = bench.plans(&arenas);
        if !full && random.random_range(0..4) == 0 {
            // One that leaves the tracking as it is.
            kept += bench.image(&arenas, &plans, false, false);
        }
        kept += bench.image(&arenas, &plans, full, true);
    }
    kept
}

#[test]
fn images_say_what_memory_says_by_write_protection() {
    run("write-protect");
}

#[test]
fn images_say_what_memory_says_by_soft_dirty_bits() {
    run("soft-dirty");
}

#[test]
fn images_say_what_memory_says_by_hashes() {
    run("hash");
}

/// The random reads with `O_DIRECT` are what they are called, or it is said.
#[test]
fn direct_reads_go_past_the_cache() {
    let (file, goes_past) = arena::open_direct();
    let direct = rustix::fs::fcntl_getfl(&file).unwrap().contains(rustix::fs::OFlags::DIRECT);
    // SAFETY: a plain structure of numbers.
    let mut told: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: statx writes into `told`.
    let result = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut told) };
    let promised = result == 0 && told.stx_mask & libc::STATX_DIOALIGN != 0 && told.stx_dio_mem_align != 0;
    match goes_past {
        Ok(()) => assert!(direct),
        Err(why) if promised => panic!("the kernel promises direct reads of this file: {why}"),
        Err(why) => skipped("reads with O_DIRECT", &why),
    }
}
