//! Memory that the application lends to an operation, and payloads on their way.
//!
//! All addresses come from libfabric calls: the application promises that they stay valid until the operation's
//! completion (fi_msg(3)), which is the invariant every copy here leans on. A process that is restored has the
//! same memory at the same addresses, so buffers survive a checkpoint.

use std::arch::x86_64::__cpuid;
use std::sync::LazyLock;

/// A piece of memory.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// First byte.
    pub base: *mut u8,
    /// The length in bytes.
    pub len: usize,
}

// SAFETY: a segment is an address lent by the application for the duration of an operation; which thread of the
// process touches it does not matter.
unsafe impl Send for Segment {}

impl Segment {
    /// No memory.
    pub const EMPTY: Self = Self { base: std::ptr::null_mut(), len: 0 };

    /// The bytes of a slice, to read from.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self { base: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }
}

/// Most segments of one operation (the provider's `iov_limit`).
pub const MAX_SEGMENTS: usize = 32;

/// The memory of one operation.
#[derive(Clone, Debug)]
pub enum Buffers {
    /// The usual case.
    One(Segment),
    /// A gather or scatter list.
    Many(Box<[Segment]>),
}

/// A part of some buffers as a short list, on the stack.
pub struct Slice {
    segments: [Segment; MAX_SEGMENTS],
    count: usize,
}

impl Slice {
    /// The list.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments[..self.count]
    }
}

impl Buffers {
    /// Total length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::One(segment) => segment.len,
            Self::Many(segments) => segments.iter().map(|segment| segment.len).sum(),
        }
    }

    /// True if there is no byte in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The segments.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        match self {
            Self::One(segment) => std::slice::from_ref(segment),
            Self::Many(segments) => segments,
        }
    }

    /// First byte, for completions that tell where a message is.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.segments().first().map_or(std::ptr::null_mut(), |segment| segment.base)
    }

    /// The `len` bytes from `offset` (cut at the end).
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Slice {
        slice(self.segments(), offset, len)
    }

    /// Copies a payload to `offset`, cut at the end of the buffers. Returns the bytes copied.
    #[inline]
    pub fn fill(&self, offset: usize, payload: Payload) -> usize {
        let mut at = offset;
        for part in payload.parts {
            match self {
                Self::One(segment) => {
                    let len = part.len.min(segment.len.saturating_sub(at));
                    if len > 0 {
                        copy(part.base, segment.base.wrapping_add(at), len);
                        at += len;
                    }
                }
                Self::Many(_) => {
                    let mut source = part.base;
                    for target in self.slice(at, part.len).segments() {
                        copy(source, target.base, target.len);
                        source = source.wrapping_add(target.len);
                        at += target.len;
                    }
                }
            }
        }
        at - offset
    }
}

/// The `len` bytes from `offset` of some segments (cut at the end).
#[must_use]
pub fn slice(segments: &[Segment], offset: usize, len: usize) -> Slice {
    let mut slice = Slice { segments: [Segment::EMPTY; MAX_SEGMENTS], count: 0 };
    let (mut skip, mut left) = (offset, len);
    for segment in segments {
        if left == 0 || slice.count == MAX_SEGMENTS {
            break;
        }
        if skip >= segment.len {
            skip -= segment.len;
            continue;
        }
        let take = left.min(segment.len - skip);
        // wrapping_add: stays inside the segment because skip < segment.len.
        slice.segments[slice.count] = Segment { base: segment.base.wrapping_add(skip), len: take };
        slice.count += 1;
        left -= take;
        skip = 0;
    }
    slice
}

/// Bytes copied at a time. From 2112 on glibc takes `rep movsb` where the processor calls it fast; AMD's are half as fast with
/// it as with a loop if source and target lie alike in their pages, and a ring's records lie so to most buffers.
const PIECE: usize = 2048;

/// Copies between memory that does not overlap.
///
/// # Safety
/// Both are valid for `len` bytes.
#[inline]
pub unsafe fn copy_apart(source: *const u8, target: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let size = PIECE.min(len - done);
        // SAFETY: by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source.add(done), target.add(done), size) };
        done += size;
    }
}

/// How memory is best written that another processor has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Across {
    /// `rep movsb` takes a line that it will fill from the other's cache without fetching what is in it: half the time on AMD's, near
    /// each other or apart. In longer pieces the gain is smaller, in much shorter ones lost.
    Strings,
    /// Intel's wait less for lines that are asked for early, many at a time, than `rep movsb` does: 0.7 of its time.
    Fetched,
    /// As anything else.
    Plain,
}

/// Which it is on this processor.
fn across() -> Across {
    static ACROSS: LazyLock<Across> = LazyLock::new(|| {
        let vendor = __cpuid(0);
        match (vendor.ebx, std::arch::is_x86_feature_detected!("ermsb")) {
            (INTEL, _) => Across::Fetched,
            (_, true) => Across::Strings,
            _ => Across::Plain,
        }
    });
    *ACROSS
}

/// The first letters of what Intel's processors say of themselves.
const INTEL: u32 = u32::from_le_bytes(*b"Genu");
/// Bytes of a cache line.
const LINE: usize = 64;

/// Copies to memory that another processor has read, as [`copy_apart`].
///
/// # Safety
/// As for [`copy_apart`].
#[inline]
pub unsafe fn copy_across(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: by the caller's promise.
    unsafe { if len < PIECE / 8 { copy_apart(source, target, len) } else { copy_across_as(across(), source, target, len) } }
}

/// # Safety
/// As for [`copy_apart`].
unsafe fn copy_across_as(way: Across, source: *const u8, target: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let size = PIECE.min(len - done);
        // SAFETY: by the caller's promise; the direction flag is clear by the ABI, and to fetch a line early is a hint.
        unsafe {
            let (source, target) = (source.add(done), target.add(done));
            match way {
                Across::Strings if len >= PIECE / 2 => std::arch::asm!(
                    "rep movsb",
                    inout("rcx") size => _,
                    inout("rsi") source => _,
                    inout("rdi") target => _,
                    options(nostack, preserves_flags)
                ),
                Across::Fetched => {
                    for line in (0..size).step_by(LINE) {
                        std::arch::asm!("prefetchw [{}]", in(reg) target.add(line), options(nostack, preserves_flags, readonly));
                    }
                    std::ptr::copy_nonoverlapping(source, target, size);
                }
                Across::Strings | Across::Plain => std::ptr::copy_nonoverlapping(source, target, size),
            }
        }
        done += size;
    }
}

/// Copies payload bytes into lent memory.
#[inline]
fn copy(source: *mut u8, target: *mut u8, len: usize) {
    if source == target {
        // Received in place.
        return;
    }
    // SAFETY: the callers cut `len` so that the target lies within memory lent for the operation (see the module's
    // head) and the source within a ring's data area, a receive buffer or the application's memory. An application
    // may send to itself from overlapping memory, hence `copy`.
    unsafe {
        if (source as usize).abs_diff(target as usize) >= len {
            copy_apart(source, target, len);
        } else {
            std::ptr::copy(source, target, len);
        }
    }
}

/// The bytes of a packet where its channel has them: in one piece, or two where a ring wraps.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    /// The pieces in order.
    pub parts: [Segment; 2],
}

impl Payload {
    /// No bytes.
    pub const EMPTY: Self = Self { parts: [Segment::EMPTY; 2] };

    /// A payload in one piece.
    #[must_use]
    pub fn one(bytes: &[u8]) -> Self {
        Self { parts: [Segment::of(bytes), Segment::EMPTY] }
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts[0].len + self.parts[1].len
    }

    /// True if there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        gather(&self.parts)
    }
}

/// A copy of the segments' bytes.
#[must_use]
pub fn gather(segments: &[Segment]) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(segments.iter().map(|segment| segment.len).sum());
    for segment in segments.iter().filter(|segment| segment.len > 0) {
        let at = bytes.len();
        // SAFETY: capacity was reserved for all segments; each is readable for its length. The bytes may be shared
        // memory that changes meanwhile, so they are copied raw and only then looked at.
        unsafe {
            std::ptr::copy_nonoverlapping(segment.base, bytes.as_mut_ptr().add(at), segment.len);
            bytes.set_len(at + segment.len);
        }
    }
    bytes
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn filling_scattered_memory_equals_filling_it_in_one_piece(
            lens in prop::collection::vec(0usize..9, 1..6), offset in 0usize..20, data in prop::collection::vec(any::<u8>(), 0..40), cut in 0usize..40
        ) {
            let total: usize = lens.iter().sum();
            let mut pieces: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
            let buffers = Buffers::Many(pieces.iter_mut().map(|piece| Segment { base: piece.as_mut_ptr(), len: piece.len() }).collect());
            let cut = cut.min(data.len());
            let copied = buffers.fill(offset, Payload { parts: [Segment::of(&data[..cut]), Segment::of(&data[cut..])] });
            let mut flat = vec![0; total];
            let fits = total.saturating_sub(offset).min(data.len());
            if fits > 0 { flat[offset..offset + fits].copy_from_slice(&data[..fits]); }
            prop_assert_eq!(copied, fits);
            prop_assert_eq!(pieces.concat(), flat);
        }
    }

    #[test]
    fn what_is_copied_in_pieces_is_copied_whole_also_onto_itself() {
        let bytes: Vec<u8> = (0..5 * PIECE).map(|at| (at / 3) as u8).collect();
        for (from, to, len) in [(0, 0, 1), (0, 7, 3 * PIECE), (7, 0, 3 * PIECE), (1, 3 * PIECE, 2 * PIECE), (3 * PIECE, 5, PIECE + 1)] {
            let mut memory = bytes.clone();
            let base = memory.as_mut_ptr();
            copy(base.wrapping_add(from), base.wrapping_add(to), len);
            let mut expected = bytes.clone();
            expected.copy_within(from..from + len, to);
            assert!(memory == expected, "{from} to {to}, {len} bytes");
        }
        for len in [0, 1, LINE, PIECE / 8, PIECE / 2 - 1, PIECE / 2, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE - 7] {
            for way in [None, Some(Across::Strings), Some(Across::Fetched), Some(Across::Plain)] {
                let mut memory = vec![0; bytes.len()];
                let (source, target) = (bytes.as_ptr().wrapping_add(5), memory.as_mut_ptr().wrapping_add(3));
                // SAFETY: two vectors, longer than the longest of these and what lies before.
                unsafe {
                    match way {
                        Some(way) => copy_across_as(way, source, target, len),
                        None => copy_across(source, target, len),
                    }
                }
                assert!(memory[3..3 + len] == bytes[5..5 + len] && memory[..3] == [0; 3]);
                assert!(memory[3 + len..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
