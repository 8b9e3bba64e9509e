//! The ring of a shared-memory channel: one writer, one reader, in a memfd that both map.
//!
//! ```text
//! 0      magic, capacity                        written by the creator, once
//! 128    tail: bytes read (u64)                 written by the receiver
//! 192    reader sleeps (u32)                    set by the receiver, cleared by whoever wakes it
//! 256    writer waits for room (u32)            set by the sender, cleared by whoever wakes it
//! 320    of which version grants must be (u64)  written by the receiver, see the module `direct`
//! 512    data, CAPACITY bytes; records are multiples of 64 bytes: header, payload (which may wrap), padding; of a short
//!        message's header only what is not known anyway, so that it shares its line with up to 32 bytes; a long payload
//!        has lines of its own
//! ```
//! Two rings, one each way, and all else that a pair of ranks has take less than 64 KiB. A packet of more than
//! [`MAX_RECORD`] bytes does not fit: the channel cuts it.
//!
//! Positions count up for ever; a position modulo the capacity is a place. A record never begins across the end,
//! because header and alignment are at most 64 bytes.
//!
//! How far the sender is stands nowhere: the first word of a record, never 0, is written last, and the word where the next
//! one will begin is set to 0 before. The receiver looks at that word, so that a short message changes processors with
//! one line. There is always a line between the newest record and the oldest for this.
//!
//! The other side is untrusted: the tail is checked against what was written, headers are copied out before they are looked
//! at, and no length leads out of the ring. The seals keep it from shrinking the file under us.

#[cfg(loom)]
mod modelled;

use super::ChannelError;
use crate::engine::buffers::{Payload, Segment, copy_across};
use crate::engine::packet::{BRIEF_BYTES, HEADER, Header};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use mend_messages::agent::RING_MEMORY;
#[cfg(loom)]
pub use modelled::MAX_RECORD;
#[cfg(not(loom))]
use rustix::fd::{AsFd, OwnedFd};
#[cfg(not(loom))]
use rustix::fs::{MemfdFlags, SealFlags};
#[cfg(not(loom))]
use rustix::mm::{MapFlags, ProtFlags};
use std::mem::offset_of;
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
#[cfg(not(loom))]
const MAGIC: u64 = u64::from_le_bytes(*b"MENDrin5");
const LINE: usize = 64;

const TAIL: usize = 128;
const SLEEPS: usize = 192;
const WAITS: usize = 256;
const GRANTS: usize = 320;

/// Payload from which it begins with a line: copies are faster then.
const MIN_ALIGNED_BYTES: usize = 1024;

/// What stands in place of [`Header::padding`] in the ring: the header's first word is not 0.
const WRITTEN: u16 = 1;
/// Bytes of a header that its first word holds.
const WORD_BYTES: usize = size_of::<u64>();
/// Most bytes in a ring in which there is still room for any record.
const AMPLE_BYTES: u64 = (CAPACITY - LINE) as u64 - record(HEADER, MAX_RECORD);

const _: () = assert!(CAPACITY.is_multiple_of(LINE) && HEADER <= LINE && MAX_RECORD + 2 * LINE <= CAPACITY);
const _: () = assert!(offset_of!(Header, padding) == 6);

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
        let fd = rustix::fs::memfd_create(RING_MEMORY, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, RING_BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let ring = Self::map(&fd)?;
        ring.word64(0).store(MAGIC, Ordering::Relaxed);
        ring.word64(8).store(CAPACITY as u64, Ordering::Relaxed);
        Ok((ring, fd))
    }

    /// Maps a ring that a peer created.
    pub fn open(fd: &impl AsFd) -> Result<Self, ChannelError> {
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

    fn map(fd: &impl AsFd) -> Result<Self, ChannelError> {
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

    /// Fetches a line early that will be written.
    #[inline]
    fn will_write(&self, position: u64) {
        // SAFETY: a hint, and a place in the mapping; processors without it take it for a `nop`.
        unsafe {
            let line = self.base.add(self.place(position));
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
    }

    /// The first word of the record at a position.
    #[inline]
    fn first_word(&self, position: u64) -> &AtomicU64 {
        self.word64(self.place(position))
    }
}

impl Ring {
    /// Address and length of the mapping.
    pub fn mapping(&self) -> (usize, usize) {
        (self.base as usize, RING_BYTES)
    }

    fn word64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is one of the constants above or the place of a line: 8-aligned and inside the mapping, which lives
        // as long as self.
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

/// Bytes of the header in the ring, and of what lies between it and this many bytes of payload.
#[inline]
fn header_length(header: &Header, payload: usize) -> usize {
    match header.is_brief() {
        _ if payload >= MIN_ALIGNED_BYTES => LINE,
        true => BRIEF_BYTES,
        false => HEADER,
    }
}

const fn record(header: usize, payload: usize) -> u64 {
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

    /// The receiver's word on grants.
    pub fn grants(&self) -> u64 {
        self.ring.word64(GRANTS).load(Ordering::Acquire)
    }

    /// How far the reader says it has come.
    pub fn taken(&self) -> u64 {
        self.ring.word64(TAIL).load(Ordering::Acquire)
    }

    /// True if there is room for a record of this size and the line after it.
    fn room(&mut self, size: u64) -> Result<bool, ChannelError> {
        let need = size + LINE as u64;
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
        let fixed = header_length(header, length);
        let size = record(fixed, length);
        if !self.room(size)? {
            return Ok(false);
        }
        let next = self.head + size;
        self.ring.first_word(next).store(0, Ordering::Relaxed);
        let start = self.ring.place(self.head);
        // The payload first: the reader watches the line of the header, and had it back before the rest is there.
        let mut at = self.head + fixed as u64;
        for segment in payload {
            self.copy_in(at, *segment);
            at += segment.len as u64;
        }
        // SAFETY: `start` is 64-aligned and HEADER ≤ 64 ≤ what is left before the end (capacity is a multiple of 64),
        // and the positions say that the reader looks at nothing of [head, head + size) but the first word.
        unsafe {
            let (from, to) = (header.as_bytes().as_ptr().add(WORD_BYTES), self.ring.base.add(start + WORD_BYTES));
            if fixed == BRIEF_BYTES {
                std::ptr::copy_nonoverlapping(from, to, BRIEF_BYTES - WORD_BYTES);
            } else {
                std::ptr::copy_nonoverlapping(from, to, HEADER - WORD_BYTES);
            }
        }
        self.ring.note_written(self.head, size as usize);
        self.ring.first_word(self.head).store(header.first_word() | u64::from(WRITTEN) << 48, Ordering::Release);
        self.head = next;
        self.ring.will_write(next + LINE as u64);
        Ok(true)
    }

    fn copy_in(&self, position: u64, segment: Segment) {
        let place = self.ring.place(position);
        let first = segment.len.min(RING_BYTES - place);
        // SAFETY: both parts lie in the data area, in the span that `write` found free; the source is lent by the
        // application for its length.
        unsafe {
            copy_across(segment.base, self.ring.base.add(place), first);
            if first < segment.len {
                copy_across(segment.base.add(first), self.ring.base.add(DATA), segment.len - first);
            }
        }
    }

    /// True once if the reader asked to be woken and something was written. One look after some records is enough.
    pub fn reader_asleep(&self) -> bool {
        // The record must be visible before the flag is read, else both sides could miss each other.
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
    tail: u64,
    /// Bytes of the record that was peeked.
    size: u64,
    /// Bytes read since the writer's flag was looked at.
    unseen: u64,
}

impl Reader {
    pub fn new(ring: Ring) -> Self {
        Self { ring, tail: 0, size: 0, unseen: 0 }
    }

    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    pub fn into_ring(self) -> Ring {
        self.ring
    }

    /// A word for the writer on grants.
    pub fn show_grants(&self, word: u64) {
        self.ring.word64(GRANTS).store(word, Ordering::Release);
    }

    /// True if nothing is there.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.first_word(self.tail).load(Ordering::Relaxed) == 0
    }

    /// The next record, where it is; stays until [`Reader::advance`].
    #[inline]
    pub fn peek(&mut self) -> Result<Option<(Header, Payload)>, ChannelError> {
        let word = self.ring.first_word(self.tail).load(Ordering::Acquire);
        if word == 0 {
            return Ok(None);
        }
        self.ring.note_read(self.tail, HEADER);
        let start = self.ring.place(self.tail);
        let mut bytes = [0; HEADER];
        bytes[..WORD_BYTES].copy_from_slice(&word.to_le_bytes());
        // SAFETY: the tail is a multiple of 64, so a header at its place lies inside the data area.
        unsafe {
            std::ptr::copy_nonoverlapping(self.ring.base.add(start + WORD_BYTES), bytes[WORD_BYTES..].as_mut_ptr(), HEADER - WORD_BYTES)
        };
        let mut header = Header::from_bytes(&bytes);
        if std::mem::take(&mut header.padding) != WRITTEN {
            return Err(ChannelError::Protocol("no record where one begins in a ring".into()));
        }
        header.complete_brief();
        let length = header.payload as usize;
        let fixed = header_length(&header, length);
        if length > MAX_RECORD {
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
        let size = std::mem::take(&mut self.size);
        self.tail += size;
        self.unseen += size;
        self.ring.word64(TAIL).store(self.tail, Ordering::Release);
    }

    /// True once if the writer waits for room. It can do so only if more than [`AMPLE_BYTES`] bytes are there by its latest look at
    /// the tail; when they have been read, it is looked at.
    #[inline]
    pub fn writer_waits(&mut self) -> bool {
        if self.unseen <= AMPLE_BYTES {
            return false;
        }
        self.unseen = 0;
        fence(Ordering::SeqCst);
        let flag = self.ring.word32(WAITS);
        clear(flag)
    }

    /// Asks for a wake-up when something is written; true if something is here already.
    pub fn sleep(&mut self) -> bool {
        self.ring.word32(SLEEPS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.ring.first_word(self.tail).load(Ordering::Relaxed) != 0
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
        fn a_hostile_writer_is_refused(mark in any::<bool>(), short in any::<bool>(), junk in any::<[u8; HEADER]>()) {
            let (writer, mut reader) = pair();
            let mut header = Header::from_bytes(&junk);
            if mark {
                header.padding = WRITTEN;
            }
            if short {
                header.payload %= MAX_RECORD as u32 + 2;
            }
            // SAFETY: inside the data area; the test is the only writer.
            unsafe { std::ptr::copy_nonoverlapping(header.as_bytes().as_ptr(), writer.ring.base.add(DATA), HEADER) };
            if let Ok(Some((_, payload))) = reader.peek() {
                prop_assert!(header.padding == WRITTEN && payload.len() <= MAX_RECORD);
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
