//! The program's descriptors as the agent's thread sees them: from a table of its own, which it gets when it starts and again
//! when a restored process goes on ([`leave`]). In between, and where the kernel gives it none, it shares the program's.

use mend_kernel::copy::FIRST_DESCRIPTOR;
use mend_kernel::table::{self, Window};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The agent's thread has a table of its own.
static APART: AtomicBool = AtomicBool::new(false);
/// Then there is one. Only the agent's thread may ask: others may be parked while they hold it.
static WINDOW: Mutex<Option<Window>> = Mutex::new(None);

fn window() -> MutexGuard<'static, Option<Window>> {
    WINDOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the calling thread, the agent's, a table with these alone. False if it goes on sharing the program's.
pub(crate) fn leave(kept: &[i32]) -> bool {
    let left = table::leave(kept).ok();
    APART.store(left.is_some(), Ordering::Release);
    *window() = left;
    apart()
}

/// In a restored process all threads share one table.
pub(crate) fn join() {
    table::forget_raised();
    APART.store(false, Ordering::Release);
    if let Some(window) = window().take() {
        window.forget();
    }
}

/// Whether the agent's thread has a table of its own.
pub(crate) fn apart() -> bool {
    APART.load(Ordering::Acquire)
}

/// Moves a descriptor of the agent's out of the program's way, where the two share a table.
pub(crate) fn move_high(made: OwnedFd) -> Result<OwnedFd, Errno> {
    if apart() { Ok(made) } else { rustix::io::fcntl_dupfd_cloexec(&made, FIRST_DESCRIPTOR) }
}

/// A descriptor of the program's, in the agent's hands.
pub(crate) enum Taken {
    /// A duplicate, closed when dropped.
    Duplicate(OwnedFd),
    /// The program's own number.
    Shared(ManuallyDrop<OwnedFd>),
}

impl AsFd for Taken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Taken::Duplicate(fd) => fd.as_fd(),
            Taken::Shared(fd) => fd.as_fd(),
        }
    }
}

/// Takes what the program has under this number. In a table that is shared, a number that is not open is told by its use.
pub(crate) fn take(fd: i32) -> Result<Taken, Errno> {
    match &*window() {
        Some(window) => window.take(fd).map(Taken::Duplicate),
        None if fd < 0 => Err(Errno::BADF),
        // SAFETY: never closed here; a number that the program closes meanwhile gives EBADF.
        None => Ok(Taken::Shared(ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) }))),
    }
}
