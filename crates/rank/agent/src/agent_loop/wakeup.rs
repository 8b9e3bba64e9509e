//! Wakeups: how any thread of the program wakes the agent, when the fabric has news. Such a thread sets a flag and sends a
//! byte, and does nothing else.
//!
//! The agent listens at a datagram socket of its own, which the kernel has given a name (unix(7), autobind). The byte is
//! sent from the *sender*, a socket in the program's table, by a call that fails on anything but a socket. If the program
//! has closed or replaced that one, or the process is a restored one, the table thread connects another.
//! No lock here: threads are parked wherever they are.

use crate::agent_loop::table_thread;
use crate::descriptors::table;
use mend_kernel::table::high;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::socket_with;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, recv, send};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Longest name that fits [`NAME`], bytes; the kernel's have five.
const MAX_NAME_BYTES: usize = 7;
/// Where the agent listens: the name's length and bytes. 0: nowhere.
static NAME: AtomicU64 = AtomicU64::new(0);
/// Number of the sender, or -1, and its inode.
static SENDER: AtomicI32 = AtomicI32::new(-1);
static SENDER_INODE: AtomicU64 = AtomicU64::new(0);
/// The sender is to be connected again.
static RECONNECT: AtomicBool = AtomicBool::new(false);
/// Not now: the program's descriptors are being examined.
static PAUSED: AtomicBool = AtomicBool::new(false);
/// The program has begun to use the fabric.
static USED: AtomicBool = AtomicBool::new(false);
/// The fabric has put something off.
static DELAYED: AtomicBool = AtomicBool::new(false);
/// A channel broke.
static LOST: AtomicBool = AtomicBool::new(false);

/// The agent's end: where it listens.
pub(crate) struct WakeupSocket(OwnedFd);

impl WakeupSocket {
    /// Opens it; from now on wakeups are sent to this one.
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        bind(&socket, &SocketAddrUnix::new_unnamed())?;
        let address = SocketAddrUnix::try_from(getsockname(&socket)?)?;
        let name = address.abstract_name().filter(|name| name.len() <= MAX_NAME_BYTES).ok_or(io::ErrorKind::InvalidData)?;
        let mut word = [0; 8];
        word[0] = name.len() as u8;
        word[1..=name.len()].copy_from_slice(name);
        NAME.store(u64::from_le_bytes(word), Ordering::SeqCst);
        Ok(Self(if table::apart() { socket } else { high(socket) }))
    }

    /// Takes the bytes that have come.
    pub fn drain(&self) {
        while recv(&self.0, &mut [0u8; 8], RecvFlags::DONTWAIT).is_ok() {}
    }

    pub fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// In a restored process: neither end is there.
    pub fn forget(self) {
        std::mem::forget(self.0);
        NAME.store(0, Ordering::Relaxed);
        SENDER.store(-1, Ordering::Relaxed);
    }
}

impl AsFd for WakeupSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Number of the sender in the program's table.
pub(crate) fn sender_number() -> Option<i32> {
    Some(SENDER.load(Ordering::Acquire)).filter(|fd| *fd >= 0)
}

fn inode(fd: BorrowedFd) -> Option<u64> {
    rustix::fs::fstat(fd).ok().map(|stat| stat.st_ino)
}

/// The sender, if the number still leads to it.
fn intact_sender() -> Option<BorrowedFd<'static>> {
    // SAFETY: if the program has closed it, the call that it is used with fails.
    let sender = unsafe { BorrowedFd::borrow_raw(sender_number()?) };
    (inode(sender) == Some(SENDER_INODE.load(Ordering::Acquire))).then_some(sender)
}

fn wake_agent() {
    let told = intact_sender().is_some_and(|sender| {
        // A full one wakes the agent all the same.
        matches!(send(sender, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL), Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS))
    });
    if !told {
        RECONNECT.store(true, Ordering::Release);
        if table::apart() { table_thread::call() } else { reconnect_if_asked() }
    }
}

/// Connects another sender and wakes the agent, if that was asked for. In the program's descriptor table.
pub(crate) fn reconnect_if_asked() {
    if PAUSED.load(Ordering::Acquire) || !RECONNECT.swap(false, Ordering::AcqRel) {
        return;
    }
    let word = NAME.load(Ordering::SeqCst).to_le_bytes();
    let Some(name) = word.get(1..=usize::from(word[0])).filter(|name| !name.is_empty()) else { return };
    let old = intact_sender().map(|sender| sender.as_raw_fd());
    let made = SocketAddrUnix::new_abstract_name(name).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        connect(&socket, &address)?;
        Ok(high(socket))
    });
    if let Ok(sender) = made {
        SENDER_INODE.store(inode(sender.as_fd()).unwrap_or(0), Ordering::Release);
        let _ = send(&sender, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        SENDER.store(sender.into_raw_fd(), Ordering::Release);
    }
    if let Some(old) = old {
        // SAFETY: ours, and replaced.
        drop(unsafe { OwnedFd::from_raw_fd(old) });
    }
}

/// No sender is connected until this is dropped: an examination of the program's descriptors would meet one that is not known yet.
pub(crate) struct WakeupPause;

impl WakeupPause {
    pub fn new() -> Self {
        PAUSED.store(true, Ordering::SeqCst);
        // Whatever the table thread was about is done when it has done this.
        table_thread::run(|| {});
        Self
    }

    /// The table thread is parked.
    pub fn end(self) {
        std::mem::forget(self);
        PAUSED.store(false, Ordering::SeqCst);
    }
}

impl Drop for WakeupPause {
    fn drop(&mut self) {
        PAUSED.store(false, Ordering::SeqCst);
        table_thread::call();
    }
}

/// Called once by the fabric.
pub(crate) fn announce_use() {
    USED.store(true, Ordering::SeqCst);
    wake_agent();
}

/// Called by the fabric.
pub(crate) fn announce_delay() {
    if !DELAYED.swap(true, Ordering::AcqRel) {
        wake_agent();
    }
}

/// Called by the fabric.
pub(crate) fn announce_loss() {
    if !LOST.swap(true, Ordering::AcqRel) {
        wake_agent();
    }
}

/// Called once, when the program tells its first time step.
pub(crate) fn announce_steps() {
    wake_agent();
}

pub(crate) fn used() -> bool {
    USED.load(Ordering::SeqCst)
}

pub(crate) fn delayed() -> bool {
    DELAYED.load(Ordering::Acquire)
}

pub(crate) fn take_delayed() -> bool {
    DELAYED.swap(false, Ordering::AcqRel)
}

pub(crate) fn take_lost() -> bool {
    LOST.load(Ordering::Acquire) && LOST.swap(false, Ordering::AcqRel)
}
