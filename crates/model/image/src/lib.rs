//! The format of a rank's image: a checksummed stream of fixed records and pages.
//!
//! ```text
//! Header │ record │ record │ … │ End
//! record = RecordHead (32 bytes) │ payload │ zero bytes up to a multiple of 8
//! ```
//! One sequential stream, the same in a file and on a socket; nothing seeks. The records that describe the process
//! precede the pages, so that the restorer can map before it fills. Each head
//! carries the xxh3-64 of its payload and of itself; the end record carries totals and the xxh3-64 over the header and all heads, so
//! that a stream cannot lose, gain or swap records unnoticed.
//!
//! Everything here parses without allocation and never panics on any bytes. Who reads what:
//! [`read_header`] the first [`HEADER_SIZE`] bytes (version, who, where it can run); the verifier a whole stream;
//! [`launch`] how the restorer is started and answers; `chain` (with `std`) an image together with those it builds on.
//!
//! An image is full, or names the image it builds on and leaves pages to that one ([`kept`]): see [`ranges`] and [`link`].

#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
pub mod chain;
pub mod cpu;
#[cfg(feature = "std")]
pub mod diff;
mod error;
pub mod fixed;
pub mod handoff;
mod header;
pub mod kept;
pub mod launch;
pub mod link;
#[cfg(feature = "std")]
pub mod merge;
pub mod ranges;
pub mod record;
pub mod rounds;
pub mod verify;
#[cfg(feature = "std")]
pub mod write;

pub use error::ImageError;
pub use header::{FORMAT, HEADER_SIZE, Header, put_text, read_header};

/// No mapping of an image reaches beyond it: what a process gets that asks for no higher address (4-level page tables).
pub const END_OF_ADDRESSES: u64 = 0x7fff_ffff_f000;

/// Zones of addresses, of which the restorer keeps one for itself while it builds a process. The image says which
/// ([`Header::zone`]) and maps nothing there. Linux on x86-64 places executables, libraries, heaps and stacks far from all of them, but
/// programs that choose addresses themselves do not: V8 draws some below 0x4000_0000_0000. Further zones are only ever appended.
pub const ZONES: [(u64, u64); 3] =
    [(0x1f00_0000_0000, 0x2000_0000_0000), (0x4700_0000_0000, 0x4800_0000_0000), (0x2d00_0000_0000, 0x2e00_0000_0000)];

/// The first zone in which none of these ranges lies, by its number.
pub fn free_zone(mut ranges: impl Iterator<Item = (u64, u64)>) -> Option<u32> {
    let mut free = [true; ZONES.len()];
    ranges.by_ref().for_each(|(start, end)| {
        for (free, zone) in free.iter_mut().zip(ZONES) {
            *free &= end <= zone.0 || start >= zone.1;
        }
    });
    free.iter().position(|free| *free).map(|number| number as u32)
}

#[cfg(test)]
mod tests {
    use super::{ZONES, free_zone};

    #[test]
    fn a_zone_is_taken_that_is_free() {
        let at = |number: usize| (ZONES[number].0 + 0x1000, ZONES[number].0 + 0x2000);
        let far = (0x5555_5555_4000, 0x5555_5555_5000);
        assert_eq!(free_zone([far].into_iter()), Some(0));
        assert_eq!(free_zone([(ZONES[0].0 - 0x1000, ZONES[0].0), (ZONES[0].1, ZONES[0].1 + 0x1000)].into_iter()), Some(0));
        assert_eq!(free_zone([far, at(0)].into_iter()), Some(1));
        assert_eq!(free_zone([(0x1000, ZONES[2].1)].into_iter()), Some(1));
        assert_eq!(free_zone([at(0), at(1), far].into_iter()), Some(2));
        assert_eq!(free_zone([at(0), at(1), at(2)].into_iter()), None);
    }
}
