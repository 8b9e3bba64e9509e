//! `mend-restorer`: turns itself into a saved rank.
//!
//! Freestanding (no libc, no std, linked at an address that no program uses), because it takes its own address space
//! apart while it runs. Started by the daemon's rank supervisor, as `mend_image::launch` describes:
//!
//! ```text
//! mend-restorer --image-fd A[,A…] --control-fd B --agent-fd C [--attach stdin|stdout|stderr|pmi=FD]… --mode restart|migrate
//! ```
//! * Its pid must be `Header::pid`, its PID namespace must have that image's thread ids free, and it needs
//!   `CAP_CHECKPOINT_RESTORE` (or `CAP_SYS_ADMIN`) over that namespace. `CLOCK_MONOTONIC` must not be behind the header's.
//! * A: the stream, read in order up to its end record; then the images that it builds on, newest first. B: statuses out, the go byte in. C: becomes the agent's connection.
//! * `--attach` hands over the program's standard streams and PMI socket; absent ones become `/dev/null`.
//! * All other inherited descriptors are closed. Signal mask and dispositions do not matter.
//! * Exit code 1 after `Failed`, or when B ends before the go byte; otherwise the process becomes the rank and its exit
//!   code is the rank's.
//!
//! Where rounds precede the image (`mend_image::rounds`: the process still runs elsewhere), A is a socket; its memory is received first, and
//! then the image, whose header is read anew.
//!
//! With `--in-place` it has been mapped into a living process, which goes back to an image ([`in_place`]).
//!
//! Order (what deals with the image is `mend-restore`'s): read the tables and check everything that can be checked (processor, vdso, mapped files) while still whole;
//! leave the old address space; map; fill; protect; make threads; say `Ready`; wait; jump. The stream is untrusted:
//! lengths, addresses and order are bounded, and a checksum is compared before anything of a record is relied on. (What a
//! valid image makes the process do is, of course, up to the image; it is readable and writable by its owner alone.)

#![no_std]
#![no_main]

mod clone;
mod companion;
mod counter;
mod credentials;
mod in_place;
mod inherited;
mod memory;
mod own;
mod report;
mod threads;
mod zone;

use crate::companion::Help;
use crate::own::Space;
use crate::report::{await_go, fail, or_fail, status};
use crate::zone::ARENA;
use core::format_args as text;
use mend_image::Header;
use mend_image::handoff::{HANDOFF_MAGIC, Handoff, Kept, MAX_KEPT};
use mend_image::launch::{Arguments, Failure, Mode, ROLES, Status};
use mend_image::record::{MAX_PAGES, Process};
use mend_restore::fill::{Resources, fill};
use mend_restore::rounds::{fill_rest, receive};
use mend_restore::space::Building;
use mend_restore::stream::{Progress, Record, Stream};
use mend_restore::sys;
use mend_restore::tables::Tables;
use xxhash_rust::xxh3::xxh3_64;

const STACK: usize = 256 << 10;

static PROGRESS: Progress = Progress::new();

#[repr(C, align(4096))]
struct Stack(core::cell::UnsafeCell<[u8; STACK]>);
// SAFETY: used by the first thread alone, as its stack.
unsafe impl Sync for Stack {}
static STACK_MEMORY: Stack = Stack(core::cell::UnsafeCell::new([0; STACK]));

/// Leaves the stack that the kernel made, which is unmapped later. A thread that waits in a living process has an argument count of zero, and
/// keeps its stack ([`in_place`]).
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    core::arch::naked_asm!(
        "mov rdi, rsp",
        "xor ebp, ebp",
        "cmp qword ptr [rdi], 0",
        "je 2f",
        "lea rsp, [rip + {stack} + {size}]",
        "call {begin}",
        "ud2",
        "2:",
        "and rsp, -16",
        "call {wait}",
        "ud2",
        stack = sym STACK_MEMORY,
        size = const STACK,
        begin = sym begin,
        wait = sym in_place::wait,
    )
}

unsafe extern "C" fn begin(initial: *const usize) -> ! {
    let everything = u64::MAX;
    // SAFETY: SIG_SETMASK (2) reads 8 bytes. Nothing may interrupt what follows; each thread's own mask comes back with its frame.
    let _ = unsafe { sys::call(sys::RT_SIGPROCMASK, [2, (&raw const everything) as usize, 0, 8, 0, 0]) };
    // SAFETY: the kernel puts argc and argv there.
    let words = unsafe { core::slice::from_raw_parts(initial.add(1).cast::<*const u8>(), *initial) };
    // SAFETY: arguments are NUL-terminated.
    let words = words.iter().skip(1).map(|word| unsafe { core::slice::from_raw_parts(*word, memory::strlen(*word)) });
    match Arguments::parse(words) {
        Ok(arguments) => restore(arguments),
        Err(error) => fail(Failure::Launch, 0, text!("mend-restorer is started by mendd alone: {error}")),
    }
}

fn restore(arguments: Arguments) -> ! {
    let began = sys::now();
    report::set_control(arguments.control_fd);
    inherited::raise_limits();
    let mut stream = or_fail(Stream::open(arguments.images.all()[0], 0, &PROGRESS));
    let header = *stream.header();
    let arguments = inherited::move_above(arguments, header.top_descriptor);
    stream.renumber(arguments.images.all()[0]);
    if let Some(address) = arguments.in_place {
        in_place::restore(arguments, address, stream, &header, began);
    }
    let own = Space::read();
    check_machine(&header, &own);
    if header.rounds != 0 {
        if arguments.mode != Mode::Migrate {
            fail(Failure::Image, 0, text!("a file cannot hold the rounds of a rank that moves"));
        }
        restore_live(arguments, stream, &header, &own);
    }

    let (tables, first, process) = read_tables(&mut stream, |tables| own.same_shape(tables.mappings()));

    own.leave();
    let mut building = or_fail(Building::map(tables, &ARENA, arguments.mode, header.top_descriptor)).after(arguments.put_back);
    let resources = Resources { arena: &ARENA, progress: &PROGRESS, workers: &Help(tables) };
    or_fail(fill(stream, first, &arguments.images.all()[1..], &mut building, resources));
    complete(arguments, Purpose::NewProcess(&own), tables, process, &mut building, (began, 0))
}

/// What becomes of an image.
enum Purpose<'a> {
    /// A process that begins in this address space.
    NewProcess(&'a Space),
    /// The process that it is of, which lives.
    InPlace,
}

/// Reads what an image says of the process, and checks that it can be built here; `suits`: whether the kernel's own mappings fit. The first record after that comes with it.
fn read_tables(stream: &mut Stream<'static>, suits: impl FnOnce(&Tables<'static>) -> bool) -> (Tables<'static>, Record<'static>, Process) {
    let room = zone::take(MAX_PAGES as usize + 8);
    let unread = |role, bytes: &[u8]| status(&Status::Unread { role, bytes });
    let (tables, first) = or_fail(Tables::read(stream, &ARENA, room, unread));
    let process = or_fail(tables.check(stream));
    if !suits(&tables) {
        fail(Failure::Machine, 0, text!("this kernel places its vdso in another way than {}", stream.header().kernel()));
    }
    or_fail(tables.check_files(stream, room));
    (tables, first, process)
}

/// Receives a process that still runs elsewhere, round by round, and then its image.
fn restore_live(arguments: Arguments, stream: Stream<'static>, first_header: &Header, own: &Space) -> ! {
    own.leave();
    let mut early = or_fail(receive(stream, &ARENA));
    let (began, before) = (sys::now(), PROGRESS.bytes_read());
    let mut stream = or_fail(Stream::open(arguments.images.all()[0], 0, &PROGRESS));
    let header = *stream.header();
    if (header.job, header.rank) != (first_header.job, first_header.rank) || header.rounds != 0 {
        fail(Failure::Image, 0, text!("what follows the rounds is another rank's image"));
    }
    // The daemon has looked whether this processor will do for what it knew of the rank.
    if header.cpu() != first_header.cpu() {
        fail(Failure::Image, 0, text!("what follows the rounds needs another processor than they did"));
    }
    check_ids(&header);
    // What no descriptor of the program's turned out to be is not its.
    let mut attach = arguments.attach;
    for role in ROLES.into_iter().filter(|role| !header.uses(*role)) {
        attach[role as usize] = None;
    }
    let arguments = inherited::move_above(Arguments { attach, ..arguments }, header.top_descriptor);
    stream.renumber(arguments.images.all()[0]);
    let (tables, first, process) = read_tables(&mut stream, |tables| own.same_shape(tables.mappings()));
    let mut building = or_fail(Building::map_over(tables, &ARENA, arguments.mode, header.top_descriptor, &mut early));
    let resources = Resources { arena: &ARENA, progress: &PROGRESS, workers: &Help(tables) };
    or_fail(fill_rest(stream, first, &early, &mut building, resources));
    await_clock(header.monotonic);
    complete(arguments, Purpose::NewProcess(own), tables, process, &mut building, (began, before))
}

/// The clocks were set when the first round began: they may be behind by what a message takes. Those of a process that lives may be further
/// behind, if it was restarted from an earlier image.
fn await_clock(monotonic: u64) {
    const MOST_MS: u64 = 10_000;
    loop {
        match monotonic.saturating_sub(sys::now()).div_ceil(1_000_000) {
            0 => return,
            behind if behind > MOST_MS => fail(Failure::Machine, 0, text!("the clock here is {behind} ms behind the saved process's")),
            // SAFETY: waits without a descriptor.
            behind => drop(unsafe { sys::call(sys::POLL, [0, 0, behind as usize, 0, 0, 0]) }),
        }
    }
}

fn check_ids(header: &Header) {
    let pid = sys::process_id();
    if pid as u32 != header.pid {
        fail(Failure::Launch, 0, text!("the restorer has process id {pid}, the image needs {}", header.pid));
    }
    if header.zone as usize != zone::NUMBER {
        fail(Failure::Launch, 0, text!("this restorer works in zone {}, the image leaves it zone {}", zone::NUMBER, header.zone));
    }
}

/// Refuses a machine on which the saved code cannot go on. What its processor offers the daemon has looked at.
fn check_machine(header: &Header, own: &Space) {
    check_ids(header);
    let here = own.vdso().unwrap_or_default();
    if header.vdso_size != 0 && (here.len() as u64 != header.vdso_size || xxh3_64(here) != header.vdso) {
        fail(Failure::Machine, 0, text!("this kernel has another vdso than the one the image was taken on ({})", header.kernel()));
    }
}

/// All memory is there: the rest of the process, and the jump. `before` bytes had been read when it `began`.
fn complete(
    arguments: Arguments,
    purpose: Purpose,
    tables: Tables<'static>,
    process: Process,
    building: &mut Building,
    (began, before): (u64, u64),
) -> ! {
    let mut kept = [Kept::default(); MAX_KEPT];
    let kept_count = or_fail(building.finish(&mut kept)) as u32;
    match purpose {
        Purpose::NewProcess(own) => {
            own.place_kernel_group(tables.mappings());
            set_process(&process, tables.text(process.executable, process.executable_length));
            threads::make(tables.threads(), process.capabilities);
        }
        Purpose::InPlace => {
            set_process(&process, None);
            threads::make_agent(tables.threads());
        }
    }
    let Some(first) = tables.threads().next() else { fail(Failure::Image, 0, text!("the image has no thread")) };
    let (restorer_start, restorer_end) = zone::range();
    let us = (sys::now() - began) / 1000;
    let handoff = Handoff {
        magic: HANDOFF_MAGIC,
        restorer_start,
        restorer_end,
        bytes: PROGRESS.bytes_read() - before,
        us,
        mode: if arguments.mode == Mode::Restart { 0 } else { 1 },
        agent_fd: arguments.agent_fd,
        attach: arguments.attach.map(|fd| fd.unwrap_or(-1)),
        kept_count,
        in_place: u32::from(matches!(purpose, Purpose::InPlace)),
        kept,
    };
    // SAFETY: `Tables::check` found the place within one mapping of the image, aligned; the agent keeps it writable.
    unsafe { (process.handoff as *mut Handoff).write(handoff) };
    status(&Status::Ready { bytes: PROGRESS.bytes_read() - before, placed: PROGRESS.bytes_placed(), us });
    await_go();
    for fd in arguments.images.all().iter().chain([&arguments.control_fd]) {
        // SAFETY: not used any more.
        let _ = unsafe { sys::call(sys::CLOSE, [*fd as usize, 0, 0, 0, 0, 0]) };
    }
    threads::go(&first)
}

/// `struct prctl_mm_map`.
#[repr(C)]
struct MemoryMap {
    layout: [u64; 11],
    auxv: *const u64,
    auxv_size: u32,
    exe_fd: u32,
}

/// `path`: of the executable, if the process has another one.
fn set_process(process: &Process, path: Option<&[u8]>) {
    const PR_SET_MM: usize = 35;
    const PR_SET_MM_MAP: usize = 14;
    // O_RDONLY | O_CLOEXEC
    // SAFETY: `Tables::text` made sure that a NUL follows.
    let executable = path.and_then(|path| unsafe { sys::call(sys::OPEN, [path.as_ptr() as usize, 0o2_000_000, 0, 0, 0, 0]) }.ok());
    let mut map = MemoryMap {
        layout: process.layout,
        auxv: process.auxv.as_ptr(),
        auxv_size: process.auxv_size.min(512) as u32,
        exe_fd: executable.map_or(u32::MAX, |fd| fd as u32),
    };
    let set = |map: &MemoryMap| {
        // SAFETY: reads the map and the auxiliary vector that it points to.
        unsafe { sys::call(sys::PRCTL, [PR_SET_MM, PR_SET_MM_MAP, core::ptr::from_ref(map) as usize, size_of::<MemoryMap>(), 0, 0]) }
    };
    let mut result = set(&map);
    if result.is_err() && executable.is_some() {
        // Naming the executable takes a privilege that not every place gives; the rest does not.
        map.exe_fd = u32::MAX;
        result = set(&map);
    }
    if let Err(errno) = result {
        fail(Failure::Kernel, errno, text!("the kernel refuses the layout of the process (prctl PR_SET_MM_MAP)"));
    }
    if let Some(fd) = executable {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys::call(sys::CLOSE, [fd, 0, 0, 0, 0, 0]) };
    }
    const XTILE_DATA: u64 = 18;
    // SAFETY: plain numbers.
    unsafe {
        let _ = sys::call(sys::PERSONALITY, [process.personality as usize, 0, 0, 0, 0, 0]);
        if process.xstate_permitted & 1 << XTILE_DATA != 0 {
            // ARCH_REQ_XCOMP_PERM
            if let Err(errno) = sys::call(sys::ARCH_PRCTL, [0x1023, XTILE_DATA as usize, 0, 0, 0, 0]) {
                fail(
                    Failure::Machine,
                    errno,
                    text!("this kernel does not let the process use tile registers (AMX), which the saved one may"),
                );
            }
        }
    }
}
