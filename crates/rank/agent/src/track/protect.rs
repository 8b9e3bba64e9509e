//! Changes by write protection (see [`mend_kernel::userfault`]).
//!
//! Only populated pages are protected. Whatever becomes populated later has no protection and so counts as written. A mapping
//! that is not under our observation (new, moved by `mremap`, grown, mapped anew at the same address, or under
//! somebody else's) counts as written as a whole; it is taken under observation where that can be done.
//!
//! Where there may be huge pages it is first told what was written, then protected but for what [`super::blocks`] leaves out.
//!
//! Anonymous memory alone: a protected page of a file's private mapping that is dropped leaves a mark in its place, and
//! `MADV_GUARD_INSTALL` on such a mark never returns (seen on Linux 6.18). Hashes serve for those.

use super::blocks::Blocks;
use super::entries::Sink;
use super::regions::{ScanContext, each_page_run, each_populated, each_region};
use crate::memory::layout::MappingPlan;
use crate::memory::pages::PAGE;
use mend_image::record::Mapping;
use mend_kernel::pagemap::{Method, Region, observed, populated, written};
use mend_kernel::userfault::{register, register_anew};

/// Begins with a mapping. False: it is done with; else [`tell`] says the rest, part by part.
pub(super) fn begin(
    userfault: i32,
    plan: &MappingPlan,
    context: &mut ScanContext,
    sink: &mut Sink,
    blocks: &mut Blocks,
) -> Result<bool, i32> {
    let Mapping { start, end, .. } = plan.mapping;
    // To register again what is ours does no harm, and what is somebody else's is refused.
    if observed(context.pagemap, start) {
        return match register(userfault, start, end) {
            Ok(()) => Ok(true),
            Err(_) => all(plan, context, sink).map(|_| false),
        };
    }
    // Nothing to protect (program code, above all) is nothing to observe.
    if all(plan, context, sink)? && context.arm && register_anew(userfault, start, end).is_ok() {
        tell(plan, (start, end), context, &mut Sink::none(), blocks)?;
    }
    Ok(false)
}

/// Everything counts as changed. Says whether there is anything.
fn all(plan: &MappingPlan, context: &mut ScanContext, sink: &mut Sink) -> Result<bool, i32> {
    let mut any = false;
    each_populated(plan, context, |_, region| {
        any = true;
        sink.push(region.start, region.end, true, region.absent());
    })?;
    Ok(any)
}

/// What the kernel noticed in a part of a mapping, which does not end within a block of a huge page but with the mapping; protects it
/// if that is wanted.
pub(super) fn tell(
    plan: &MappingPlan,
    part: (u64, u64),
    context: &mut ScanContext,
    sink: &mut Sink,
    blocks: &mut Blocks,
) -> Result<(), i32> {
    let select = plan.huge && context.arm;
    let protect = context.arm && !select;
    blocks.begin();
    if sink.wanted() || select {
        each_page_run(part, context, protect, select, |run| {
            sink.push(run.start, run.end, run.written, run.absent);
            if select {
                blocks.add(&run);
            }
        })?;
    } else if protect {
        protect_range(context, part.0, part.1)?;
    }
    if !select {
        return Ok(());
    }
    blocks.end();
    blocks.each_cold(part, |start, end| protect_range(context, start, end))
}

fn protect_range(context: &mut ScanContext, start: u64, end: u64) -> Result<(), i32> {
    let protect = |context: &mut ScanContext, at, end| written(context.pagemap, at, end, true, context.regions);
    each_region((start, end), context, protect, |_, _| ())
}

/// Pages of a mapping that a scan would find changed.
pub(super) fn changed(pagemap: i32, start: u64, end: u64) -> Result<u64, i32> {
    let mut context = ScanContext { pagemap, method: Method::Scan, regions: &mut [Region::default(); 512], volatile: &[], arm: false };
    let observed = observed(pagemap, start);
    let find = |context: &mut ScanContext, at, end| match observed {
        true => written(context.pagemap, at, end, false, context.regions),
        false => populated(context.pagemap, context.method, at, end, false, context.regions),
    };
    let mut pages = 0;
    each_region((start, end), &mut context, find, |_, region| pages += (region.end - region.start) / PAGE)?;
    Ok(pages)
}
