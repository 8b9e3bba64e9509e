//! What wakes the agent besides its daemon: news of the fabric, from any thread of the program. Setting a flag and ringing
//! is all that may happen there.
//!
//! The agent listens at a datagram socket of its own, which the kernel has given a name (unix(7), autobind). Whoever rings
//! sends a byte from the *cord*, a socket in the program's table, by a call that takes nothing but a socket. If the program
//! has closed or replaced that one, or the process is a restored one, the agent's hand connects another.
//! No lock here: threads are parked wherever they are.

use crate::agent_loop::hand;
use crate::descriptors::table;
use mend_kernel::table::high;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::socket_with;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, recv, send};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Longest name that fits [`NAME`], bytes; the kernel's have five.
const LONGEST: usize = 7;
/// Where the agent listens: the name's length and bytes. 0: nowhere.
static NAME: AtomicU64 = AtomicU64::new(0);
/// Number of the cord, or -1, and its inode.
static CORD: AtomicI32 = AtomicI32::new(-1);
static CORD_INODE: AtomicU64 = AtomicU64::new(0);
/// The cord is to be connected anew.
static TORN: AtomicBool = AtomicBool::new(false);
/// Not now: the program's descriptors are looked at.
static HELD: AtomicBool = AtomicBool::new(false);
/// The program has begun to use the fabric.
static USED: AtomicBool = AtomicBool::new(false);
/// The fabric has put something off.
static DELAYED: AtomicBool = AtomicBool::new(false);
/// A channel broke.
static LOST: AtomicBool = AtomicBool::new(false);

/// The agent's end.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// Opens it; from now on this is the one that is rung.
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        bind(&socket, &SocketAddrUnix::new_unnamed())?;
        let address = SocketAddrUnix::try_from(getsockname(&socket)?)?;
        let name = address.abstract_name().filter(|name| name.len() <= LONGEST).ok_or(io::ErrorKind::InvalidData)?;
        let mut word = [0; 8];
        word[0] = name.len() as u8;
        word[1..=name.len()].copy_from_slice(name);
        NAME.store(u64::from_le_bytes(word), Ordering::SeqCst);
        Ok(Self(if table::apart() { socket } else { high(socket) }))
    }

    pub fn silence(&self) {
        while recv(&self.0, &mut [0u8; 8], RecvFlags::DONTWAIT).is_ok() {}
    }

    pub fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// In a restored process: neither end is there.
    pub fn forget(self) {
        std::mem::forget(self.0);
        NAME.store(0, Ordering::Relaxed);
        CORD.store(-1, Ordering::Relaxed);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Number of the cord in the program's table.
pub(crate) fn cord() -> Option<i32> {
    Some(CORD.load(Ordering::Acquire)).filter(|fd| *fd >= 0)
}

fn inode(fd: BorrowedFd) -> Option<u64> {
    rustix::fs::fstat(fd).ok().map(|stat| stat.st_ino)
}

/// The cord, if the number still leads to it.
fn whole() -> Option<BorrowedFd<'static>> {
    // SAFETY: if the program has closed it, the call that it is used with fails.
    let cord = unsafe { BorrowedFd::borrow_raw(cord()?) };
    (inode(cord) == Some(CORD_INODE.load(Ordering::Acquire))).then_some(cord)
}

fn ring() {
    let told = whole().is_some_and(|cord| {
        // A full one has been heard.
        matches!(send(cord, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL), Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS))
    });
    if !told {
        TORN.store(true, Ordering::Release);
        if table::apart() { hand::call() } else { mend_if_asked() }
    }
}

/// Connects another cord and rings, if that was asked for. In the program's descriptor table.
pub(crate) fn mend_if_asked() {
    if HELD.load(Ordering::Acquire) || !TORN.swap(false, Ordering::AcqRel) {
        return;
    }
    let word = NAME.load(Ordering::SeqCst).to_le_bytes();
    let Some(name) = word.get(1..=usize::from(word[0])).filter(|name| !name.is_empty()) else { return };
    let old = whole().map(|cord| cord.as_raw_fd());
    let made = SocketAddrUnix::new_abstract_name(name).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        connect(&socket, &address)?;
        Ok(high(socket))
    });
    if let Ok(cord) = made {
        CORD_INODE.store(inode(cord.as_fd()).unwrap_or(0), Ordering::Release);
        let _ = send(&cord, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        CORD.store(cord.into_raw_fd(), Ordering::Release);
    }
    if let Some(old) = old {
        // SAFETY: ours, and replaced.
        drop(unsafe { OwnedFd::from_raw_fd(old) });
    }
}

/// No cord is connected until this is dropped: a look at the program's descriptors would meet one that is not known yet.
pub(crate) struct Still;

impl Still {
    pub fn new() -> Self {
        HELD.store(true, Ordering::SeqCst);
        // Whatever the hand was about is done when it has done this.
        hand::run(|| {});
        Self
    }

    /// The hand is parked.
    pub fn end(self) {
        std::mem::forget(self);
        HELD.store(false, Ordering::SeqCst);
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        HELD.store(false, Ordering::SeqCst);
        hand::call();
    }
}

/// Called once by the fabric.
pub(crate) fn announce_use() {
    USED.store(true, Ordering::SeqCst);
    ring();
}

/// Called by the fabric.
pub(crate) fn announce_delay() {
    if !DELAYED.swap(true, Ordering::AcqRel) {
        ring();
    }
}

/// Called by the fabric.
pub(crate) fn announce_loss() {
    if !LOST.swap(true, Ordering::AcqRel) {
        ring();
    }
}

pub(crate) fn used() -> bool {
    USED.load(Ordering::SeqCst)
}

pub(crate) fn delayed() -> bool {
    DELAYED.load(Ordering::Acquire)
}

pub(crate) fn take_delayed() {
    DELAYED.store(false, Ordering::Release);
}

pub(crate) fn take_lost() -> bool {
    LOST.load(Ordering::Acquire) && LOST.swap(false, Ordering::AcqRel)
}
