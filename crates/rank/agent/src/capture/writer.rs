//! Decides what goes into the stream: the pages themselves, without a copy where that is safe. Either all of it while the threads are
//! parked, or what a copy of the process would not hold while they are, and the rest in that copy (see [`crate::capture::behind`]).
//!
//! Everything here runs on the scratch stack with its state there, allocates nothing and calls nothing of the C
//! library: each byte that it changed would be a byte of the image that changed between checksum and write. Pages that
//! the kernel may change by itself (restartable-sequences areas) or other processes may (shared mappings) go through a copy.

use crate::capture::aside::Aside;
use crate::capture::outlet::STALL;
use crate::capture::scratch::Buffers;
use crate::capture::staged::{Filled, Staging};
use crate::capture::stream::Stream;
use crate::memory::layout::{Content, Plan};
use crate::track::{DirtyScan, Entry, RunningScan, ScanContext, tracked, within};
use mend_image::fixed::Fixed;
use mend_image::record::{End, Kind, MAX_PAGES, Mapping, mapping};
use mend_image::{HEADER_SIZE, kept, launch};
use mend_kernel::pagemap::{Method, Region, populated, swapping};
use mend_kernel::raw::{check, syscall};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

pub(crate) const PAGE: u64 = 4096;
/// Bytes that are set aside at a time.
const ASIDE: u64 = 64 << 10;

/// Everything the writer needs, complete before it starts.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub out: BorrowedFd<'a>,
    pub pagemap: BorrowedFd<'a>,
    pub memory: BorrowedFd<'a>,
    pub method: Method,
    pub header: [u8; HEADER_SIZE],
    /// Payloads of the tables, in order.
    pub tables: [(Kind, &'a [u8]); 5],
    pub unread: &'a [(launch::Role, Vec<u8>)],
    pub summary: &'a [u8],
    pub plans: &'a [Plan],
    /// Pages (addresses, ascending) that the kernel may write to.
    pub volatile: &'a [u64],
    /// Memory objects whose bytes are read from a descriptor instead of a mapping: object, descriptor, size.
    pub held: &'a [(u32, OwnedFd, u64)],
    /// Scans each page before it is written.
    pub scan: Option<DirtyScan>,
}

/// Why the stream could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("writing the image failed: {0}")]
    Out(Errno),
    #[error("the receiver of the image took nothing for {} s", STALL.tv_sec)]
    Stalled,
    #[error("the process that sends the image has ended")]
    Sender,
    #[error("memory at {0:#x} cannot be read: {1}")]
    Memory(u64, Errno),
    #[error("page tables cannot be read: {0}")]
    Pagemap(Errno),
    #[error("the image would hold more than its format allows")]
    Format,
}

/// Begins the dirty scan. Nothing of the process may change from here on until the image is complete. Two things may be left for later:
/// what the writer lets it scan part by part, if all is written while the threads stand still, and what a copy of the process can scan as
/// well, if one is to be made (`behind`).
pub(crate) fn begin_scan(job: &Job, buffers: &mut Buffers, behind: bool) -> Option<RunningScan> {
    let mut running = RunningScan::new(job.scan?);
    if behind {
        running.defer();
    }
    if behind || !running.in_turn() {
        running.complete(job.plans, &mut job.scan_context(buffers.regions)?);
    }
    Some(running)
}

impl Job<'_> {
    /// What the scan needs to know of the process.
    pub fn scan_context<'b>(&'b self, regions: &'b mut [Region]) -> Option<ScanContext<'b>> {
        self.scan.map(|scan| scan.context(self.pagemap.as_raw_fd(), self.method, self.volatile, regions))
    }
}

/// Which part of the content is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Memory that a copy of the process shares with it or lacks.
    Shared,
    /// Memory of which a copy of the process has its own.
    Private,
}

impl Part {
    /// Where the pages of a mapping belong. A pool of huge pages may have none left for a copy, which would die of it.
    pub fn of(plan: &Plan) -> Part {
        const LACKING: u32 = mapping::SHARED | mapping::NO_FORK | mapping::WIPE_ON_FORK | mapping::POOL;
        match plan.content {
            Content::Populated | Content::Fleeting | Content::Changed if plan.mapping.flags & LACKING == 0 => Part::Private,
            _ => Part::Shared,
        }
    }
}

/// Told of what is sent.
pub(crate) trait Progress {
    fn wrote(&mut self, bytes: u64);
}

/// For a writer that nobody waits with.
pub(crate) struct Silent;

impl Progress for Silent {
    fn wrote(&mut self, _: u64) {}
}

/// A stream being written.
pub(crate) struct Writer<'a, P> {
    job: &'a Job<'a>,
    stream: Stream<'a>,
    /// See [`Buffers`].
    bounce: &'static mut [u8],
    regions: &'static mut [Region],
    residency: &'static mut [u8],
    /// Populated pages of all mappings that are tracked. `None`: `running` lists them, or they have to be found and are all stored.
    changes: Option<&'static [Entry]>,
    /// A scan that goes on while its list is written.
    running: Option<&'a mut RunningScan>,
    /// Where copies of what is shared are put for now.
    aside: Option<Aside>,
    progress: P,
}

impl<'a> Writer<'a, Silent> {
    /// Writes header and tables. `running` is a scan that is under way or has ended.
    pub fn begin(job: &'a Job<'a>, buffers: Buffers, running: Option<&'a mut RunningScan>) -> Result<Self, WriteError> {
        let scanned = running.as_ref().map(|running| running.result());
        // SAFETY: one scan per image; its lists stay until the next one is prepared.
        let changes = job.scan.zip(scanned).and_then(|(scan, scanned)| unsafe { scan.entries(&scanned) });
        let Buffers { bounce, regions, residency, batches } = buffers;
        let running = running.filter(|running| running.in_turn());
        let stream = Stream::begin(job.out, &job.header, batches)?;
        let mut writer = Writer { job, stream, bounce, regions, residency, changes, running, aside: None, progress: Silent };
        for (kind, payload) in job.tables {
            writer.record(kind, 0, 0, payload)?;
        }
        for (role, bytes) in job.unread {
            for piece in bytes.chunks(launch::STATUS_PAYLOAD) {
                writer.record(Kind::Unread, *role as u32, 0, piece)?;
            }
        }
        writer.record(Kind::Summary, 0, 0, job.summary)?;
        Ok(writer)
    }
}

/// A writer without its job, at home in scratch memory alone.
pub(crate) struct Detached {
    out: BorrowedFd<'static>,
    pagemap: BorrowedFd<'static>,
    memory: BorrowedFd<'static>,
    method: Method,
    stream: Stream<'static>,
    bounce: &'static mut [u8],
    regions: &'static mut [Region],
    residency: &'static mut [u8],
    changes: Option<&'static [Entry]>,
    aside: Option<Aside>,
}

impl Writer<'_, Silent> {
    /// Copies of what is shared with a copy of the process are put there, to be written with the rest.
    pub fn set_aside(&mut self, aside: Aside) {
        self.aside = Some(aside);
    }

    /// To go on with the same stream in another process. The descriptors must stay open, or be others of the same files.
    pub fn detach(self) -> Detached {
        let Self { job, stream, bounce, regions, residency, changes, aside, .. } = self;
        // SAFETY: whoever attaches it again answers for them.
        let [out, pagemap, memory] = [job.out, job.pagemap, job.memory].map(|fd| unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) });
        Detached { out, pagemap, memory, method: job.method, stream: stream.through(out), bounce, regions, residency, changes, aside }
    }
}

impl Detached {
    /// A job that says what goes where and nothing else: enough for what was staged.
    pub fn job(&self) -> Job<'static> {
        let Self { out, pagemap, memory, method, .. } = *self;
        let nothing = |kind| (kind, &[][..]);
        let tables = [Kind::Strings, Kind::Objects, Kind::Mappings, Kind::Threads, Kind::Process].map(nothing);
        let header = [0; HEADER_SIZE];
        Job { out, pagemap, memory, method, header, tables, unread: &[], summary: &[], plans: &[], volatile: &[], held: &[], scan: None }
    }

    /// The writer again.
    pub fn attach<'b, P: Progress>(self, job: &'b Job<'b>, progress: P) -> Writer<'b, P> {
        let Self { stream, bounce, regions, residency, changes, aside, .. } = self;
        Writer { job, stream: stream.through(job.out), bounce, regions, residency, changes, running: None, aside, progress }
    }
}

impl<P: Progress> Writer<'_, P> {
    /// Has what follows sent by a process beside this one, on the stack that ends at `stack`, if it is much.
    ///
    /// # Safety
    /// Nobody else uses that stack until the writer is dropped, and nothing changes the memory that is written.
    pub unsafe fn send_beside(&mut self, stack: usize) {
        // SAFETY: the caller's word.
        unsafe { self.stream.offer(stack) };
    }

    /// Writes one part of the content.
    pub fn content(&mut self, part: Part) -> Result<(), WriteError> {
        let job = self.job;
        if part == Part::Private {
            self.put_aside()?;
        }
        for plan in job.plans.iter().filter(|plan| Part::of(plan) == part) {
            self.mapping(plan)?;
        }
        match part {
            Part::Shared => job.held.iter().try_for_each(|(object, descriptor, size)| self.object(*object, descriptor.as_fd(), *size)),
            Part::Private => {
                // What follows the last page, too, for it to be complete.
                let _ = self.known_from(u64::MAX - 1);
                let kept = self.listed().iter().filter(|entry| !entry.changed());
                self.keep(kept.map(Entry::range))
            }
        }?;
        let sent = self.stream.flush()?;
        self.progress.wrote(sent);
        Ok(())
    }

    /// Writes the end of the stream.
    pub fn end(mut self) -> Result<End, WriteError> {
        let end = self.stream.so_far();
        let mut payload = [0; End::SIZE];
        end.encode(&mut payload).map_err(|_| WriteError::Format)?;
        self.record(Kind::End, 0, 0, &payload)?;
        Ok(end)
    }

    /// Writes what was set aside, or the rest of it.
    fn put_aside(&mut self) -> Result<(), WriteError> {
        let Some(aside) = self.aside.take() else { return Ok(()) };
        aside.each(|kind, index, address, payload| self.record(kind, index, address, payload))
    }

    /// Writes a record of what may change when the threads go on, or sets it aside.
    fn record_copy(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<(), WriteError> {
        let put = self.aside.as_mut().is_some_and(|aside| aside.put(kind, index, address, payload));
        if put { Ok(()) } else { self.record(kind, index, address, payload) }
    }

    fn record(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<(), WriteError> {
        let sent = self.stream.record(kind, index, address, payload)?;
        self.progress.wrote(sent);
        Ok(())
    }

    /// Writes what was copied of the private content.
    pub fn staged(&mut self, staging: &Staging, filled: Filled) -> Result<(), WriteError> {
        self.put_aside()?;
        staging.each_copied(filled, |(start, end), from, zeros| self.direct(start, end, from, !zeros))?;
        self.keep(staging.kept(filled))?;
        let sent = self.stream.flush()?;
        self.progress.wrote(sent);
        Ok(())
    }

    /// Populated pages of all mappings that are tracked, if it is known what changed.
    pub fn changes(&self) -> Option<&'static [Entry]> {
        self.changes
    }

    fn mapping(&mut self, plan: &Plan) -> Result<(), WriteError> {
        let Mapping { start, end, .. } = plan.mapping;
        match plan.content {
            Content::Nothing => return Ok(()),
            Content::Everything => return self.copied(start, end, true, true),
            Content::Shared => return self.resident(start, end),
            Content::Populated | Content::Fleeting | Content::Changed => {}
        }
        if !tracked(plan) {
            return self.populated(plan, start, end);
        }
        let mut at = start;
        while at < end {
            let Some(to) = self.known_from(at) else { return self.populated(plan, at, end) };
            let to = to.min(end);
            self.changed(plan, within(self.listed(), (at, to)))?;
            at = to;
        }
        Ok(())
    }

    /// Up to where it is known from this address on what changed; scans on if that is still to be done.
    fn known_from(&mut self, address: u64) -> Option<u64> {
        if self.changes.is_some() {
            return Some(u64::MAX);
        }
        let mut context = self.job.scan_context(self.regions)?;
        self.running.as_mut()?.beyond(address, self.job.plans, &mut context)
    }

    /// What is known so far.
    fn listed(&self) -> &'static [Entry] {
        match (self.changes, &self.running) {
            (Some(changes), _) => changes,
            // SAFETY: as in `begin`.
            (None, Some(running)) => unsafe { running.listed() },
            (None, None) => &[],
        }
    }

    /// Stores what changed of some populated pages of a mapping.
    fn changed(&mut self, plan: &Plan, entries: &[Entry]) -> Result<(), WriteError> {
        let mut changed = entries.iter().filter(|entry| entry.changed()).peekable();
        while let Some(entry) = changed.next() {
            // Scattered pages are in no cache, and each is looked at for zeros before it is copied.
            if let Some(next) = changed.peek().filter(|next| !next.absent()) {
                prefetch(next.range().0);
            }
            self.region(plan, entry.range(), entry.absent())?;
        }
        Ok(())
    }

    /// Stores all populated pages of a part of a mapping.
    fn populated(&mut self, plan: &Plan, start: u64, end: u64) -> Result<(), WriteError> {
        let own_only = plan.content == Content::Changed;
        let mut at = start;
        while at < end {
            let (pagemap, regions) = (self.job.pagemap.as_raw_fd(), &mut *self.regions);
            let found = populated(pagemap, self.job.method, at, end, own_only, regions);
            let (count, next) = found.map_err(|errno| WriteError::Pagemap(Errno::from_raw_os_error(errno)))?;
            for index in 0..count {
                let region = self.regions[index];
                self.region(plan, (region.start, region.end), region.absent())?;
            }
            at = next.max(at + PAGE);
        }
        Ok(())
    }

    /// Stores populated pages of a mapping.
    fn region(&mut self, plan: &Plan, (start, end): (u64, u64), absent: bool) -> Result<(), WriteError> {
        let Mapping { protection, flags, .. } = plan.mapping;
        let readable = protection & libc::PROT_READ as u32 != 0;
        let own_only = plan.content == Content::Changed;
        let fleeting = plan.content == Content::Fleeting;
        if absent || !readable || fleeting || flags & mapping::SHARED != 0 {
            // Readable and yet not to be read: a guard page, or nothing there any more.
            self.copied(start, end, !own_only, fleeting || readable && absent)
        } else {
            self.direct(start, end, start, !own_only)
        }
    }

    /// Leaves unchanged pages to the base.
    fn keep(&mut self, mut kept: impl Iterator<Item = (u64, u64)>) -> Result<(), WriteError> {
        let bounce = std::mem::take(&mut self.bounce);
        let mut result = Ok(());
        while result.is_ok() {
            result = match kept::fill(&mut kept, bounce) {
                Ok(0) => break,
                Ok(length) => self.record(Kind::Kept, 0, 0, &bounce[..length]),
                Err(_) => Err(WriteError::Format),
            };
        }
        self.bounce = bounce;
        result
    }

    /// Stores the pages that are at `from`. They are present and readable, and nothing writes to them but what `volatile` lists.
    fn direct(&mut self, start: u64, end: u64, from: u64, skip_zero: bool) -> Result<(), WriteError> {
        let page_at = |address| page_at(address - start + from);
        let mut at = start;
        while at < end {
            if skip_zero && is_zero(page_at(at)) {
                at += PAGE;
                continue;
            }
            let first = at;
            if self.is_volatile(at) {
                at += PAGE;
                self.copied(first, at, false, false)?;
                continue;
            }
            while at < end && at - first < MAX_PAGES && !self.is_volatile(at) && !(skip_zero && is_zero(page_at(at))) {
                at += PAGE;
            }
            // SAFETY: populated, readable pages of this process; all other threads are parked and this one writes only to
            // its scratch memory, which no plan covers.
            let pages = unsafe { core::slice::from_raw_parts((first - start + from) as *const u8, (at - first) as usize) };
            let sent = self.stream.pages(first, pages)?;
            self.progress.wrote(sent);
        }
        Ok(())
    }

    fn is_volatile(&self, page: u64) -> bool {
        self.job.volatile.binary_search(&page).is_ok()
    }

    /// Stores pages through a copy made by the kernel, which fails where a direct access would end the process. `may_lack`
    /// says that there may be nothing: behind the end of a mapped file, or a guard page.
    fn copied(&mut self, start: u64, end: u64, skip_zero: bool, may_lack: bool) -> Result<(), WriteError> {
        let mut at = start;
        while at < end {
            let piece = if self.aside.is_some() { ASIDE } else { MAX_PAGES };
            let length = (end - at).min(piece) as usize;
            let got = fetch(self.job.memory, at, &mut self.bounce[..length], may_lack)?;
            if got == 0 {
                at += PAGE;
                continue;
            }
            self.bounced(at, got as usize, skip_zero)?;
            at += got;
        }
        Ok(())
    }

    /// Stores the runs of pages in the copy that begins with the page at `address`.
    fn bounced(&mut self, address: u64, length: usize, skip_zero: bool) -> Result<(), WriteError> {
        let page = PAGE as usize;
        let bounce = std::mem::take(&mut self.bounce);
        let wanted = |at: usize| !(skip_zero && is_zero(&bounce[at..at + page]));
        let mut result = Ok(());
        let mut at = 0;
        while at < length && result.is_ok() {
            let first = at;
            while at < length && wanted(at) {
                at += page;
            }
            if first < at {
                result = self.record_copy(Kind::Pages, 0, address + first as u64, &bounce[first..at]);
            }
            while at < length && !wanted(at) {
                at += page;
            }
        }
        self.bounce = bounce;
        result
    }

    /// Stores the pages of shared memory that exist, whether this process touched them or not.
    fn resident(&mut self, start: u64, end: u64) -> Result<(), WriteError> {
        let residency = std::mem::take(&mut self.residency);
        let result = self.resident_by(start, end, residency);
        self.residency = residency;
        result
    }

    fn resident_by(&mut self, start: u64, end: u64, residency: &mut [u8]) -> Result<(), WriteError> {
        let mut at = start;
        while at < end {
            let pages = ((end - at) / PAGE).min(residency.len() as u64);
            // SAFETY: mincore writes one byte per page, `pages` of them, into `residency`.
            let result =
                unsafe { syscall(libc::SYS_mincore, [at as usize, (pages * PAGE) as usize, residency.as_mut_ptr() as usize, 0, 0, 0]) };
            // Without an answer every page counts; also where one may be swapped out, of which mincore says that it is not there.
            let some_absent = residency[..pages as usize].iter().any(|byte| byte & 1 == 0);
            let known = check(result).is_ok() && !(some_absent && swapping());
            let present = |index: u64| !known || residency[index as usize] & 1 != 0;
            let mut index = 0;
            while index < pages {
                let first = index;
                while index < pages && present(index) == present(first) {
                    index += 1;
                }
                if present(first) {
                    self.copied(at + first * PAGE, at + index * PAGE, true, true)?;
                }
            }
            at += pages * PAGE;
        }
        Ok(())
    }

    /// Stores the bytes of a memory object, as far as they aren't holes.
    fn object(&mut self, object: u32, descriptor: BorrowedFd, size: u64) -> Result<(), WriteError> {
        let mut at = 0;
        while at < size {
            at = match rustix::fs::seek(descriptor, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => return Ok(()),
                Err(error) => return Err(WriteError::Memory(at, error)),
            };
            // What is set aside stays in the processor's cache on its way.
            let piece = if self.aside.is_some() { ASIDE } else { MAX_PAGES };
            let length = (size.saturating_sub(at)).min(piece) as usize;
            let bounce = std::mem::take(&mut self.bounce);
            let result = match rustix::io::pread(descriptor, &mut bounce[..length], at) {
                Ok(0) => Ok(size),
                Ok(got) => nonzero(&bounce[..got])
                    .try_for_each(|(from, to)| self.record_copy(Kind::Bytes, object, at + from as u64, &bounce[from..to]))
                    .map(|()| at + got as u64),
                Err(error) => Err(WriteError::Memory(at, error)),
            };
            self.bounce = bounce;
            at = result?;
        }
        Ok(())
    }
}

/// Asks for the beginning of a page, as much as comes while another one is checksummed. Harmless whatever is there.
fn prefetch(page: u64) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in 0..24 {
        // SAFETY: a hint; it does not fault.
        unsafe { _mm_prefetch((page as *const i8).wrapping_add(64 * line), _MM_HINT_T0) };
    }
}

/// Reads whole pages at `address` by the kernel; returns how many bytes there are.
pub(crate) fn fetch(memory: BorrowedFd, address: u64, room: &mut [u8], may_lack: bool) -> Result<u64, WriteError> {
    loop {
        return match rustix::io::pread(memory, &mut *room, address) {
            Ok(got) => Ok(got as u64 / PAGE * PAGE),
            Err(Errno::INTR) => continue,
            Err(Errno::IO | Errno::FAULT) if may_lack => Ok(0),
            Err(error) => Err(WriteError::Memory(address, error)),
        };
    }
}

fn page_at(address: u64) -> &'static [u8] {
    // SAFETY: callers pass populated, readable pages; see `direct`.
    unsafe { core::slice::from_raw_parts(address as *const u8, PAGE as usize) }
}

/// Runs of pages that hold something, from where to where; the last page may be cut.
pub(crate) fn nonzero(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let page = PAGE as usize;
    let zero = move |at: usize| is_zero(&bytes[at..bytes.len().min(at + page)]);
    let mut at = 0;
    core::iter::from_fn(move || {
        while at < bytes.len() && zero(at) {
            at += page;
        }
        let first = at;
        while at < bytes.len() && !zero(at) {
            at += page;
        }
        (first < at).then(|| (first, at.min(bytes.len())))
    })
}

/// Whether all bytes are zero. Compiles to vector instructions.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_hold_something_are_found_to_the_last_byte() {
        let mut bytes = vec![0u8; 5 * 4096 + 10];
        assert_eq!(nonzero(&bytes).next(), None);
        for at in [4096, 3 * 4096 - 1, 5 * 4096 + 9] {
            bytes[at] = 1;
        }
        assert_eq!(nonzero(&bytes).collect::<Vec<_>>(), [(4096, 3 * 4096), (5 * 4096, 5 * 4096 + 10)]);
        assert_eq!(nonzero(&[]).next(), None);
    }

    #[test]
    fn zero_is_zero_only_if_every_byte_is() {
        let mut page = [0u8; 4096];
        assert!(is_zero(&page));
        for at in [0, 255, 256, 4095] {
            page[at] = 1;
            assert!(!is_zero(&page));
            page[at] = 0;
        }
    }
}
