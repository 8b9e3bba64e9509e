//! Where the restorer and its own memory lie: in a zone that the image does not use. There is one restorer for each zone, this source
//! linked at its start (`build.rs`).

use crate::report::or_fail;
use mend_image::ZONES;
use mend_restore::arena::Arena;

/// Number of the zone, by the name of this program: `mend-restorer`, `mend-restorer-1`, `mend-restorer-2`.
pub const NUMBER: usize = match env!("CARGO_BIN_NAME").as_bytes() {
    [.., b'-', digit @ b'1'..=b'9'] => (*digit - b'0') as usize,
    _ => 0,
};
/// The zone.
pub const ZONE: (u64, u64) = ZONES[NUMBER];
/// Tables and stacks begin here; the program itself lies at the start of the zone.
const START: u64 = ZONE.0 + (4 << 30);
/// Where the kernel's vdso waits until its place is free.
pub const VDSO_WAITS: u64 = ZONE.0 + (3 << 30);
/// Where the program's own pages are prepared.
pub const COPY: u64 = ZONE.0 + (2 << 30);

/// The restorer's own memory.
pub static ARENA: Arena = Arena::at(START, ZONE.1);

/// New zeroed memory, page-aligned, for the rest of the restorer's life.
pub fn take(length: usize) -> &'static mut [u8] {
    or_fail(ARENA.take(length))
}

/// The range in which everything of the restorer lies.
pub fn range() -> (u64, u64) {
    (ZONE.0, ARENA.end())
}
