//! Epoll sets: what they watch, and what of it the program has been told.
//!
//! An entry belongs to an open file description *and* the number under which it was added (epoll(7)). The number may be closed or
//! another file's by now, as long as the description lives under another one; which it is, kcmp(2) tells. An entry comes back under the number
//! that it was added with.
//!
//! Of an edge-triggered entry (`EPOLLET`) the program hears once per edge. An edge that it has heard of is not told again; one that
//! it has not is. An entry that was told once (`EPOLLONESHOT`) stays silent until the program arms it, but for one thing: should its
//! target hang up or fail later, that is told, as the kernel adds both to all that is added.

use super::{Descriptors, What};
use crate::descriptors::reopen_error::ReopenError;
use crate::descriptors::table::take;
use crate::park::Parked;
use mend_freestanding::{check, syscall};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::time::Duration;

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What an entry keeps when it is disarmed: the way it tells.
const KEPT_FLAGS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// An entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    /// The number with which it was added.
    pub fd: i32,
    events: u32,
    data: u64,
    /// The description it watches, as an index; `None`: not the program's any more.
    open: Option<usize>,
    /// It has an edge that the program was not told of, or nobody knows.
    news: bool,
}

impl Target {
    /// "tfd:        7 events:       19 data:                7  pos:0 ino:2a sdev:d"
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        let data = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        Some(Self { fd, events, data, open: None, news: true })
    }

    /// It has told its one event.
    fn disarmed(&self) -> bool {
        self.events & ONE_SHOT != 0 && self.events & !KEPT_FLAGS == 0
    }
}

/// `struct kcmp_epoll_slot`.
#[repr(C)]
struct Slot {
    set: u32,
    number: u32,
    /// Which of the entries with this number.
    at: u32,
}

/// Whether `fd` is what an entry watches. `None`: the kernel does not say.
fn watches(fd: i32, slot: &Slot) -> Option<bool> {
    const KCMP_EPOLL_TFD: usize = 7;
    let process = std::process::id() as usize;
    let arguments = [process, process, KCMP_EPOLL_TFD, fd as usize, core::ptr::from_ref(slot) as usize, 0];
    // SAFETY: kcmp reads a slot of three words.
    match check(unsafe { syscall(libc::SYS_kcmp, arguments) }) {
        Ok(order) => Some(order == 0),
        Err(libc::EBADF | libc::ENOENT) => Some(false),
        Err(_) => None,
    }
}

/// Finds the descriptions that entries watch. If the program stands still, with these threads, what it was told is found out, too.
pub(crate) fn complete(found: &mut Descriptors, parked: Option<&Parked>) {
    for index in 0..found.opens.len() {
        let Some(set) = found.number_of(index) else { continue };
        let What::Epoll { targets } = &found.opens[index].what else { continue };
        let mut targets = targets.clone();
        for at in 0..targets.len() {
            let fd = targets[at].fd;
            let earlier = targets[..at].iter().filter(|other| other.fd == fd).count();
            let slot = Slot { set: set as u32, number: fd as u32, at: earlier as u32 };
            targets[at].open = found.watched(fd, &slot);
        }
        if let Some(parked) = parked {
            find_news(set, found, &mut targets, parked);
        }
        found.opens[index].what = What::Epoll { targets };
    }
}

impl Descriptors {
    /// Index of the description that an entry watches.
    fn watched(&self, fd: i32, slot: &Slot) -> Option<usize> {
        let here = self.descriptors.iter().find(|descriptor| descriptor.fd == fd).map(|descriptor| descriptor.open);
        match watches(fd, slot) {
            // Nobody says: most likely it is what it was.
            None => here,
            Some(true) => here,
            Some(false) => (0..self.opens.len()).find(|open| self.number_of(*open).is_some_and(|fd| watches(fd, slot) == Some(true))),
        }
    }
}

/// Asks the set which of its entries have something to tell that they tell once, and has them tell it again. The program stands still.
fn find_news(set: i32, found: &Descriptors, targets: &mut [Target], parked: &Parked) {
    // They must be armed again under the number that they were added with.
    let in_place = |target: &Target| found.descriptors.iter().any(|here| here.fd == target.fd && Some(here.open) == target.open);
    if !targets.iter().any(Target::tells_edges) || !targets.iter().filter(|target| target.tells_once()).all(in_place) {
        return;
    }
    let Ok(taken) = take(set) else { return };
    let mut told = vec![Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; targets.len()];
    let Ok(count) = epoll::wait(&taken, &mut told[..], Some(&AT_ONCE)) else { return };
    for target in targets.iter_mut().filter(|target| target.tells_once()) {
        target.news = told[..count].iter().any(|event| event.data.u64() == target.data);
        if target.news && !target.disarmed() {
            let event = libc::epoll_event { events: target.events, u64: target.data };
            let ask = |operation: i32| {
                let arguments = [set as usize, operation as usize, target.fd as usize, (&raw const event) as usize, 0, 0];
                // SAFETY: epoll_ctl reads one event, which outlives the call.
                check(unsafe { parked.call(libc::SYS_epoll_ctl, arguments) })
            };
            if ask(libc::EPOLL_CTL_MOD) == Err(libc::EINVAL) {
                // Not for EPOLLEXCLUSIVE.
                let _ = (ask(libc::EPOLL_CTL_DEL), ask(libc::EPOLL_CTL_ADD));
            }
        }
    }
    // Whoever was asked still writes to its stack; it slept before, and soon does again.
    let _ = parked.await_asleep(Duration::from_secs(1));
}

/// Fills the sets that were made again. All descriptors are placed. `above`: lowest number that is nobody's.
pub(crate) fn restore(descriptors: &Descriptors, above: i32) -> Result<(), ReopenError> {
    let mut sets: Vec<(usize, usize)> = (0..descriptors.opens.len()).map(|open| (depth(descriptors, open, 0), open)).collect();
    // Those that others watch first: what is added to them would be news to those.
    sets.sort_unstable();
    for (_, open) in sets {
        let (What::Epoll { targets }, Some(set)) = (&descriptors.opens[open].what, descriptors.number_of(open)) else { continue };
        // SAFETY: a descriptor of the program, placed before.
        let set = unsafe { BorrowedFd::borrow_raw(set) };
        let (silent, others): (Vec<&Target>, Vec<&Target>) = targets.iter().partition(|target| target.is_silent());
        silent.iter().try_for_each(|target| target.add(set, descriptors, above))?;
        let mut told = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        // What has just been added tells what it has, once.
        for _ in 0..=silent.len() {
            if silent.is_empty() || !matches!(epoll::wait(set, &mut told[..], Some(&AT_ONCE)), Ok(1..)) {
                break;
            }
        }
        others.iter().try_for_each(|target| target.add(set, descriptors, above))?;
    }
    Ok(())
}

/// How many sets are watched by this one, one through the other. The kernel allows five.
fn depth(descriptors: &Descriptors, open: usize, above: usize) -> usize {
    let What::Epoll { targets } = &descriptors.opens[open].what else { return 0 };
    let below = targets.iter().filter_map(|target| target.open).map(|open| if above < 8 { depth(descriptors, open, above + 1) } else { 0 });
    1 + below.max().unwrap_or(0)
}

impl Target {
    fn tells_edges(&self) -> bool {
        self.events & EDGE != 0
    }

    fn tells_once(&self) -> bool {
        self.events & (EDGE | ONE_SHOT) != 0
    }

    /// It has told what it will tell now.
    fn is_silent(&self) -> bool {
        self.disarmed() || self.tells_edges() && self.events & ONE_SHOT == 0 && !self.news
    }

    /// Adds it to a set in the process's table, where every number is as the program left it.
    fn add(&self, set: BorrowedFd, descriptors: &Descriptors, above: i32) -> Result<(), ReopenError> {
        let failed = |errno| ReopenError::Make { fd: self.fd, what: "epoll target", errno };
        let Some(open) = self.open else { return Ok(()) };
        let here = descriptors.descriptors.iter().find(|descriptor| descriptor.fd == self.fd);
        if here.is_some_and(|here| here.open == open) {
            return self.add_here(set).map_err(failed);
        }
        let Some(source) = descriptors.number_of(open) else { return Ok(()) };
        let place = |source: i32, flags: i32| {
            // SAFETY: dup3 changes only the descriptor table.
            let placed = check(unsafe { syscall(libc::SYS_dup3, [source as usize, self.fd as usize, flags as usize, 0, 0, 0]) });
            placed.map(drop).map_err(|errno| failed(Errno::from_raw_os_error(errno)))
        };
        let aside = match here {
            // SAFETY: a descriptor of the program, placed before.
            Some(here) => Some(rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(here.fd) }, above).map_err(failed)?),
            None => None,
        };
        place(source, libc::O_CLOEXEC)?;
        let added = self.add_here(set).map_err(failed);
        match (aside, here) {
            (Some(aside), Some(here)) => place(aside.as_raw_fd(), if here.close_on_exec { libc::O_CLOEXEC } else { 0 })?,
            // SAFETY: placed above, and nobody's.
            _ => drop(unsafe { OwnedFd::from_raw_fd(self.fd) }),
        }
        added
    }

    fn add_here(&self, set: BorrowedFd) -> Result<(), Errno> {
        // SAFETY: a descriptor of the program, placed before.
        let target = unsafe { BorrowedFd::borrow_raw(self.fd) };
        match epoll::add(set, target, EventData::new_u64(self.data), EventFlags::from_bits_retain(self.events)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_fdinfo() {
        let target = Target::parse("tfd:        7 events:       19 data:         ffffffff07  pos:0 ino:2a sdev:d").unwrap();
        assert_eq!((target.fd, target.events, target.data), (7, 0x19, 0xff_ffff_ff07));
        assert!(!target.disarmed() && !target.is_silent());
        let told = Target::parse("tfd:  3 events: 40000000 data: 3  pos:0 ino:1 sdev:d").unwrap();
        assert!(told.disarmed() && told.is_silent());
    }
}
