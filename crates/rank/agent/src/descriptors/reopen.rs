//! Opening the program's descriptors again in a restored process, each at its number.
//!
//! The restorer left nothing open but what it hands over, all above the numbers the program used. Each open file
//! description is made once and duplicated to its numbers; epolls come last, their targets exist by then.

use super::calls::high;
use super::inherited::Inherited;
use super::{eventfd, memory_files, paths, signalfd, timerfd};
use crate::descriptors::reopen_error::ReopenError;
use crate::descriptors::sockets::{self, Socket};
use crate::descriptors::{Descriptor, Descriptors, MadePipes, Open, What, restore_epolls, watches};
use mend_freestanding::{check, syscall};
use mend_kernel::table::RaisedLimit;
use rustix::event::epoll;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;

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
    // The program has closed some of these ends: what hung up by that is told as sets are filled, not once more later.
    drop(unfinished);
    // Their targets exist by now.
    restore_epolls(descriptors, inherited.above)?;
    Ok(())
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
        What::Attached(role) => inherited.attached(*role).map_err(failed(role.name()))?,
        What::Path { path, kind, size } => match paths::make(path, *kind, *size, open, inherited) {
            Err(_) if path.starts_with("/dev/pts/") || path == "/dev/tty" => {
                paths::terminal(open, inherited).map_err(failed("terminal"))?
            }
            other => return other,
        },
        What::Event { count, semaphore } => eventfd::make(*count, *semaphore).map_err(failed("eventfd"))?,
        What::Timer { clock, value, interval, ticks, flags } => {
            timerfd::make(*clock, *value, *interval, *ticks, *flags).map_err(failed("timerfd"))?
        }
        What::Inotify { watches } => {
            let made = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).map_err(failed("inotify"))?;
            watches::watch(&made, watches).map_err(|(path, errno)| ReopenError::Open { path, errno })?;
            made
        }
        What::Socket(socket) => unfinished.made.take(fd, socket, &unfinished.sockets, inherited.above)?,
        What::Signals { mask } => signalfd::make(*mask).map_err(failed("signalfd"))?,
        What::Epoll { .. } => epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll"))?,
        What::Memory { object, seals, .. } => memory_files::make(*object, *seals, open, inherited).map_err(failed("memfd"))?,
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
