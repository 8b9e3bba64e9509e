//! Payload of a `Kept` record: ranges of pages that an incremental image does not hold because they are as in its base.
//!
//! ```text
//! payload = (start: u64, end: u64)*      both page-aligned, start < end, ascending, no overlap within the record
//! ```
//! "As in the base" includes pages that the base says nothing about, which are as a fresh mapping gives them. Only pages
//! of private mappings are kept: shared memory and memory objects are complete in each image.

use crate::ImageError;
use crate::fixed::Field;

/// Bytes of one range.
pub const RANGE: usize = 16;

/// Encodes a range; the first [`RANGE`] bytes of `bytes` are written.
///
/// # Errors
/// [`ImageError::Truncated`] if `bytes` is shorter.
pub fn put(range: (u64, u64), bytes: &mut [u8]) -> Result<(), ImageError> {
    let bytes = bytes.get_mut(..RANGE).ok_or(ImageError::Truncated)?;
    range.0.put(&mut bytes[..8]);
    range.1.put(&mut bytes[8..]);
    Ok(())
}

/// Encodes ranges as long as there is room for another, and takes no more of them. Returns how many bytes they take.
///
/// # Errors
/// None in practice: those of [`put`].
pub fn fill(ranges: &mut impl Iterator<Item = (u64, u64)>, bytes: &mut [u8]) -> Result<usize, ImageError> {
    let mut length = 0;
    // The room first: what is taken from an iterator is not put back.
    for room in bytes.chunks_exact_mut(RANGE) {
        let Some(range) = ranges.next() else { break };
        put(range, room)?;
        length += RANGE;
    }
    Ok(length)
}

/// The ranges of a payload whose record begins `at` bytes from the stream's start.
///
/// # Errors
/// [`ImageError::Inconsistent`] if any of them is empty, not of whole pages, or not behind the one before it.
pub fn ranges(payload: &[u8], at: u64) -> Result<impl Iterator<Item = (u64, u64)> + Clone + '_, ImageError> {
    let all = payload.chunks_exact(RANGE).map(|raw| (u64::get(&raw[..8]), u64::get(&raw[8..])));
    let mut last = 0;
    let good = all.clone().all(|(start, end)| {
        let behind = last <= start && start < end && (start | end).is_multiple_of(4096);
        last = end;
        behind
    });
    if good && payload.len().is_multiple_of(RANGE) { Ok(all) } else { Err(ImageError::Inconsistent { at }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn payload(ranges: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = std::vec![0; RANGE * ranges.len()];
        assert_eq!(fill(&mut ranges.iter().copied(), &mut bytes), Ok(bytes.len()));
        bytes
    }

    #[test]
    fn none_is_lost_between_two_payloads() {
        let all: Vec<_> = (1..=7).map(|page| (page * 0x2000, page * 0x2000 + 0x1000)).collect();
        let (mut rest, mut found) = (all.iter().copied(), Vec::new());
        loop {
            let mut bytes = [0; 3 * RANGE];
            let length = fill(&mut rest, &mut bytes).unwrap();
            if length == 0 {
                break;
            }
            found.extend(ranges(&bytes[..length], 0).unwrap());
        }
        assert_eq!(found, all);
    }

    #[test]
    fn ranges_survive_and_nonsense_is_refused() {
        let good = [(0x1000, 0x3000), (0x3000, 0x4000), (0x9000, 0xa000)];
        assert_eq!(ranges(&payload(&good), 0).unwrap().collect::<Vec<_>>(), good);
        for bad in [[(0x1000, 0x1000), (0x2000, 0x3000)], [(0x1000, 0x3000), (0x2000, 0x4000)], [(0x1000, 0x2001), (0x3000, 0x4000)]] {
            assert_eq!(ranges(&payload(&bad), 7).map(drop), Err(ImageError::Inconsistent { at: 7 }));
        }
        assert!(ranges(&payload(&good)[..40], 0).is_err());
    }
}
