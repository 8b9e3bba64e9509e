//! Taking the image: park, gather, write; and the second life of the same call in a restored process.
//!
//! ```text
//! save ─ freeze allocator ─ park ─ gather ─ capture ┬─ write, or write a part and copy the process ── Saved, threads still parked
//!                                                   └ (later, elsewhere: loaded by the restorer) ── Restored
//! ```
//! From the last look at the address space until the stream is complete nothing is allocated or freed: the tables must
//! describe exactly the memory that is written.

use crate::allocator;
use crate::capture::background_writer::{self, BackgroundPlan, BackgroundWriter, Done};
use crate::capture::dirty_copies::DirtyCopyMemory;
use crate::capture::gather::{Sources, Space, Tables, gather_until_stable};
use crate::capture::inspect::{process_obstacles, shared_with_others};
use crate::capture::report::ReportPage;
use crate::capture::scratch::{Buffers, Scratch};
use crate::capture::shared_copies::SharedCopyMemory;
use crate::capture::target::{Target, TargetError};
use crate::capture::write_error::WriteError;
use crate::capture::write_job::WriteJob;
use crate::descriptors::attached::{self, Attached};
use crate::descriptors::file_attributes::FileAttributes;
use crate::descriptors::node_files::{CopyBuffer, NodeFileError, NodeFiles};
use crate::descriptors::passing;
use crate::descriptors::{self, Descriptors};
use crate::memory::guards;
use crate::memory::layout::{Layout, LayoutError};
use crate::memory::mapping_attributes::{self as mappings, Policy};
use crate::memory::maps;
use crate::memory::samples::Samples;
use crate::park::context::{RESTORED, capture};
use crate::park::{ParkError, Parked, park};
use crate::process::attributes;
use crate::process::rseq;
use crate::process::state::{State, StateError};
use crate::track::{Prepared, RunningScan, ScanResult, Tracker};
use mend_image::cpu::Cpu;
use mend_image::handoff::Context;
use mend_kernel::threads::{Registration, segment_base};
use mend_messages::agent::{Saved, Welcome};
use rustix::fd::{AsFd, AsRawFd};
use std::ffi::c_void;
use std::io;
use std::time::{Duration, Instant};

const PARK_LIMIT: Duration = Duration::from_secs(10);
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// What a save needs to know of the agent.
pub(crate) struct Request<'a> {
    pub scratch: &'a Scratch,
    pub attached: &'a Attached,
    pub identity: &'a Welcome,
    /// Descriptors of agent and fabric: not part of the program.
    pub own_descriptors: Vec<i32>,
    /// Memory of fabric and agent that is not saved.
    pub excluded: Vec<(u64, u64)>,
    /// What `smaps` said lately.
    pub advice: maps::Advice,
    /// The processor, if it was asked lately: on a virtual machine that takes half a millisecond.
    pub cpu: Option<Cpu>,
    /// Nothing stood in the way lately; what has come since is found when the threads stand still.
    pub clear: Option<Clear>,
    /// See [`mend_messages::agent::SaveOrder::files_kept`].
    pub files_kept: bool,
}

/// A look at the process that found nothing in the way.
pub(crate) struct Clear {
    /// Numbers of the files that the program writes to.
    pub written_files: Vec<i32>,
    /// For copies of what lies in `/dev/shm`.
    pub copy_buffer: CopyBuffer,
    /// The last thing that was looked at.
    pub space: Option<Space>,
}

/// Why an image could not be taken. The program runs on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error(transparent)]
    Park(#[from] ParkError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Descriptor(#[from] descriptors::DescriptorError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    NodeFile(#[from] NodeFileError),
    #[error("{what} cannot be read: {source}")]
    Read { what: &'static str, source: io::Error },
    #[error("the address space keeps changing")]
    Unstable,
    #[error("{what}")]
    Obstacle { what: String, hint: &'static str },
}

impl SaveError {
    pub fn hint(&self) -> &'static str {
        match self {
            SaveError::Park(_) => "try again; if it persists, look at what that thread does (`mend explain`)",
            SaveError::Layout(error) => error.hint(),
            SaveError::Descriptor(error) => error.hint(),
            SaveError::NodeFile(error) => error.hint(),
            SaveError::Target(_) => "name a directory for checkpoints that all nodes share, with --checkpoint-dir, or make room in it",
            SaveError::Write(_) => "look at space and quota of the target, or at the node that receives",
            SaveError::Read { .. } => "the rank needs a readable /proc; a setuid or non-dumpable program has none",
            SaveError::Unstable => "try again",
            SaveError::Obstacle { hint, .. } => hint,
        }
    }
}

struct Frozen;

impl Drop for Frozen {
    fn drop(&mut self) {
        allocator::thaw();
    }
}

/// A process whose threads are parked, its allocator ours, with everything the agent gathered when it was saved, here or in a former
/// life. Dropping it lets everything run again.
pub(crate) struct Standing {
    pub context: Context,
    pub registration: Registration,
    // Order matters: threads are let go before the allocator is.
    pub parked: Parked,
    frozen: Option<Frozen>,
    pub descriptors: Descriptors,
    pub state: State,
    /// Guard pages within mappings (`MADV_GUARD_INSTALL`).
    pub guards: Vec<(u64, u64)>,
    pub files: NodeFiles,
    /// Others put the program's files back before this process comes out of its image.
    pub files_kept: bool,
    pub file_attributes: FileAttributes,
    pub policies: Vec<Policy>,
    pub layout: Layout,
    /// What the layout was made of: not to be freed before the image is complete.
    pub space: Option<Space>,
}

impl Standing {
    /// Makes this kernel thread know what the saved one knew, and waits for the others to leave the restorer's code.
    pub fn settle(&self, limit: Duration) -> Result<(), i32> {
        // The agent's own thread asks for nothing.
        // SAFETY: read from this very thread before it was saved.
        let _ = unsafe { self.registration.restore() };
        self.parked.await_arrival(limit)
    }

    /// What must come back last: see [`State::restore_last`].
    pub fn restore_last(&self) -> Result<(), StateError> {
        self.state.restore_last(&self.parked)
    }

    /// Lets everything run again. Dropping it then waits until the threads do.
    pub fn release(&mut self) {
        self.parked.release();
        self.frozen = None;
    }
}

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
    Saved(Box<Saved>, Box<Standing>, Option<Box<BackgroundWriter>>),
    Restored(Box<Standing>),
}

/// Takes an image. Returns once here and once in every process restored from it.
pub(crate) fn save(
    request: &mut Request,
    target: Target,
    samples: &mut Samples,
    tracker: &mut Tracker,
    mut prepared: Prepared,
    snapshot: Option<Snapshot>,
) -> Result<Outcome, SaveError> {
    // Before anything is stopped: what cannot be saved anyway, and the bulk of what must be on disk.
    let (copy_buffer, space) = match request.clear.take() {
        Some(Clear { written_files, copy_buffer, space }) => {
            descriptors::sync(&written_files);
            (Some(copy_buffer), space)
        }
        None => {
            look_ahead(request)?;
            (None, None)
        }
    };
    let began = Instant::now();
    let (frozen, parked, state, descriptors) = stop(request)?;
    descriptors.sync();
    attached::await_drained(&descriptors.outputs(), DRAIN_LIMIT);
    let registration = Registration::of_this_thread(rseq::area(segment_base(false)));
    let mut standing = Box::new(Standing {
        context: Context::default(),
        registration,
        parked,
        frozen: Some(frozen),
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
    let mut sources = Sources::open()?;
    let space = Space::of_lately(space, sources.maps.as_fd())?;
    process_obstacles(None).into_iter().next().map_or(Ok(()), refused)?;
    standing.files = NodeFiles::capture(&standing.descriptors, &space.areas, copy_buffer.unwrap_or_else(|| CopyBuffer::new(0)))?;
    standing.file_attributes = FileAttributes::read(&standing.descriptors);
    standing.policies = mappings::policies(&space.areas);
    attributes::obstacle(&standing.parked).map_or(Ok(()), refused)?;
    // All that may have taken memory.
    let space = Some(space).filter(|space| space.lasts_still(sources.maps.as_fd()).unwrap_or(false));
    standing.guards = guards::find(sources.pagemap.as_raw_fd(), request.scratch)?;
    prepared.on_quiesced();
    let (target, mut tables) = (Box::new(target.open()?), Tables::new(prepared.base)?);
    if let Err(error) = gather_until_stable(request, &mut standing, samples, &mut sources, &mut tables, space) {
        target.discard();
        return Err(error);
    }
    let park_us = began.elapsed().as_micros() as u64;
    let writing = Instant::now();
    if let Some(scan) = &prepared.scan {
        tracker.begin(scan);
    }
    let result = {
        let job = tables.job(target.fd(), &sources, &standing.layout, prepared.scan);
        // SAFETY: the writer runs alone; its buffers are borrowed nowhere else.
        let buffers = unsafe { request.scratch.buffers() };
        let plan = snapshot.as_ref().map(|Snapshot { report_page, rate, dirty_copy_memory, shared_copy_memory }| BackgroundPlan {
            report_page,
            target: &target,
            rate: *rate,
            dirty_copy_memory: dirty_copy_memory.as_ref(),
            shared_copy_memory: shared_copy_memory.as_ref(),
        });
        let stack = request.scratch.other_stack_top();
        let mut call = Call { job: &job, buffers: Some(buffers), plan: plan.as_ref(), stack, result: None };
        let context = &raw mut standing.context;
        // SAFETY: the stack is scratch memory of sufficient size; `write_on_scratch` does not unwind and changes nothing but its
        // own stack and, at the end, `call`.
        let returned = unsafe { capture(context, request.scratch.stack_top(), write_on_scratch, (&raw mut call).cast()) };
        if returned == RESTORED { None } else { Some(call.result.unwrap_or(Err(WriteError::Format))) }
    };
    let Some(result) = result else {
        // Descriptors of the saved process: none of these numbers is open here, or it is somebody else's.
        sources.forget();
        target.forget();
        std::mem::forget(snapshot);
        return Ok(Outcome::Restored(standing));
    };
    drop(sources);
    let (base, sequence) = prepared.base.map_or((None, 0), |(base, sequence)| (Some(base), sequence));
    let saved = Saved { id: tables.id(), base, sequence, park_us, note: prepared.note, ..Saved::default() };
    let mut settle = |scanned| {
        if let Some(scan) = &prepared.scan {
            tracker.settle(saved.id, sequence, scan, scanned);
        }
    };
    let elapsed = || writing.elapsed().as_micros() as u64;
    let (end, scanned, refused) = match result {
        Ok((Done::Snapshot(copy, shares), scanned)) => {
            let new = |Snapshot { report_page, dirty_copy_memory, shared_copy_memory, .. }| {
                BackgroundWriter::new(saved.id, copy, report_page, target, dirty_copy_memory.filter(|_| shares), shared_copy_memory)
            };
            let background = snapshot.map(new).map(Box::new);
            settle(&scanned);
            let saved = Box::new(Saved { behind: true, write_us: elapsed(), ..saved });
            return Ok(Outcome::Saved(saved, standing, background));
        }
        Ok((Done::Written(end), scanned)) => (end, scanned, None),
        Ok((Done::Refused(end, errno), scanned)) => (end, scanned, Some(rustix::io::Errno::from_raw_os_error(errno))),
        Err(error) => {
            target.discard();
            return Err(error.into());
        }
    };
    target.commit()?;
    settle(&scanned);
    let refused = refused.map(|why| format!("the program stood still while the image was written: it could not be copied ({why})"));
    let note = joined(refused, saved.note);
    let saved = Saved { bytes: end.bytes, pages: end.pages, checksum: end.stream, write_us: elapsed(), note, ..saved };
    Ok(Outcome::Saved(Box::new(saved), standing, None))
}

/// What would stand in the way if the threads were parked now.
fn look_ahead(request: &Request) -> Result<(), SaveError> {
    let areas = maps::read().map_err(|source| SaveError::Read { what: "/proc/self/maps", source })?;
    let obstacle = process_obstacles(None).into_iter().next();
    // Not once more while the threads stand still: it reads the mappings of all ranks on the node.
    obstacle.or_else(|| shared_with_others(&areas, &request.excluded, None)).map_or(Ok(()), refused)?;
    let mut errors = Vec::new();
    let descriptors = passing::examine(request.attached, &request.own_descriptors, &mut errors);
    if let Some(error) = errors.into_iter().next() {
        return Err(error.into());
    }
    descriptors.sync();
    NodeFiles::look(&descriptors, &areas).map(drop).map_err(SaveError::from)
}

fn refused((what, hint): (String, &'static str)) -> Result<(), SaveError> {
    Err(SaveError::Obstacle { what, hint })
}

/// Parks all threads and looks at what they have; once more, if that is something which passes.
fn stop(request: &Request) -> Result<(Frozen, Parked, State, Descriptors), SaveError> {
    let until = Instant::now() + passing::PATIENCE;
    loop {
        allocator::freeze();
        let frozen = Frozen;
        let parked = park(PARK_LIMIT)?;
        let state = State::read(&parked).map_err(|source| SaveError::Read { what: "the state of the process", source })?;
        parked.await_asleep(PARK_LIMIT)?;
        match descriptors::capture(request.attached, &request.own_descriptors, &parked) {
            Err(error) if error.passes() && Instant::now() < until => drop(parked),
            result => {
                let descriptors = result?;
                return Ok((frozen, parked, state, descriptors));
            }
        }
        drop(frozen);
        std::thread::sleep(passing::PAUSE);
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
                let done = background_writer::write(call.job, buffers, running.as_mut(), call.plan, call.stack)?;
                // No copy could be made that would do what was left to it.
                let scanned =
                    running.as_ref().map(RunningScan::result).filter(|scanned| matches!(done, Done::Snapshot(..)) || scanned.complete());
                Ok((done, scanned.unwrap_or_default()))
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).unwrap_or(Err(WriteError::Format))
        }
        None => Err(WriteError::Format),
    };
    call.result = Some(result);
    0
}
