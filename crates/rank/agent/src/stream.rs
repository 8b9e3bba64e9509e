//! The stream of records on its way out: heads and payloads to a file or a socket, many small ones with one call.
//!
//! Like the writer it works for: its state is on the writer's stack and in scratch memory, it allocates nothing.

use crate::writer::WriteError;
use mend_image::HEADER_SIZE;
use mend_image::record::{End, HEAD_SIZE, Kind, Ledger, RecordHead};
use mend_kernel::raw::syscall;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::io::IoSlice;
use xxhash_rust::xxh3::xxh3_64;

/// A peer that takes nothing for this long is dead.
pub(crate) const STALL: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Pieces sent with one call, at most what a call takes (`IOV_MAX`).
const MOST: usize = 512;
/// Bytes that are enough for one call. Few enough to stay in the processor's cache between checksum and copy.
const ENOUGH: usize = 256 << 10;
/// Payloads up to this length are gathered, not sent from where they are: the kernel is slower with many short pieces than
/// a copy takes.
const SHORT: usize = 32 << 10;
const PAGE: usize = 4096;
const ROOM: usize = ENOUGH + SHORT + 2 * PAGE;

/// Records that wait for the call that sends them. Any bytes, zeros above all, are valid.
#[repr(C, align(4096))]
pub(crate) struct Batch {
    /// Heads and short payloads.
    gathered: [u8; ROOM],
    /// Addresses and lengths, within `gathered` and of long payloads.
    pieces: [(usize, usize); MOST],
}

/// A stream being sent.
pub(crate) struct Stream<'a> {
    out: BorrowedFd<'a>,
    socket: bool,
    ledger: Ledger,
    /// Up to here the disk has been told to write.
    settling: u64,
    batch: &'static mut Batch,
    /// What waits: pieces, their bytes, and up to where room is taken.
    waiting: Waiting,
}

#[derive(Clone, Copy, Default)]
struct Waiting {
    pieces: usize,
    bytes: usize,
    filled: usize,
}

impl<'a> Stream<'a> {
    /// Sends the header.
    pub fn begin(out: BorrowedFd<'a>, header: &[u8; HEADER_SIZE], batch: &'static mut Batch) -> Result<Self, WriteError> {
        let socket = rustix::net::sockopt::socket_type(out).is_ok();
        if socket {
            // The receiver takes pages at the speed of its page faults; a congestion control that paces by estimates would
            // take its pauses for the line's. Not a TCP socket, or no cubic: as it is.
            let _ = rustix::net::sockopt::set_tcp_congestion(out, "cubic");
        }
        let stream = Self { out, socket, ledger: Ledger::new(header), settling: 0, batch, waiting: Waiting::default() };
        stream.send(&mut [IoSlice::new(header)])?;
        Ok(stream)
    }

    /// The same stream, out through another descriptor of the same file.
    pub fn through<'b>(self, out: BorrowedFd<'b>) -> Stream<'b> {
        let Self { socket, ledger, settling, batch, waiting, .. } = self;
        Stream { out, socket, ledger, settling, batch, waiting }
    }

    /// What an end record would say now.
    pub fn so_far(&self) -> End {
        self.ledger.end()
    }

    /// Sends a record, and those that wait. Returns how many bytes went.
    pub fn record(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<u64, WriteError> {
        let before = self.flush()?;
        let (head, raw) = self.admit(kind, index, address, payload)?;
        let padding = (head.padded_length() - head.length) as usize;
        self.send(&mut [IoSlice::new(&raw), IoSlice::new(payload), IoSlice::new(&[0; 8][..padding])])?;
        self.settle();
        Ok(before + HEAD_SIZE as u64 + head.padded_length())
    }

    /// Sends pages, now or with others that follow: they must stay as they are until [`Stream::flush`]. Returns how many bytes
    /// went.
    pub fn pages(&mut self, address: u64, pages: &'static [u8]) -> Result<u64, WriteError> {
        if self.waiting.pieces == 0 {
            // Pages of the file that are filled from one page of memory each are filled fastest.
            self.waiting.filled = self.ledger.bytes() as usize % PAGE;
        }
        if pages.len() <= SHORT {
            self.gather(address, pages)?;
        } else {
            let (_, raw) = self.admit(Kind::Pages, 0, address, pages)?;
            let at = self.take_room(HEAD_SIZE);
            self.batch.gathered[at..at + HEAD_SIZE].copy_from_slice(&raw);
            self.piece(pages.as_ptr() as usize, pages.len());
        }
        let Waiting { pieces, bytes, .. } = self.waiting;
        if pieces + 2 > MOST || bytes >= ENOUGH { self.flush() } else { Ok(0) }
    }

    /// Copies first and reads the copy for its checksum: memory that is in no cache is copied faster than it is read.
    fn gather(&mut self, address: u64, pages: &[u8]) -> Result<(), WriteError> {
        let at = self.take_room(HEAD_SIZE + pages.len());
        let payload = at + HEAD_SIZE..at + HEAD_SIZE + pages.len();
        self.batch.gathered[payload.clone()].copy_from_slice(pages);
        let head = RecordHead::new(Kind::Pages, 0, address, pages.len() as u64, xxh3_64(&self.batch.gathered[payload]));
        let raw = head.to_bytes();
        self.batch.gathered[at..at + HEAD_SIZE].copy_from_slice(&raw);
        self.ledger.admit(&raw).map(drop).map_err(|_| WriteError::Format)
    }

    /// Where `gathered` has room for what comes next, which then waits. There is enough: while a call is not due, less than
    /// [`ENOUGH`] waits.
    fn take_room(&mut self, length: usize) -> usize {
        let at = self.waiting.filled;
        self.waiting.filled += length;
        self.piece(self.batch.gathered[at..at + length].as_ptr() as usize, length);
        at
    }

    fn piece(&mut self, address: usize, length: usize) {
        let Waiting { pieces, bytes, .. } = &mut self.waiting;
        *bytes += length;
        match self.batch.pieces[..*pieces].last_mut() {
            Some((start, so_far)) if *start + *so_far == address => *so_far += length,
            _ => {
                self.batch.pieces[*pieces] = (address, length);
                *pieces += 1;
            }
        }
    }

    /// Sends what waits.
    pub fn flush(&mut self) -> Result<u64, WriteError> {
        let Waiting { pieces: count, bytes, .. } = core::mem::take(&mut self.waiting);
        if count == 0 {
            return Ok(0);
        }
        let mut pieces = [IoSlice::new(&[]); MOST];
        for (piece, (address, length)) in pieces.iter_mut().zip(&self.batch.pieces[..count]) {
            // SAFETY: a part of `gathered`, or what `pages` was given and its caller keeps as it was.
            *piece = IoSlice::new(unsafe { core::slice::from_raw_parts(*address as *const u8, *length) });
        }
        self.send(&mut pieces[..count])?;
        self.settle();
        Ok(bytes as u64)
    }

    fn admit(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<(RecordHead, [u8; HEAD_SIZE]), WriteError> {
        let head = RecordHead::new(kind, index, address, payload.len() as u64, xxh3_64(payload));
        let raw = head.to_bytes();
        self.ledger.admit(&raw).map_err(|_| WriteError::Format)?;
        Ok((head, raw))
    }

    /// Lets the disk begin with what is written while the rest is: the end then waits for little.
    fn settle(&mut self) {
        const PIECE: u64 = 8 << 20;
        const SYNC_FILE_RANGE_WRITE: usize = 2;
        let (from, to) = (self.settling, self.ledger.bytes());
        if self.socket || to - from < PIECE {
            return;
        }
        self.settling = to;
        let out = self.out.as_raw_fd() as usize;
        // SAFETY: plain numbers. Not a file, or a file system without: the end waits for all of it.
        unsafe { syscall(libc::SYS_sync_file_range, [out, from as usize, (to - from) as usize, SYNC_FILE_RANGE_WRITE, 0, 0]) };
    }

    fn send(&self, mut pieces: &mut [IoSlice]) -> Result<(), WriteError> {
        loop {
            // Also drops pieces that are empty from the start.
            IoSlice::advance_slices(&mut pieces, 0);
            if pieces.is_empty() {
                return Ok(());
            }
            let result = if self.socket {
                let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
                rustix::net::sendmsg(self.out, pieces, &mut rustix::net::SendAncillaryBuffer::default(), flags)
            } else {
                rustix::io::writev(self.out, pieces)
            };
            match result {
                Ok(0) => return Err(WriteError::Out(Errno::IO)),
                Ok(count) => IoSlice::advance_slices(&mut pieces, count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&self.out, PollFlags::OUT)], Some(&STALL)) {
                    Ok(0) => return Err(WriteError::Stalled),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(WriteError::Out(error)),
                },
                Err(error) => return Err(WriteError::Out(error)),
            }
        }
    }
}
