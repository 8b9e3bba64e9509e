//! What a scan lists: runs of populated pages that are alike, and whether they changed.

use super::page_list::{LentPages, Words};

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

/// The entries within a range that none reaches over.
pub(crate) fn within(entries: &[Entry], (start, end): (u64, u64)) -> &[Entry] {
    let from = entries.partition_point(|entry| entry.start < start);
    let to = entries.partition_point(|entry| entry.start < end);
    &entries[from..to]
}
