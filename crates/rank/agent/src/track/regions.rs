//! Populated regions of a mapping, as the kernel tells of them.

use crate::memory::layout::{Content, MappingPlan};
use crate::memory::pages::PAGE;
use mend_kernel::pagemap::{self, Method, Region, populated};

/// What a scan needs to know of the process.
pub(crate) struct ScanContext<'a> {
    pub pagemap: i32,
    pub method: Method,
    pub regions: &'a mut [Region],
    /// Pages that the kernel writes to when it likes.
    pub volatile: &'a [u64],
    pub arm: bool,
}

/// Calls with each populated region that is the process's own.
pub(super) fn each_populated(plan: &MappingPlan, context: &mut ScanContext, each: impl FnMut(&mut ScanContext, Region)) -> Result<(), i32> {
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
