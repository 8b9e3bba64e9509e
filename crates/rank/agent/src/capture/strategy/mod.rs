//! Three strategies to write an image. They differ in what is done while the threads stand still, and in who writes the rest:
//!
//! | strategy | while the threads stand still | then |
//! | --- | --- | --- |
//! | [`stop`] | all is written | nothing is left |
//! | [`fork`] | the process is copied | the copy writes private memory, which it has as it was |
//! | [`dirty_copy`] | changed pages are copied | a process that shares the program's memory writes the copies |
//!
//! ```text
//! threads parked: header, tables, shared memory ──► copy ──► threads go on
//!                                                     └► private memory, end, fsync, name ──► report, exit
//! ```
//! Copying changed pages is chosen where little changed, and copying the process else. Where no process can be made, all is written
//! while the threads stand still.
//!
//! Invariants: the process that writes on never runs the program's code and has none of its descriptors. There is one stream, which it
//! continues where the original stopped. The file gets its name only there, after it is durable.

mod child;
mod dirty_copy;
mod fork;
mod stop;

use crate::capture::dirty_copies::DirtyCopyMemory;
use crate::capture::report::ReportPage;
use crate::capture::scratch::Buffers;
use crate::capture::shared_copies::SharedCopyMemory;
use crate::capture::target::OpenTarget;
use crate::capture::write_error::WriteError;
use crate::capture::write_job::{MemoryPart, WriteJob};
use crate::capture::writer::{Ended, Silent, Writer};
use crate::track::RunningScan;
use dirty_copy::DirtyCopy;
use fork::Fork;
use mend_kernel::copy::Copy;
use stop::Stop;

/// What it takes to write in the background, beside the job.
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
    Written(Ended),
    /// A process writes on.
    Snapshot { copy: Copy, shares_memory: bool },
    /// All is written; no copy could be made.
    Refused(Ended, i32),
}

/// One way to write an image.
trait Strategy<'a> {
    /// Writes what the strategy leaves to be written while the threads stand still, and starts the process that writes the rest, if
    /// something is left. Returns in the original process alone.
    fn write(self, writer: Writer<'a, Silent>) -> Result<Done, WriteError>;
}

/// Writes an image by the strategy that suits it. To be called on scratch memory: returns in the original alone. `stack` is the end of
/// one that nobody uses. Without a plan the threads stand still for all of it, and the scan may still be under way.
pub(crate) fn write<'a>(
    job: &'a WriteJob<'a>,
    buffers: Buffers,
    running: Option<&'a mut RunningScan>,
    plan: Option<&'a BackgroundPlan<'a>>,
    stack: usize,
) -> Result<Done, WriteError> {
    let mut writer = Writer::begin(job, buffers, running)?;
    let Some(plan) = plan else { return Stop { stack }.write(writer) };
    if let Some(shared_copy_memory) = plan.shared_copy_memory {
        // SAFETY: its owner keeps it until the image is complete, and lends it here alone.
        writer.set_shared_copies(unsafe { shared_copy_memory.lend() });
    }
    writer.content(MemoryPart::Shared)?;
    match DirtyCopy::prepare(plan, &writer, stack)? {
        Some(strategy) => strategy.write(writer),
        None => Fork { plan }.write(writer),
    }
}
