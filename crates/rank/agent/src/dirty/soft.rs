//! Changes by soft-dirty bits (see [`mend_kernel::soft_dirty`]). The kernel itself sets them for all of a new, moved or
//! grown mapping.

use super::look::{Sight, Sink, each_region};
use crate::layout::{Content, Plan};
use crate::writer::{PAGE, is_zero};
use mend_kernel::pagemap::soft_dirty;

/// Looks at one mapping.
pub(super) fn look(plan: &Plan, sight: &mut Sight, sink: &mut Sink) -> Result<(), i32> {
    if !sink.wanted() {
        return Ok(());
    }
    let readable = plan.mapping.protection & libc::PROT_READ as u32 != 0;
    let own_only = plan.content == Content::Changed;
    let find = |sight: &mut Sight, start, end| soft_dirty(sight.pagemap, start, end, own_only, sight.regions);
    each_region((plan.mapping.start, plan.mapping.end), sight, find, |_, region| {
        if region.written() || region.absent() || own_only {
            sink.push(region.start, region.end, region.written(), region.absent());
        } else if readable {
            kept(region.start, region.end, sink);
        } else {
            sink.push(region.start, region.end, true, false);
        }
    })
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
