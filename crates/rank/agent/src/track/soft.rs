//! Changes by soft-dirty bits (see [`mend_kernel::soft_dirty`]). The kernel itself sets them for all of a new or grown mapping.
//!
//! Where it forgets to do so for moved ones there is a witness (see [`mend_kernel::userfault`]): a mapping that is not under its
//! observation (moved, new, mapped anew, or under somebody else's) counts as changed as a whole. It serves for anonymous memory
//! alone, hashes for private mappings of files.

use super::entries::Sink;
use super::regions::{ScanContext, each_populated, each_region};
use crate::memory::layout::{Content, MappingPlan};
use crate::memory::pages::{PAGE, is_zero};
use mend_kernel::pagemap::{populated, soft_dirty};
use mend_kernel::userfault::{observed, register};

/// Scans one mapping.
pub(super) fn scan(witness: Option<i32>, plan: &MappingPlan, context: &mut ScanContext, sink: &mut Sink) -> Result<(), i32> {
    let stayed = match witness {
        Some(witness) => stayed(witness, plan, context)?,
        None => true,
    };
    if !sink.wanted() {
        return Ok(());
    }
    if !stayed {
        return each_populated(plan, context, |_, region| sink.push(region.start, region.end, true, region.absent()));
    }
    let readable = plan.mapping.protection & libc::PROT_READ as u32 != 0;
    let own_only = plan.content == Content::Changed;
    let find = |context: &mut ScanContext, start, end| soft_dirty(context.pagemap, start, end, own_only, context.regions);
    each_region((plan.mapping.start, plan.mapping.end), context, find, |_, region| {
        if region.written() || region.absent() || own_only {
            sink.push(region.start, region.end, region.written(), region.absent());
        } else if readable {
            kept(region.start, region.end, sink);
        } else {
            sink.push(region.start, region.end, true, false);
        }
    })
}

/// Whether a mapping has been under our observation since the last scan. It is taken under observation if that is wanted.
fn stayed(witness: i32, plan: &MappingPlan, context: &mut ScanContext) -> Result<bool, i32> {
    let (start, end) = (plan.mapping.start, plan.mapping.end);
    let (count, _) = populated(context.pagemap, context.method, start, end, false, &mut context.regions[..1])?;
    if count == 0 {
        return Ok(true);
    }
    // Whether an observer is us is told by registering again, which to us does no harm.
    let observed = observed(witness, context.regions[0].start);
    let ours = (observed || context.arm) && register(witness, start, end).is_ok();
    Ok(observed && ours)
}

/// The kernel's page of zeros, which is there after a mere read of a page that was dropped, has no bit set and is not told
/// from others here. Zeros need not be kept: a page that is in no list is zero.
fn kept(start: u64, end: u64, sink: &mut Sink) {
    for at in (start..end).step_by(PAGE as usize) {
        // SAFETY: a populated, readable page of this process, whose threads are parked.
        if !is_zero(unsafe { core::slice::from_raw_parts(at as *const u8, PAGE as usize) }) {
            sink.push(at, at + PAGE, false, false);
        }
    }
}
