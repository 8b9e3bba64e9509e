//! One look at all private memory while the threads stand still: what changed since the last image, and from now on anew.
//!
//! Runs on scratch memory, allocates nothing, and writes to nothing but rooms. It is done after the agent's last change to
//! memory that is saved; each page is looked at before it is written: what changes after that counts for the next image.
//!
//! A page that was not populated before and is now, that was dropped and filled again, or whose mapping is another one than
//! before counts as changed; one that is no longer populated is in no list and thereby as a fresh mapping gives it.

use super::blocks::Blocks;
use super::hash::{self, Hashed, Hashing};
use super::protect;
use super::room::{Loan, Words};
use super::soft;
use crate::capture::writer::PAGE;
use crate::memory::layout::{Content, Plan};
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

/// Whether changes of a mapping are looked for: private memory, but for pools of huge pages and deleted files.
pub(crate) fn tracked(plan: &Plan) -> bool {
    let content = matches!(plan.content, Content::Populated | Content::Fleeting | Content::Changed);
    content && plan.mapping.flags & (mapping::SHARED | mapping::POOL) == 0
}

/// How it is done.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// By a userfaultfd with this number.
    Protect(i32),
    /// By bits that the first descriptor clears, and a userfaultfd that is a witness of moves, if the bits don't tell of them.
    SoftDirty(i32, Option<i32>),
    /// By comparing hashes.
    Hash,
}

/// What is to be done.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(super) way: Way,
    /// Hashes of pages as they were, and how many.
    pub(super) before: (Loan<Hashed>, usize),
    /// Where hashes of pages as they are go.
    pub(super) after: Loan<Hashed>,
    /// Notice changes from now on.
    pub(super) arm: bool,
    /// Blocks of huge pages as they were, how many, and where they go.
    pub(super) blocks: ((Loan<Entry>, usize), Loan<Entry>),
    /// Blocks without protection may stay so.
    pub(super) stay: bool,
    /// List what changed.
    pub(super) list: Option<Loan<Entry>>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// The list's length; `None`: not asked for, or it could not be made, and all counts as changed.
    pub entries: Option<usize>,
    /// Changes are noticed from here on.
    pub armed: bool,
    /// How many; `None`: a copy of the process is to make them.
    pub(super) hashes: Option<usize>,
    pub(super) blocks: usize,
}

impl Taken {
    /// Nothing is left to a copy of the process.
    pub fn complete(&self) -> bool {
        self.hashes.is_some()
    }
}

/// Hashes that a copy of the process has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashes {
    pub(super) count: usize,
    /// Not all found room.
    pub(super) full: bool,
}

/// What a way needs of the surroundings.
pub(crate) struct Sight<'a> {
    pub pagemap: i32,
    pub method: Method,
    pub regions: &'a mut [Region],
    /// Pages that the kernel writes to when it likes.
    pub volatile: &'a [u64],
    pub arm: bool,
}

/// Where entries go; alike neighbours become one.
pub(super) struct Sink {
    list: Option<Loan<Entry>>,
    last: Entry,
    count: usize,
    full: bool,
}

impl Sink {
    pub fn none() -> Self {
        Self::into(None)
    }

    pub fn into(list: Option<Loan<Entry>>) -> Self {
        Self { list, last: Entry::default(), count: 0, full: false }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Not all entries found room.
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

    /// Ends the entry under way: none reaches over two mappings, or two parts of a look.
    pub fn flush(&mut self) {
        if let (Some(list), true) = (self.list, self.last.end != 0) {
            // SAFETY: the tracker lent the room for this look, and nobody has a slice of it.
            self.full |= !unsafe { list.put(self.count, self.last) };
            self.count += 1;
        }
        self.last = Entry::default();
    }
}

/// A look under way: over all private memory, ascending, in parts.
///
/// Changes noticed by write protection may be listed and written in turn, so that what is listed is sent while the next part is
/// looked at. What fails ends the tracking: nothing is listed from there on, so all of that counts as changed.
pub(crate) struct Looking {
    look: Look,
    sink: Sink,
    hashing: Hashing,
    blocks: Blocks,
    /// A copy of the process makes the hashes.
    deferred: bool,
    /// The next mapping, and where in it to go on if a part of it was looked at.
    plan: usize,
    within: Option<u64>,
    /// Up to this address all is looked at; the end of all addresses once nothing is left.
    reached: u64,
    result: Result<(), i32>,
}

/// After the last address.
const ALL: u64 = u64::MAX;
/// Bytes that are looked at at a time: whole blocks of huge pages, and few enough for a sender to have something to do meanwhile.
const PART: u64 = if cfg!(test) { 2 << 20 } else { 32 << 20 };

impl Looking {
    /// Before anything is looked at.
    pub fn new(look: Look) -> Self {
        Self {
            look,
            sink: Sink::into(look.list),
            hashing: Hashing::new(look.before, look.after),
            blocks: Blocks::new(look.blocks.0, look.blocks.1, look.stay),
            deferred: false,
            plan: 0,
            within: None,
            reached: 0,
            result: Ok(()),
        }
    }

    /// Before anything is looked at: leaves the hashes to [`Look::make_hashes`] in a copy of the process, if nothing is to be listed.
    pub fn defer(&mut self) {
        self.deferred = self.look.defers();
    }

    /// Whether it may go on while what it listed is written: something is left to be listed, and nothing is done at its end that would
    /// hide a change from the next one.
    pub fn in_turn(&self) -> bool {
        let left = self.result.is_ok() && self.reached != ALL;
        left && self.look.list.is_some() && matches!(self.look.way, Way::Protect(_))
    }

    /// Looks at what is left.
    pub fn complete(&mut self, plans: &[Plan], sight: &mut Sight) {
        while self.step(plans, sight) {}
    }

    /// Looks on until it is beyond an address. Returns up to where; `None`: it has failed before it came there.
    pub fn beyond(&mut self, address: u64, plans: &[Plan], sight: &mut Sight) -> Option<u64> {
        while self.reached <= address && self.step(plans, sight) {}
        Some(self.reached).filter(|reached| *reached > address)
    }

    /// Looks at the next part. False: nothing is left, or it has failed.
    fn step(&mut self, plans: &[Plan], sight: &mut Sight) -> bool {
        if self.result.is_err() || self.reached == ALL {
            return false;
        }
        let Some(plan) = plans.get(self.plan) else {
            self.result = match self.look.way {
                Way::SoftDirty(clear_refs, _) if self.look.arm => mend_kernel::soft_dirty::clear(clear_refs),
                _ => Ok(()),
            };
            self.reached = ALL;
            return false;
        };
        let before = self.sink.count();
        let part = if tracked(plan) { self.part(plan, sight) } else { Ok(None) };
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

    /// Looks at the next part of a mapping. Returns where to go on in it.
    fn part(&mut self, plan: &Plan, sight: &mut Sight) -> Result<Option<u64>, i32> {
        let Self { sink, hashing, blocks, .. } = self;
        match self.look.way {
            Way::Protect(number) if !self.look.hashed(plan) => {
                let Mapping { start, end, .. } = plan.mapping;
                let at = match self.within {
                    Some(at) => at,
                    None if protect::begin(number, plan, sight, sink, blocks)? => start,
                    None => return Ok(None),
                };
                let to = end.min((at / PART + 1) * PART);
                protect::tell(plan, (at, to), sight, sink, blocks)?;
                return Ok(Some(to).filter(|to| *to < end));
            }
            Way::SoftDirty(_, witness) if !self.look.hashed(plan) => soft::look(witness, plan, sight, sink),
            Way::Protect(_) | Way::SoftDirty(..) | Way::Hash if self.deferred => Ok(()),
            Way::Protect(_) | Way::SoftDirty(..) | Way::Hash => hash::look(plan, hashing, sight, sink),
        }?;
        Ok(None)
    }

    /// What was listed so far, ascending.
    ///
    /// # Safety
    /// The tracker must not begin another look, nor be dropped, while the slice is in use.
    pub unsafe fn listed(&self) -> &'static [Entry] {
        // SAFETY: the caller answers for the room; what follows is put behind these.
        self.look.list.map_or(&[], |list| unsafe { list.items(self.sink.count()) })
    }

    /// What came of it.
    pub fn taken(&self) -> Taken {
        let good = self.result.is_ok() && self.reached == ALL;
        Taken {
            entries: (good && self.sink.wanted()).then_some(self.sink.count()),
            armed: good && self.look.arm && !self.hashing.full(),
            hashes: (!self.deferred).then(|| self.hashing.count()),
            blocks: self.blocks.count(),
        }
    }
}

impl Look {
    /// Whether changes of a mapping that is tracked are noticed by hashes: under a file's private mapping write protection is not safe,
    /// and a witness not to be had (see there).
    fn hashed(&self, plan: &Plan) -> bool {
        match self.way {
            Way::Hash => true,
            Way::Protect(_) | Way::SoftDirty(_, Some(_)) => plan.content == Content::Changed,
            Way::SoftDirty(_, None) => false,
        }
    }

    /// Hashes may be made later, of the same content: none is to be compared.
    pub fn defers(&self) -> bool {
        self.arm && self.list.is_none()
    }

    /// In a copy of the process: makes the hashes that were left to it, and says time and again that it lives.
    pub fn make_hashes(&self, plans: &[Plan], sight: &mut Sight, mut lives: impl FnMut()) -> Result<Hashes, i32> {
        const PIECE: usize = 1 << 30;
        let (mut hashing, mut sink) = (Hashing::new(self.before, self.after), Sink::none());
        for plan in plans.iter().filter(|plan| tracked(plan) && self.hashed(plan)) {
            let Mapping { start, end, .. } = plan.mapping;
            for at in (start..end).step_by(PIECE) {
                let piece = Mapping { start: at, end: end.min(at + PIECE as u64), ..plan.mapping };
                hash::look(&Plan { mapping: piece, ..*plan }, &mut hashing, sight, &mut sink)?;
                lives();
            }
        }
        Ok(Hashes { count: hashing.count(), full: hashing.full() })
    }

    /// What it needs of the surroundings, beside room for regions.
    pub fn sight<'a>(&self, pagemap: i32, method: Method, volatile: &'a [u64], regions: &'a mut [Region]) -> Sight<'a> {
        Sight { pagemap, method, regions, volatile, arm: self.arm }
    }

    /// Looks at everything at once. A failure makes everything count as changed and ends the tracking: it is in the result.
    #[cfg(test)]
    pub fn take(&self, pagemap: i32, method: Method, plans: &[Plan], volatile: &[u64], regions: &mut [Region]) -> Taken {
        let mut looking = Looking::new(*self);
        looking.complete(plans, &mut self.sight(pagemap, method, volatile, regions));
        looking.taken()
    }

    /// The list of a look that was taken, ascending.
    ///
    /// # Safety
    /// The tracker must not begin another look, nor be dropped, while the slice is in use.
    pub unsafe fn entries(&self, taken: &Taken) -> Option<&'static [Entry]> {
        // SAFETY: the caller answers for the room.
        taken.entries.and_then(|count| self.list.map(|list| unsafe { list.items(count) }))
    }
}

/// The entries within a range that none reaches over.
pub(crate) fn within(entries: &[Entry], (start, end): (u64, u64)) -> &[Entry] {
    let from = entries.partition_point(|entry| entry.start < start);
    let to = entries.partition_point(|entry| entry.start < end);
    &entries[from..to]
}

/// Calls with each populated region that is the process's own.
pub(super) fn each_populated(plan: &Plan, sight: &mut Sight, each: impl FnMut(&mut Sight, Region)) -> Result<(), i32> {
    let own_only = plan.content == Content::Changed;
    let find = |sight: &mut Sight, start, end| populated(sight.pagemap, sight.method, start, end, own_only, sight.regions);
    each_region((plan.mapping.start, plan.mapping.end), sight, find, each)
}

/// Calls with each region of a range that `find` puts into the sight's room; it returns how many, and up to where it looked.
pub(super) fn each_region(
    (mut at, end): (u64, u64),
    sight: &mut Sight,
    find: impl Fn(&mut Sight, u64, u64) -> Result<(usize, u64), i32>,
    mut each: impl FnMut(&mut Sight, Region),
) -> Result<(), i32> {
    while at < end {
        let (count, next) = find(sight, at, end)?;
        for index in 0..count {
            let region = sight.regions[index];
            each(sight, region);
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
    sight: &mut Sight,
    protect: bool,
    huge: bool,
    mut each: impl FnMut(Run),
) -> Result<(), i32> {
    let half = sight.regions.len() / 2;
    let (apart, written) = sight.regions.split_at_mut(half);
    // How many regions were found, and up to where was looked. What was written to may fill its room many times meanwhile.
    let mut known = (0, start);
    let mut at = start;
    while at < end {
        if known.1 <= at {
            known = pagemap::missing(sight.pagemap, at, end, huge, apart)?;
        }
        let (writes, next) = pagemap::written(sight.pagemap, at, known.1, protect, written)?;
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
