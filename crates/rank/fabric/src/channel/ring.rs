//! The ring of a shared-memory channel: one writer, one reader, in a memfd that both map.
//!
//! ```text
//! 0      magic, capacity                        written by the creator, once
//! 64     head: bytes written (u64)              written by the sender
//! 128    tail: bytes read (u64)                 written by the receiver
//! 192    reader sleeps (u32)                    set by the receiver, cleared by whoever rings
//! 256    writer waits for room (u32)            set by the sender, cleared by whoever rings
//! 512    data, CAPACITY bytes; records are multiples of 64 bytes: header, payload (which may wrap), padding; of a short
//!        message's header only what is not known anyway, so that it shares its line with up to 32 bytes
//! ```
//! Two rings, one each way, and all else that a pair of ranks has take less than 64 KiB. A packet of more than
//! [`MAX_RECORD`] bytes does not fit: the channel cuts it.
//!
//! Positions count up for ever; a position modulo the capacity is a place. A record never begins across the end,
//! because header and alignment are at most 64 bytes.
//!
//! The other side is untrusted: positions are checked against the capacity, headers are copied out before they are
//! looked at, and lengths are checked against what the positions say is there. The seals keep it from shrinking
//! the file under us.

#[cfg(loom)]
mod modelled;

use super::ChannelError;
use crate::engine::buffers::{Payload, Segment};
use crate::engine::packet::{BRIEF, HEADER, Header};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use modelled::MAX_RECORD;
#[cfg(not(loom))]
use rustix::fd::{AsFd, OwnedFd};
#[cfg(not(loom))]
use rustix::fs::{MemfdFlags, SealFlags};
#[cfg(not(loom))]
use rustix::mm::{MapFlags, ProtFlags};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of the mapping.
#[cfg(not(loom))]
pub const RING_BYTES: usize = 28 * 1024;
/// Data bytes of a ring.
#[cfg(not(loom))]
pub const CAPACITY: usize = RING_BYTES - DATA;
/// Longest payload of a record, bytes: what every channel takes at once.
#[cfg(not(loom))]
pub const MAX_RECORD: usize = crate::engine::EAGER_LIMIT;
#[cfg(loom)]
pub use modelled::{CAPACITY, RING_BYTES};
const DATA: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"MENDrin2");
const LINE: usize = 64;

const HEAD: usize = 64;
const TAIL: usize = 128;
const SLEEPS: usize = 192;
const WAITS: usize = 256;

const _: () = assert!(CAPACITY.is_multiple_of(LINE) && HEADER <= LINE && MAX_RECORD + LINE <= CAPACITY);

/// A mapped ring.
#[derive(Debug)]
pub struct Ring {
    base: *mut u8,
    #[cfg(loom)]
    memory: std::sync::Arc<modelled::Memory>,
}

// SAFETY: the mapping is owned by this value alone within the process; all shared words are accessed as atomics and
// the data area only by raw copies.
unsafe impl Send for Ring {}

#[cfg(not(loom))]
impl Ring {
    /// Creates a ring and the descriptor to pass to the receiver.
    pub fn create() -> Result<(Self, OwnedFd), ChannelError> {
        let fd = rustix::fs::memfd_create("mend-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, RING_BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let ring = Self::map(&fd)?;
        ring.word64(0).store(MAGIC, Ordering::Relaxed);
        ring.word64(8).store(CAPACITY as u64, Ordering::Relaxed);
        Ok((ring, fd))
    }

    /// Maps a ring that a peer created.
    pub fn open(fd: &OwnedFd) -> Result<Self, ChannelError> {
        let seals = rustix::fs::fcntl_get_seals(fd)?;
        let size = rustix::fs::fstat(fd)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || size != RING_BYTES as i64 {
            return Err(ChannelError::Protocol("not a ring of this release".into()));
        }
        let ring = Self::map(fd)?;
        if ring.word64(0).load(Ordering::Relaxed) != MAGIC || ring.word64(8).load(Ordering::Relaxed) != CAPACITY as u64 {
            return Err(ChannelError::Protocol("not a ring of this release".into()));
        }
        Ok(ring)
    }

    fn map(fd: &OwnedFd) -> Result<Self, ChannelError> {
        // SAFETY: a fresh shared mapping of the whole file; nothing else in the process knows its address.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), RING_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd.as_fd(), 0)?
        };
        Ok(Self { base: base.cast() })
    }

    /// A model of the memory wants to know what is read and written, besides the words. Nobody else does.
    #[inline(always)]
    fn note_read(&self, _position: u64, _length: usize) {}
    #[inline(always)]
    fn note_written(&self, _position: u64, _length: usize) {}
}

impl Ring {
    /// Address and length of the mapping.
    pub fn mapping(&self) -> (usize, usize) {
        (self.base as usize, RING_BYTES)
    }

    fn word64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is one of the constants above: 8-aligned and inside the mapping, which lives as long as self.
        unsafe { &*self.base.add(at).cast() }
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as for word64.
        unsafe { &*self.base.add(at).cast() }
    }

    fn place(&self, position: u64) -> usize {
        DATA + (position % CAPACITY as u64) as usize
    }
}

#[cfg(not(loom))]
impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and nothing borrows from it beyond self. A failure leaks it.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), RING_BYTES) };
    }
}

/// Bytes of the header in the ring.
#[inline]
fn header_length(header: &Header) -> usize {
    if header.is_brief() { BRIEF } else { HEADER }
}

fn record(header: usize, payload: usize) -> u64 {
    (header + payload).next_multiple_of(LINE) as u64
}

/// Clears a flag that the other side set; true if it was set. Never writes to one that is clear already: such a write would
/// stand between two of the other side's for nothing, and what the flags are worth could not be shown by the model.
fn clear(flag: &AtomicU32) -> bool {
    flag.load(Ordering::Relaxed) == 1 && flag.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The sender's side.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    head: u64,
    tail: u64,
}

impl Writer {
    pub fn new(ring: Ring) -> Self {
        Self { ring, head: 0, tail: 0 }
    }

    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    pub fn into_ring(self) -> Ring {
        self.ring
    }

    fn room(&mut self, need: u64) -> Result<bool, ChannelError> {
        if CAPACITY as u64 - (self.head - self.tail) >= need {
            return Ok(true);
        }
        let tail = self.ring.word64(TAIL).load(Ordering::Acquire);
        if tail < self.tail || tail > self.head {
            return Err(ChannelError::Protocol("impossible position in a ring".into()));
        }
        self.tail = tail;
        Ok(CAPACITY as u64 - (self.head - self.tail) >= need)
    }

    /// Writes a record of at most [`MAX_RECORD`] bytes. False: no room.
    pub fn write(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        let length: usize = payload.iter().map(|segment| segment.len).sum();
        debug_assert!(length <= MAX_RECORD, "the channel cuts longer packets");
        let fixed = header_length(header);
        let size = record(fixed, length);
        if !self.room(size)? {
            return Ok(false);
        }
        let start = self.ring.place(self.head);
        // SAFETY: `start` is 64-aligned and HEADER ≤ 64 ≤ what is left before the end (capacity is a multiple of 64),
        // and the positions say that the reader is not looking at [head, head + size).
        unsafe { std::ptr::copy_nonoverlapping(header.as_bytes().as_ptr(), self.ring.base.add(start), HEADER) };
        let mut at = self.head + fixed as u64;
        for segment in payload {
            self.copy_in(at, *segment);
            at += segment.len as u64;
        }
        self.ring.note_written(self.head, size as usize);
        self.head += size;
        self.ring.word64(HEAD).store(self.head, Ordering::Release);
        Ok(true)
    }

    fn copy_in(&self, position: u64, segment: Segment) {
        let place = self.ring.place(position);
        let first = segment.len.min(RING_BYTES - place);
        // SAFETY: both parts lie in the data area, in the span that `write` found free; the source is lent by the
        // application for its length.
        unsafe {
            std::ptr::copy_nonoverlapping(segment.base, self.ring.base.add(place), first);
            if first < segment.len {
                std::ptr::copy_nonoverlapping(segment.base.add(first), self.ring.base.add(DATA), segment.len - first);
            }
        }
    }

    /// True once if the reader asked to be woken and something was written.
    pub fn reader_asleep(&self) -> bool {
        // The head must be visible before the flag is read, else both sides could miss each other.
        fence(Ordering::SeqCst);
        let flag = self.ring.word32(SLEEPS);
        clear(flag)
    }

    /// Asks for a wake-up when there is room for a long record; true if there is already.
    pub fn wait_for_room(&mut self) -> bool {
        self.ring.word32(WAITS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let room = self.room(record(HEADER, MAX_RECORD)).unwrap_or(true);
        if room {
            self.ring.word32(WAITS).store(0, Ordering::Relaxed);
        }
        room
    }
}

/// The receiver's side.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    head: u64,
    tail: u64,
    /// Bytes of the record that was peeked.
    size: u64,
}

impl Reader {
    pub fn new(ring: Ring) -> Self {
        Self { ring, head: 0, tail: 0, size: 0 }
    }

    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    pub fn into_ring(self) -> Ring {
        self.ring
    }

    /// True if nothing is there.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail && self.ring.word64(HEAD).load(Ordering::Relaxed) == self.tail
    }

    /// The next record, where it is; stays until [`Reader::advance`].
    #[inline]
    pub fn peek(&mut self) -> Result<Option<(Header, Payload)>, ChannelError> {
        if self.head == self.tail {
            let head = self.ring.word64(HEAD).load(Ordering::Acquire);
            if head == self.tail {
                return Ok(None);
            }
            if head < self.tail || head - self.tail > CAPACITY as u64 || !head.is_multiple_of(LINE as u64) {
                return Err(ChannelError::Protocol("impossible position in a ring".into()));
            }
            self.head = head;
        }
        let start = self.ring.place(self.tail);
        self.ring.note_read(self.tail, HEADER);
        let mut bytes = [0; HEADER];
        // SAFETY: the tail is a multiple of 64, so a header at its place lies inside the data area.
        unsafe { std::ptr::copy_nonoverlapping(self.ring.base.add(start), bytes.as_mut_ptr(), HEADER) };
        let mut header = Header::from_bytes(&bytes);
        header.complete_brief();
        let (fixed, length) = (header_length(&header), header.payload as usize);
        if length > MAX_RECORD || record(fixed, length) > self.head - self.tail {
            return Err(ChannelError::Protocol("impossible length in a ring".into()));
        }
        self.size = record(fixed, length);
        let place = self.ring.place(self.tail + fixed as u64);
        let first = length.min(RING_BYTES - place);
        let payload = Payload {
            parts: [
                Segment { base: self.ring.base.wrapping_add(place), len: first },
                Segment { base: self.ring.base.wrapping_add(DATA), len: length - first },
            ],
        };
        Ok(Some((header, payload)))
    }

    /// Gives the place of the peeked record back to the writer.
    pub fn advance(&mut self) {
        self.ring.note_read(self.tail, self.size as usize);
        self.tail += std::mem::take(&mut self.size);
        self.ring.word64(TAIL).store(self.tail, Ordering::Release);
    }

    /// True once if the writer waits for room.
    pub fn writer_waits(&self) -> bool {
        fence(Ordering::SeqCst);
        let flag = self.ring.word32(WAITS);
        clear(flag)
    }

    /// Asks for a wake-up when something is written; true if something is here already.
    pub fn sleep(&mut self) -> bool {
        self.ring.word32(SLEEPS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.head != self.tail || self.ring.word64(HEAD).load(Ordering::Acquire) != self.tail
    }

    /// Awake: no wake-up needed.
    pub fn awake(&self) {
        self.ring.word32(SLEEPS).store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::packet::Kind;
    use proptest::prelude::*;

    fn pair() -> (Writer, Reader) {
        let (ring, fd) = Ring::create().unwrap();
        (Writer::new(ring), Reader::new(Ring::open(&fd).unwrap()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Whatever the lengths and the order of writing and reading, records come out whole and in order.
        #[test]
        fn records_come_out_as_they_went_in(lengths in prop::collection::vec(0usize..=MAX_RECORD, 1..60), greedy in any::<u64>()) {
            let (mut writer, mut reader) = pair();
            let body = |number: usize, length: usize| (0..length).map(|i| (i * 31 + number) as u8).collect::<Vec<u8>>();
            let (mut sent, mut received) = (0, 0);
            while received < lengths.len() {
                if sent < lengths.len() && (greedy >> (sent % 64)) & 1 == 1 || sent == received {
                    let bytes = body(sent, lengths[sent]);
                    let mut header = Header::new(if sent % 2 == 0 { Kind::Eager } else { Kind::Data });
                    header.tag = sent as u64;
                    header.payload = bytes.len() as u32;
                    header.length = bytes.len() as u64;
                    let cut = bytes.len() / 3;
                    if writer.write(&header, &[Segment::of(&bytes[..cut]), Segment::of(&bytes[cut..])]).unwrap() {
                        sent += 1;
                        continue;
                    }
                }
                let (header, payload) = reader.peek().unwrap().expect("something was sent");
                prop_assert_eq!((header.tag, header.length), (received as u64, payload.len() as u64));
                prop_assert_eq!(payload.to_vec(), body(received, lengths[received]));
                reader.advance();
                received += 1;
            }
            prop_assert!(reader.peek().unwrap().is_none());
        }

        /// A hostile writer can put anything anywhere: the reader refuses or delivers, within the ring.
        #[test]
        fn a_hostile_writer_is_refused(head in any::<u64>(), junk in any::<[u8; 56]>()) {
            let (writer, mut reader) = pair();
            // SAFETY: inside the data area; the test is the only writer.
            unsafe { std::ptr::copy_nonoverlapping(junk.as_ptr(), writer.ring.base.add(DATA), junk.len()) };
            writer.ring.word64(HEAD).store(head, Ordering::Release);
            if let Ok(Some((_, payload))) = reader.peek() {
                prop_assert!(payload.len() <= MAX_RECORD);
            }
        }
    }

    #[test]
    fn the_flags_wake_once() {
        let (mut writer, mut reader) = pair();
        assert!(!reader.sleep());
        assert!(writer.write(&Header::new(Kind::Eager), &[]).unwrap());
        assert!(writer.reader_asleep());
        assert!(!writer.reader_asleep());
        assert!(reader.sleep());
        reader.awake();
        assert!(!writer.reader_asleep());
    }
}
