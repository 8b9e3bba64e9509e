//! Writing an image in the background, while the program runs: a copy of the process holds its private memory as it was, and writes it.
//!
//! ```text
//! threads parked: header, tables, shared memory ──► copy ──► threads go on
//!                                                     └► private memory, end, fsync, name ──► report, exit
//! ```
//! Where little changed, what did is copied instead ([`crate::capture::dirty_copies`]), and the "copy" is a process that shares the program's
//! memory and writes from there.
//!
//! Invariants: the copy never runs the program's code and has none of its descriptors. The stream is one stream, the copy
//! goes on where the original stopped. The file gets its name only in the copy, after it is durable.
//! Faults assumed: the copy is killed at any moment, or stands still with its target. The program does not notice either; the
//! image is given up.

use crate::capture::dirty_copies::{DirtyCopies, DirtyCopyMemory};
use crate::capture::report::{Complete, DONE, Failure, Report, ReportPage, SYNCING};
use crate::capture::scratch::Buffers;
use crate::capture::shared_copies::SharedCopyMemory;
use crate::capture::target::{OpenTarget, TargetError};
use crate::capture::write_error::WriteError;
use crate::capture::write_job::{MemoryPart, WriteJob};
use crate::capture::write_pace::{Monotonic, Pace, Time};
use crate::capture::writer::{Detached, Silent, Writer};
use crate::memory::lines::Lines;
use crate::track::{DirtyScan, NewHashes, RunningScan};
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use mend_image::record::End;
use mend_kernel::copy::{self, Copy, Side, die_first, end_with, keep_only, leave, stand_back};
use mend_kernel::pagemap::Region;
use mend_kernel::threads::{wait_across, wake_across};
use mend_messages::agent::{ImageId, Written};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use std::time::{Duration, Instant};

/// A copy that writes nothing for this long stands still with its target.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// The same while the kernel makes the file durable, which shows no progress.
const SYNC_STALL_LIMIT: Duration = Duration::from_secs(900);
/// How long the original has the processor to itself, unless it says earlier that it needs no more.
const HEAD_START: Duration = Duration::from_millis(200);
/// How long a copy that was killed may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(2);
/// How often progress is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What a snapshot needs beside the job.
#[derive(Clone, Copy)]
pub(crate) struct BackgroundPlan<'a> {
    pub report_page: &'a ReportPage,
    pub target: &'a OpenTarget,
    /// Bytes per second.
    pub rate: Option<u64>,
    /// See [`DirtyCopyMemory`].
    pub dirty_copy_memory: Option<&'a DirtyCopyMemory>,
    /// See [`SharedCopyMemory`].
    pub shared_copy_memory: Option<&'a SharedCopyMemory>,
}

/// What came of writing.
pub(crate) enum Done {
    /// All is written.
    Written(End),
    /// A copy writes on. True: it shares the memory of this process.
    Snapshot(Copy, bool),
    /// All is written; no copy could be made.
    Refused(End, i32),
}

/// Writes what a copy would not have, makes the copy, and writes all the rest if that cannot be made. To be called on scratch
/// memory: returns in the original alone. `stack` is the end of one that nobody uses. Without a plan the scan may still be under way.
pub(crate) fn write<'a>(
    job: &'a WriteJob<'a>,
    buffers: Buffers,
    running: Option<&'a mut RunningScan>,
    plan: Option<&BackgroundPlan>,
    stack: usize,
) -> Result<Done, WriteError> {
    let mut writer = Writer::begin(job, buffers, running)?;
    let Some(plan) = plan else {
        // SAFETY: all threads of the program stand still until this has returned.
        unsafe { writer.send_beside(stack) };
        writer.content(MemoryPart::Shared)?;
        writer.content(MemoryPart::Private)?;
        return writer.end().map(Done::Written);
    };
    if let Some(shared_copy_memory) = plan.shared_copy_memory {
        // SAFETY: its owner keeps it until the image is complete, and lends it here alone.
        writer.set_shared_copies(unsafe { shared_copy_memory.lend() });
    }
    writer.content(MemoryPart::Shared)?;
    // SAFETY: no arguments.
    let original = unsafe { mend_kernel::raw::syscall(libc::SYS_getpid, [0; 6]) } as i32;
    if let (Some(dirty_copy_memory), Some(changes)) = (plan.dirty_copy_memory, writer.changes())
        // SAFETY: the stack is used by nobody yet, and all threads of the program stand still.
        && let Some(copies) = unsafe { dirty_copy_memory.fill(job, changes, stack) }?
    {
        // SAFETY: the other one is dropped by the owner, this one never.
        let dirty_copy_memory = ManuallyDrop::new(unsafe { core::ptr::read(dirty_copy_memory) });
        let (report, target) = (&raw const *plan.report_page.report(), &raw const *plan.target);
        return write_beside(
            SharingTask { original, writer: writer.detach(), report, target, rate: plan.rate, dirty_copy_memory, copies },
            stack,
        );
    }
    // SAFETY: the copy goes into `run_writer`, which uses scratch memory and system calls alone and ends by `leave`.
    match unsafe { copy::copy() } {
        Ok(Side::Copy) => {
            let report = plan.report_page.report();
            run_writer(original, report, plan.target, true, || complete(job, writer, plan))
        }
        Ok(Side::Original(copy)) => Ok(Done::Snapshot(copy, false)),
        Err(errno) => {
            writer.content(MemoryPart::Private)?;
            writer.end().map(|end| Done::Refused(end, errno))
        }
    }
}

/// What a writer that shares the memory of this process works with, on its own stack. The report page, the target and the memory of the
/// dirty copies are owned by
/// the [`BackgroundWriter`] that is made of them, until the writer has ended.
struct SharingTask {
    original: i32,
    writer: Detached,
    report: *const Report,
    target: *const OpenTarget,
    rate: Option<u64>,
    /// The same mapping as the owner's.
    dirty_copy_memory: ManuallyDrop<DirtyCopyMemory>,
    copies: DirtyCopies,
}

/// Makes a process that writes the dirty copies.
fn write_beside(task: SharingTask, stack: usize) -> Result<Done, WriteError> {
    let place = (stack - size_of::<SharingTask>()) & !63;
    // SAFETY: the end of a stack that nobody uses: an earlier writer has ended.
    unsafe { (place as *mut SharingTask).write(task) };
    // SAFETY: `write_dirty_copies` uses that stack, buffers of the scratch memory, what `SharingTask` names and system calls alone, and ends by
    // `leave`.
    match unsafe { copy::beside(place, write_dirty_copies, place as *mut c_void) } {
        Ok(copy) => Ok(Done::Snapshot(copy, true)),
        Err(errno) => {
            // SAFETY: written above; no process was made that could use it.
            let SharingTask { writer, dirty_copy_memory, copies, .. } = unsafe { (place as *mut SharingTask).read() };
            let job = writer.job();
            let mut writer = writer.attach(&job, Silent);
            writer.dirty_copies(&dirty_copy_memory, copies)?;
            writer.end().map(|end| Done::Refused(end, errno))
        }
    }
}

/// The life of a writer that shares the memory of the original.
unsafe extern "C" fn write_dirty_copies(task: *mut c_void) -> ! {
    // SAFETY: `write_beside` put it there for this process.
    let SharingTask { original, writer, report, target, rate, dirty_copy_memory, copies } = unsafe { task.cast::<SharingTask>().read() };
    // SAFETY: their owner keeps them until this process has ended.
    let (report, target) = unsafe { (&*report, &*target) };
    run_writer(original, report, target, false, || {
        let job = writer.job();
        let pace = Pace::new(report, rate, Monotonic);
        let began = pace.began;
        let mut writer = writer.attach(&job, pace);
        writer.dirty_copies(&dirty_copy_memory, copies).map_err(Failure::Write)?;
        finish(writer, report, target, began)
    })
}

/// The copy's life. `alone` says that its memory is its own.
fn run_writer(original: i32, report: &Report, target: &OpenTarget, alone: bool, complete: impl FnOnce() -> Result<Complete, Failure>) -> ! {
    if !end_with(original) {
        leave(1);
    }
    // The original has been busy with copying for long, so the scheduler would rather see the copy run.
    if report.gate.load(Ordering::Acquire) == 0 {
        wait_across(&report.gate, 0, Some(HEAD_START));
    }
    if keep_only(&target.descriptors()).is_err() {
        leave(1);
    }
    stand_back();
    if alone {
        die_first();
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(complete)).unwrap_or(Err(Failure::Write(WriteError::Format)));
    if result.is_err() {
        target.discard();
    }
    // SAFETY: the original reads it only after `state` says so.
    unsafe { (*report.result.get()).write(result) };
    report.state.store(DONE, Ordering::Release);
    leave(i32::from(result.is_err()));
}

fn complete(job: &WriteJob, writer: Writer<Silent>, plan: &BackgroundPlan) -> Result<Complete, Failure> {
    let report = plan.report_page.report();
    let pace = Pace::new(report, plan.rate, Monotonic);
    let began = pace.began;
    let open = |path: &core::ffi::CStr| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(Failure::Open);
    // The original's show the original's memory.
    let (pagemap, memory) = (open(c"/proc/self/pagemap")?, open(c"/proc/self/mem")?);
    check_advice(job, &open(c"/proc/self/smaps")?, report)?;
    let job = WriteJob { pagemap: pagemap.as_fd(), memory: memory.as_fd(), ..*job };
    let mut regions = [Region::default(); 512];
    let deferred = job.scan.filter(DirtyScan::defers).zip(job.scan_context(&mut regions));
    let made = deferred.map(|(scan, mut context)| scan.make_hashes(job.plans, &mut context, || report.beat()));
    let mut writer = writer.detach().attach(&job, pace);
    writer.content(MemoryPart::Private).map_err(Failure::Write)?;
    Ok(Complete { hashes: made.and_then(Result::ok), ..finish(writer, report, plan.target, began)? })
}

/// Ends the stream and makes it durable.
fn finish(writer: Writer<Pace>, report: &Report, target: &OpenTarget, began: Duration) -> Result<Complete, Failure> {
    let end = writer.end().map_err(Failure::Write)?;
    report.state.store(SYNCING, Ordering::Release);
    target.finish().map_err(Failure::Unfinished)?;
    Ok(Complete { end, write_us: (Monotonic.now() - began).as_micros() as u64, hashes: None })
}

/// What is written here must be here: advice that takes a mapping away from copies, or empties it, was read before the threads
/// were parked and may have been given since.
fn check_advice(job: &WriteJob, smaps: &OwnedFd, report: &Report) -> Result<(), Failure> {
    let mut lines = Lines::of(smaps.as_fd());
    let mut plans = job.plans.iter().filter(|plan| MemoryPart::of(plan) == MemoryPart::Private).peekable();
    let (mut start, mut end) = (0, 0);
    while let Some(line) = lines.next().map_err(Failure::Open)? {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            report.beat();
            let wiped = flags.windows(4).any(|word| word == b" wf ");
            // A mapping of the list may lie in parts.
            while let Some(plan) = plans.next_if(|plan| plan.mapping.start < end) {
                if wiped || plan.mapping.start < start || plan.mapping.end > end {
                    return Err(Failure::Advice(plan.mapping.start));
                }
            }
        } else if let Some((from, to)) = range(line) {
            (start, end) = (from, to);
        }
    }
    plans.next().map_or(Ok(()), |plan| Err(Failure::Advice(plan.mapping.start)))
}

/// `start-end ` in hexadecimal at the beginning of a line.
fn range(line: &[u8]) -> Option<(u64, u64)> {
    let (range, _) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')?)?;
    let (start, end) = core::str::from_utf8(range).ok()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// A process that writes an image while the program runs.
pub(crate) struct BackgroundWriter {
    pub id: ImageId,
    copy: Copy,
    report_page: ReportPage,
    target: Box<OpenTarget>,
    /// What a writer that shares our memory writes from.
    dirty_copy_memory: Option<DirtyCopyMemory>,
    shared_copy_memory: Option<SharedCopyMemory>,
    /// Beats when they were last counted, and when that was different from before.
    seen: (u64, Instant),
    killed: Option<&'static str>,
    ended: bool,
    /// Somebody else killed it, as the kernel does where memory is short.
    killed_by_kernel: bool,
}

impl BackgroundWriter {
    pub fn new(
        id: ImageId,
        copy: Copy,
        report_page: ReportPage,
        target: Box<OpenTarget>,
        dirty_copy_memory: Option<DirtyCopyMemory>,
        shared_copy_memory: Option<SharedCopyMemory>,
    ) -> Self {
        Self {
            id,
            copy,
            report_page,
            target,
            dirty_copy_memory,
            shared_copy_memory,
            ended: false,
            seen: (0, Instant::now()),
            killed: None,
            killed_by_kernel: false,
        }
    }

    /// The program runs again: nothing stands still for the copy's sake any more.
    pub fn open_gate(&self) {
        let gate = &self.report_page.report().gate;
        if gate.swap(1, Ordering::AcqRel) == 0 {
            wake_across(gate);
        }
    }

    /// Readable when the copy has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.copy.ended()
    }

    /// Descriptors that are not the program's.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        self.target.descriptors().into_iter().chain([self.copy.ended().as_raw_fd()])
    }

    /// Memory that is not the program's.
    pub fn memory(&self) -> impl Iterator<Item = (u64, u64)> {
        let copies = self.dirty_copy_memory.as_ref().map(DirtyCopyMemory::range);
        [self.report_page.range()].into_iter().chain(copies).chain(self.shared_copy_memory.as_ref().map(SharedCopyMemory::range))
    }

    /// Id of the copy, as `/proc` shows it.
    pub fn outer(&self) -> Option<i32> {
        self.copy.outer()
    }

    /// Checks, without waiting: the result, once the copy has ended. A copy that stands still is killed.
    pub fn check(&mut self) -> Option<Result<Written, String>> {
        let report = self.report_page.report();
        if let Some(end) = self.copy.reap() {
            self.ended = true;
            // One that shares the program's memory gives none back: the kernel kills it with the program or not at all.
            self.killed_by_kernel = self.killed.is_none() && self.dirty_copy_memory.is_none() && end == copy::End::Killed(libc::SIGKILL);
            let result = self.outcome(end);
            if result.is_err() {
                self.target.discard();
            }
            return Some(result);
        }
        let beats = report.beats.load(Ordering::Relaxed);
        let limit = if report.state.load(Ordering::Acquire) == SYNCING { SYNC_STALL_LIMIT } else { STALL_LIMIT };
        if beats != self.seen.0 {
            self.seen = (beats, Instant::now());
        } else if self.killed.is_none() && self.seen.1.elapsed() > limit {
            self.kill("its target took nothing for too long");
        }
        None
    }

    /// Hashes that it has made, once it has ended.
    pub fn hashes(&self) -> Option<NewHashes> {
        let done = self.ended && self.report_page.report().state.load(Ordering::Acquire) == DONE;
        // SAFETY: as in `outcome`.
        done.then(|| unsafe { (*self.report_page.report().result.get()).assume_init() }.ok()?.hashes)?
    }

    /// Whether it was killed, but not by us, and had memory of its own that was worth it.
    pub fn was_killed_by_kernel(&self) -> bool {
        self.killed_by_kernel
    }

    fn outcome(&self, end: copy::End) -> Result<Written, String> {
        let report = self.report_page.report();
        if report.state.load(Ordering::Acquire) == DONE {
            // SAFETY: written before `state` said so, and the writer is gone.
            return match unsafe { (*report.result.get()).assume_init() } {
                Ok(Complete { end, write_us, .. }) => Ok(Written { bytes: end.bytes, pages: end.pages, checksum: end.stream, write_us }),
                Err(failure) => Err(self.explain(failure)),
            };
        }
        Err(match (self.killed, end) {
            (Some(why), _) => format!("writing in the background was given up: {why}"),
            (None, copy::End::Killed(signal)) => {
                // Nobody else kills it, as far as is known.
                let next = match self.killed_by_kernel {
                    true => "; the next image is written while the program stands still (hint: free memory on its node)",
                    false => "",
                };
                format!("the process that wrote in the background was killed by signal {signal}{next}")
            }
            (None, copy::End::Exited(code)) => format!("the process that wrote in the background ended with code {code}"),
        })
    }

    fn explain(&self, failure: Failure) -> String {
        match failure {
            Failure::Write(error) => hinting(&error, error.hint()),
            Failure::Unfinished(unfinished) => {
                let error: TargetError = self.target.explain(unfinished);
                hinting(&error, error.hint())
            }
            Failure::Open(errno) => hinting(&format_args!("/proc/self cannot be read: {errno}"), mend_report::proc_hint(&errno.into())),
            Failure::Advice(start) => format!("the program changed the advice on its memory at {start:#x} meanwhile; try again"),
        }
    }

    fn kill(&mut self, why: &'static str) {
        self.killed.get_or_insert(why);
        self.copy.kill();
    }

    /// Gives it up. `None` if the copy does not end, which a target that hangs in the kernel can bring about.
    pub fn give_up(&mut self, why: &'static str) -> Option<Result<Written, String>> {
        self.kill(why);
        let limit = Timespec { tv_sec: KILL_LIMIT.as_secs() as i64, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.copy.ended(), PollFlags::IN)], Some(&limit));
        self.check()
    }
}

/// The controller knows of a failure what its text says, and no cause to give a hint for.
fn hinting(cause: &dyn core::fmt::Display, hint: &str) -> String {
    if hint.is_empty() { cause.to_string() } else { format!("{cause} (hint: {hint})") }
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        if !self.ended && self.give_up("the agent ends").is_none() {
            // It hangs in the kernel, and may still be about to use it.
            std::mem::forget((self.dirty_copy_memory.take(), self.shared_copy_memory.take()));
        }
    }
}
