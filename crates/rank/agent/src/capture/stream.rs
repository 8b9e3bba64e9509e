//! The stream of records on its way out: heads and payloads to a file or a socket, many small ones with one call.
//!
//! Like the writer it works for: its state is on the writer's stack and in scratch memory, it allocates nothing.

use crate::capture::compression::{Compressor, PART, PART_ROOM};
use crate::capture::outlet::{self, MAX_PIECES, Outlet, Piece};
use crate::capture::sender::{self, BATCH_COUNT, Sender};
use crate::capture::write_error::WriteError;
use mend_image::HEADER_SIZE;
use mend_image::record::{End, HEAD_SIZE, Kind, Ledger, RecordHead};
use rustix::fd::BorrowedFd;
use std::io::IoSlice;
use xxhash_rust::xxh3::xxh3_64;

/// Payloads up to this length are gathered, not sent from where they are: the kernel is slower with many short pieces than
/// a copy takes.
const MAX_COPIED_BYTES: usize = 32 << 10;
/// Bytes after which it is worth while to have others sent by a process beside this one.
const MIN_SENDER_BYTES: u64 = 1 << 20;
const PAGE: usize = 4096;
const BATCH_BYTES: usize = outlet::LARGE_CALL_BYTES + MAX_COPIED_BYTES + 2 * PAGE;

/// Records that wait for the call that sends them. Any bytes, zeros above all, are valid.
#[repr(C, align(4096))]
pub(crate) struct Batch {
    /// Heads and short payloads.
    copied: [u8; BATCH_BYTES],
    /// Addresses and lengths, within `copied` and of long payloads.
    pieces: [Piece; MAX_PIECES],
}

/// A stream being sent.
pub(crate) struct Stream<'a> {
    outlet: Outlet<'a>,
    /// A stack for a sender.
    offered: Option<usize>,
    sender: Option<Sender<'a>>,
    ledger: Ledger,
    compressor: Option<&'static mut Compressor>,
    batches: [&'static mut Batch; BATCH_COUNT],
    /// Which of them is being filled.
    current: usize,
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
    /// Sends the header. With a compressor the stream is not kept.
    pub fn begin(
        out: BorrowedFd<'a>,
        header: &[u8; HEADER_SIZE],
        batches: [&'static mut Batch; BATCH_COUNT],
        compressor: Option<&'static mut Compressor>,
    ) -> Result<Self, WriteError> {
        let mut outlet = Outlet::new(out);
        outlet.send(&mut [IoSlice::new(header)])?;
        let ledger = if compressor.is_some() { Ledger::new(header).on_its_way() } else { Ledger::new(header) };
        Ok(Self { outlet, offered: None, sender: None, ledger, compressor, batches, current: 0, waiting: Waiting::default() })
    }

    /// The same stream, out through another descriptor of the same file.
    pub fn through<'b>(mut self, out: BorrowedFd<'b>) -> Stream<'b> {
        // The outlet remembers it if this fails.
        let _ = self.finish();
        let Self { outlet, ledger, compressor, batches, current, waiting, .. } = self;
        Stream { outlet: outlet.through(out), offered: None, sender: None, ledger, compressor, batches, current, waiting }
    }

    /// Where a sender can have its stack, if there is much to send and it goes to a file: the receiver of a socket is the slower side.
    ///
    /// # Safety
    /// Nobody else uses that stack until the stream is dropped, and all pages stay as they are until [`Stream::record`] or the drop.
    pub unsafe fn offer(&mut self, stack: usize) {
        self.offered = Some(stack).filter(|_| self.outlet.is_file() && sender::may_use(2));
    }

    /// What an end record would say now.
    pub fn so_far(&self) -> End {
        self.ledger.end()
    }

    /// Bytes that compression has spared.
    pub fn spared(&self) -> u64 {
        self.ledger.spared()
    }

    /// Sends a record, and those that wait. Returns how many bytes went.
    pub fn record(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<u64, WriteError> {
        if kind != Kind::Pages || self.compressor.is_none() {
            return self.whole_record(kind, index, address, payload);
        }
        let mut sent = 0;
        for (part, at) in payload.chunks(PART).zip((address..).step_by(PART)) {
            sent += if self.compressed(at, part)? { self.flush()? } else { self.whole_record(kind, index, at, part)? };
        }
        Ok(sent)
    }

    fn whole_record(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<u64, WriteError> {
        let before = self.flush()?;
        let (head, raw) = self.admit(kind, index, address, payload)?;
        let padding = (head.padded_length() - head.length) as usize;
        self.finish()?;
        self.outlet.send(&mut [IoSlice::new(&raw), IoSlice::new(payload), IoSlice::new(&[0; 8][..padding])])?;
        Ok(before + HEAD_SIZE as u64 + head.padded_length())
    }

    /// Sends pages, now or with others that follow: they must stay as they are until [`Stream::flush`]. Returns how many bytes
    /// went.
    pub fn pages(&mut self, address: u64, pages: &'static [u8]) -> Result<u64, WriteError> {
        if self.compressor.is_none() {
            return self.whole_pages(address, pages);
        }
        let (mut sent, mut at) = (0, 0);
        while at < pages.len() {
            let part = &pages[at..pages.len().min(at + PART)];
            if self.compressed(address + at as u64, part)? {
                sent += self.flush_if_due()?;
                at += part.len();
            } else {
                // As much as one call takes: many short records cost the receiver.
                let part = &pages[at..pages.len().min(at + self.outlet.call_bytes())];
                sent += self.whole_pages(address + at as u64, part)?;
                at += part.len();
            }
        }
        Ok(sent)
    }

    /// Compresses pages into the batch, if that is of use now.
    fn compressed(&mut self, address: u64, part: &[u8]) -> Result<bool, WriteError> {
        let Some(compressor) = self.compressor.as_deref_mut() else { return Ok(false) };
        if !compressor.wants(self.outlet.fd(), self.outlet.taken(), part.len()) {
            return Ok(false);
        }
        let at = self.waiting.filled + HEAD_SIZE;
        let Some(room) = self.batches[self.current].copied.get_mut(at..at + PART_ROOM) else { return Ok(false) };
        let Some(length) = compressor.compress(part, room) else { return Ok(false) };
        let head = RecordHead::new(Kind::Pages, 0, address, part.len() as u64, xxh3_64(part)).compressed_to(length as u32);
        let padded = head.padded_length() as usize;
        room[length..padded].fill(0);
        let raw = head.to_bytes();
        self.ledger.admit(&raw).map_err(|_| WriteError::Format)?;
        let at = self.take_space(HEAD_SIZE + padded);
        self.batches[self.current].copied[at..at + HEAD_SIZE].copy_from_slice(&raw);
        Ok(true)
    }

    fn whole_pages(&mut self, address: u64, pages: &'static [u8]) -> Result<u64, WriteError> {
        if self.waiting.pieces == 0 {
            // Pages of the file that are filled from one page of memory each are filled fastest.
            self.waiting.filled = self.ledger.bytes() as usize % PAGE;
        }
        if pages.len() <= MAX_COPIED_BYTES {
            self.copy_pages(address, pages)?;
        } else {
            let (_, raw) = self.admit(Kind::Pages, 0, address, pages)?;
            let at = self.take_space(HEAD_SIZE);
            self.batches[self.current].copied[at..at + HEAD_SIZE].copy_from_slice(&raw);
            self.piece(pages.as_ptr() as usize, pages.len());
        }
        self.flush_if_due()
    }

    fn flush_if_due(&mut self) -> Result<u64, WriteError> {
        let Waiting { pieces, bytes, .. } = self.waiting;
        if pieces + 2 > MAX_PIECES || bytes >= self.outlet.call_bytes() { self.flush() } else { Ok(0) }
    }

    /// Copies first and reads the copy for its checksum: memory that is in no cache is copied faster than it is read.
    fn copy_pages(&mut self, address: u64, pages: &[u8]) -> Result<(), WriteError> {
        let at = self.take_space(HEAD_SIZE + pages.len());
        let payload = at + HEAD_SIZE..at + HEAD_SIZE + pages.len();
        self.batches[self.current].copied[payload.clone()].copy_from_slice(pages);
        let head = RecordHead::new(Kind::Pages, 0, address, pages.len() as u64, xxh3_64(&self.batches[self.current].copied[payload]));
        let raw = head.to_bytes();
        self.batches[self.current].copied[at..at + HEAD_SIZE].copy_from_slice(&raw);
        self.ledger.admit(&raw).map(drop).map_err(|_| WriteError::Format)
    }

    /// Where `copied` has room for what comes next, which then waits. There is enough: while a call is not due, less than
    /// [`Outlet::call_bytes`] waits.
    fn take_space(&mut self, length: usize) -> usize {
        let at = self.waiting.filled;
        self.waiting.filled += length;
        self.piece(self.batches[self.current].copied[at..at + length].as_ptr() as usize, length);
        at
    }

    fn piece(&mut self, address: usize, length: usize) {
        let Waiting { pieces, bytes, .. } = &mut self.waiting;
        *bytes += length;
        match self.batches[self.current].pieces[..*pieces].last_mut() {
            Some((start, so_far)) if *start + *so_far == address => *so_far += length,
            _ => {
                self.batches[self.current].pieces[*pieces] = (address, length);
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
        if self.outlet.sent() >= MIN_SENDER_BYTES
            && let Some(stack) = self.offered.take()
        {
            // SAFETY: whoever offered it has promised that.
            self.sender = unsafe { Sender::start(&self.outlet, stack) };
        }
        let pieces = &self.batches[self.current].pieces[..count];
        match &mut self.sender {
            Some(sender) => {
                // SAFETY: parts of `copied`, which is filled again when it is free, or what `pages` was given and stays as it was.
                if !unsafe { sender.hand_over(pieces) } {
                    sender.finish(&mut self.outlet)?;
                }
                self.current = (self.current + 1) % BATCH_COUNT;
            }
            // SAFETY: as above.
            None => unsafe { self.outlet.send_pieces(pieces)? },
        }
        Ok(bytes as u64)
    }

    /// Waits for what was handed over.
    fn finish(&mut self) -> Result<(), WriteError> {
        self.sender.as_mut().map_or(Ok(()), |sender| sender.finish(&mut self.outlet))
    }

    fn admit(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<(RecordHead, [u8; HEAD_SIZE]), WriteError> {
        let head = RecordHead::new(kind, index, address, payload.len() as u64, xxh3_64(payload));
        let raw = head.to_bytes();
        self.ledger.admit(&raw).map_err(|_| WriteError::Format)?;
        Ok((head, raw))
    }
}
