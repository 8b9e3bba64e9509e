//! Gathering all that an image holds beside memory, while the threads stand still: tables for the writer.

use crate::allocator;
use crate::capture::save::{Request, SaveError, Standing};
use crate::capture::write_job::WriteJob;
use crate::memory::deleted;
use crate::memory::layout::{Content, Layout};
use crate::memory::maps::{self, Area};
use crate::memory::pages::PAGE;
use crate::memory::samples::Samples;
use crate::process;
use crate::track::DirtyScan;
use mend_image::cpu::Cpu;
use mend_image::fixed::Fixed;
use mend_image::launch::Role;
use mend_image::record::{Kind, Process, Thread, mapping, object};
use mend_image::{Header, put_text};
use mend_kernel::pagemap;
use mend_kernel::procmap::{self, Mapped};
use mend_kernel::threads::segment_base;
use mend_messages::agent::ImageId;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The address space at one moment: the text of `/proc/self/maps`, and what it says.
pub(crate) struct Space {
    text: Vec<u8>,
    pub areas: Vec<Area>,
    /// What the allocator had changed when it was so.
    changes: Option<u64>,
    /// Names of files are those of a moment when the program ran.
    lately: bool,
}

impl Space {
    /// Reads it.
    pub fn read() -> Result<Self, SaveError> {
        let failed = |source| SaveError::Read { what: "/proc/self/maps", source };
        let changes = allocator::changes();
        let text = maps::text().map_err(failed)?;
        let areas = maps::parse_all(&text).map_err(failed)?;
        Ok(Self { text, areas, changes, lately: false })
    }

    /// The one that was read while the program ran, if the process has the same mappings still; else a new one. The threads stand still.
    pub fn of_lately(space: Option<Self>, maps: BorrowedFd) -> Result<Self, SaveError> {
        let changes = allocator::changes();
        match space {
            Some(space) if space.lasts(maps)? => Ok(Self { changes, lately: true, ..space }),
            _ => Self::read(),
        }
    }

    /// The same as [`Space::lasts`], while the threads stand still: mappings are changed by nothing but the agent's allocator then.
    pub fn lasts_still(&self, maps: BorrowedFd) -> Result<bool, SaveError> {
        let still = self.changes.is_some() && self.changes == allocator::changes();
        debug_assert!(!still || self.lasts(maps).unwrap_or(true));
        if still { Ok(true) } else { self.lasts(maps) }
    }

    /// Whether the process has the same mappings still, as its open `/proc/self/maps` tells. Allocates nothing. What other processes may
    /// change at any time, names of files, is not looked at where mappings can be asked for without.
    pub fn lasts(&self, maps: BorrowedFd) -> Result<bool, SaveError> {
        let mut at = 0;
        for area in self.areas.iter().filter(|area| area.name != "[vsyscall]") {
            let expected = Mapped {
                range: (area.start, area.end),
                protection: area.protection,
                shared: area.shared,
                offset: area.offset,
                identity: area.identity,
            };
            match procmap::at_or_after(maps.as_raw_fd(), at) {
                Ok(Some(found)) if found == expected => at = area.end,
                Ok(_) => return Ok(false),
                Err(_) => return Ok(hash_of(maps)? == xxh3_64(&self.text)),
            }
        }
        Ok(procmap::at_or_after(maps.as_raw_fd(), at) == Ok(None))
    }
}

/// Files the writer reads. Closed when dropped, forgotten in a restored process.
pub(crate) struct Sources {
    pub pagemap: ManuallyDrop<OwnedFd>,
    memory: ManuallyDrop<OwnedFd>,
    pub maps: ManuallyDrop<OwnedFd>,
    /// Memory objects by index, reopened so that reading them moves nobody's offset.
    held: Vec<(u32, OwnedFd, u64)>,
    forgotten: bool,
}

impl Sources {
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
pub(crate) struct Tables {
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
        sources: &'a Sources,
        layout: &'a Layout,
        scan: Option<DirtyScan>,
    ) -> ManuallyDrop<WriteJob<'a>> {
        ManuallyDrop::new(WriteJob {
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
        // The room was made for it.
        let _ = record.encode(&mut bytes[at..]);
    }
    bytes
}

/// Gathering allocates and so changes the address space that it describes, until it finds all the memory it needs. `space` is what it
/// was since the threads stand still, if it is likely to be so still.
pub(crate) fn gather_until_stable(
    request: &Request,
    standing: &mut Standing,
    samples: &mut Samples,
    sources: &mut Sources,
    tables: &mut Tables,
    mut space: Option<Space>,
) -> Result<(), SaveError> {
    for _ in 0..8 {
        let space = space.take().map_or_else(Space::read, Ok)?;
        if gather(request, standing, samples, sources, tables, space)? {
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
    space: Space,
) -> Result<bool, SaveError> {
    let areas = &space.areas;
    let read = |what| move |source| SaveError::Read { what, source };
    let locked = standing.descriptors.locked_files();
    let mut files = samples.files(&locked);
    let planned = Layout::plan(areas, &request.advice, &request.excluded, &mut files);
    if space.lately && (planned.is_err() || files.news()) {
        // Files may have other names by now.
        return Ok(false);
    }
    let mut layout = planned?;
    let mut process: Process = process::read().map_err(read("/proc/self"))?;
    process.handoff = request.scratch.handoff() as u64;
    let executable = standing.state.executable.clone();
    (process.executable, process.executable_length) = layout.text(&executable);
    standing.descriptors.link_objects(&mut layout);
    standing.files.link_objects(&mut layout);
    for plan in layout.plans.iter_mut().filter(|plan| plan.mapping.flags & mapping::SHARED != 0) {
        let held = plan.mapping.object != mapping::NO_OBJECT && layout.objects[plan.mapping.object as usize].flags & object::KEEP != 0;
        if held {
            plan.content = Content::Nothing;
        }
    }
    deleted::share(&mut layout, areas);
    tables.threads = encode_all(threads(standing).into_iter());
    tables.volatile = volatile_pages(standing);
    tables.objects = encode_all(layout.objects.iter().copied());
    tables.mappings = encode_all(layout.plans.iter().map(|plan| plan.mapping));
    tables.process = encode_all(std::iter::once(process));
    tables.unread = standing.descriptors.unread(request.attached)?;
    tables.summary = summary(request, standing, &layout);
    let (base, sequence) = tables.base.map_or(([0; 16], 0), |(base, sequence)| (base.0, sequence));
    tables.header = Header { id: tables.id, base, sequence, ..header(request, standing, &layout, areas) };
    let lengths = [&layout.strings, &tables.objects, &tables.mappings, &tables.threads, &tables.process];
    tables.header.tables = lengths.iter().map(|table| table.len() as u64).sum();
    standing.layout = layout;
    sources.held = standing.descriptors.held()?;
    standing.files.hold(&mut sources.held)?;
    // From here on nothing is allocated or freed unless this says that another round is needed.
    let space = standing.space.insert(space);
    space.lasts_still(sources.maps.as_fd())
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

fn header(request: &Request, standing: &Standing, layout: &Layout, areas: &[Area]) -> Header {
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
    header.set_cpu(&request.cpu.unwrap_or_else(Cpu::detect));
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    #[test]
    fn a_space_lasts_until_a_mapping_changes() {
        // Other tests map what they like meanwhile, so a child whose threads are no more is looked at.
        let none = core::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { mmap_anonymous(none, 3 * PAGE as usize, ProtFlags::READ, MapFlags::PRIVATE) }.unwrap();
        let (first, last) = (page, page.wrapping_byte_add(2 * PAGE as usize));
        // SAFETY: the child makes system calls and allocates by Rust's allocator alone, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let told = std::panic::catch_unwind(|| {
                let maps = File::open("/proc/self/maps").unwrap();
                let mut lasted = Vec::with_capacity(3);
                // To read it takes memory until there is enough.
                let mut read = (0..50).map(|_| Space::read().unwrap());
                let space = read.find(|space| space.lasts(maps.as_fd()).unwrap()).unwrap();
                // Not writable meanwhile: older kernels would remember that, and leave it a mapping of its own.
                // SAFETY: pages of the mapping made above, to which nobody refers.
                unsafe { mprotect(first, PAGE as usize, MprotectFlags::empty()) }.unwrap();
                lasted.push(space.lasts(maps.as_fd()).unwrap());
                // SAFETY: as above.
                unsafe { mprotect(first, PAGE as usize, MprotectFlags::READ) }.unwrap();
                lasted.push(space.lasts(maps.as_fd()).unwrap());
                // SAFETY: as above.
                unsafe { munmap(last, PAGE as usize) }.unwrap();
                lasted.push(space.lasts(maps.as_fd()).unwrap());
                lasted == [false, true, false]
            });
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!told.is_ok_and(|good| good))) };
        }
        let mut status = 0;
        // SAFETY: writes the status of the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        // SAFETY: the mapping made above.
        unsafe { munmap(page, 3 * PAGE as usize) }.unwrap();
    }
}
