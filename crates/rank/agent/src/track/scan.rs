//! The dirty scan: finds, while the threads stand still, which private pages changed since the last image, and starts the tracking again.
//!
//! It runs on scratch memory, allocates nothing, and writes only to page lists. It begins after the agent's last change to
//! memory that is saved, and examines each page before that page is written: what changes later belongs to the next image.
//!
//! A page that was not populated before and is now, that was dropped and filled again, or whose mapping is another one than
//! before counts as changed; one that is no longer populated is in no list and thereby as a fresh mapping gives it.

use super::blocks::Blocks;
use super::hash::{self, Hashed, Hashing};
use super::page_list::{LentPages, Words};
use super::protect;
use super::soft;
use crate::memory::layout::{Content, Plan};
use crate::memory::pages::PAGE;
use mend_image::record::{Mapping, mapping};
use mend_kernel::pagemap::{self, Method, Region, populated};

/// Populated pages that are alike.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    start: u64,
    /// End, and in its low bits [`CHANGED`], [`ABSENT`].
    end: u64,
}
impl Words for Entry {}

const CHANGED: u64 = 1;
const ABSENT: u64 = 2;
const FLAGS: u64 = 4095;

impl Entry {
    pub fn new(start: u64, end: u64, changed: bool, absent: bool) -> Self {
        Self { start, end: end | if changed { CHANGED } else { 0 } | if absent { ABSENT } else { 0 } }
    }

    /// First address and the first after it.
    pub fn range(&self) -> (u64, u64) {
        (self.start, self.end & !FLAGS)
    }

    /// False: as in the base.
    pub fn changed(&self) -> bool {
        self.end & CHANGED != 0
    }

    /// See [`Region::absent`].
    pub fn absent(&self) -> bool {
        self.end & ABSENT != 0
    }
}

/// Whether a mapping is scanned for changes: private memory, but for pools of huge pages and deleted files.
pub(crate) fn tracked(plan: &Plan) -> bool {
    let content = matches!(plan.content, Content::Populated | Content::Fleeting | Content::Changed);
    content && plan.mapping.flags & (mapping::SHARED | mapping::POOL) == 0
}

/// How the kernel tells what changed.
#[derive(Clone, Copy)]
pub(super) enum Mechanism {
    /// By a userfaultfd with this number.
    Protect(i32),
    /// By bits that the first descriptor clears, and a userfaultfd that is a witness of moves, if the bits don't tell of them.
    SoftDirty(i32, Option<i32>),
    /// By comparing hashes.
    Hash,
}

/// One scan: what it compares with, where its results go.
#[derive(Clone, Copy)]
pub(crate) struct DirtyScan {
    pub(super) mechanism: Mechanism,
    /// Hashes of pages as they were, and how many.
    pub(super) before: (LentPages<Hashed>, usize),
    /// Where hashes of pages as they are go.
    pub(super) after: LentPages<Hashed>,
    /// Notice changes from now on.
    pub(super) arm: bool,
    /// Blocks of huge pages as they were, how many, and where they go.
    pub(super) blocks: ((LentPages<Entry>, usize), LentPages<Entry>),
    /// Blocks without protection may stay so.
    pub(super) keep_hot: bool,
    /// List what changed.
    pub(super) list: Option<LentPages<Entry>>,
}

/// What a scan found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScanResult {
    /// The list's length; `None`: not asked for, or it could not be made, and all counts as changed.
    pub entries: Option<usize>,
    /// Changes are noticed from here on.
    pub armed: bool,
    /// How many; `None`: a copy of the process is to make them.
    pub(super) hashes: Option<usize>,
    pub(super) blocks: usize,
}

impl ScanResult {
    /// Nothing is left to a copy of the process.
    pub fn complete(&self) -> bool {
        self.hashes.is_some()
    }
}

/// Hashes that a copy of the process has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewHashes {
    pub(super) count: usize,
    /// The list was too short for all of them.
    pub(super) full: bool,
}

/// What a scan needs to know of the process.
pub(crate) struct ScanContext<'a> {
    pub pagemap: i32,
    pub method: Method,
    pub regions: &'a mut [Region],
    /// Pages that the kernel writes to when it likes.
    pub volatile: &'a [u64],
    pub arm: bool,
}

/// Where entries go; alike neighbours become one.
pub(super) struct Sink {
    list: Option<LentPages<Entry>>,
    last: Entry,
    count: usize,
    full: bool,
}

impl Sink {
    pub fn none() -> Self {
        Self::into(None)
    }

    pub fn into(list: Option<LentPages<Entry>>) -> Self {
        Self { list, last: Entry::default(), count: 0, full: false }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The list was too short for all entries.
    pub fn full(&self) -> bool {
        self.full
    }

    /// Drops all but the first `count` entries.
    pub fn cut(&mut self, count: usize) {
        (self.count, self.last) = (count, Entry::default());
    }

    pub fn wanted(&self) -> bool {
        self.list.is_some()
    }

    pub fn push(&mut self, start: u64, end: u64, changed: bool, absent: bool) {
        let entry = Entry::new(start, end, changed, absent);
        if self.last.end & !FLAGS == start && self.last.end & FLAGS == entry.end & FLAGS {
            self.last.end = entry.end;
        } else {
            self.flush();
            self.last = entry;
        }
    }

    /// Ends the entry under way: none reaches over two mappings, or two parts of a scan.
    pub fn flush(&mut self) {
        if let (Some(list), true) = (self.list, self.last.end != 0) {
            // SAFETY: the tracker lent the list for this scan, and nobody has a slice of it.
            self.full |= !unsafe { list.put(self.count, self.last) };
            self.count += 1;
        }
        self.last = Entry::default();
    }
}

/// A scan under way: over all private memory, ascending, in parts.
///
/// With write protection the scan and the writer may take turns: what one part of the scan listed is sent while the next part is
/// scanned. A failure ends the tracking: nothing is listed from there on, so all of that counts as changed.
pub(crate) struct RunningScan {
    scan: DirtyScan,
    sink: Sink,
    hashing: Hashing,
    blocks: Blocks,
    /// A copy of the process makes the hashes.
    deferred: bool,
    /// The next mapping, and where in it to go on if a part of it was scanned.
    plan: usize,
    within: Option<u64>,
    /// Up to this address all is scanned; the end of all addresses once nothing is left.
    reached: u64,
    result: Result<(), i32>,
}

/// After the last address.
const END_OF_ADDRESSES: u64 = u64::MAX;
/// Bytes that are scanned at a time: whole blocks of huge pages, and few enough for a sender to have something to do meanwhile.
const SCAN_PART_BYTES: u64 = if cfg!(test) { 2 << 20 } else { 32 << 20 };

impl RunningScan {
    /// Before anything is scanned.
    pub fn new(scan: DirtyScan) -> Self {
        Self {
            scan,
            sink: Sink::into(scan.list),
            hashing: Hashing::new(scan.before, scan.after),
            blocks: Blocks::new(scan.blocks.0, scan.blocks.1, scan.keep_hot),
            deferred: false,
            plan: 0,
            within: None,
            reached: 0,
            result: Ok(()),
        }
    }

    /// Before anything is scanned: leaves the hashes to [`DirtyScan::make_hashes`] in a copy of the process, if nothing is to be listed.
    pub fn defer(&mut self) {
        self.deferred = self.scan.defers();
    }

    /// Whether it may go on while what it listed is written: something is left to be listed, and nothing is done at its end that would
    /// hide a change from the next one.
    pub fn in_turn(&self) -> bool {
        let left = self.result.is_ok() && self.reached != END_OF_ADDRESSES;
        left && self.scan.list.is_some() && matches!(self.scan.mechanism, Mechanism::Protect(_))
    }

    /// Scans what is left.
    pub fn complete(&mut self, plans: &[Plan], context: &mut ScanContext) {
        while self.step(plans, context) {}
    }

    /// Scans on until it is beyond an address. Returns up to where; `None`: it has failed before it came there.
    pub fn beyond(&mut self, address: u64, plans: &[Plan], context: &mut ScanContext) -> Option<u64> {
        while self.reached <= address && self.step(plans, context) {}
        Some(self.reached).filter(|reached| *reached > address)
    }

    /// Scans the next part. False: nothing is left, or it has failed.
    fn step(&mut self, plans: &[Plan], context: &mut ScanContext) -> bool {
        if self.result.is_err() || self.reached == END_OF_ADDRESSES {
            return false;
        }
        let Some(plan) = plans.get(self.plan) else {
            self.result = match self.scan.mechanism {
                Mechanism::SoftDirty(clear_refs, _) if self.scan.arm => mend_kernel::soft_dirty::clear(clear_refs),
                _ => Ok(()),
            };
            self.reached = END_OF_ADDRESSES;
            return false;
        };
        let before = self.sink.count();
        let part = if tracked(plan) { self.part(plan, context) } else { Ok(None) };
        self.sink.flush();
        match part {
            Ok(next) if !self.sink.full() => {
                self.within = next;
                self.plan += usize::from(next.is_none());
                self.reached = next.unwrap_or(plan.mapping.end);
            }
            failed => {
                self.sink.cut(before);
                self.result = failed.and(Err(libc::ENOMEM));
            }
        }
        self.result.is_ok()
    }

    /// Scans the next part of a mapping. Returns where to go on in it.
    fn part(&mut self, plan: &Plan, context: &mut ScanContext) -> Result<Option<u64>, i32> {
        let Self { sink, hashing, blocks, .. } = self;
        match self.scan.mechanism {
            Mechanism::Protect(number) if !self.scan.hashed(plan) => {
                let Mapping { start, end, .. } = plan.mapping;
                let at = match self.within {
                    Some(at) => at,
                    None if protect::begin(number, plan, context, sink, blocks)? => start,
                    None => return Ok(None),
                };
                let to = end.min((at / SCAN_PART_BYTES + 1) * SCAN_PART_BYTES);
                protect::tell(plan, (at, to), context, sink, blocks)?;
                return Ok(Some(to).filter(|to| *to < end));
            }
            Mechanism::SoftDirty(_, witness) if !self.scan.hashed(plan) => soft::scan(witness, plan, context, sink),
            Mechanism::Protect(_) | Mechanism::SoftDirty(..) | Mechanism::Hash if self.deferred => Ok(()),
            Mechanism::Protect(_) | Mechanism::SoftDirty(..) | Mechanism::Hash => hash::scan(plan, hashing, context, sink),
        }?;
        Ok(None)
    }

    /// What was listed so far, ascending.
    ///
    /// # Safety
    /// The tracker must not begin another scan, nor be dropped, while the slice is in use.
    pub unsafe fn listed(&self) -> &'static [Entry] {
        // SAFETY: the caller answers for the list; what follows is put behind these.
        self.scan.list.map_or(&[], |list| unsafe { list.items(self.sink.count()) })
    }

    /// What it found.
    pub fn result(&self) -> ScanResult {
        let good = self.result.is_ok() && self.reached == END_OF_ADDRESSES;
        ScanResult {
            entries: (good && self.sink.wanted()).then_some(self.sink.count()),
            armed: good && self.scan.arm && !self.hashing.full(),
            hashes: (!self.deferred).then(|| self.hashing.count()),
            blocks: self.blocks.count(),
        }
    }
}

impl DirtyScan {
    /// Whether changes of a mapping that is tracked are noticed by hashes: under a file's private mapping write protection is not safe,
    /// and a witness not to be had (see there).
    fn hashed(&self, plan: &Plan) -> bool {
        match self.mechanism {
            Mechanism::Hash => true,
            Mechanism::Protect(_) | Mechanism::SoftDirty(_, Some(_)) => plan.content == Content::Changed,
            Mechanism::SoftDirty(_, None) => false,
        }
    }

    /// Hashes may be made later, of the same content: none is to be compared.
    pub fn defers(&self) -> bool {
        self.arm && self.list.is_none()
    }

    /// In a copy of the process: makes the hashes that were left to it, and says time and again that it lives.
    pub fn make_hashes(&self, plans: &[Plan], context: &mut ScanContext, mut lives: impl FnMut()) -> Result<NewHashes, i32> {
        const HASH_PART_BYTES: usize = 1 << 30;
        let (mut hashing, mut sink) = (Hashing::new(self.before, self.after), Sink::none());
        for plan in plans.iter().filter(|plan| tracked(plan) && self.hashed(plan)) {
            let Mapping { start, end, .. } = plan.mapping;
            for at in (start..end).step_by(HASH_PART_BYTES) {
                let piece = Mapping { start: at, end: end.min(at + HASH_PART_BYTES as u64), ..plan.mapping };
                hash::scan(&Plan { mapping: piece, ..*plan }, &mut hashing, context, &mut sink)?;
                lives();
            }
        }
        Ok(NewHashes { count: hashing.count(), full: hashing.full() })
    }

    /// What it needs to know of the process; `regions` is memory to work in.
    pub fn context<'a>(&self, pagemap: i32, method: Method, volatile: &'a [u64], regions: &'a mut [Region]) -> ScanContext<'a> {
        ScanContext { pagemap, method, regions, volatile, arm: self.arm }
    }

    /// Scans everything at once. A failure makes everything count as changed and ends the tracking: it is in the result.
    #[cfg(test)]
    pub fn take(&self, pagemap: i32, method: Method, plans: &[Plan], volatile: &[u64], regions: &mut [Region]) -> ScanResult {
        let mut running = RunningScan::new(*self);
        running.complete(plans, &mut self.context(pagemap, method, volatile, regions));
        running.result()
    }

    /// The list of a finished scan, ascending.
    ///
    /// # Safety
    /// The tracker must not begin another scan, nor be dropped, while the slice is in use.
    pub unsafe fn entries(&self, result: &ScanResult) -> Option<&'static [Entry]> {
        // SAFETY: the caller answers for the list.
        result.entries.and_then(|count| self.list.map(|list| unsafe { list.items(count) }))
    }
}

/// The entries within a range that none reaches over.
pub(crate) fn within(entries: &[Entry], (start, end): (u64, u64)) -> &[Entry] {
    let from = entries.partition_point(|entry| entry.start < start);
    let to = entries.partition_point(|entry| entry.start < end);
    &entries[from..to]
}

/// Calls with each populated region that is the process's own.
pub(super) fn each_populated(plan: &Plan, context: &mut ScanContext, each: impl FnMut(&mut ScanContext, Region)) -> Result<(), i32> {
    let own_only = plan.content == Content::Changed;
    let find = |context: &mut ScanContext, start, end| populated(context.pagemap, context.method, start, end, own_only, context.regions);
    each_region((plan.mapping.start, plan.mapping.end), context, find, each)
}

/// Calls with each region of a range that `find` puts into the context's `regions`; it returns how many, and up to where it searched.
pub(super) fn each_region(
    (mut at, end): (u64, u64),
    context: &mut ScanContext,
    find: impl Fn(&mut ScanContext, u64, u64) -> Result<(usize, u64), i32>,
    mut each: impl FnMut(&mut ScanContext, Region),
) -> Result<(), i32> {
    while at < end {
        let (count, next) = find(context, at, end)?;
        for index in 0..count {
            let region = context.regions[index];
            each(context, region);
        }
        at = next.max(at + PAGE);
    }
    Ok(())
}

/// Populated pages that are alike, as [`each_page_run`] tells of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub start: u64,
    pub end: u64,
    /// Written to since they were last protected.
    pub written: bool,
    /// See [`Region::absent`].
    pub absent: bool,
    /// Parts of huge pages. Only said if asked for.
    pub huge: bool,
}

/// Calls with all populated pages of a part of a mapping under observation, in runs, ascending, and protects them if that is wanted.
///
/// The kernel is asked for what was written to and for what is missing (or huge), apart, since to have all pages listed takes it longer
/// than both. What was written to is asked for last: a page that something other than the program's threads touches meanwhile
/// counts as written.
pub(super) fn each_page_run(
    (start, end): (u64, u64),
    context: &mut ScanContext,
    protect: bool,
    huge: bool,
    mut each: impl FnMut(Run),
) -> Result<(), i32> {
    let half = context.regions.len() / 2;
    let (apart, written) = context.regions.split_at_mut(half);
    // How many regions were found, and up to where they were searched for. Regions that were written to may fill their half many times meanwhile.
    let mut known = (0, start);
    let mut at = start;
    while at < end {
        if known.1 <= at {
            known = pagemap::missing(context.pagemap, at, end, huge, apart)?;
        }
        let (writes, next) = pagemap::written(context.pagemap, at, known.1, protect, written)?;
        let mut others = apart[..known.0].iter().peekable();
        let mut writes = written[..writes].iter().peekable();
        while at < next {
            // What contains `at`, and up to where nothing of that changes.
            let (write, change) = ahead(&mut writes, at, next);
            let (other, other_change) = ahead(&mut others, at, next);
            let to = change.min(other_change);
            let block = other.filter(|other| other.huge());
            // Fetched and unchanged: as good as in memory.
            let gap = other.filter(|other| !other.present() && (other.written() || !other.absent()));
            if write.is_some() || gap.is_none() {
                each(Run {
                    start: at,
                    end: to,
                    written: write.is_some(),
                    absent: write.is_some_and(Region::absent),
                    huge: block.is_some(),
                });
            }
            at = to;
        }
    }
    Ok(())
}

/// The region of an ascending list that contains `at`, and up to where, at most `end`, nothing changes about that.
fn ahead<'a>(list: &mut core::iter::Peekable<impl Iterator<Item = &'a Region>>, at: u64, end: u64) -> (Option<&'a Region>, u64) {
    while list.next_if(|region| region.end <= at).is_some() {}
    match list.peek().copied() {
        Some(region) if region.start <= at => (Some(region), region.end.min(end)),
        Some(region) => (None, region.start.min(end)),
        None => (None, end),
    }
}
