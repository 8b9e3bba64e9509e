//! The stream, read in order and checked on the way.

use crate::arena;
use crate::report::fail;
use crate::sys;
use core::format_args as text;
use mend_image::fixed::Fixed;
use mend_image::launch::Failure;
use mend_image::record::{End, HEAD_SIZE, Kind, Ledger, RecordHead};
use mend_image::{HEADER_SIZE, Header, ImageError, read_header};
use xxhash_rust::xxh3::xxh3_64;

/// A source that is silent for so many milliseconds is dead.
const PATIENCE: i32 = 30_000;

/// Where records come from.
pub struct Stream {
    pub fd: i32,
    ledger: Option<Ledger>,
}

impl Stream {
    pub fn new(fd: i32) -> Self {
        // Reads of a socket come back after a second, so that a dead source is noticed. A file refuses this.
        let second = [1u64, 0];
        // SAFETY: setsockopt(SOL_SOCKET, SO_RCVTIMEO) reads 16 bytes.
        let _ = unsafe { sys::call(sys::SETSOCKOPT, [fd as usize, 1, 20, second.as_ptr() as usize, 16, 0]) };
        Self { fd, ledger: None }
    }

    /// Bytes read and understood.
    pub fn bytes(&self) -> u64 {
        self.ledger.as_ref().map_or(0, Ledger::bytes)
    }

    /// Reads exactly `length` bytes to an address, which need not be accessible: then this ends the restore.
    pub fn fill(&self, address: u64, length: u64) {
        let mut done = 0;
        while done < length {
            // SAFETY: callers pass memory of the image or of the arena; the kernel checks access.
            match unsafe { sys::call(sys::READ, [self.fd as usize, (address + done) as usize, (length - done) as usize, 0, 0, 0]) } {
                Ok(0) => fail(Failure::Stream, 0, text!("the stream ends {} bytes from its start", self.bytes() + done)),
                Ok(count) => done += count as u64,
                Err(sys::EINTR) => {}
                Err(sys::EAGAIN) if sys::readable(self.fd, PATIENCE) => {}
                Err(sys::EAGAIN) => fail(
                    Failure::Stream,
                    0,
                    text!("nothing came for {} s, {} bytes from the stream's start", PATIENCE / 1000, self.bytes() + done),
                ),
                Err(errno) => fail(Failure::Stream, errno, text!("reading the stream failed {} bytes from its start", self.bytes() + done)),
            }
        }
    }

    fn fill_slice(&self, bytes: &mut [u8]) {
        self.fill(bytes.as_mut_ptr() as u64, bytes.len() as u64);
    }

    pub fn header(&mut self) -> Header {
        let mut raw = [0; HEADER_SIZE];
        self.fill_slice(&mut raw);
        let header = read_header(&raw).unwrap_or_else(|error| damaged(error));
        self.ledger = Some(Ledger::new(&raw));
        header
    }

    /// The next head. Its payload must be read before the next one.
    pub fn head(&mut self) -> (Kind, RecordHead) {
        let mut raw = [0; HEAD_SIZE];
        self.fill_slice(&mut raw);
        let at = self.bytes();
        match &mut self.ledger {
            Some(ledger) => ledger.admit(&raw).unwrap_or_else(|error| damaged(error)),
            None => damaged(ImageError::Inconsistent { at }),
        }
    }

    /// Reads a payload into new memory of the arena.
    pub fn table(&self, head: &RecordHead) -> &'static [u8] {
        let room = arena::take(head.padded_length() as usize);
        self.fill_slice(room);
        let payload = &room[..head.length as usize];
        self.check(payload, head);
        payload
    }

    /// Reads a payload into memory that is used again.
    pub fn passing<'a>(&self, head: &RecordHead, room: &'a mut [u8]) -> &'a [u8] {
        let room = &mut room[..head.padded_length() as usize];
        self.fill_slice(room);
        let payload = &room[..head.length as usize];
        self.check(payload, head);
        payload
    }

    /// Compares a payload with the checksum that its head announced.
    pub fn check(&self, payload: &[u8], head: &RecordHead) {
        if xxh3_64(payload) != head.payload {
            damaged(ImageError::Damaged { at: self.bytes() - head.padded_length() });
        }
    }

    /// Compares the totals.
    pub fn close(&self, payload: &[u8]) {
        let result = End::decode(payload).and_then(|end| match &self.ledger {
            Some(ledger) => ledger.close(&end),
            None => Err(ImageError::Truncated),
        });
        result.unwrap_or_else(|error| damaged(error));
    }

    /// A record that is well formed but cannot be.
    pub fn inconsistent(&self) -> ! {
        damaged(ImageError::Inconsistent { at: self.bytes() })
    }
}

fn damaged(error: ImageError) -> ! {
    fail(Failure::Image, 0, text!("{error}"))
}
