//! Taking an image: parks the threads, builds the tables, writes. In a restored process the same call returns a second time.
//!
//! ```text
//! save ─ freeze allocator ─ park ─ build tables ─ capture ┬─ write, or write a part and copy the process ── Saved, threads still parked
//!                                                         └ (later, elsewhere: loaded by the restorer) ── Restored
//! ```
//! From the last reading of the address space until the stream is complete nothing is allocated or freed: the tables must
//! describe exactly the memory that is written.

use crate::capture::background_writer::BackgroundWriter;
use crate::capture::dirty_copies::DirtyCopyMemory;
use crate::capture::image_tables::{ImageTables, ProcFiles, build_until_stable};
use crate::capture::inspect::{open_in_others, process_obstacles, shared_with_others};
use crate::capture::quiesced_process::{HeldAllocator, QuiescedProcess};
use crate::capture::report::ReportPage;
use crate::capture::save_error::SaveError;
use crate::capture::save_request::{CleanInspection, SaveRequest};
use crate::capture::scratch::Buffers;
use crate::capture::shared_copies::SharedCopyMemory;
use crate::capture::strategy::{self, BackgroundPlan, Done};
use crate::capture::target::Target;
use crate::capture::write_error::WriteError;
use crate::capture::write_job::WriteJob;
use crate::capture::writer::Ended;
use crate::descriptors::attached;
use crate::descriptors::file_attributes::FileAttributes;
use crate::descriptors::node_files::{CopyBuffer, NodeFiles};
use crate::descriptors::transient;
use crate::descriptors::{self, Descriptors};
use crate::memory::address_space::AddressSpace;
use crate::memory::file_fingerprints::FileFingerprints;
use crate::memory::guards;
use crate::memory::layout::Layout;
use crate::memory::mapping_attributes::{self as mappings};
use crate::memory::maps;
use crate::park::context::{RESTORED, capture};
use crate::park::{Parked, park};
use crate::process::attributes;
use crate::process::rseq;
use crate::process::state::State;
use crate::track::{Prepared, RunningScan, ScanResult, Tracker};
use mend_image::handoff::Context;
use mend_kernel::threads::{BLOCKED_BY_OWN_THREADS, Registration, block_signals, segment_base};
use mend_messages::agent::Saved;
use rustix::fd::{AsFd, AsRawFd};
use std::ffi::c_void;
use std::time::{Duration, Instant};

const PARK_LIMIT: Duration = Duration::from_secs(10);
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// What it takes to write an image in the background.
pub(crate) struct Snapshot {
    pub report_page: ReportPage,
    /// Bytes per second.
    pub rate: Option<u64>,
    /// See [`DirtyCopyMemory`].
    pub dirty_copy_memory: Option<DirtyCopyMemory>,
    /// See [`SharedCopyMemory`].
    pub shared_copy_memory: Option<SharedCopyMemory>,
}

impl Snapshot {
    /// Memory that is not the program's.
    pub fn memory(&self) -> impl Iterator<Item = (u64, u64)> {
        let copies = self.dirty_copy_memory.as_ref().map(DirtyCopyMemory::range);
        [self.report_page.range()].into_iter().chain(copies).chain(self.shared_copy_memory.as_ref().map(SharedCopyMemory::range))
    }
}

/// How [`save`] returns.
pub(crate) enum Outcome {
    /// With what is still being written, if so.
    Saved(Box<Saved>, Box<QuiescedProcess>, Option<Box<BackgroundWriter>>),
    Restored(Box<QuiescedProcess>),
}

/// Takes an image. Returns once here and once in every process restored from it.
pub(crate) fn save(
    request: &mut SaveRequest,
    target: Target,
    fingerprints: &mut FileFingerprints,
    tracker: &mut Tracker,
    mut prepared: Prepared,
    snapshot: Option<Snapshot>,
) -> Result<Outcome, SaveError> {
    // Before anything is stopped: what cannot be saved anyway, and the bulk of what must be on disk.
    let (copy_buffer, space) = match request.clear.take() {
        Some(CleanInspection { written_files, copy_buffer, space }) => {
            descriptors::sync(&written_files);
            (Some(copy_buffer), space)
        }
        None => {
            look_ahead(request)?;
            (None, None)
        }
    };
    let began = Instant::now();
    let (allocator, parked, state, descriptors) = stop(request)?;
    descriptors.sync();
    attached::await_drained(&descriptors.outputs(), DRAIN_LIMIT);
    let registration = Registration::of_this_thread(rseq::area(segment_base(false)));
    let mut quiesced = Box::new(QuiescedProcess {
        context: Context::default(),
        registration,
        parked,
        allocator: Some(allocator),
        descriptors,
        state,
        guards: Vec::new(),
        files: NodeFiles::default(),
        files_kept: request.files_kept,
        file_attributes: FileAttributes::default(),
        policies: Vec::new(),
        layout: Layout::default(),
        space: None,
    });
    let mut proc_files = ProcFiles::open()?;
    let space = AddressSpace::recent_or_new(space, proc_files.maps.as_fd()).map_err(SaveError::address_space)?;
    process_obstacles(None).into_iter().next().map_or(Ok(()), refused)?;
    quiesced.files = NodeFiles::capture(&quiesced.descriptors, &space.areas, copy_buffer.unwrap_or_else(|| CopyBuffer::new(0)))?;
    quiesced.file_attributes = FileAttributes::read(&quiesced.descriptors);
    quiesced.policies = mappings::policies(&space.areas);
    attributes::obstacle(&quiesced.parked).map_or(Ok(()), refused)?;
    // From here on nothing is asked of them.
    quiesced.parked.await_asleep(PARK_LIMIT)?;
    // All that may have taken memory.
    let space = Some(space).filter(|space| space.unchanged_while_quiesced(proc_files.maps.as_fd()).unwrap_or(false));
    quiesced.guards = guards::find(proc_files.pagemap.as_raw_fd(), request.scratch)?;
    prepared.on_quiesced();
    let (target, mut tables) = (Box::new(target.open()?), ImageTables::new(prepared.base)?);
    if let Err(error) = build_until_stable(request, &mut quiesced, fingerprints, &mut proc_files, &mut tables, space) {
        target.discard();
        return Err(error);
    }
    let park_us = began.elapsed().as_micros() as u64;
    let writing = Instant::now();
    if let Some(scan) = &prepared.scan {
        tracker.begin(scan);
    }
    let result = {
        let job = tables.job(target.fd(), &proc_files, &quiesced.layout, prepared.scan);
        // SAFETY: the writer runs alone; its buffers are borrowed nowhere else.
        let buffers = unsafe { request.scratch.buffers(request.compression) };
        let plan = snapshot.as_ref().map(|Snapshot { report_page, rate, dirty_copy_memory, shared_copy_memory }| BackgroundPlan {
            report_page,
            target: &target,
            rate: *rate,
            dirty_copy_memory: dirty_copy_memory.as_ref(),
            shared_copy_memory: shared_copy_memory.as_ref(),
        });
        let stack = request.scratch.other_stack_top();
        let mut call = Call { job: &job, buffers: Some(buffers), plan: plan.as_ref(), stack, result: None };
        let context = &raw mut quiesced.context;
        // SAFETY: the stack is scratch memory of sufficient size; `write_on_scratch` does not unwind and changes nothing but its
        // own stack and, at the end, `call`.
        let returned = unsafe { capture(context, request.scratch.stack_top(), write_on_scratch, (&raw mut call).cast()) };
        if returned == RESTORED { None } else { Some(call.result.unwrap_or(Err(WriteError::Format))) }
    };
    let Some(result) = result else {
        // The restorer blocks all of them, and a context has no mask.
        block_signals(BLOCKED_BY_OWN_THREADS);
        // Descriptors of the saved process: none of these numbers is open here, or it is somebody else's.
        proc_files.forget();
        target.forget();
        std::mem::forget(snapshot);
        return Ok(Outcome::Restored(quiesced));
    };
    drop(proc_files);
    let (base, sequence) = prepared.base.map_or((None, 0), |(base, sequence)| (Some(base), sequence));
    let saved = Saved { id: tables.id(), base, sequence, park_us, note: prepared.note, ..Saved::default() };
    let mut settle = |scanned| {
        if let Some(scan) = &prepared.scan {
            tracker.settle(saved.id, sequence, scan, scanned);
        }
    };
    let elapsed = || writing.elapsed().as_micros() as u64;
    let (Ended { end, spared }, scanned, refused) = match result {
        Ok((Done::Snapshot { copy, shares_memory }, scanned)) => {
            let new = |Snapshot { report_page, dirty_copy_memory, shared_copy_memory, .. }| {
                BackgroundWriter::new(saved.id, copy, report_page, target, dirty_copy_memory.filter(|_| shares_memory), shared_copy_memory)
            };
            let background = snapshot.map(new).map(Box::new);
            settle(&scanned);
            let saved = Box::new(Saved { behind: true, write_us: elapsed(), ..saved });
            return Ok(Outcome::Saved(saved, quiesced, background));
        }
        Ok((Done::Written(ended), scanned)) => (ended, scanned, None),
        Ok((Done::Refused(ended, errno), scanned)) => (ended, scanned, Some(rustix::io::Errno::from_raw_os_error(errno))),
        Err(error) => {
            target.discard();
            return Err(error.into());
        }
    };
    target.commit()?;
    settle(&scanned);
    let refused = refused.map(|why| format!("the program stood still while the image was written: it could not be copied ({why})"));
    let note = joined(refused, saved.note);
    let saved = Saved { bytes: end.bytes, spared, pages: end.pages, checksum: end.stream, write_us: elapsed(), note, ..saved };
    Ok(Outcome::Saved(Box::new(saved), quiesced, None))
}

/// What would stand in the way if the threads were parked now.
fn look_ahead(request: &SaveRequest) -> Result<(), SaveError> {
    let areas = maps::read().map_err(|source| SaveError::Read { what: "/proc/self/maps", source })?;
    let obstacle = process_obstacles(None).into_iter().next();
    // Not once more while the threads stand still: it reads the mappings of all ranks on the node.
    obstacle.or_else(|| shared_with_others(&areas, &request.excluded, None)).map_or(Ok(()), refused)?;
    let mut errors = Vec::new();
    let descriptors = transient::examine(request.attached, &request.own_descriptors, &mut errors);
    if let Some(error) = errors.into_iter().next() {
        return Err(error.into());
    }
    open_in_others(&descriptors, None).map_or(Ok(()), refused)?;
    descriptors.sync();
    NodeFiles::look(&descriptors, &areas).map(drop).map_err(SaveError::from)
}

fn refused((what, hint): (String, &'static str)) -> Result<(), SaveError> {
    Err(SaveError::Obstacle { what, hint })
}

/// Parks all threads and examines what they have; once more, if only transient descriptors stand in the way.
fn stop(request: &SaveRequest) -> Result<(HeldAllocator, Parked, State, Descriptors), SaveError> {
    let until = Instant::now() + transient::WAIT_LIMIT;
    loop {
        let allocator = HeldAllocator::hold();
        let parked = park(PARK_LIMIT)?;
        let state = State::read(&parked).map_err(|source| SaveError::Read { what: "the state of the process", source })?;
        match descriptors::capture(request.attached, &request.own_descriptors, &parked) {
            Err(error) if error.is_transient() && Instant::now() < until => drop(parked),
            result => {
                let descriptors = result?;
                return Ok((allocator, parked, state, descriptors));
            }
        }
        drop(allocator);
        std::thread::sleep(transient::RETRY_INTERVAL);
    }
}

/// Two notes as one.
pub(crate) fn joined(one: Option<String>, other: Option<String>) -> Option<String> {
    [one, other].into_iter().flatten().reduce(|one, other| format!("{one}; {other}"))
}

struct Call<'a> {
    job: &'a WriteJob<'a>,
    buffers: Option<Buffers>,
    plan: Option<&'a BackgroundPlan<'a>>,
    /// End of the stack of another process that writes.
    stack: usize,
    result: Option<Result<(Done, ScanResult), WriteError>>,
}

unsafe extern "C" fn write_on_scratch(call: *mut c_void) -> usize {
    // SAFETY: `save` passes its `Call`, which nobody else uses meanwhile.
    let call = unsafe { &mut *call.cast::<Call>() };
    // The buffers are taken by a copy of the pointers: writing to `call` would change a page that may be stored already.
    // SAFETY: read once; `call.buffers` is never used again, and its parts have no destructors.
    let buffers = unsafe { core::ptr::read(&raw const call.buffers) };
    let result = match buffers {
        Some(buffers) => {
            let write = || {
                let mut running = call.job.begin_scan(buffers.regions, call.plan.is_some());
                let done = strategy::write(call.job, buffers, running.as_mut(), call.plan, call.stack)?;
                // No copy could be made that would do what was left to it.
                let scanned =
                    running.as_ref().map(RunningScan::result).filter(|scanned| matches!(done, Done::Snapshot { .. }) || scanned.complete());
                Ok((done, scanned.unwrap_or_default()))
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).unwrap_or(Err(WriteError::Format))
        }
        None => Err(WriteError::Format),
    };
    call.result = Some(result);
    0
}
