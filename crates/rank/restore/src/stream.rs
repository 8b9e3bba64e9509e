//! A stream, its heads read in order; the payloads behind them, checked wherever they are read.
//!
//! A file is read at offsets, so that payloads can be skipped, or read by another thread than the one that reads heads.
//! A socket gives everything once: each payload must be taken before the next head.

use crate::RestoreError;
use crate::arena::Arena;
use crate::error::Member;
use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering};
use mend_image::fixed::Fixed;
use mend_image::record::{End, HEAD_SIZE, Kind, Ledger, RecordHead};
use mend_image::{HEADER_SIZE, Header, ImageError, read_header};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes from which one call is cheaper than a page fault for each page.
const WORTH_POPULATING: u64 = 16 << 10;

const EINVAL: i32 = 22;
/// A source that is silent for so many milliseconds is dead.
const PATIENCE_MS: i32 = 30_000;

/// How far a restore is; others may look while it runs.
#[derive(Default)]
pub struct Progress {
    read: AtomicU64,
    placed: AtomicU64,
}

impl Progress {
    /// Before the first byte.
    #[must_use]
    pub const fn new() -> Self {
        Self { read: AtomicU64::new(0), placed: AtomicU64::new(0) }
    }

    /// Bytes read so far, of all streams.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes of pages written to memory so far.
    #[must_use]
    pub fn bytes_placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&self, bytes: u64) {
        self.placed.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Where a stream comes from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    fd: i32,
    file: bool,
    /// Silence for so many milliseconds is the source's death.
    patience_ms: i32,
    member: Member,
    progress: &'a Progress,
}

impl Source<'_> {
    /// Reads exactly `length` bytes to an address, which need not be accessible: then the kernel refuses. `at` is the
    /// place in the stream: where a file is read, and what messages say.
    ///
    /// # Safety
    /// What is accessible there may be overwritten.
    unsafe fn read(&self, at: u64, address: u64, length: u64) -> Result<(), RestoreError<'static>> {
        let member = self.member;
        let mut done = 0;
        while done < length {
            let (call, offset) = if self.file { (sys::PREAD, at + done) } else { (sys::READ, 0) };
            let arguments = [self.fd as usize, (address + done) as usize, (length - done) as usize, offset as usize, 0, 0];
            // SAFETY: callers pass memory of the image or of the arena; the kernel checks access.
            match unsafe { sys::call(call, arguments) } {
                Ok(0) => return Err(RestoreError::Ended { member, at: at + done }),
                Ok(count) => {
                    done += count as u64;
                    self.progress.read.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(sys::EINTR) => {}
                Err(sys::EAGAIN) if sys::readable(self.fd, self.patience_ms) => {}
                Err(sys::EAGAIN) => return Err(RestoreError::Silent { seconds: self.patience_ms / 1000, at: at + done }),
                Err(errno) => return Err(RestoreError::Unreadable { member, at: at + done, errno }),
            }
        }
        Ok(())
    }

    pub(crate) fn read_slice(&self, at: u64, bytes: &mut [u8]) -> Result<(), RestoreError<'static>> {
        // SAFETY: the slice is the caller's to be written.
        unsafe { self.read(at, bytes.as_mut_ptr() as u64, bytes.len() as u64) }
    }

    /// Says something to the source.
    pub(crate) fn answer(&self, bytes: &[u8]) -> Result<(), RestoreError<'static>> {
        let member = self.member;
        sys::write_all(self.fd, bytes).map_err(|errno| RestoreError::Unreadable { member, at: 0, errno })
    }

    /// Compares a payload with its record's head.
    pub(crate) fn check(&self, at: u64, head: &RecordHead, payload: &[u8]) -> Result<(), RestoreError<'static>> {
        if xxh3_64(payload) == head.payload { Ok(()) } else { Err(self.damaged(ImageError::Damaged { at: at - HEAD_SIZE as u64 })) }
    }

    /// Reads whole pages to where they belong, and checks them there. What is compressed is read to `room`, of
    /// [`mend_image::record::MAX_PAGES`] at least, and unpacked from there.
    ///
    /// # Safety
    /// The pages may be overwritten, and nobody else writes to them until this returns.
    pub(crate) unsafe fn fill(&self, at: u64, head: &RecordHead, room: &mut [u8]) -> Result<(), RestoreError<'static>> {
        const MADV_POPULATE_WRITE: usize = 23;
        let (address, length) = (head.address, head.length);
        if length >= WORTH_POPULATING || head.compressed().is_some() {
            // All pages at once: a page fault for each of them costs an eighth more. A kernel without it (before 5.14), or memory
            // that refuses it, faults page by page.
            // SAFETY: makes pages of the image's own memory present, with what they hold.
            let populated = unsafe { sys::call(sys::MADVISE, [address as usize, length as usize, MADV_POPULATE_WRITE, 0, 0, 0]) };
            if let (Err(errno), Some(_)) = (populated, head.compressed())
                && errno != EINVAL
            {
                // A call that reads says that there is no memory; unpacking would end this process.
                return Err(RestoreError::Unreadable { member: self.member, at, errno });
            }
        }
        let Some(compressed) = head.compressed() else {
            // SAFETY: per contract.
            unsafe { self.read(at, address, length)? };
            // SAFETY: readable, as it was just filled; per contract nobody else writes to it.
            return self.check(at, head, unsafe { core::slice::from_raw_parts(address as *const u8, length as usize) });
        };
        let damaged = || self.damaged(ImageError::Damaged { at: at - HEAD_SIZE as u64 });
        let block = room.get_mut(..head.padded_length() as usize).ok_or_else(damaged)?;
        self.read_slice(at, block)?;
        // SAFETY: per contract.
        let pages = unsafe { core::slice::from_raw_parts_mut(address as *mut u8, length as usize) };
        match lz4_flex::block::decompress_into(&block[..compressed as usize], pages) {
            Ok(unpacked) if unpacked == pages.len() => self.check(at, head, pages),
            _ => Err(damaged()),
        }
    }

    pub(crate) fn damaged(&self, error: ImageError) -> RestoreError<'static> {
        RestoreError::Image { member: self.member, error }
    }
}

/// Where records come from.
pub struct Stream<'a> {
    source: Source<'a>,
    header: Header,
    ledger: Ledger,
}

/// A record whose head has been read.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    source: Source<'a>,
    /// Bytes from the stream's start to the payload.
    at: u64,
    /// What it holds.
    pub kind: Kind,
    /// Its head.
    pub head: RecordHead,
}

impl<'a> Stream<'a> {
    /// Reads the header from a file, at its start, or from a socket. The descriptor stays the caller's and must stay open. `member` says
    /// which image of the chain it is, for messages: 0 is the newest.
    ///
    /// # Errors
    /// The source's, or what is wrong with the header.
    pub fn open(fd: i32, member: usize, progress: &'a Progress) -> Result<Self, RestoreError<'static>> {
        // Reads of a socket come back after a second, so that a dead source is noticed. A file refuses this.
        let second = [1u64, 0];
        // SAFETY: setsockopt(SOL_SOCKET, SO_RCVTIMEO) reads 16 bytes; lseek(fd, 0, SEEK_CUR) takes plain numbers.
        let file = unsafe {
            let _ = sys::call(sys::SETSOCKOPT, [fd as usize, 1, 20, second.as_ptr() as usize, 16, 0]);
            sys::call(sys::LSEEK, [fd as usize, 0, 1, 0, 0, 0]).is_ok()
        };
        let source = Source { fd, file, patience_ms: PATIENCE_MS, member: Member(member), progress };
        let mut raw = [0; HEADER_SIZE];
        source.read_slice(0, &mut raw)?;
        let header = read_header(&raw).map_err(|error| source.damaged(error))?;
        Ok(Self { source, header, ledger: Ledger::new(&raw).on_its_way() })
    }

    /// What is behind the header, for whoever reads it otherwise.
    pub(crate) fn into_source(self, patience_ms: i32) -> (Source<'a>, Header) {
        (Source { patience_ms, ..self.source }, self.header)
    }

    /// Its descriptor has another number now.
    pub fn renumber(&mut self, fd: i32) {
        self.source.fd = fd;
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of the file that it is; 0 if it is not one, whose payloads must be taken in order.
    #[must_use]
    pub fn file_length(&self) -> u64 {
        // SAFETY: lseek(fd, 0, SEEK_END) takes plain numbers; files are read at offsets, so that it moves nothing.
        unsafe { sys::call(sys::LSEEK, [self.source.fd as usize, 0, 2, 0, 0, 0]) }.unwrap_or(0) as u64
    }

    /// Bytes of the stream up to the next head.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ledger.bytes()
    }

    /// The next record. The one before it has been read or skipped.
    ///
    /// # Errors
    /// The source's, or what is wrong with the head.
    #[expect(clippy::should_implement_trait, reason = "a stream has an end record, and no end without one")]
    pub fn next(&mut self) -> Result<Record<'a>, RestoreError<'static>> {
        let mut raw = [0; HEAD_SIZE];
        self.source.read_slice(self.bytes(), &mut raw)?;
        let at = self.bytes() + HEAD_SIZE as u64;
        let (kind, head) = self.ledger.admit(&raw).map_err(|error| self.source.damaged(error))?;
        Ok(Record { source: self.source, at, kind, head })
    }

    /// Reads the end record and compares the totals.
    ///
    /// # Errors
    /// The source's; [`ImageError::Inconsistent`] if a record was lost or swapped.
    pub fn close(&self, end: &Record) -> Result<(), RestoreError<'static>> {
        let mut raw = [0; End::SIZE];
        self.source.read_slice(end.at, &mut raw)?;
        end.check(&raw)?;
        End::decode(&raw).and_then(|end| self.ledger.close(&end)).map_err(|error| self.source.damaged(error))
    }

    /// What to say of a record that is well formed but cannot be.
    #[must_use]
    pub fn inconsistent(&self) -> RestoreError<'static> {
        self.source.damaged(ImageError::Inconsistent { at: self.bytes() })
    }
}

impl Record<'_> {
    /// Reads the payload into new memory of the arena.
    ///
    /// # Errors
    /// The source's, the arena's, a wrong checksum.
    pub fn table<'b>(&self, arena: &'b Arena) -> Result<&'b [u8], RestoreError<'static>> {
        let room = arena.take(self.head.padded_length() as usize)?;
        self.payload(room)
    }

    /// Reads the payload into memory that is used again.
    ///
    /// # Errors
    /// The source's, a wrong checksum.
    ///
    /// # Panics
    /// If the payload, padded, is longer than the memory: [`mend_image::record::MAX_PAGES`] are enough but for tables.
    pub fn passing<'b>(&self, room: &'b mut [u8]) -> Result<&'b [u8], RestoreError<'static>> {
        self.payload(&mut room[..self.head.padded_length() as usize])
    }

    fn payload<'b>(&self, room: &'b mut [u8]) -> Result<&'b [u8], RestoreError<'static>> {
        if self.head.compressed().is_some() {
            // Only what goes to its place at once is.
            return Err(self.inconsistent());
        }
        self.source.read_slice(self.at, room)?;
        let payload = &room[..self.head.length as usize];
        self.check(payload)?;
        Ok(payload)
    }

    /// Reads whole pages to where they belong, and checks them there. `room` is for what is compressed.
    ///
    /// # Safety
    /// The pages may be overwritten, and nobody else writes to them until this returns.
    pub(crate) unsafe fn fill_place(&self, room: &mut [u8]) -> Result<(), RestoreError<'static>> {
        // SAFETY: per contract.
        unsafe { self.source.fill(self.at, &self.head, room) }
    }

    /// Leaves the payload unread where that can be.
    pub(crate) fn skip(&self, room: &mut [u8]) -> Result<(), RestoreError<'static>> {
        let mut left = if self.source.file { 0 } else { self.head.padded_length() };
        while left > 0 {
            let some = left.min(room.len() as u64);
            self.source.read_slice(self.at, &mut room[..some as usize])?;
            left -= some;
        }
        Ok(())
    }

    fn check(&self, payload: &[u8]) -> Result<(), RestoreError<'static>> {
        if xxh3_64(payload) == self.head.payload {
            return Ok(());
        }
        Err(self.source.damaged(ImageError::Damaged { at: self.at - HEAD_SIZE as u64 }))
    }

    /// What to say of it if it is well formed but cannot be.
    #[must_use]
    pub fn inconsistent(&self) -> RestoreError<'static> {
        self.source.damaged(ImageError::Inconsistent { at: self.at - HEAD_SIZE as u64 })
    }
}
