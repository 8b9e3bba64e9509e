//! The dirty scan: finds, while the threads stand still, which private pages changed since the last image, and starts the tracking again.
//!
//! It runs on scratch memory, allocates nothing, and writes only to page lists. It begins after the agent's last change to
//! memory that is saved, and examines each page before that page is written: what changes later belongs to the next image.
//!
//! A page that was not populated before and is now, that was dropped and filled again, or whose mapping is another one than
//! before counts as changed; one that is no longer populated is in no list and thereby as a fresh mapping gives it.

use super::blocks::Blocks;
use super::entries::{Entry, Sink};
use super::hash::{self, Hashed, Hashing};
use super::page_list::LentPages;
use super::regions::ScanContext;
use super::{protect, soft};
use crate::memory::layout::{Content, MappingPlan};
use mend_image::record::{Mapping, mapping};
use mend_kernel::pagemap::{Method, Region};

/// Whether a mapping is scanned for changes: private memory, but for pools of huge pages and deleted files.
pub(crate) fn tracked(plan: &MappingPlan) -> bool {
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
    pub fn complete(&mut self, plans: &[MappingPlan], context: &mut ScanContext) {
        while self.step(plans, context) {}
    }

    /// Scans on until it is beyond an address. Returns up to where; `None`: it has failed before it came there.
    pub fn beyond(&mut self, address: u64, plans: &[MappingPlan], context: &mut ScanContext) -> Option<u64> {
        while self.reached <= address && self.step(plans, context) {}
        Some(self.reached).filter(|reached| *reached > address)
    }

    /// Scans the next part. False: nothing is left, or it has failed.
    fn step(&mut self, plans: &[MappingPlan], context: &mut ScanContext) -> bool {
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
    fn part(&mut self, plan: &MappingPlan, context: &mut ScanContext) -> Result<Option<u64>, i32> {
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
    fn hashed(&self, plan: &MappingPlan) -> bool {
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
    pub fn make_hashes(&self, plans: &[MappingPlan], context: &mut ScanContext, mut lives: impl FnMut()) -> Result<NewHashes, i32> {
        const HASH_PART_BYTES: usize = 1 << 30;
        let (mut hashing, mut sink) = (Hashing::new(self.before, self.after), Sink::none());
        for plan in plans.iter().filter(|plan| tracked(plan) && self.hashed(plan)) {
            let Mapping { start, end, .. } = plan.mapping;
            for at in (start..end).step_by(HASH_PART_BYTES) {
                let piece = Mapping { start: at, end: end.min(at + HASH_PART_BYTES as u64), ..plan.mapping };
                hash::scan(&MappingPlan { mapping: piece, ..*plan }, &mut hashing, context, &mut sink)?;
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
    pub fn take(&self, pagemap: i32, method: Method, plans: &[MappingPlan], volatile: &[u64], regions: &mut [Region]) -> ScanResult {
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
