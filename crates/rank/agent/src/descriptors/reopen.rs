//! Opening the program's descriptors again in a restored process, each at its number.
//!
//! The restorer left nothing open but what it hands over, all above the numbers the program used. Each open file
//! description is made once and duplicated to its numbers; epolls come last, their targets exist by then.

use crate::descriptors::reopen_error::ReopenError;
use crate::descriptors::sockets::{self, Socket};
use crate::descriptors::watches;
use crate::descriptors::{Descriptor, Descriptors, MadePipes, Open, PathKind, What, restore_epolls};
use mend_image::handoff::{Handoff, Kept};
use mend_image::launch::Role;
use mend_kernel::raw::{check, syscall};
use mend_kernel::table::RaisedLimit;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, ftruncate, open, seek};
use rustix::io::Errno;

/// What the restorer handed over.
pub(crate) struct Inherited<'a> {
    pub attach: [i32; 4],
    pub kept: &'a [Kept],
    /// True if files that grew since the image was taken are cut back.
    pub restart: bool,
    /// Files are what they were already: others saw to that, who know of all ranks that have them open.
    pub files_put_back: bool,
    /// Lowest number not used by the program or the agent.
    pub above: i32,
}

impl<'a> Inherited<'a> {
    pub fn new(handoff: &'a Handoff, top: u32) -> Self {
        let kept = &handoff.kept[..(handoff.kept_count as usize).min(handoff.kept.len())];
        Self { attach: handoff.attach, kept, restart: handoff.mode == 0, files_put_back: false, above: top as i32 + 1 }
    }
}

/// Opens everything.
pub(crate) fn reopen(descriptors: &Descriptors, inherited: &Inherited) -> Result<(), ReopenError> {
    // Until all are placed they need more numbers than the program has.
    let _raised = RaisedLimit::fully();
    let mut unfinished = Unfinished { sockets: descriptors.sockets().collect(), ..Unfinished::default() };
    for (index, open) in descriptors.opens.iter().enumerate() {
        let numbers: Vec<&Descriptor> = descriptors.descriptors.iter().filter(|descriptor| descriptor.open == index).collect();
        let Some(first) = numbers.first().copied() else { continue };
        let low = make(first.fd, open, inherited, &mut unfinished)?;
        // Out of the way first: the kernel gives the lowest free number, which may be one that is wanted now or later.
        let made = high(&low, inherited.above).map_err(|errno| ReopenError::Make { fd: first.fd, what: "descriptor", errno })?;
        drop(low);
        for descriptor in numbers {
            place(&made, descriptor.fd, descriptor.close_on_exec)?;
        }
        tell(first.fd, open);
    }
    // Their targets exist by now.
    restore_epolls(descriptors, inherited.above)?;
    Ok(())
}

fn high(fd: &impl AsFd, above: i32) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, above)
}

/// Duplicates to a number of the program's, which the program owns from then on.
fn place(made: &OwnedFd, fd: i32, close_on_exec: bool) -> Result<(), ReopenError> {
    let flags = if close_on_exec { libc::O_CLOEXEC as usize } else { 0 };
    // SAFETY: dup3 changes only the descriptor table.
    check(unsafe { syscall(libc::SYS_dup3, [made.as_raw_fd() as usize, fd as usize, flags, 0, 0, 0]) })
        .map(drop)
        .map_err(|errno| ReopenError::Make { fd, what: "descriptor", errno: Errno::from_raw_os_error(errno) })
}

/// Things with two ends, until both are placed.
#[derive(Default)]
struct Unfinished<'a> {
    pipes: MadePipes,
    sockets: Vec<&'a Socket>,
    made: sockets::Made,
}

fn make(fd: i32, open: &Open, inherited: &Inherited, unfinished: &mut Unfinished) -> Result<OwnedFd, ReopenError> {
    let failed = |what| move |errno| ReopenError::Make { fd, what, errno };
    let made = match &open.what {
        What::Attached(role) => attached(*role, inherited).map_err(failed(role.name()))?,
        What::Path { path, kind, size } => match path_again(path, *kind, *size, open, inherited) {
            Err(_) if path.starts_with("/dev/pts/") || path == "/dev/tty" => terminal(open, inherited).map_err(failed("terminal"))?,
            other => return other,
        },
        What::Event { count, semaphore } => {
            let flags = if *semaphore { libc::EFD_SEMAPHORE as usize } else { 0 };
            let event = new_descriptor(libc::SYS_eventfd2, [0, flags, 0, 0]).map_err(failed("eventfd"))?;
            if *count != 0 {
                rustix::io::write(&event, &count.to_ne_bytes()).map_err(failed("eventfd"))?;
            }
            event
        }
        What::Timer { clock, value, interval, ticks, absolute } => {
            timer(*clock, *value, *interval, *ticks, *absolute).map_err(failed("timerfd"))?
        }
        What::Inotify { watches } => {
            let made = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).map_err(failed("inotify"))?;
            watches::watch(&made, watches).map_err(|(path, errno)| ReopenError::Open { path, errno })?;
            made
        }
        What::Socket(socket) => unfinished.made.take(fd, socket, &unfinished.sockets, inherited.above)?,
        What::Signals { mask } => {
            let mask = *mask;
            new_descriptor(libc::SYS_signalfd4, [usize::MAX, (&raw const mask) as usize, 8, 0]).map_err(failed("signalfd"))?
        }
        What::Epoll { .. } => epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll"))?,
        What::Memory { object, seals, .. } => memory(*object, *seals, open, inherited).map_err(failed("memfd"))?,
        What::Pipe(pipe) => unfinished.pipes.take(fd, pipe, inherited.above)?,
    };
    let settable = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME;
    if !matches!(open.what, What::Epoll { .. }) {
        // SAFETY: F_SETFL changes only the description made here.
        unsafe { syscall(libc::SYS_fcntl, [made.as_raw_fd() as usize, libc::F_SETFL as usize, (open.flags & settable) as usize, 0, 0, 0]) };
    }
    Ok(made)
}

/// Has input told by signals again, as it was. The signals name the number by which it was asked for.
fn tell(fd: i32, open: &Open) {
    const F_SETSIG: usize = 10;
    const F_SETOWN_EX: usize = 15;
    let Some((owner, signal)) = &open.told else { return };
    let fd = fd as usize;
    // SAFETY: F_SETOWN_EX reads two words from `owner`; the others take numbers.
    unsafe {
        syscall(libc::SYS_fcntl, [fd, F_SETSIG, *signal as usize, 0, 0, 0]);
        if owner[1] != 0 {
            syscall(libc::SYS_fcntl, [fd, F_SETOWN_EX, owner.as_ptr() as usize, 0, 0, 0]);
        }
        if open.flags & libc::O_ASYNC != 0 {
            let flags = check(syscall(libc::SYS_fcntl, [fd, libc::F_GETFL as usize, 0, 0, 0, 0])).unwrap_or(0);
            syscall(libc::SYS_fcntl, [fd, libc::F_SETFL as usize, flags | libc::O_ASYNC as usize, 0, 0, 0]);
        }
    }
}

fn new_descriptor(number: i64, arguments: [usize; 4]) -> Result<OwnedFd, Errno> {
    let [a, b, c, d] = arguments;
    // SAFETY: callers pass arguments of calls that return a new descriptor and at most read the memory pointed to.
    let fd = check(unsafe { syscall(number, [a, b, c, d, 0, 0]) }).map_err(Errno::from_raw_os_error)?;
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn attached(role: Role, inherited: &Inherited) -> Result<OwnedFd, Errno> {
    let fd = inherited.attach[role as usize];
    if fd >= 0 {
        // SAFETY: handed over by the restorer, open until all descriptors are placed.
        return high(&unsafe { BorrowedFd::borrow_raw(fd) }, inherited.above);
    }
    // Nobody holds the other end any more: nothing to read, and what is written is swallowed.
    open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// A terminal that isn't there (on another node, in another session): its part is played by the job's own streams.
fn terminal(saved: &Open, inherited: &Inherited) -> Result<OwnedFd, Errno> {
    let role = if saved.flags & libc::O_ACCMODE == libc::O_RDONLY { Role::Stdin } else { Role::Stdout };
    attached(role, inherited)
}

fn path_again(path: &str, kind: PathKind, size: u64, saved: &Open, inherited: &Inherited) -> Result<OwnedFd, ReopenError> {
    let failed = |errno| ReopenError::Open { path: path.to_string(), errno };
    // Never created, never truncated by opening: what is there decides.
    let once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY;
    let flags = OFlags::from_bits_retain((saved.flags & !once | libc::O_CLOEXEC | libc::O_NOCTTY) as u32);
    let made = open(path, flags, Mode::empty()).map_err(failed)?;
    if kind == PathKind::Place {
        return Ok(made);
    }
    let stat = rustix::fs::fstat(&made).map_err(failed)?;
    let (wanted, name) = match kind {
        PathKind::File => (FileType::RegularFile, "regular file"),
        PathKind::Directory => (FileType::Directory, "directory"),
        PathKind::Device | PathKind::Place => (FileType::CharacterDevice, "device"),
    };
    if FileType::from_raw_mode(stat.st_mode) != wanted {
        return Err(ReopenError::Kind { path: path.to_string(), kind: name });
    }
    if kind == PathKind::File && !inherited.files_put_back && !path.starts_with("/proc/") && !path.starts_with("/sys/") {
        let now = stat.st_size as u64;
        if now < size {
            return Err(ReopenError::Short { path: path.to_string(), now, then: size });
        }
        let written = saved.flags & libc::O_ACCMODE != libc::O_RDONLY;
        if inherited.restart && written && now > size {
            ftruncate(&made, size).map_err(failed)?;
        }
    }
    if kind != PathKind::Device {
        seek(&made, SeekFrom::Start(saved.offset)).map_err(failed)?;
    }
    Ok(made)
}

fn timer(clock: i32, value: (u64, u64), interval: (u64, u64), ticks: u64, absolute: bool) -> Result<OwnedFd, Errno> {
    let timer = new_descriptor(libc::SYS_timerfd_create, [clock as usize, 0, 0, 0])?;
    // An expiration that was not read yet is made to happen at once; the interval goes on from there.
    let value = if ticks > 0 && value == (0, 0) { (0, 1) } else { value };
    let setting = [interval.0, interval.1, value.0, value.1];
    let flags = if absolute { libc::TFD_TIMER_ABSTIME as usize } else { 0 };
    // SAFETY: timerfd_settime reads four words from `setting`.
    check(unsafe { syscall(libc::SYS_timerfd_settime, [timer.as_raw_fd() as usize, flags, setting.as_ptr() as usize, 0, 0, 0]) })
        .map_err(Errno::from_raw_os_error)?;
    if ticks > 0 {
        // TFD_IOC_SET_TICKS, where the kernel was built for checkpointing.
        // SAFETY: the ioctl reads 8 bytes from `ticks`.
        unsafe { syscall(libc::SYS_ioctl, [timer.as_raw_fd() as usize, 0x4008_5400, (&raw const ticks) as usize, 0, 0, 0]) };
    }
    Ok(timer)
}

fn memory(object: Option<u32>, seals: u32, saved: &Open, inherited: &Inherited) -> Result<OwnedFd, Errno> {
    let kept = inherited.kept.iter().find(|kept| Some(kept.object) == object).ok_or(Errno::BADF)?;
    // A description of its own, so that twins opened separately keep separate offsets.
    let path = format!("/proc/self/fd/{}", kept.fd);
    let made = open(path, OFlags::from_bits_retain((saved.flags & libc::O_ACCMODE | libc::O_CLOEXEC) as u32), Mode::empty())?;
    seek(&made, SeekFrom::Start(saved.offset))?;
    if seals != 0 && saved.flags & libc::O_ACCMODE != libc::O_RDONLY {
        // SAFETY: F_ADD_SEALS takes a number.
        check(unsafe { syscall(libc::SYS_fcntl, [made.as_raw_fd() as usize, libc::F_ADD_SEALS as usize, seals as usize, 0, 0, 0]) })
            .map_err(Errno::from_raw_os_error)?;
    }
    Ok(made)
}
