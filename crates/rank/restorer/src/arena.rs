//! The restorer's own memory: a part of the zone that no image uses, handed out and never taken back.

use crate::report::fail;
use crate::sys;
use core::format_args as text;
use core::sync::atomic::{AtomicU64, Ordering};
use mend_image::ZONE;
use mend_image::launch::Failure;
use mend_image::ranges::Range;

/// Tables and stacks begin here; the program itself lies at the start of the zone.
const START: u64 = ZONE.0 + (4 << 30);
/// Where the kernel's vdso waits until its place is free.
pub const VDSO_WAITS: u64 = ZONE.0 + (3 << 30);
/// Where the program's own pages are prepared.
pub const COPY: u64 = ZONE.0 + (2 << 30);

static NEXT: AtomicU64 = AtomicU64::new(START);

/// New zeroed memory, page-aligned, for the rest of the restorer's life.
pub fn take(length: usize) -> &'static mut [u8] {
    let rounded = length.max(1).next_multiple_of(4096);
    let address = NEXT.fetch_add(rounded as u64, Ordering::Relaxed);
    if let Err(errno) = sys::map_at(address, rounded) {
        fail(Failure::Kernel, errno, text!("no memory for tables of {length} bytes"));
    }
    // SAFETY: just mapped, handed out once.
    unsafe { core::slice::from_raw_parts_mut(address as *mut u8, length) }
}

/// New memory for so many ranges.
pub fn take_ranges(count: usize) -> &'static mut [Range] {
    let bytes = take(count * size_of::<Range>());
    // SAFETY: page-aligned, zeroed (a valid range), as long as needed, handed out once.
    unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
}

/// The range in which everything of the restorer lies.
pub fn range() -> (u64, u64) {
    (ZONE.0, NEXT.load(Ordering::Relaxed))
}
