//! What the writer is to write, and where: complete before it starts.

use crate::capture::write_error::WriteError;
use crate::memory::layout::{Content, MappingPlan};
use crate::memory::pages::PAGE;
use crate::track::{DirtyScan, RunningScan, ScanContext};
use mend_image::record::{Kind, mapping};
use mend_image::{HEADER_SIZE, launch};
use mend_kernel::pagemap::{Method, Region};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// Everything the writer needs, complete before it starts.
#[derive(Clone, Copy)]
pub(crate) struct WriteJob<'a> {
    pub out: BorrowedFd<'a>,
    pub pagemap: BorrowedFd<'a>,
    pub memory: BorrowedFd<'a>,
    pub method: Method,
    pub header: [u8; HEADER_SIZE],
    /// Payloads of the tables, in order.
    pub tables: [(Kind, &'a [u8]); 5],
    pub unread: &'a [(launch::Role, Vec<u8>)],
    pub summary: &'a [u8],
    pub plans: &'a [MappingPlan],
    /// Pages (addresses, ascending) that the kernel may write to.
    pub volatile: &'a [u64],
    /// Memory objects whose bytes are read from a descriptor instead of a mapping: object, descriptor, size.
    pub held: &'a [(u32, OwnedFd, u64)],
    /// Scans each page before it is written.
    pub scan: Option<DirtyScan>,
}

impl WriteJob<'_> {
    /// Begins the dirty scan. Nothing of the process may change from here on until the image is complete. Two things may be left for later:
    /// what the writer lets it scan part by part, if all is written while the threads stand still, and what a copy of the process can scan as
    /// well, if one is to be made (`in_background`).
    pub fn begin_scan(&self, regions: &mut [Region], in_background: bool) -> Option<RunningScan> {
        let mut running = RunningScan::new(self.scan?);
        if in_background {
            running.defer();
        }
        if in_background || !running.in_turn() {
            running.complete(self.plans, &mut self.scan_context(regions)?);
        }
        Some(running)
    }

    /// What the scan needs to know of the process.
    pub fn scan_context<'b>(&'b self, regions: &'b mut [Region]) -> Option<ScanContext<'b>> {
        self.scan.map(|scan| scan.context(self.pagemap.as_raw_fd(), self.method, self.volatile, regions))
    }

    /// Reads whole pages at `address` by the kernel; returns how many bytes there are.
    pub fn fetch(&self, address: u64, buffer: &mut [u8], may_lack: bool) -> Result<u64, WriteError> {
        loop {
            return match rustix::io::pread(self.memory, &mut *buffer, address) {
                Ok(got) => Ok(got as u64 / PAGE * PAGE),
                Err(Errno::INTR) => continue,
                Err(Errno::IO | Errno::FAULT) if may_lack => Ok(0),
                Err(error) => Err(WriteError::Memory(address, error)),
            };
        }
    }
}

/// Which part of the content is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryPart {
    /// Memory that a copy of the process shares with it or lacks.
    Shared,
    /// Memory of which a copy of the process has its own.
    Private,
}

impl MemoryPart {
    /// Where the pages of a mapping belong. A pool of huge pages may have none left for a copy, which would die of it.
    pub fn of(plan: &MappingPlan) -> MemoryPart {
        const LACKING: u32 = mapping::SHARED | mapping::NO_FORK | mapping::WIPE_ON_FORK | mapping::POOL;
        match plan.content {
            Content::Populated | Content::Fleeting | Content::Changed if plan.mapping.flags & LACKING == 0 => MemoryPart::Private,
            _ => MemoryPart::Shared,
        }
    }
}
