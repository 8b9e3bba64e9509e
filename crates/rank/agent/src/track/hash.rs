//! Changes by hashes of all pages: needs nothing of the kernel, and reads all memory each time.
//!
//! xxh3 with 128 bits: two contents are taken for one by chance once in 2^128 pairs; a program that makes collisions on
//! purpose harms its own images alone. Pages without a hash (swapped out, unreadable, or written to by the kernel when it
//! likes) count as changed, and so do zero pages, which cost nothing to store.

use super::entries::Sink;
use super::page_list::{LentPages, Words};
use super::regions::{ScanContext, each_populated};
use crate::memory::layout::{Content, MappingPlan};
use crate::memory::pages::{PAGE, is_zero};
use xxhash_rust::xxh3::xxh3_128;

/// A page and the hash of its content.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hashed {
    page: u64,
    hash: [u64; 2],
}
impl Words for Hashed {}

impl Hashed {
    /// Address of the page.
    pub fn page(&self) -> u64 {
        self.page
    }
}

/// A page with the hash of its content.
pub(super) fn digest(page: u64, content: &[u8]) -> Hashed {
    let hash = xxh3_128(content);
    Hashed { page, hash: [hash as u64, (hash >> 64) as u64] }
}

/// Comparing and making hashes, mapping by mapping, ascending.
pub(super) struct Hashing {
    before: &'static [Hashed],
    at: usize,
    after: LentPages<Hashed>,
    count: usize,
    full: bool,
}

impl Hashing {
    pub fn new(before: (LentPages<Hashed>, usize), after: LentPages<Hashed>) -> Self {
        // SAFETY: the tracker lent both lists for this scan; only `after` is written to.
        Self { before: unsafe { before.0.items(before.1) }, at: 0, after, count: 0, full: false }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The list was too short for all hashes.
    pub fn full(&self) -> bool {
        self.full
    }

    /// Notes a page's hash; whether it is as before.
    fn page(&mut self, page: u64, content: &[u8], arm: bool) -> bool {
        let hashed = digest(page, content);
        if arm && !self.full {
            // SAFETY: as in `new`; nobody has a slice of this list.
            self.full = !unsafe { self.after.put(self.count, hashed) };
            self.count += usize::from(!self.full);
        }
        while self.before.get(self.at).is_some_and(|old| old.page < page) {
            self.at += 1;
        }
        self.before.get(self.at) == Some(&hashed)
    }
}

/// Scans one mapping.
pub(super) fn scan(plan: &MappingPlan, hashing: &mut Hashing, context: &mut ScanContext, sink: &mut Sink) -> Result<(), i32> {
    let readable = plan.mapping.protection & libc::PROT_READ as u32 != 0;
    let stable = readable && plan.content != Content::Fleeting;
    each_populated(plan, context, |context, region| {
        if region.absent() || !stable {
            return sink.push(region.start, region.end, true, region.absent());
        }
        for page in (region.start..region.end).step_by(PAGE as usize) {
            // SAFETY: a populated, readable page of this process, whose threads are parked.
            let content = unsafe { core::slice::from_raw_parts(page as *const u8, PAGE as usize) };
            let known = !is_zero(content) && context.volatile.binary_search(&page).is_err();
            let kept = known && hashing.page(page, content, context.arm);
            sink.push(page, page + PAGE, !kept, false);
        }
    })
}
