//! The strategy that copies the changed pages ([`crate::capture::dirty_copies`]): a process that shares the program's memory writes the copies.

use super::{BackgroundPlan, Done, Strategy, child};
use crate::capture::dirty_copies::{DirtyCopies, DirtyCopyMemory};
use crate::capture::report::{Failure, Report};
use crate::capture::target::OpenTarget;
use crate::capture::write_error::WriteError;
use crate::capture::write_pace::{Monotonic, Pace};
use crate::capture::writer::{Detached, Silent, Writer};
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use mend_kernel::copy;

/// Suits an image that builds on another one, if memory for the copies was made ready and they fit.
pub(super) struct DirtyCopy<'a> {
    plan: &'a BackgroundPlan<'a>,
    memory: &'a DirtyCopyMemory,
    copies: DirtyCopies,
    /// End of a stack that nobody uses.
    stack: usize,
}

impl<'a> DirtyCopy<'a> {
    /// Copies the changed pages. `None`: this strategy does not suit the image.
    pub fn prepare(plan: &'a BackgroundPlan<'a>, writer: &Writer<'a, Silent>, stack: usize) -> Result<Option<Self>, WriteError> {
        let Some((memory, changes)) = plan.dirty_copy_memory.zip(writer.changes()) else { return Ok(None) };
        // SAFETY: the stack is used by nobody yet, and all threads of the program stand still.
        let copies = unsafe { memory.fill(writer.job(), changes, stack) }?;
        Ok(copies.map(|copies| Self { plan, memory, copies, stack }))
    }
}

impl<'a> Strategy<'a> for DirtyCopy<'a> {
    fn write(self, writer: Writer<'a, Silent>) -> Result<Done, WriteError> {
        let Self { plan, memory, copies, stack } = self;
        // SAFETY: the other one is dropped by the owner, this one never.
        let dirty_copy_memory = ManuallyDrop::new(unsafe { core::ptr::read(memory) });
        let (report, target) = (&raw const *plan.report_page.report(), &raw const *plan.target);
        let original = child::process_id();
        let task = SharingTask { original, writer: writer.detach(), report, target, rate: plan.rate, dirty_copy_memory, copies };
        write_beside(task, stack)
    }
}

/// What a writer that shares the memory of this process works with, on its own stack. The report page, the target and the memory of the
/// dirty copies are owned by the [`crate::capture::background_writer::BackgroundWriter`] that is made of them, until the writer has ended.
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
        Ok(copy) => Ok(Done::Snapshot { copy, shares_memory: true }),
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
    child::run(original, report, target, false, || {
        let job = writer.job();
        let pace = Pace::new(report, rate, Monotonic);
        let began = pace.began;
        let mut writer = writer.attach(&job, pace);
        writer.dirty_copies(&dirty_copy_memory, copies).map_err(Failure::Write)?;
        child::finish(writer, report, target, began)
    })
}
