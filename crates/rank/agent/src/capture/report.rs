//! What a process that writes in the background tells the agent, in memory that both share.

use crate::capture::target::Unfinished;
use crate::capture::write_error::WriteError;
use crate::track::NewHashes;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use mend_image::record::End;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// States of a report; zero: it writes.
pub(crate) const SYNCING: u32 = 1;
pub(crate) const DONE: u32 = 2;

/// Why the copy could not complete the image.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    Write(WriteError),
    Unfinished(Unfinished),
    Open(Errno),
    /// Advice on a mapping changed between the inspection and the copy.
    Advice(u64),
}

/// What the two tell each other, in memory that both have.
pub(crate) struct Report {
    /// Not zero: the program runs again.
    pub gate: AtomicU32,
    pub state: AtomicU32,
    pub beats: AtomicU64,
    pub result: UnsafeCell<MaybeUninit<Result<Complete, Failure>>>,
}

/// What the copy tells of an image that is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Complete {
    pub end: End,
    pub write_us: u64,
    /// If they were left to it.
    pub hashes: Option<NewHashes>,
}

impl Report {
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }
}

/// The shared memory of a [`Report`]. Not part of the image.
pub(crate) struct ReportPage {
    report: *mut Report,
}

impl ReportPage {
    const SIZE: usize = 4096;

    /// Maps it.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), Self::SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)? };
        Ok(Self { report: base.cast() })
    }

    /// Address range.
    pub fn range(&self) -> (u64, u64) {
        (self.report as u64, self.report as u64 + Self::SIZE as u64)
    }

    pub fn report(&self) -> &Report {
        // SAFETY: mapped as long as this lives, zeroed at first, which is valid; all of it but the result is atomic.
        unsafe { &*self.report }
    }
}

impl Drop for ReportPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, no longer borrowed.
        let _ = unsafe { munmap(self.report.cast(), Self::SIZE) };
    }
}
