//! A background writer as the agent sees it: a process that writes an image while the program runs (see [`crate::capture::strategy`]).
//!
//! Faults assumed: the writer is killed at any moment, or stands still with its target. The program does not notice either; the
//! image is given up.

use crate::capture::dirty_copies::DirtyCopyMemory;
use crate::capture::report::{Complete, DONE, Failure, ReportPage, SYNCING};
use crate::capture::shared_copies::SharedCopyMemory;
use crate::capture::target::{OpenTarget, TargetError};
use crate::track::NewHashes;
use core::sync::atomic::Ordering;
use mend_kernel::copy::{self, Copy};
use mend_kernel::threads::wake_across;
use mend_messages::agent::{ImageId, Written};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A copy that writes nothing for this long stands still with its target.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// The same while the kernel makes the file durable, which shows no progress.
const SYNC_STALL_LIMIT: Duration = Duration::from_secs(900);
/// How long a copy that was killed may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(2);
/// How often progress is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

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
