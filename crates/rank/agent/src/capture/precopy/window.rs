//! A window of pages on its way: their copy, and the records that are made of it.

use super::{REGIONS, WINDOW};
use crate::capture::compression::{Compressor, PART, PART_ROOM, Taken};
use crate::capture::write_error::WriteError;
use crate::memory::pages::{PAGE, is_zero};
use crate::track::{LiveScan, Noticed};
use mend_freestanding::{check, syscall};
use mend_image::kept;
use mend_image::record::{HEAD_SIZE, MAX_PAGES};
use mend_image::rounds::{RoundKind, Rounds, head};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// For the copy of a window.
const COPY: usize = WINDOW as usize;
/// For what is sent of it: its pages, a head for each, should none continue another, and what a part may be longer by while it is compressed.
const OUT: usize = COPY + REGIONS * (HEAD_SIZE + kept::RANGE) + 64 * HEAD_SIZE + PART_ROOM - PART;

/// Bytes of pages that go as one record if they are not compressed.
const UNCOMPRESSED: usize = MAX_PAGES as usize;

/// Memory of the agent that is not saved.
pub(super) struct Buffers {
    base: usize,
}

impl Buffers {
    const LENGTH: usize = COPY + OUT.next_multiple_of(4096);

    pub fn new() -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), Self::LENGTH, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)? };
        Ok(Self { base: base as usize })
    }

    pub fn split(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: this mapping is borrowed as a whole with `self`; any bytes are valid.
        let all = unsafe { core::slice::from_raw_parts_mut(self.base as *mut u8, Self::LENGTH) };
        all.split_at_mut(COPY)
    }

    pub fn range(&self) -> (u64, u64) {
        (self.base as u64, (self.base + Self::LENGTH) as u64)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: this one's own mapping, of which nobody has a slice now.
        let _ = unsafe { munmap(self.base as *mut _, Self::LENGTH) };
    }
}

/// What goes out of a window: records, one after the other.
pub(super) struct Out<'a> {
    pub bytes: &'a mut [u8],
    pub length: usize,
}

impl Out<'_> {
    pub fn record(&mut self, rounds: &mut Rounds, kind: RoundKind, address: u64, payload: &[u8]) -> Result<(), WriteError> {
        let head = head(kind, address, payload);
        let raw = head.to_bytes();
        rounds.admit(&raw).map_err(|_| WriteError::Format)?;
        let end = self.length + HEAD_SIZE + head.padded_length() as usize;
        let room = self.bytes.get_mut(self.length..end).ok_or(WriteError::Format)?;
        room[..HEAD_SIZE].copy_from_slice(&raw);
        room[HEAD_SIZE..HEAD_SIZE + payload.len()].copy_from_slice(payload);
        room[HEAD_SIZE + payload.len()..].fill(0);
        self.length = end;
        Ok(())
    }

    /// Pages, compressed if that is of use now.
    fn pages(&mut self, rounds: &mut Rounds, link: &mut Link, address: u64, pages: &[u8]) -> Result<(), WriteError> {
        let mut at = 0;
        while at < pages.len() {
            let part = &pages[at..pages.len().min(at + PART)];
            let length = if self.compressed(rounds, link, address + at as u64, part)? {
                part.len()
            } else {
                // Short records cost the receiver.
                let part = &pages[at..pages.len().min(at + UNCOMPRESSED)];
                self.record(rounds, RoundKind::Pages, address + at as u64, part)?;
                part.len()
            };
            at += length;
        }
        Ok(())
    }

    fn compressed(&mut self, rounds: &mut Rounds, link: &mut Link, address: u64, part: &[u8]) -> Result<bool, WriteError> {
        if !link.compressor.wants(link.socket, link.taken, part.len()) {
            return Ok(false);
        }
        let at = self.length + HEAD_SIZE;
        let Some(room) = self.bytes.get_mut(at..at + PART_ROOM) else { return Ok(false) };
        let Some(length) = link.compressor.compress(part, room) else { return Ok(false) };
        let head = head(RoundKind::Pages, address, part).compressed_to(length as u32);
        let padded = head.padded_length() as usize;
        room[length..padded].fill(0);
        let raw = head.to_bytes();
        rounds.admit(&raw).map_err(|_| WriteError::Format)?;
        self.bytes[self.length..at].copy_from_slice(&raw);
        self.length = at + padded;
        Ok(true)
    }
}

/// Where a window goes.
pub(super) struct Link<'a> {
    pub compressor: &'a mut Compressor,
    pub socket: BorrowedFd<'a>,
    pub taken: Taken,
}

/// Records of a window, run by run.
pub(super) struct Runs<'a, 'b> {
    pub zeros: &'a mut Vec<(u64, u64)>,
    pub out: &'a mut Out<'b>,
    pub rounds: &'a mut Rounds,
    pub link: &'a mut Link<'b>,
}

impl Runs<'_, '_> {
    /// Pages whose copy this is.
    pub fn put_all(mut self, live: &mut LiveScan, start: u64, content: &[u8], noticed: Noticed) -> Result<(), WriteError> {
        let (mut from, mut sends) = (0, None);
        for at in (0..content.len()).step_by(PAGE as usize) {
            let page = &content[at..at + PAGE as usize];
            let send = match noticed {
                Noticed::ByProtection => Some(!is_zero(page)),
                Noticed::ByHash => live.differs(start + at as u64, page).then_some(true),
            };
            if send != sends {
                self.put(start, &content[from..at], from, sends)?;
                (from, sends) = (at, send);
            }
        }
        self.put(start, &content[from..], from, sends)
    }

    /// Pages that are alike, `from` bytes behind `start`: to be sent, zeros, or neither.
    fn put(&mut self, start: u64, pages: &[u8], from: usize, sends: Option<bool>) -> Result<(), WriteError> {
        let address = start + from as u64;
        match sends {
            Some(true) => {
                self.out.pages(self.rounds, self.link, address, pages)?;
            }
            Some(false) if !pages.is_empty() => self.zeros.push((address, address + pages.len() as u64)),
            _ => {}
        }
        Ok(())
    }
}

/// Copies pages of this process. False: not all of them could be read.
pub(super) fn read(memory: BorrowedFd, address: u64, room: &mut [u8]) -> bool {
    let (local, remote) = ([room.as_mut_ptr() as usize, room.len()], [address as usize, room.len()]);
    let own = rustix::process::getpid().as_raw_nonzero().get() as usize;
    // SAFETY: writes at most the length of `room` to it; where the pages are no longer there, it says so.
    let done = unsafe { syscall(libc::SYS_process_vm_readv, [own, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0]) };
    if check(done) == Ok(room.len()) {
        return true;
    }
    // Not readable for the program, or not all of it.
    let mut filled = 0;
    while filled < room.len() {
        match rustix::io::pread(memory, &mut room[filled..], address + filled as u64) {
            Ok(0) => return false,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}
