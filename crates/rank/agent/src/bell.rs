//! What wakes the agent besides its daemon: news of the fabric, from any thread of the program. Setting a flag and ringing
//! is all that may happen there.

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static BELL: AtomicI32 = AtomicI32::new(-1);
/// The program has begun to use the fabric.
static USED: AtomicBool = AtomicBool::new(false);
/// The fabric has put something off.
static DELAYED: AtomicBool = AtomicBool::new(false);
/// A channel broke.
static LOST: AtomicBool = AtomicBool::new(false);

/// The agent's bell from now on, as long as the process lives.
pub(crate) fn set(bell: &OwnedFd) {
    BELL.store(bell.as_raw_fd(), Ordering::Release);
}

fn ring() {
    let bell = BELL.load(Ordering::Acquire);
    if bell >= 0 {
        // SAFETY: the agent's descriptor, open as long as the process.
        let _ = rustix::io::write(unsafe { BorrowedFd::borrow_raw(bell) }, &1u64.to_ne_bytes());
    }
}

/// Called once by the fabric.
pub(crate) fn announce_use() {
    USED.store(true, Ordering::Release);
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
    USED.load(Ordering::Acquire)
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
