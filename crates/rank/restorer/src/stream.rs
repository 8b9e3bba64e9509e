//! A stream, its heads read in order; the payloads behind them, checked wherever they are read.
//!
//! A file is read at offsets, so that payloads can be skipped, or read by another thread than the one that reads heads.
//! A socket gives everything once: each payload must be taken before the next head.

use crate::arena;
use crate::report::fail;
use crate::sys;
use core::format_args as text;
use core::sync::atomic::{AtomicU64, Ordering};
use mend_image::fixed::Fixed;
use mend_image::launch::Failure;
use mend_image::record::{End, HEAD_SIZE, Kind, Ledger, RecordHead};
use mend_image::{HEADER_SIZE, Header, ImageError, read_header};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes from which one call is cheaper than a page fault for each page.
const WORTH_POPULATING: u64 = 16 << 10;

/// A source that is silent for so many milliseconds is dead.
const PATIENCE: i32 = 30_000;

static READ: AtomicU64 = AtomicU64::new(0);

/// Bytes read so far, of all streams.
pub fn bytes_read() -> u64 {
    READ.load(Ordering::Relaxed)
}

/// Where a stream comes from.
#[derive(Clone, Copy)]
pub struct Source {
    fd: i32,
    file: bool,
    /// Which image of the chain, for messages: 0 is the newest.
    member: usize,
}

impl Source {
    /// Reads exactly `length` bytes to an address, which need not be accessible: then this ends the restore. `at` is the
    /// place in the stream: where a file is read, and what messages say.
    fn read(&self, at: u64, address: u64, length: u64) {
        let mut done = 0;
        while done < length {
            let (call, offset) = if self.file { (sys::PREAD, at + done) } else { (sys::READ, 0) };
            let arguments = [self.fd as usize, (address + done) as usize, (length - done) as usize, offset as usize, 0, 0];
            // SAFETY: callers pass memory of the image or of the arena; the kernel checks access.
            match unsafe { sys::call(call, arguments) } {
                Ok(0) => fail(Failure::Stream, 0, text!("{}the stream ends {} bytes from its start", self.named(), at + done)),
                Ok(count) => {
                    done += count as u64;
                    READ.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(sys::EINTR) => {}
                Err(sys::EAGAIN) if sys::readable(self.fd, PATIENCE) => {}
                Err(sys::EAGAIN) => {
                    fail(Failure::Stream, 0, text!("nothing came for {} s, {} bytes from the stream's start", PATIENCE / 1000, at + done))
                }
                Err(errno) => {
                    let place = at + done;
                    fail(Failure::Stream, errno, text!("{}reading the stream failed {place} bytes from its start", self.named()))
                }
            }
        }
    }

    fn read_slice(&self, at: u64, bytes: &mut [u8]) {
        self.read(at, bytes.as_mut_ptr() as u64, bytes.len() as u64);
    }

    fn named(&self) -> Named {
        Named(self.member)
    }

    fn damaged(&self, error: ImageError) -> ! {
        fail(Failure::Image, 0, text!("{}{error}", self.named()))
    }
}

/// Which image a message is about.
struct Named(usize);

impl core::fmt::Display for Named {
    fn fmt(&self, formatter: &mut core::fmt::Formatter) -> core::fmt::Result {
        match self.0 {
            0 => Ok(()),
            member => write!(formatter, "image {member} of those that the image builds on: "),
        }
    }
}

/// Where records come from.
pub struct Stream {
    source: Source,
    header: Header,
    ledger: Ledger,
}

/// A record whose head has been read.
#[derive(Clone, Copy)]
pub struct Record {
    source: Source,
    /// Bytes from the stream's start to the payload.
    at: u64,
    pub kind: Kind,
    pub head: RecordHead,
}

impl Stream {
    /// Reads the header.
    pub fn open(fd: i32, member: usize) -> Self {
        // Reads of a socket come back after a second, so that a dead source is noticed. A file refuses this.
        let second = [1u64, 0];
        // SAFETY: setsockopt(SOL_SOCKET, SO_RCVTIMEO) reads 16 bytes; lseek(fd, 0, SEEK_CUR) takes plain numbers.
        let file = unsafe {
            let _ = sys::call(sys::SETSOCKOPT, [fd as usize, 1, 20, second.as_ptr() as usize, 16, 0]);
            sys::call(sys::LSEEK, [fd as usize, 0, 1, 0, 0, 0]).is_ok()
        };
        let source = Source { fd, file, member };
        let mut raw = [0; HEADER_SIZE];
        source.read_slice(0, &mut raw);
        let header = read_header(&raw).unwrap_or_else(|error| source.damaged(error));
        Self { source, header, ledger: Ledger::new(&raw) }
    }

    /// Its descriptor has another number now.
    pub fn renumber(&mut self, fd: i32) {
        self.source.fd = fd;
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of the file that it is; 0 if it is not one, whose payloads must be taken in order.
    pub fn file_length(&self) -> u64 {
        // SAFETY: lseek(fd, 0, SEEK_END) takes plain numbers; files are read at offsets, so that it moves nothing.
        unsafe { sys::call(sys::LSEEK, [self.source.fd as usize, 0, 2, 0, 0, 0]) }.unwrap_or(0) as u64
    }

    /// Bytes of the stream up to the next head.
    pub fn bytes(&self) -> u64 {
        self.ledger.bytes()
    }

    /// The next record. The one before it has been read or skipped.
    pub fn next(&mut self) -> Record {
        let mut raw = [0; HEAD_SIZE];
        self.source.read_slice(self.bytes(), &mut raw);
        let at = self.bytes() + HEAD_SIZE as u64;
        let (kind, head) = self.ledger.admit(&raw).unwrap_or_else(|error| self.source.damaged(error));
        Record { source: self.source, at, kind, head }
    }

    /// Reads the end record and compares the totals.
    pub fn close(&self, end: &Record) {
        let mut raw = [0; End::SIZE];
        self.source.read_slice(end.at, &mut raw);
        end.check(&raw);
        let result = End::decode(&raw).and_then(|end| self.ledger.close(&end));
        result.unwrap_or_else(|error| self.source.damaged(error));
    }

    /// A record that is well formed but cannot be.
    pub fn inconsistent(&self) -> ! {
        self.source.damaged(ImageError::Inconsistent { at: self.bytes() })
    }
}

impl Record {
    /// Reads the payload into new memory of the arena.
    pub fn table(&self) -> &'static [u8] {
        let room = arena::take(self.head.padded_length() as usize);
        self.source.read_slice(self.at, room);
        let payload = &room[..self.head.length as usize];
        self.check(payload);
        payload
    }

    /// Reads the payload into memory that is used again.
    pub fn passing<'a>(&self, room: &'a mut [u8]) -> &'a [u8] {
        let room = &mut room[..self.head.padded_length() as usize];
        self.source.read_slice(self.at, room);
        let payload = &room[..self.head.length as usize];
        self.check(payload);
        payload
    }

    /// Reads whole pages to where they belong, and checks them there.
    pub fn fill_place(&self) {
        const MADV_POPULATE_WRITE: usize = 23;
        if self.head.length >= WORTH_POPULATING {
            // All pages at once: a page fault for each of them costs an eighth more. A kernel without it (before 5.14), or memory
            // that refuses it, faults page by page.
            // SAFETY: makes pages of the image's own memory present, with what they hold.
            let _ =
                unsafe { sys::call(sys::MADVISE, [self.head.address as usize, self.head.length as usize, MADV_POPULATE_WRITE, 0, 0, 0]) };
        }
        self.source.read(self.at, self.head.address, self.head.length);
        // SAFETY: readable, as it was just filled; `Pass` gives no page to two records of an image, and nobody else writes to it.
        self.check(unsafe { core::slice::from_raw_parts(self.head.address as *const u8, self.head.length as usize) });
    }

    /// Leaves the payload unread where that can be.
    pub fn skip(&self, room: &mut [u8]) {
        let mut left = if self.source.file { 0 } else { self.head.padded_length() };
        while left > 0 {
            let some = left.min(room.len() as u64);
            self.source.read_slice(self.at, &mut room[..some as usize]);
            left -= some;
        }
    }

    fn check(&self, payload: &[u8]) {
        if xxh3_64(payload) != self.head.payload {
            self.source.damaged(ImageError::Damaged { at: self.at - mend_image::record::HEAD_SIZE as u64 });
        }
    }

    /// It is well formed but cannot be.
    pub fn inconsistent(&self) -> ! {
        self.source.damaged(ImageError::Inconsistent { at: self.at - mend_image::record::HEAD_SIZE as u64 })
    }
}
