//! Taking the image: park, gather, write; and the second life of the same call in a restored process.
//!
//! ```text
//! save ─ freeze allocator ─ park ─ gather ─ capture ┬─ write, or write a part and copy the process ── Saved, threads still parked
//!                                                   └ (later, elsewhere: loaded by the restorer) ── Restored
//! ```
//! From the last look at the address space until the stream is complete nothing is allocated or freed: the tables must
//! describe exactly the memory that is written.

use crate::attached::{self, Attached};
use crate::behind::{self, Behind, Board, Done};
use crate::context::{RESTORED, capture};
use crate::descriptors::{self, Descriptors};
use crate::dirty::{Look, Looking, Prepared, Taken, Tracker};
use crate::guards;
use crate::inspect::{process_obstacles, shared_with_others};
use crate::layout::{Content, Layout, LayoutError};
use crate::node_files::{NodeFileError, NodeFiles};
use crate::park::{ParkError, Parked, park};
use crate::samples::Samples;
use crate::scratch::{Buffers, Scratch};
use crate::staged::Staging;
use crate::state::{State, StateError};
use crate::target::{Target, TargetError};
use crate::writer::{self, Job, PAGE, WriteError};
use crate::{allocator, maps, passing, process, rseq};
use mend_image::cpu::Cpu;
use mend_image::fixed::Fixed;
use mend_image::handoff::Context;
use mend_image::launch::Role;
use mend_image::record::{Kind, Process, Thread, mapping, object};
use mend_image::{Header, put_text};
use mend_kernel::pagemap;
use mend_kernel::threads::{Registration, segment_base};
use mend_messages::agent::{ImageId, Saved, Welcome};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

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

/// Threads parked, allocator ours. Dropping it lets everything run again.
pub(crate) struct Standstill {
    // Order matters: threads are let go before the allocator is.
    _parked: Parked,
    _allocator: Frozen,
}

struct Frozen;

impl Drop for Frozen {
    fn drop(&mut self) {
        allocator::thaw();
    }
}

/// A restored process, before its threads run: everything the agent gathered when it was saved.
pub(crate) struct Standing {
    context: Context,
    registration: Registration,
    parked: Parked,
    frozen: Frozen,
    pub descriptors: Descriptors,
    pub state: State,
    /// Guard pages within mappings (`MADV_GUARD_INSTALL`).
    pub guards: Vec<(u64, u64)>,
    pub files: NodeFiles,
    layout: Layout,
}

impl Standing {
    /// Makes this kernel thread know what the saved one knew, and waits for the others to leave the restorer's code.
    pub fn settle(&self, limit: Duration) -> Result<(), i32> {
        // SAFETY: read from this very thread before it was saved.
        unsafe { self.registration.restore() };
        self.parked.await_arrival(limit)
    }

    /// What must come back last: see [`State::restore_last`].
    pub fn restore_last(&self) -> Result<(), StateError> {
        self.state.restore_last(&self.parked)
    }

    pub fn into_standstill(self) -> Standstill {
        Standstill { _parked: self.parked, _allocator: self.frozen }
    }
}

/// A copy of the process is to write behind the program.
pub(crate) struct Snapshot {
    pub board: Board,
    /// Bytes per second.
    pub rate: Option<u64>,
    /// Made ready for copies of what changed.
    pub staging: Option<Staging>,
}

impl Snapshot {
    /// Memory that is not the program's.
    pub fn memory(&self) -> impl Iterator<Item = (u64, u64)> {
        [self.board.range()].into_iter().chain(self.staging.as_ref().map(Staging::range))
    }
}

/// How [`save`] returns.
pub(crate) enum Outcome {
    /// With what is still being written, if so.
    Saved(Box<Saved>, Standstill, Option<Box<Behind>>),
    Restored(Box<Standing>),
}

/// Takes an image. Returns once here and once in every process restored from it.
pub(crate) fn save(
    request: &Request,
    target: Target,
    samples: &mut Samples,
    tracker: &mut Tracker,
    mut prepared: Prepared,
    snapshot: Option<Snapshot>,
) -> Result<Outcome, SaveError> {
    // Before anything is stopped: what cannot be saved anyway, and the bulk of what must be on disk.
    let areas = maps::read().map_err(|source| SaveError::Read { what: "/proc/self/maps", source })?;
    if let Some((what, hint)) = process_obstacles(None).into_iter().next().or_else(|| shared_with_others(&areas, &request.excluded, None)) {
        return Err(SaveError::Obstacle { what, hint });
    }
    let mut errors = Vec::new();
    let descriptors = passing::examine(request.attached, &request.own_descriptors, &mut errors);
    if let Some(error) = errors.into_iter().next() {
        return Err(error.into());
    }
    descriptors.sync();
    if let Some(error) = NodeFiles::obstacle(&descriptors, &areas) {
        return Err(error.into());
    }
    let began = Instant::now();
    let (frozen, parked, state, descriptors) = stop(request)?;
    descriptors.sync();
    let outputs: Vec<BorrowedFd> = descriptors.outputs().collect();
    attached::await_drained(&outputs, DRAIN_LIMIT);
    let registration = Registration::of_this_thread(rseq::area(segment_base(false)));
    let mut standing = Box::new(Standing {
        context: Context::default(),
        registration,
        parked,
        frozen,
        descriptors,
        state,
        guards: Vec::new(),
        files: NodeFiles::default(),
        layout: Layout::default(),
    });
    standing.files = NodeFiles::capture(&standing.descriptors)?;
    let mut sources = Sources::open()?;
    standing.guards = guards::find(sources.pagemap.as_raw_fd(), request.scratch)?;
    prepared.stand_still();
    let (target, mut tables) = (Box::new(target.open()?), Tables { id: image_id()?, base: prepared.base, ..Tables::default() });
    if let Err(error) = gather_until_stable(request, &mut standing, samples, &mut sources, &mut tables) {
        target.discard();
        return Err(error);
    }
    let park_us = began.elapsed().as_micros() as u64;
    let writing = Instant::now();
    if let Some(look) = &prepared.look {
        tracker.begin(look);
    }
    let result = {
        let job = tables.job(target.fd(), &sources, &standing.layout, prepared.look);
        // SAFETY: the writer runs alone; its buffers are borrowed nowhere else.
        let buffers = unsafe { request.scratch.buffers() };
        let plan = snapshot.as_ref().map(|Snapshot { board, rate, staging }| behind::Plan {
            board,
            target: &target,
            rate: *rate,
            staging: staging.as_ref(),
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
    let saved = Saved { id: ImageId(tables.header.id), base, sequence, park_us, note: prepared.note, ..Saved::default() };
    let mut settle = |taken| {
        if let Some(look) = &prepared.look {
            tracker.settle(saved.id, sequence, look, taken);
        }
    };
    let elapsed = || writing.elapsed().as_micros() as u64;
    let (end, taken, refused) = match result {
        Ok((Done::Snapshot(copy, shares), taken)) => {
            let new = |Snapshot { board, staging, .. }| Behind::new(saved.id, copy, board, target, staging.filter(|_| shares));
            let behind = snapshot.map(new).map(Box::new);
            settle(&taken);
            let saved = Box::new(Saved { behind: true, write_us: elapsed(), ..saved });
            return Ok(Outcome::Saved(saved, standing.into_standstill(), behind));
        }
        Ok((Done::Written(end), taken)) => (end, taken, None),
        Ok((Done::Refused(end, errno), taken)) => (end, taken, Some(rustix::io::Errno::from_raw_os_error(errno))),
        Err(error) => {
            target.discard();
            return Err(error.into());
        }
    };
    target.commit()?;
    settle(&taken);
    let refused = refused.map(|why| format!("the program stood still while the image was written: it could not be copied ({why})"));
    let note = joined(refused, saved.note);
    let saved = Saved { bytes: end.bytes, pages: end.pages, checksum: end.stream, write_us: elapsed(), note, ..saved };
    Ok(Outcome::Saved(Box::new(saved), standing.into_standstill(), None))
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
        match descriptors::capture(request.attached, &request.own_descriptors) {
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
    job: &'a Job<'a>,
    buffers: Option<Buffers>,
    plan: Option<&'a behind::Plan<'a>>,
    /// End of the stack of another process that writes.
    stack: usize,
    result: Option<Result<(Done, Taken), WriteError>>,
}

unsafe extern "C" fn write_on_scratch(call: *mut c_void) -> usize {
    // SAFETY: `save` passes its `Call`, which nobody else uses meanwhile.
    let call = unsafe { &mut *call.cast::<Call>() };
    // The buffers are taken by a copy of the pointers: writing to `call` would change a page that may be stored already.
    // SAFETY: read once; `call.buffers` is never used again, and its parts have no destructors.
    let buffers = unsafe { core::ptr::read(&raw const call.buffers) };
    let result = match buffers {
        Some(mut buffers) => {
            let write = || {
                let mut looking = writer::look(call.job, &mut buffers, call.plan.is_none());
                let done = behind::write(call.job, buffers, looking.as_mut(), call.plan, call.stack)?;
                Ok((done, looking.as_ref().map_or_else(Taken::default, Looking::taken)))
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).unwrap_or(Err(WriteError::Format))
        }
        None => Err(WriteError::Format),
    };
    call.result = Some(result);
    0
}

/// Files the writer reads. Closed when dropped, forgotten in a restored process.
struct Sources {
    pagemap: ManuallyDrop<OwnedFd>,
    memory: ManuallyDrop<OwnedFd>,
    maps: ManuallyDrop<OwnedFd>,
    /// Memory objects by index, reopened so that reading them moves nobody's offset.
    held: Vec<(u32, OwnedFd, u64)>,
    forgotten: bool,
}

impl Sources {
    fn open() -> Result<Self, SaveError> {
        let open = |path: &'static str| {
            File::open(path).map(|file| ManuallyDrop::new(OwnedFd::from(file))).map_err(|source| SaveError::Read { what: path, source })
        };
        Ok(Self {
            pagemap: open("/proc/self/pagemap")?,
            memory: open("/proc/self/mem")?,
            maps: open("/proc/self/maps")?,
            held: Vec::new(),
            forgotten: false,
        })
    }

    fn forget(mut self) {
        self.forgotten = true;
        for (_, descriptor, _) in std::mem::take(&mut self.held) {
            std::mem::forget(descriptor);
        }
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        if !self.forgotten {
            for descriptor in [&mut self.pagemap, &mut self.memory, &mut self.maps] {
                // SAFETY: dropped once, here; not used afterwards.
                unsafe { ManuallyDrop::drop(descriptor) };
            }
        }
    }
}

/// Encoded tables.
#[derive(Default)]
struct Tables {
    id: [u8; 16],
    base: Option<(ImageId, u32)>,
    header: Header,
    objects: Vec<u8>,
    mappings: Vec<u8>,
    threads: Vec<u8>,
    process: Vec<u8>,
    unread: Vec<(Role, Vec<u8>)>,
    summary: Vec<u8>,
    volatile: Vec<u64>,
}

impl Tables {
    fn job<'a>(&'a self, out: BorrowedFd<'a>, sources: &'a Sources, layout: &'a Layout, look: Option<Look>) -> ManuallyDrop<Job<'a>> {
        ManuallyDrop::new(Job {
            out,
            pagemap: sources.pagemap.as_fd(),
            memory: sources.memory.as_fd(),
            method: pagemap::probe(sources.pagemap.as_raw_fd()),
            header: self.header.to_bytes(),
            tables: [
                (Kind::Strings, &layout.strings),
                (Kind::Objects, &self.objects),
                (Kind::Mappings, &self.mappings),
                (Kind::Threads, &self.threads),
                (Kind::Process, &self.process),
            ],
            unread: &self.unread,
            summary: &self.summary,
            plans: &layout.plans,
            volatile: &self.volatile,
            held: &sources.held,
            look,
        })
    }
}

/// A name for an image, from the kernel's randomness.
fn image_id() -> Result<[u8; 16], SaveError> {
    let mut id = [0; 16];
    match rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => Ok(id),
        Ok(_) => Err(SaveError::Read { what: "the kernel's random numbers", source: io::ErrorKind::UnexpectedEof.into() }),
        Err(errno) => Err(SaveError::Read { what: "the kernel's random numbers", source: errno.into() }),
    }
}

fn encode_all<T: Fixed>(records: impl Iterator<Item = T>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        let at = bytes.len();
        bytes.resize(at + T::SIZE, 0);
        // The room was made for it.
        let _ = record.encode(&mut bytes[at..]);
    }
    bytes
}

/// Gathering allocates and so changes the address space that it describes, until it finds all the memory it needs.
fn gather_until_stable(
    request: &Request,
    standing: &mut Standing,
    samples: &mut Samples,
    sources: &mut Sources,
    tables: &mut Tables,
) -> Result<(), SaveError> {
    for _ in 0..8 {
        if gather(request, standing, samples, sources, tables)? {
            return Ok(());
        }
    }
    Err(SaveError::Unstable)
}

/// Fills the tables. True if the address space is still what they say, so that nothing more may be allocated.
fn gather(
    request: &Request,
    standing: &mut Standing,
    samples: &mut Samples,
    sources: &mut Sources,
    tables: &mut Tables,
) -> Result<bool, SaveError> {
    let read = |what| move |source| SaveError::Read { what, source };
    let text = std::fs::read("/proc/self/maps").map_err(read("/proc/self/maps"))?;
    let areas = maps::parse_all(&text).map_err(read("/proc/self/maps"))?;
    let mut layout = Layout::plan(&areas, &request.advice, &request.excluded, &mut samples.files(&standing.descriptors.locked_files()))?;
    let mut process: Process = process::read().map_err(read("/proc/self"))?;
    process.handoff = request.scratch.handoff() as u64;
    let executable = standing.state.executable.clone();
    (process.executable, process.executable_length) = layout.text(&executable);
    standing.descriptors.link_objects(&mut layout);
    standing.files.link_objects(&mut layout);
    for plan in &mut layout.plans {
        let held = plan.mapping.object != mapping::NO_OBJECT && layout.objects[plan.mapping.object as usize].flags & object::KEEP != 0;
        if held {
            plan.content = Content::Nothing;
        }
    }
    tables.threads = encode_all(threads(standing).into_iter());
    tables.volatile = volatile_pages(standing);
    tables.objects = encode_all(layout.objects.iter().copied());
    tables.mappings = encode_all(layout.plans.iter().map(|plan| plan.mapping));
    tables.process = encode_all(std::iter::once(process));
    tables.unread = standing.descriptors.unread(request.attached)?;
    tables.summary = summary(request, standing, &layout);
    let (base, sequence) = tables.base.map_or(([0; 16], 0), |(base, sequence)| (base.0, sequence));
    tables.header = Header { id: tables.id, base, sequence, ..header(request, standing, &layout, &areas) };
    let lengths = [&layout.strings, &tables.objects, &tables.mappings, &tables.threads, &tables.process];
    tables.header.tables = lengths.iter().map(|table| table.len() as u64).sum();
    standing.layout = layout;
    sources.held = standing.descriptors.held()?;
    standing.files.hold(&mut sources.held)?;
    drop(areas);
    // From here on nothing is allocated or freed unless this says that another round is needed. The text stays alive until then.
    let unchanged = hash_of(sources.maps.as_fd())? == xxh3_64(&text);
    if unchanged {
        std::mem::forget(text);
    }
    Ok(unchanged)
}

/// Reads a `/proc` file from its start without allocating.
fn hash_of(file: BorrowedFd) -> Result<u64, SaveError> {
    let mut hash = Xxh3::new();
    let (mut at, mut buffer) = (0, [0; 16 << 10]);
    loop {
        match rustix::io::pread(file, &mut buffer, at) {
            Ok(0) => return Ok(hash.digest()),
            Ok(count) => {
                hash.update(&buffer[..count]);
                at += count as u64;
            }
            Err(error) => return Err(SaveError::Read { what: "/proc/self/maps", source: error.into() }),
        }
    }
}

/// The process's first thread comes first.
fn threads(standing: &Standing) -> Vec<Thread> {
    let process = rustix::process::getpid().as_raw_nonzero().get() as u32;
    let own = Thread {
        tid: rustix::thread::gettid().as_raw_nonzero().get() as u32,
        reserved: 0,
        context: (&raw const standing.context) as u64,
        fs: segment_base(false),
        gs: segment_base(true),
    };
    let mut threads: Vec<Thread> = standing
        .parked
        .threads()
        .map(|slot| Thread { tid: slot.tid as u32, reserved: 0, context: slot.context(), fs: slot.segments.0, gs: slot.segments.1 })
        .collect();
    threads.push(own);
    threads.sort_by_key(|thread| (thread.tid != process, thread.tid));
    threads
}

/// Pages that the kernel writes to when it likes.
fn volatile_pages(standing: &Standing) -> Vec<u64> {
    let areas = standing.parked.threads().map(|slot| slot.registration.rseq).chain([standing.registration.rseq]);
    let mut pages: Vec<u64> = areas.filter(|area| *area != 0).map(|area| area / PAGE * PAGE).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

fn header(request: &Request, standing: &Standing, layout: &Layout, areas: &[maps::Area]) -> Header {
    let mut header = Header {
        rank: request.identity.rank,
        size: request.identity.size,
        job: request.identity.job,
        pid: rustix::process::getpid().as_raw_nonzero().get() as u32,
        realtime: clock(rustix::time::ClockId::Realtime),
        monotonic: clock(rustix::time::ClockId::Monotonic),
        boottime: clock(rustix::time::ClockId::Boottime),
        lowest_thread: lowest_thread(standing),
        threads: standing.parked.threads().count() as u32 + 1,
        mappings: layout.plans.len() as u32,
        top_descriptor: standing.descriptors.top(),
        roles: standing.descriptors.roles(),
        ..Header::default()
    };
    header.set_cpu(&Cpu::detect());
    if let Some(vdso) = areas.iter().find(|area| area.is_vdso()) {
        header.vdso_size = vdso.end - vdso.start;
        // SAFETY: the kernel's vdso is mapped readable for the life of the process.
        header.vdso = xxh3_64(unsafe { core::slice::from_raw_parts(vdso.start as *const u8, header.vdso_size as usize) });
    }
    let names = rustix::system::uname();
    put_text(&mut header.release, mend_messages::RELEASE.as_bytes());
    put_text(&mut header.host, names.nodename().to_bytes());
    put_text(&mut header.kernel, names.release().to_bytes());
    put_text(&mut header.executable, standing.state.executable.as_bytes());
    header
}

/// Of all threads but the process's first.
fn lowest_thread(standing: &Standing) -> u32 {
    let first = rustix::process::getpid().as_raw_nonzero().get();
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let all = standing.parked.threads().map(|slot| slot.tid).chain([own]);
    all.filter(|tid| *tid != first).min().unwrap_or(0) as u32
}

fn clock(id: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn summary(request: &Request, standing: &Standing, layout: &Layout) -> Vec<u8> {
    let files: Vec<&str> = layout
        .objects
        .iter()
        .filter(|object| object.flags & object::FILE != 0)
        .filter_map(|object| std::str::from_utf8(layout.strings.get(object.text as usize..)?.get(..object.text_length as usize)?).ok())
        .collect();
    let value = serde_json::json!({
        "rank": request.identity.rank,
        "executable": standing.state.executable,
        "working_directory": standing.state.directory,
        "mapped_files": files,
        "descriptors": standing.descriptors.describe(),
    });
    value.to_string().into_bytes()
}
