//! The strategy that copies the process, as fork(2) does: the copy holds private memory as it was, and writes it.

use super::{BackgroundPlan, Done, Strategy, child};
use crate::capture::report::{Complete, Failure, Report};
use crate::capture::write_error::WriteError;
use crate::capture::write_job::{MemoryPart, WriteJob};
use crate::capture::write_pace::{Monotonic, Pace};
use crate::capture::writer::{Silent, Writer};
use crate::memory::lines::Lines;
use crate::track::DirtyScan;
use mend_kernel::copy::{self, Side};
use mend_kernel::pagemap::Region;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};

/// Suits every image.
pub(super) struct Fork<'a> {
    pub plan: &'a BackgroundPlan<'a>,
}

impl<'a> Strategy<'a> for Fork<'a> {
    fn write(self, mut writer: Writer<'a, Silent>) -> Result<Done, WriteError> {
        let Self { plan } = self;
        let original = child::process_id();
        // SAFETY: the copy goes into `child::run`, which uses scratch memory and system calls alone and ends by `leave`.
        match unsafe { copy::copy() } {
            Ok(Side::Copy) => child::run(original, plan.report_page.report(), plan.target, true, || complete(writer, plan)),
            Ok(Side::Original(copy)) => Ok(Done::Snapshot { copy, shares_memory: false }),
            Err(errno) => {
                writer.content(MemoryPart::Private)?;
                writer.end().map(|end| Done::Refused(end, errno))
            }
        }
    }
}

/// What the copy does.
fn complete(writer: Writer<Silent>, plan: &BackgroundPlan) -> Result<Complete, Failure> {
    let (job, report) = (writer.job(), plan.report_page.report());
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
    Ok(Complete { hashes: made.and_then(Result::ok), ..child::finish(writer, report, plan.target, began)? })
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
