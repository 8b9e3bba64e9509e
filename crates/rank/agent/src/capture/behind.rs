//! Writing an image behind the running program: a copy of the process holds its private memory as it was, and writes it.
//!
//! ```text
//! threads parked: header, tables, shared memory ──► copy ──► threads go on
//!                                                     └► private memory, end, fsync, name ──► report, exit
//! ```
//! Where little changed, what did is copied instead ([`crate::capture::staged`]), and the "copy" is a process that shares the program's
//! memory and writes from there.
//!
//! Invariants: the copy never runs the program's code and has none of its descriptors. The stream is one stream, the copy
//! goes on where the original stopped. The file gets its name only in the copy, after it is durable.
//! Faults assumed: the copy is killed at any moment, or stands still with its target. The program does not notice either; the
//! image is given up.

use crate::capture::aside::Room;
use crate::capture::scratch::Buffers;
use crate::capture::staged::{Filled, Staging};
use crate::capture::target::{OpenTarget, TargetError, Unfinished};
use crate::capture::writer::{Detached, Job, Part, Progress, Silent, WriteError, Writer};
use crate::memory::maps::SMAPS_PIECE;
use crate::track::{DirtyScan, NewHashes, RunningScan};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use mend_image::record::End;
use mend_kernel::copy::{self, Copy, Side, die_first, end_with, keep_only, leave, stand_back};
use mend_kernel::pagemap::Region;
use mend_kernel::threads::{wait_across, wake_across};
use mend_messages::agent::{ImageId, Written};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::thread::nanosleep;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// A copy that writes nothing for this long stands still with its target.
const STALL: Duration = Duration::from_secs(60);
/// The same while the kernel makes the file durable, which shows no progress.
const STALL_DURABLE: Duration = Duration::from_secs(900);
/// How long the original has the processor to itself, unless it says earlier that it needs no more.
const HEAD_START: Duration = Duration::from_millis(200);
/// How long a copy that was killed may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(2);
/// How often progress is looked at.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// States of a report; zero: it writes.
const SETTLING: u32 = 1;
const DONE: u32 = 2;

/// Why the copy could not complete the image.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Write(WriteError),
    Unfinished(Unfinished),
    Open(Errno),
    /// Advice on a mapping changed between the inspection and the copy.
    Advice(u64),
}

/// What the two tell each other, in memory that both have.
struct Report {
    /// Not zero: the program runs again.
    gate: AtomicU32,
    state: AtomicU32,
    beats: AtomicU64,
    result: UnsafeCell<MaybeUninit<Result<Complete, Failure>>>,
}

/// What the copy tells of an image that is durable.
#[derive(Clone, Copy, Debug)]
struct Complete {
    end: End,
    write_us: u64,
    /// If they were left to it.
    hashes: Option<NewHashes>,
}

impl Report {
    fn lives(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }
}

/// The shared memory of a [`Report`]. Not part of the image.
pub(crate) struct Board {
    report: *mut Report,
}

impl Board {
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

    fn report(&self) -> &Report {
        // SAFETY: mapped as long as this lives, zeroed at first, which is valid; all of it but the result is atomic.
        unsafe { &*self.report }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, no longer borrowed.
        let _ = unsafe { munmap(self.report.cast(), Self::SIZE) };
    }
}

/// What a snapshot needs beside the job.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub board: &'a Board,
    pub target: &'a OpenTarget,
    /// Bytes per second.
    pub rate: Option<u64>,
    /// Memory that was made ready for copies of what changed.
    pub staging: Option<&'a Staging>,
    /// Memory that was made ready for copies of what is shared.
    pub room: Option<&'a Room>,
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
    job: &'a Job<'a>,
    buffers: Buffers,
    running: Option<&'a mut RunningScan>,
    plan: Option<&Plan>,
    stack: usize,
) -> Result<Done, WriteError> {
    let mut writer = Writer::begin(job, buffers, running)?;
    let Some(plan) = plan else {
        // SAFETY: all threads of the program stand still until this has returned.
        unsafe { writer.send_beside(stack) };
        writer.content(Part::Shared)?;
        writer.content(Part::Private)?;
        return writer.end().map(Done::Written);
    };
    if let Some(room) = plan.room {
        // SAFETY: its owner keeps it until the image is complete, and lends it here alone.
        writer.set_aside(unsafe { room.lend() });
    }
    writer.content(Part::Shared)?;
    // SAFETY: no arguments.
    let original = unsafe { mend_kernel::raw::syscall(libc::SYS_getpid, [0; 6]) } as i32;
    if let (Some(staging), Some(changes)) = (plan.staging, writer.changes())
        // SAFETY: the stack is used by nobody yet, and all threads of the program stand still.
        && let Some(filled) = unsafe { staging.fill(job, changes, stack) }?
    {
        // SAFETY: the other one is dropped by the owner, this one never.
        let staging = ManuallyDrop::new(unsafe { core::ptr::read(staging) });
        let (report, target) = (&raw const *plan.board.report(), &raw const *plan.target);
        return beside(Task { original, writer: writer.detach(), report, target, rate: plan.rate, staging, filled }, stack);
    }
    // SAFETY: the copy goes into `run`, which uses scratch memory and system calls alone and ends by `leave`.
    match unsafe { copy::copy() } {
        Ok(Side::Copy) => {
            let report = plan.board.report();
            run(original, report, plan.target, true, || complete(job, writer, plan))
        }
        Ok(Side::Original(copy)) => Ok(Done::Snapshot(copy, false)),
        Err(errno) => {
            writer.content(Part::Private)?;
            writer.end().map(|end| Done::Refused(end, errno))
        }
    }
}

/// What a writer that shares the memory of this process works with, on its own stack. Board, target and staged memory are owned by
/// the [`Behind`] that is made of them, until the writer has ended.
struct Task {
    original: i32,
    writer: Detached,
    report: *const Report,
    target: *const OpenTarget,
    rate: Option<u64>,
    /// The same mapping as the owner's.
    staging: ManuallyDrop<Staging>,
    filled: Filled,
}

/// Makes a process that writes what was staged.
fn beside(task: Task, stack: usize) -> Result<Done, WriteError> {
    let place = (stack - size_of::<Task>()) & !63;
    // SAFETY: the end of a stack that nobody uses: an earlier writer has ended.
    unsafe { (place as *mut Task).write(task) };
    // SAFETY: `write_staged` uses that stack, buffers of the scratch memory, what `Task` names and system calls alone, and ends by
    // `leave`.
    match unsafe { copy::beside(place, write_staged, place as *mut c_void) } {
        Ok(copy) => Ok(Done::Snapshot(copy, true)),
        Err(errno) => {
            // SAFETY: written above; no process was made that could use it.
            let Task { writer, staging, filled, .. } = unsafe { (place as *mut Task).read() };
            let job = writer.job();
            let mut writer = writer.attach(&job, Silent);
            writer.staged(&staging, filled)?;
            writer.end().map(|end| Done::Refused(end, errno))
        }
    }
}

/// The life of a writer that shares the memory of the original.
unsafe extern "C" fn write_staged(task: *mut c_void) -> ! {
    // SAFETY: `beside` put it there for this process.
    let Task { original, writer, report, target, rate, staging, filled } = unsafe { task.cast::<Task>().read() };
    // SAFETY: their owner keeps them until this process has ended.
    let (report, target) = unsafe { (&*report, &*target) };
    run(original, report, target, false, || {
        let job = writer.job();
        let pace = Pace::new(report, rate, Monotonic);
        let began = pace.began;
        let mut writer = writer.attach(&job, pace);
        writer.staged(&staging, filled).map_err(Failure::Write)?;
        finish(writer, report, target, began)
    })
}

/// The copy's life. `alone` says that its memory is its own.
fn run(original: i32, report: &Report, target: &OpenTarget, alone: bool, complete: impl FnOnce() -> Result<Complete, Failure>) -> ! {
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

fn complete(job: &Job, writer: Writer<Silent>, plan: &Plan) -> Result<Complete, Failure> {
    let report = plan.board.report();
    let pace = Pace::new(report, plan.rate, Monotonic);
    let began = pace.began;
    let open = |path: &core::ffi::CStr| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(Failure::Open);
    // The original's show the original's memory.
    let (pagemap, memory) = (open(c"/proc/self/pagemap")?, open(c"/proc/self/mem")?);
    check_advice(job, &open(c"/proc/self/smaps")?, report)?;
    let job = Job { pagemap: pagemap.as_fd(), memory: memory.as_fd(), ..*job };
    let mut regions = [Region::default(); 512];
    let deferred = job.scan.filter(DirtyScan::defers).zip(job.scan_context(&mut regions));
    let made = deferred.map(|(scan, mut context)| scan.make_hashes(job.plans, &mut context, || report.lives()));
    let mut writer = writer.detach().attach(&job, pace);
    writer.content(Part::Private).map_err(Failure::Write)?;
    Ok(Complete { hashes: made.and_then(Result::ok), ..finish(writer, report, plan.target, began)? })
}

/// Ends the stream and makes it durable.
fn finish(writer: Writer<Pace>, report: &Report, target: &OpenTarget, began: Duration) -> Result<Complete, Failure> {
    let end = writer.end().map_err(Failure::Write)?;
    report.state.store(SETTLING, Ordering::Release);
    target.finish().map_err(Failure::Unfinished)?;
    Ok(Complete { end, write_us: (Monotonic.now() - began).as_micros() as u64, hashes: None })
}

/// What is written here must be here: advice that takes a mapping away from copies, or empties it, was read before the threads
/// were parked and may have been given since.
fn check_advice(job: &Job, smaps: &OwnedFd, report: &Report) -> Result<(), Failure> {
    let mut lines = Lines { file: smaps.as_fd(), buffer: [0; 20 << 10], filled: 0, at: 0 };
    let mut plans = job.plans.iter().filter(|plan| Part::of(plan) == Part::Private).peekable();
    let (mut start, mut end) = (0, 0);
    while let Some(line) = lines.next().map_err(Failure::Open)? {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            report.lives();
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

/// Lines of a file, without allocating.
struct Lines<'a> {
    file: BorrowedFd<'a>,
    /// Longer than any line: a path has at most 4096 bytes, each at most fourfold.
    buffer: [u8; 20 << 10],
    filled: usize,
    at: usize,
}

impl Lines<'_> {
    fn next(&mut self) -> Result<Option<&[u8]>, Errno> {
        loop {
            if let Some(length) = self.buffer[self.at..self.filled].iter().position(|byte| *byte == b'\n') {
                let line = self.at..self.at + length;
                self.at = line.end + 1;
                return Ok(Some(&self.buffer[line]));
            }
            self.buffer.copy_within(self.at..self.filled, 0);
            (self.filled, self.at) = (self.filled - self.at, 0);
            let room = &mut self.buffer[self.filled..];
            let piece = room.len().min(SMAPS_PIECE);
            match rustix::io::read(self.file, &mut room[..piece]) {
                Ok(0) if self.filled == 0 => return Ok(None),
                Ok(0) => return Err(Errno::IO),
                Ok(count) => self.filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Passes by itself, and while somebody sleeps.
trait Time {
    fn now(&self) -> Duration;
    /// About so long; less if a signal comes.
    fn sleep(&self, nap: Duration);
}

/// The kernel's.
struct Monotonic;

impl Time for Monotonic {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn sleep(&self, nap: Duration) {
        let _ = nanosleep(&Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: i64::from(nap.subsec_nanos()) });
    }
}

/// Says that it lives and keeps to a rate: whenever more has been written since the beginning than the rate allows, it waits. What a
/// slow target has held up may be made good.
struct Pace<'a, T = Monotonic> {
    report: &'a Report,
    /// Bytes per second.
    rate: Option<u64>,
    time: T,
    began: Duration,
    bytes: u64,
}

impl<'a, T: Time> Pace<'a, T> {
    fn new(report: &'a Report, rate: Option<u64>, time: T) -> Self {
        Self { report, rate, began: time.now(), time, bytes: 0 }
    }
}

impl<T: Time> Progress for Pace<'_, T> {
    fn wrote(&mut self, bytes: u64) {
        const NAP: Duration = Duration::from_millis(100);
        self.bytes += bytes;
        self.report.lives();
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
        while let Some(early) = due.checked_sub(self.time.now() - self.began).filter(|early| !early.is_zero()) {
            self.time.sleep(early.min(NAP));
            self.report.lives();
        }
    }
}

/// An image that is written behind the program.
pub(crate) struct Behind {
    pub id: ImageId,
    copy: Copy,
    board: Board,
    target: Box<OpenTarget>,
    /// What a writer that shares our memory writes from.
    staging: Option<Staging>,
    room: Option<Room>,
    /// Beats when they were last counted, and when that was different from before.
    seen: (u64, Instant),
    killed: Option<&'static str>,
    ended: bool,
    /// Somebody else killed it, as the kernel does where memory is short.
    killed_by_kernel: bool,
}

impl Behind {
    pub fn new(id: ImageId, copy: Copy, board: Board, target: Box<OpenTarget>, staging: Option<Staging>, room: Option<Room>) -> Self {
        Self { id, copy, board, target, staging, room, ended: false, seen: (0, Instant::now()), killed: None, killed_by_kernel: false }
    }

    /// The program runs again: nothing stands still for the copy's sake any more.
    pub fn go_on(&self) {
        let gate = &self.board.report().gate;
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
        let staged = self.staging.as_ref().map(Staging::range);
        [self.board.range()].into_iter().chain(staged).chain(self.room.as_ref().map(Room::range))
    }

    /// Id of the copy, as `/proc` shows it.
    pub fn outer(&self) -> Option<i32> {
        self.copy.outer()
    }

    /// Checks, without waiting: the result, once the copy has ended. A copy that stands still is killed.
    pub fn check(&mut self) -> Option<Result<Written, String>> {
        let report = self.board.report();
        if let Some(end) = self.copy.reap() {
            self.ended = true;
            // One that shares the program's memory gives none back: the kernel kills it with the program or not at all.
            self.killed_by_kernel = self.killed.is_none() && self.staging.is_none() && end == copy::End::Killed(libc::SIGKILL);
            let result = self.judge(end);
            if result.is_err() {
                self.target.discard();
            }
            return Some(result);
        }
        let beats = report.beats.load(Ordering::Relaxed);
        let limit = if report.state.load(Ordering::Acquire) == SETTLING { STALL_DURABLE } else { STALL };
        if beats != self.seen.0 {
            self.seen = (beats, Instant::now());
        } else if self.killed.is_none() && self.seen.1.elapsed() > limit {
            self.kill("its target took nothing for too long");
        }
        None
    }

    /// Hashes that it has made, once it has ended.
    pub fn hashes(&self) -> Option<NewHashes> {
        let done = self.ended && self.board.report().state.load(Ordering::Acquire) == DONE;
        // SAFETY: as in `judge`.
        done.then(|| unsafe { (*self.board.report().result.get()).assume_init() }.ok()?.hashes)?
    }

    /// Whether it was killed, but not by us, and had memory of its own that was worth it.
    pub fn was_killed_by_kernel(&self) -> bool {
        self.killed_by_kernel
    }

    fn judge(&self, end: copy::End) -> Result<Written, String> {
        let report = self.board.report();
        if report.state.load(Ordering::Acquire) == DONE {
            // SAFETY: written before `state` said so, and the writer is gone.
            return match unsafe { (*report.result.get()).assume_init() } {
                Ok(Complete { end, write_us, .. }) => Ok(Written { bytes: end.bytes, pages: end.pages, checksum: end.stream, write_us }),
                Err(failure) => Err(self.explain(failure)),
            };
        }
        Err(match (self.killed, end) {
            (Some(why), _) => format!("writing behind the program was given up: {why}"),
            (None, copy::End::Killed(signal)) => {
                let next = if self.killed_by_kernel { "; the next image is written while the program stands still" } else { "" };
                format!("the process that wrote behind the program was killed by signal {signal}{next}")
            }
            (None, copy::End::Exited(code)) => format!("the process that wrote behind the program ended with code {code}"),
        })
    }

    fn explain(&self, failure: Failure) -> String {
        match failure {
            Failure::Write(error) => error.to_string(),
            Failure::Unfinished(unfinished) => {
                let error: TargetError = self.target.explain(unfinished);
                error.to_string()
            }
            Failure::Open(errno) => format!("/proc/self cannot be read: {errno}"),
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

impl Drop for Behind {
    fn drop(&mut self) {
        if !self.ended && self.give_up("the agent ends").is_none() {
            // It hangs in the kernel, and may still be about to use it.
            std::mem::forget((self.staging.take(), self.room.take()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Passes while somebody sleeps, half as much each second time, and while something is written.
    struct Fake(Cell<Duration>, Cell<u32>);

    impl Time for &Fake {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn sleep(&self, nap: Duration) {
            self.1.set(self.1.get() + 1);
            self.0.set(self.0.get() + nap / (1 + self.1.get() % 2) + Duration::from_nanos(1));
        }
    }

    #[test]
    fn a_rate_bounds_all_that_was_written_since_the_beginning() {
        const RATE: u64 = 3 << 20;
        let (board, fake) = (Board::new().unwrap(), Fake(Cell::new(Duration::from_secs(1000)), Cell::default()));
        let mut pace = Pace::new(board.report(), Some(RATE), &fake);
        let mut written = 0;
        for call in 0..1000u64 {
            let (bytes, before) = (call * 7919 % (1 << 20), (fake.0.get(), board.report().beats.load(Ordering::Relaxed)));
            // Now and then the target takes long.
            fake.0.set(fake.0.get() + Duration::from_millis(if call % 100 == 99 { 2000 } else { 0 }));
            pace.wrote(bytes);
            written += bytes;
            let passed = fake.0.get() - Duration::from_secs(1000);
            assert!(written as f64 <= passed.as_secs_f64() * RATE as f64 + 1.0, "{written} bytes in {passed:?}");
            // It says that it lives as often as somebody may look.
            let (naps, beats) = (fake.0.get() - before.0, board.report().beats.load(Ordering::Relaxed) - before.1);
            assert!(naps.as_millis() < 2000 + u128::from(beats) * 101, "{beats} in {naps:?}");
        }
        // Nor does it wait without need: the target held it up for 20 s, which is made good but for the last time.
        let passed = (fake.0.get() - Duration::from_secs(1000)).as_secs_f64();
        assert!(written as f64 >= (passed - 2.5) * RATE as f64, "{written} bytes in {passed} s");
    }

    #[test]
    fn without_a_rate_nobody_waits() {
        let (board, fake) = (Board::new().unwrap(), Fake(Cell::default(), Cell::default()));
        Pace::new(board.report(), None, &fake).wrote(1 << 40);
        assert_eq!((fake.0.get(), board.report().beats.load(Ordering::Relaxed)), (Duration::ZERO, 1));
    }
}
