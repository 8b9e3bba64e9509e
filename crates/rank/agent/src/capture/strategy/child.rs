//! The life of a process that writes on: it lets the program have the processor first, keeps only what it needs, writes, and reports.

use crate::capture::report::{Complete, DONE, Failure, Report, SYNCING};
use crate::capture::target::OpenTarget;
use crate::capture::write_error::WriteError;
use crate::capture::write_pace::{Monotonic, Pace, Time};
use crate::capture::writer::Writer;
use core::sync::atomic::Ordering;
use mend_kernel::copy::{die_first, end_with, keep_only, leave, stand_back};
use mend_kernel::threads::wait_across;
use std::time::Duration;

/// How long the original has the processor to itself, unless it says earlier that it needs no more.
const HEAD_START: Duration = Duration::from_millis(200);

/// The id of the calling process.
pub(super) fn process_id() -> i32 {
    // SAFETY: no arguments.
    (unsafe { mend_freestanding::syscall(libc::SYS_getpid, [0; 6]) }) as i32
}

/// The process's life: `complete` is its work, and `alone` says that its memory is its own.
pub(super) fn run(
    original: i32,
    report: &Report,
    target: &OpenTarget,
    alone: bool,
    complete: impl FnOnce() -> Result<Complete, Failure>,
) -> ! {
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

/// Ends the stream and makes it durable.
pub(super) fn finish(writer: Writer<Pace>, report: &Report, target: &OpenTarget, began: Duration) -> Result<Complete, Failure> {
    let end = writer.end().map_err(Failure::Write)?.end;
    report.state.store(SYNCING, Ordering::Release);
    target.finish().map_err(Failure::Unfinished)?;
    Ok(Complete { end, write_us: (Monotonic.now() - began).as_micros() as u64, hashes: None })
}
