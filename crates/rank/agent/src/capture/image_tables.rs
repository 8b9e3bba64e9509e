//! Image tables: all that an image holds beside memory, read while the threads stand still, and encoded for the writer.

use crate::capture::quiesced_process::QuiescedProcess;
use crate::capture::save_error::SaveError;
use crate::capture::save_request::SaveRequest;
use crate::capture::write_job::WriteJob;
use crate::descriptors::DescriptorError;
use crate::descriptors::kept_files;
use crate::memory::address_space::AddressSpace;
use crate::memory::deleted;
use crate::memory::file_fingerprints::FileFingerprints;
use crate::memory::layout::{Content, Layout};
use crate::memory::maps::{self, Area};
use crate::memory::pages::PAGE;
use crate::process::{self, tasks};
use crate::track::DirtyScan;
use mend_image::cpu::CpuNeeds;
use mend_image::fixed::Fixed;
use mend_image::handoff::MAX_KEPT;
use mend_image::launch::{ROLES, Role};
use mend_image::record::{Kind, Process, Thread, mapping, object, thread};
use mend_image::{Header, put_text};
use mend_kernel::threads::segment_base;
use mend_kernel::{pagemap, processor};
use mend_messages::agent::{ImageId, Welcome};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use xxhash_rust::xxh3::xxh3_64;

/// Files the writer reads. Closed when dropped, forgotten in a restored process.
pub(crate) struct ProcFiles {
    pub pagemap: ManuallyDrop<OwnedFd>,
    memory: ManuallyDrop<OwnedFd>,
    pub maps: ManuallyDrop<OwnedFd>,
    /// Memory objects by index, reopened so that reading them moves nobody's offset.
    held: Vec<(u32, OwnedFd, u64)>,
    forgotten: bool,
}

impl ProcFiles {
    pub fn open() -> Result<Self, SaveError> {
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

    pub fn forget(mut self) {
        self.forgotten = true;
        for (_, descriptor, _) in std::mem::take(&mut self.held) {
            std::mem::forget(descriptor);
        }
    }
}

impl Drop for ProcFiles {
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
pub(crate) struct ImageTables {
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

impl ImageTables {
    /// Empty ones, of an image with a new name that builds on `base`.
    pub fn new(base: Option<(ImageId, u32)>) -> Result<Self, SaveError> {
        Ok(Self { id: image_id()?, base, ..Self::default() })
    }

    /// The image's name.
    pub fn id(&self) -> ImageId {
        ImageId(self.id)
    }

    pub fn job<'a>(
        &'a self,
        out: BorrowedFd<'a>,
        proc_files: &'a ProcFiles,
        layout: &'a Layout,
        scan: Option<DirtyScan>,
    ) -> ManuallyDrop<WriteJob<'a>> {
        ManuallyDrop::new(WriteJob {
            out,
            pagemap: proc_files.pagemap.as_fd(),
            memory: proc_files.memory.as_fd(),
            method: pagemap::probe(proc_files.pagemap.as_raw_fd()),
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
            held: &proc_files.held,
            scan,
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
        // The bytes above are for it.
        let _ = record.encode(&mut bytes[at..]);
    }
    bytes
}

/// Builds the tables. That allocates memory and so changes the address space that they describe, until there is all the memory that it
/// takes. `space` is the address space since the threads stand still, if it has probably not changed.
pub(crate) fn build_until_stable(
    request: &SaveRequest,
    quiesced: &mut QuiescedProcess,
    fingerprints: &mut FileFingerprints,
    proc_files: &mut ProcFiles,
    tables: &mut ImageTables,
    mut space: Option<AddressSpace>,
) -> Result<(), SaveError> {
    for _ in 0..8 {
        let space = space.take().map_or_else(AddressSpace::read, Ok).map_err(SaveError::address_space)?;
        if build(request, quiesced, fingerprints, proc_files, tables, space)? {
            return Ok(());
        }
    }
    Err(SaveError::Unstable)
}

/// Fills the tables. True if the address space is still what they say, so that nothing more may be allocated.
fn build(
    request: &SaveRequest,
    quiesced: &mut QuiescedProcess,
    fingerprints: &mut FileFingerprints,
    proc_files: &mut ProcFiles,
    tables: &mut ImageTables,
    space: AddressSpace,
) -> Result<bool, SaveError> {
    let areas = &space.areas;
    let read = |what| move |source| SaveError::Read { what, source };
    let locked = quiesced.descriptors.locked_files();
    let mut files = fingerprints.files(&locked);
    let planned = Layout::plan(areas, &request.advice, &request.excluded, &mut files);
    if space.recent && (planned.is_err() || files.changed()) {
        // Files may have other names by now.
        return Ok(false);
    }
    let mut layout = planned?;
    let mut process: Process = process::read().map_err(read("/proc/self"))?;
    process.handoff = request.scratch.handoff() as u64;
    let executable = quiesced.state.executable.clone();
    (process.executable, process.executable_length) = layout.text(&executable);
    quiesced.descriptors.link_objects(&mut layout);
    quiesced.files.link_objects(&mut layout);
    if layout.objects.iter().filter(|object| object.flags & object::KEEP != 0).count() > MAX_KEPT {
        return Err(DescriptorError::ManyMemoryFiles.into());
    }
    if request.files_kept && layout.objects.iter().any(|object| object.flags & object::WRITABLE != 0) {
        layout.mark_kept(&kept_files::written(&quiesced.descriptors));
    }
    for plan in layout.plans.iter_mut().filter(|plan| plan.mapping.flags & mapping::SHARED != 0) {
        let held = plan.mapping.object != mapping::NO_OBJECT && layout.objects[plan.mapping.object as usize].flags & object::KEEP != 0;
        if held {
            plan.content = Content::Nothing;
        }
    }
    deleted::share(&mut layout, areas);
    tables.threads = encode_all(threads(quiesced).into_iter());
    tables.volatile = volatile_pages(quiesced);
    tables.objects = encode_all(layout.objects.iter().copied());
    tables.mappings = encode_all(layout.plans.iter().map(|plan| plan.mapping));
    tables.process = encode_all(std::iter::once(process));
    tables.unread = quiesced.descriptors.unread(request.attached)?;
    tables.summary = summary(request, quiesced, &layout);
    let (base, sequence) = tables.base.map_or(([0; 16], 0), |(base, sequence)| (base.0, sequence));
    tables.header = Header { id: tables.id, base, sequence, ..header(request, quiesced, &layout, areas) };
    let lengths = [&layout.strings, &tables.objects, &tables.mappings, &tables.threads, &tables.process];
    tables.header.tables = lengths.iter().map(|table| table.len() as u64).sum();
    quiesced.layout = layout;
    proc_files.held = quiesced.descriptors.held()?;
    quiesced.files.hold(&mut proc_files.held)?;
    // From here on nothing is allocated or freed unless this says that another round is needed.
    let space = quiesced.space.insert(space);
    space.unchanged_while_quiesced(proc_files.maps.as_fd()).map_err(SaveError::address_space)
}

/// The process's first thread comes first.
fn threads(quiesced: &QuiescedProcess) -> Vec<Thread> {
    let process = rustix::process::getpid().as_raw_nonzero().get() as u32;
    let own = Thread {
        tid: rustix::thread::gettid().as_raw_nonzero().get() as u32,
        flags: thread::AGENT,
        context: (&raw const quiesced.context) as u64,
        fs: segment_base(false),
        gs: segment_base(true),
    };
    let mut threads: Vec<Thread> = quiesced
        .parked
        .threads()
        .map(|slot| Thread { tid: slot.tid as u32, flags: 0, context: slot.context(), fs: slot.segments.0, gs: slot.segments.1 })
        .collect();
    threads.push(own);
    threads.sort_by_key(|thread| (thread.tid != process, thread.tid));
    threads
}

/// Pages that the kernel writes to when it likes.
fn volatile_pages(quiesced: &QuiescedProcess) -> Vec<u64> {
    let areas = quiesced.parked.threads().map(|slot| slot.registration.rseq).chain([quiesced.registration.rseq]);
    let mut pages: Vec<u64> = areas.filter(|area| *area != 0).map(|area| area / PAGE * PAGE).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

fn header(request: &SaveRequest, quiesced: &QuiescedProcess, layout: &Layout, areas: &[Area]) -> Header {
    let mut header = Header {
        rank: request.identity.rank,
        size: request.identity.size,
        job: request.identity.job,
        pid: rustix::process::getpid().as_raw_nonzero().get() as u32,
        realtime: clock(rustix::time::ClockId::Realtime),
        monotonic: clock(rustix::time::ClockId::Monotonic),
        boottime: clock(rustix::time::ClockId::Boottime),
        lowest_thread: lowest_thread(quiesced),
        threads: quiesced.parked.threads().count() as u32 + 1,
        mappings: layout.plans.len() as u32,
        zone: layout.zone,
        top_descriptor: quiesced.descriptors.top(),
        roles: quiesced.descriptors.roles(),
        ..Header::default()
    };
    header.set_cpu(&request.cpu.unwrap_or_else(|| processor::detect().needs(request.identity.unused_features)));
    describe_place(&mut header, areas, &quiesced.state.executable);
    header
}

/// What can be said of the image of a process that runs, before it is taken: enough to begin to build it elsewhere.
pub(crate) fn running_header(identity: &Welcome, cpu: &CpuNeeds) -> io::Result<Header> {
    let first = rustix::process::getpid().as_raw_nonzero().get();
    let threads: Vec<i32> = tasks::list()?.iter().filter_map(|task| task.identify()).map(|(tid, _)| tid).collect();
    let areas = maps::read()?;
    let mut header = Header {
        rank: identity.rank,
        size: identity.size,
        job: identity.job,
        pid: first as u32,
        realtime: clock(rustix::time::ClockId::Realtime),
        monotonic: clock(rustix::time::ClockId::Monotonic),
        boottime: clock(rustix::time::ClockId::Boottime),
        lowest_thread: threads.iter().copied().filter(|tid| *tid != first).min().unwrap_or(0) as u32,
        threads: threads.len() as u32,
        mappings: areas.len() as u32,
        // Should the program have memory there by the time it is stopped, the move fails, and it goes on where it is.
        zone: mend_image::free_zone(areas.iter().map(|area| (area.start, area.end))).unwrap_or(0),
        // Whichever the image turns out to have.
        roles: ROLES.into_iter().fold(0, |all, role| all | 1 << role as u32),
        ..Header::default()
    };
    header.set_cpu(cpu);
    describe_place(&mut header, &areas, &std::fs::read_link("/proc/self/exe")?.to_string_lossy());
    Ok(header)
}

/// What the kernel and the node are that it runs on.
fn describe_place(header: &mut Header, areas: &[Area], executable: &str) {
    if let Some(vdso) = areas.iter().find(|area| area.is_vdso()) {
        header.vdso_size = vdso.end - vdso.start;
        // SAFETY: the kernel's vdso is mapped readable for the life of the process.
        header.vdso = xxh3_64(unsafe { core::slice::from_raw_parts(vdso.start as *const u8, header.vdso_size as usize) });
    }
    let names = rustix::system::uname();
    put_text(&mut header.release, mend_messages::RELEASE.as_bytes());
    put_text(&mut header.host, names.nodename().to_bytes());
    put_text(&mut header.kernel, names.release().to_bytes());
    put_text(&mut header.executable, executable.as_bytes());
}

/// Of all threads but the process's first.
fn lowest_thread(quiesced: &QuiescedProcess) -> u32 {
    let first = rustix::process::getpid().as_raw_nonzero().get();
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let all = quiesced.parked.threads().map(|slot| slot.tid).chain([own]);
    all.filter(|tid| *tid != first).min().unwrap_or(0) as u32
}

fn clock(id: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn summary(request: &SaveRequest, quiesced: &QuiescedProcess, layout: &Layout) -> Vec<u8> {
    let files: Vec<&str> = layout
        .objects
        .iter()
        .filter(|object| object.flags & object::FILE != 0)
        .filter_map(|object| std::str::from_utf8(layout.strings.get(object.text as usize..)?.get(..object.text_length as usize)?).ok())
        .collect();
    let value = serde_json::json!({
        "rank": request.identity.rank,
        "executable": quiesced.state.executable,
        "working_directory": quiesced.state.directory,
        "mapped_files": files,
        "descriptors": quiesced.descriptors.describe(),
    });
    value.to_string().into_bytes()
}
