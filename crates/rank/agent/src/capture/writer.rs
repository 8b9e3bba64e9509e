//! Decides what goes into the stream: the pages themselves, without a copy where that is safe. Either all of it while the threads are
//! parked, or what a copy of the process would not hold while they are, and the rest in that copy (see [`crate::capture::strategy`]).
//!
//! Everything here runs on the scratch stack with its state there, allocates nothing and calls nothing of the C
//! library: each byte that it changed would be a byte of the image that changed between checksum and write. Pages that
//! the kernel may change by itself (restartable-sequences areas) or other processes may (shared mappings) go through a copy.

use crate::capture::dirty_copies::{DirtyCopies, DirtyCopyMemory};
use crate::capture::scratch::Buffers;
use crate::capture::shared_copies::SharedCopies;
use crate::capture::stream::Stream;
use crate::capture::write_error::WriteError;
use crate::capture::write_job::{MemoryPart, WriteJob};
use crate::memory::layout::{Content, MappingPlan};
use crate::memory::pages::{PAGE, is_zero, nonzero, prefetch};
use crate::track::{Entry, RunningScan, tracked, within};
use mend_freestanding::{check, syscall};
use mend_image::fixed::Fixed;
use mend_image::record::{End, Kind, MAX_PAGES, Mapping, mapping};
use mend_image::{HEADER_SIZE, kept, launch};
use mend_kernel::pagemap::{Method, Region, populated, swapping};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// Bytes of shared memory that are copied at a time.
const SHARED_COPY_BYTES: u64 = 64 << 10;

/// Told of what is sent.
pub(crate) trait Progress {
    fn wrote(&mut self, bytes: u64);
}

/// For a writer that nobody waits with.
pub(crate) struct Silent;

impl Progress for Silent {
    fn wrote(&mut self, _: u64) {}
}

/// A stream that is written.
#[derive(Clone, Copy)]
pub(crate) struct Ended {
    pub end: End,
    /// Bytes that compression has spared.
    pub spared: u64,
}

/// A stream being written.
pub(crate) struct Writer<'a, P> {
    job: &'a WriteJob<'a>,
    stream: Stream<'a>,
    /// See [`Buffers`].
    bounce: &'static mut [u8],
    regions: &'static mut [Region],
    residency: &'static mut [u8],
    /// Populated pages of all mappings that are tracked. `None`: `running` lists them, or they have to be found and are all stored.
    changes: Option<&'static [Entry]>,
    /// A scan that goes on while its list is written.
    running: Option<&'a mut RunningScan>,
    /// Where copies of shared memory are put for now.
    shared_copies: Option<SharedCopies>,
    progress: P,
}

impl<'a> Writer<'a, Silent> {
    /// Writes header and tables. `running` is a scan that is under way or has ended.
    pub fn begin(job: &'a WriteJob<'a>, buffers: Buffers, running: Option<&'a mut RunningScan>) -> Result<Self, WriteError> {
        let scanned = running.as_ref().map(|running| running.result());
        // SAFETY: one scan per image; its lists stay until the next one is prepared.
        let changes = job.scan.zip(scanned).and_then(|(scan, scanned)| unsafe { scan.entries(&scanned) });
        let Buffers { bounce, regions, residency, batches, compressor } = buffers;
        let running = running.filter(|running| running.in_turn());
        let stream = Stream::begin(job.out, &job.header, batches, compressor)?;
        let mut writer = Writer { job, stream, bounce, regions, residency, changes, running, shared_copies: None, progress: Silent };
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
    shared_copies: Option<SharedCopies>,
}

impl Writer<'_, Silent> {
    /// Memory that a copy of the process would share is copied there, and written with the rest.
    pub fn set_shared_copies(&mut self, shared_copies: SharedCopies) {
        self.shared_copies = Some(shared_copies);
    }

    /// To go on with the same stream in another process. The descriptors must stay open, or be others of the same files.
    pub fn detach(self) -> Detached {
        let Self { job, stream, bounce, regions, residency, changes, shared_copies, .. } = self;
        // SAFETY: whoever attaches it again answers for them.
        let [out, pagemap, memory] = [job.out, job.pagemap, job.memory].map(|fd| unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) });
        Detached {
            out,
            pagemap,
            memory,
            method: job.method,
            stream: stream.through(out),
            bounce,
            regions,
            residency,
            changes,
            shared_copies,
        }
    }
}

impl Detached {
    /// A job that says what goes where and nothing else: enough for dirty copies.
    pub fn job(&self) -> WriteJob<'static> {
        let Self { out, pagemap, memory, method, .. } = *self;
        let nothing = |kind| (kind, &[][..]);
        let tables = [Kind::Strings, Kind::Objects, Kind::Mappings, Kind::Threads, Kind::Process].map(nothing);
        let header = [0; HEADER_SIZE];
        WriteJob {
            out,
            pagemap,
            memory,
            method,
            header,
            tables,
            unread: &[],
            summary: &[],
            plans: &[],
            volatile: &[],
            held: &[],
            scan: None,
        }
    }

    /// The writer again.
    pub fn attach<'b, P: Progress>(self, job: &'b WriteJob<'b>, progress: P) -> Writer<'b, P> {
        let Self { stream, bounce, regions, residency, changes, shared_copies, .. } = self;
        Writer { job, stream: stream.through(job.out), bounce, regions, residency, changes, running: None, shared_copies, progress }
    }
}

impl<'a, P: Progress> Writer<'a, P> {
    /// Has what follows sent by a process beside this one, on the stack that ends at `stack`, if it is much.
    ///
    /// # Safety
    /// Nobody else uses that stack until the writer is dropped, and nothing changes the memory that is written.
    pub unsafe fn send_beside(&mut self, stack: usize) {
        // SAFETY: the caller's word.
        unsafe { self.stream.offer(stack) };
    }

    /// Writes one part of the content.
    pub fn content(&mut self, part: MemoryPart) -> Result<(), WriteError> {
        let job = self.job;
        if part == MemoryPart::Private {
            self.write_shared_copies()?;
        }
        for plan in job.plans.iter().filter(|plan| MemoryPart::of(plan) == part) {
            self.mapping(plan)?;
        }
        match part {
            MemoryPart::Shared => {
                job.held.iter().try_for_each(|(object, descriptor, size)| self.object(*object, descriptor.as_fd(), *size))
            }
            MemoryPart::Private => {
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
    pub fn end(mut self) -> Result<Ended, WriteError> {
        let (end, spared) = (self.stream.so_far(), self.stream.spared());
        let mut payload = [0; End::SIZE];
        end.encode(&mut payload).map_err(|_| WriteError::Format)?;
        self.record(Kind::End, 0, 0, &payload)?;
        Ok(Ended { end, spared })
    }

    /// Writes the shared copies, if there are any.
    fn write_shared_copies(&mut self) -> Result<(), WriteError> {
        let Some(shared_copies) = self.shared_copies.take() else { return Ok(()) };
        shared_copies.each(|kind, index, address, payload| self.record(kind, index, address, payload))
    }

    /// Writes a record of what may change when the threads go on, or keeps a copy of it for later.
    fn record_copy(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<(), WriteError> {
        let put = self.shared_copies.as_mut().is_some_and(|shared_copies| shared_copies.put(kind, index, address, payload));
        if put { Ok(()) } else { self.record(kind, index, address, payload) }
    }

    fn record(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<(), WriteError> {
        let sent = self.stream.record(kind, index, address, payload)?;
        self.progress.wrote(sent);
        Ok(())
    }

    /// Writes the dirty copies: all of the private content that changed.
    pub fn dirty_copies(&mut self, memory: &DirtyCopyMemory, copies: DirtyCopies) -> Result<(), WriteError> {
        self.write_shared_copies()?;
        memory.each_copied(copies, |(start, end), from, zeros| self.direct(start, end, from, !zeros))?;
        self.keep(memory.kept(copies))?;
        let sent = self.stream.flush()?;
        self.progress.wrote(sent);
        Ok(())
    }

    /// What it writes.
    pub fn job(&self) -> &'a WriteJob<'a> {
        self.job
    }

    /// Populated pages of all mappings that are tracked, if it is known what changed.
    pub fn changes(&self) -> Option<&'static [Entry]> {
        self.changes
    }

    fn mapping(&mut self, plan: &MappingPlan) -> Result<(), WriteError> {
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
    fn changed(&mut self, plan: &MappingPlan, entries: &[Entry]) -> Result<(), WriteError> {
        let mut changed = entries.iter().filter(|entry| entry.changed()).peekable();
        while let Some(entry) = changed.next() {
            // Scattered pages are in no cache, and each is searched for zeros before it is copied.
            if let Some(next) = changed.peek().filter(|next| !next.absent()) {
                prefetch(next.range().0);
            }
            self.region(plan, entry.range(), entry.absent())?;
        }
        Ok(())
    }

    /// Stores all populated pages of a part of a mapping.
    fn populated(&mut self, plan: &MappingPlan, start: u64, end: u64) -> Result<(), WriteError> {
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
    fn region(&mut self, plan: &MappingPlan, (start, end): (u64, u64), absent: bool) -> Result<(), WriteError> {
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
            let piece = if self.shared_copies.is_some() { SHARED_COPY_BYTES } else { MAX_PAGES };
            let length = (end - at).min(piece) as usize;
            let got = self.job.fetch(at, &mut self.bounce[..length], may_lack)?;
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
            // A shared copy stays in the processor's cache on its way.
            let piece = if self.shared_copies.is_some() { SHARED_COPY_BYTES } else { MAX_PAGES };
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

fn page_at(address: u64) -> &'static [u8] {
    // SAFETY: callers pass populated, readable pages; see `direct`.
    unsafe { core::slice::from_raw_parts(address as *const u8, PAGE as usize) }
}
