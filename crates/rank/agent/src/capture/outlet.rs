//! Where a stream goes: a file or a socket that takes bytes.

use crate::capture::compression::Taken;
use crate::capture::write_error::{STALL_LIMIT, WriteError};
use crate::park::monotonic;
use mend_freestanding::syscall;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::io::IoSlice;

/// Pieces sent with one call, at most what a call takes (`IOV_MAX`).
pub(crate) const MAX_PIECES: usize = 512;

/// Bytes that are enough for one call, where it takes pages one by one: few enough to stay in the processor's cache between
/// checksum and copy.
const SMALL_CALL_BYTES: usize = 256 << 10;
/// The same where the pages that come with one call are kept together, as file systems of disks do.
pub(crate) const LARGE_CALL_BYTES: usize = 1 << 20;

/// Address and length of bytes that stay as they are until they are sent.
pub(crate) type Piece = (usize, usize);

/// Takes bytes, until that has failed once.
#[derive(Clone, Copy)]
pub(crate) struct Outlet<'a> {
    out: BorrowedFd<'a>,
    socket: bool,
    call_bytes: usize,
    sent: u64,
    /// Time in which a socket was full, nanoseconds.
    full_ns: u64,
    /// Up to here the disk has been told to write.
    settling: u64,
    failed: Option<WriteError>,
}

impl<'a> Outlet<'a> {
    pub fn new(out: BorrowedFd<'a>) -> Self {
        let socket = rustix::net::sockopt::socket_type(out).is_ok();
        if socket {
            // The receiver takes pages at the speed of its page faults; a congestion control that paces by estimates would
            // take its pauses for the line's. Not a TCP socket, or no cubic: as it is.
            let _ = rustix::net::sockopt::set_tcp_congestion(out, "cubic");
        }
        let disk = !socket && rustix::fs::fstatfs(out).is_ok_and(|system| system.f_type != libc::TMPFS_MAGIC);
        let call_bytes = if disk { LARGE_CALL_BYTES } else { SMALL_CALL_BYTES };
        Self { out, socket, call_bytes, sent: 0, full_ns: 0, settling: 0, failed: None }
    }

    /// The same, through another descriptor of the same file.
    pub fn through<'b>(self, out: BorrowedFd<'b>) -> Outlet<'b> {
        Outlet { out, ..self }
    }

    /// Bytes with which a call is worth while, at most [`LARGE_CALL_BYTES`].
    pub fn call_bytes(&self) -> usize {
        self.call_bytes
    }

    /// Not a socket.
    pub fn is_file(&self) -> bool {
        !self.socket
    }

    /// How many bytes were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// What a socket took so far.
    pub fn taken(&self) -> Taken {
        Taken { bytes: self.sent, full_ns: self.full_ns }
    }

    /// Where it goes.
    pub fn fd(&self) -> BorrowedFd<'a> {
        self.out
    }

    /// What has failed.
    pub fn failed(&self) -> Result<(), WriteError> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Takes nothing from here on.
    pub fn fail(&mut self, error: WriteError) {
        self.failed.get_or_insert(error);
    }

    /// Sends all of it.
    pub fn send(&mut self, pieces: &mut [IoSlice]) -> Result<(), WriteError> {
        self.failed()?;
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.push(pieces).inspect_err(|error| self.fail(*error))?;
        self.sent += bytes as u64;
        self.settle();
        Ok(())
    }

    /// Sends all of it.
    ///
    /// # Safety
    /// The pieces are memory that nobody writes to meanwhile.
    pub unsafe fn send_pieces(&mut self, pieces: &[Piece]) -> Result<(), WriteError> {
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];
        for (slice, (address, length)) in slices.iter_mut().zip(pieces) {
            // SAFETY: the caller's word.
            *slice = IoSlice::new(unsafe { core::slice::from_raw_parts(*address as *const u8, *length) });
        }
        self.send(&mut slices[..pieces.len()])
    }

    fn push(&mut self, mut pieces: &mut [IoSlice]) -> Result<(), WriteError> {
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
                Err(Errno::AGAIN) => {
                    let since = monotonic();
                    match poll(&mut [PollFd::new(&self.out, PollFlags::OUT)], Some(&STALL_LIMIT)) {
                        Ok(0) => return Err(WriteError::Stalled),
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(WriteError::Out(error)),
                    }
                    self.full_ns += monotonic() - since;
                }
                Err(error) => return Err(WriteError::Out(error)),
            }
        }
    }

    /// Lets the disk begin with what is written while the rest is, early and then in large pieces: the end then waits for little.
    fn settle(&mut self) {
        const FLUSH_BYTES: (u64, u64) = (1 << 20, 8 << 20);
        const SYNC_FILE_RANGE_WRITE: usize = 2;
        let (from, to) = (self.settling, self.sent);
        if self.socket || to - from < from.clamp(FLUSH_BYTES.0, FLUSH_BYTES.1) {
            return;
        }
        self.settling = to;
        let out = self.out.as_raw_fd() as usize;
        // SAFETY: plain numbers. Not a file, or a file system without: the end waits for all of it.
        unsafe { syscall(libc::SYS_sync_file_range, [out, from as usize, (to - from) as usize, SYNC_FILE_RANGE_WRITE, 0, 0]) };
    }
}
