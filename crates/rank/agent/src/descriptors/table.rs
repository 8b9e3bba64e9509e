//! The program's descriptors as the agent's thread sees them: from a table of its own, which it gets when it starts and again
//! when a restored process goes on ([`leave`]). In between, and where the kernel gives it none, it shares the program's.

use crate::park::Parked;
use mend_freestanding::check;
use mend_kernel::copy::FIRST_DESCRIPTOR;
use mend_kernel::table::{self, Window};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::{ManuallyDrop, MaybeUninit};
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

/// Gives the program's table duplicates of these; their numbers there. The program's threads are parked, and the tables are two.
pub(crate) fn give(parked: &Parked, files: &[OwnedFd]) -> Result<Vec<i32>, Errno> {
    let call = |number, arguments| {
        // SAFETY: the calls below are given memory of this function's, which waits for them.
        let result = unsafe { parked.call(number, arguments) };
        check(result).map_err(Errno::from_raw_os_error)
    };
    let mut pair = [-1i32; 2];
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    call(libc::SYS_socketpair, [libc::AF_UNIX as usize, kind as usize, 0, pair.as_mut_ptr() as usize, 0, 0])?;
    let result = take(pair[0]).and_then(|sender| {
        let files: Vec<BorrowedFd> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_GIVEN))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(Errno::INVAL);
        }
        sendmsg(&sender, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
        let mut received = Received::default();
        call(libc::SYS_recvmsg, [pair[1] as usize, received.message() as usize, libc::MSG_CMSG_CLOEXEC as usize, 0, 0, 0])?;
        let numbers = received.numbers();
        if numbers.len() == files.len() {
            return Ok(numbers);
        }
        parked.close(&numbers);
        Err(Errno::MFILE)
    });
    parked.close(&pair);
    result
}

/// Most descriptors that are given at once.
const MAX_GIVEN: usize = 64;

/// Room for a message of one byte with descriptors.
struct Received {
    byte: u8,
    vector: libc::iovec,
    /// Words, so that it is aligned as `struct cmsghdr` wants it.
    control: [u64; 8 + MAX_GIVEN],
    header: libc::msghdr,
}

impl Default for Received {
    fn default() -> Self {
        // SAFETY: zeros are valid for these structs of numbers and pointers.
        unsafe { std::mem::zeroed() }
    }
}

impl Received {
    /// Its address, for recvmsg(2). It must not move until it has been looked at.
    fn message(&mut self) -> *mut libc::msghdr {
        self.vector = libc::iovec { iov_base: (&raw mut self.byte).cast(), iov_len: 1 };
        self.header.msg_iov = &raw mut self.vector;
        self.header.msg_iovlen = 1;
        self.header.msg_control = self.control.as_mut_ptr().cast();
        self.header.msg_controllen = size_of_val(&self.control);
        &raw mut self.header
    }

    /// The numbers of the descriptors that came.
    fn numbers(&self) -> Vec<i32> {
        // SAFETY: the kernel has filled header and control block; the macros stay within its length.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const self.header);
            if first.is_null() || ((*first).cmsg_level, (*first).cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                return Vec::new();
            }
            let count = ((*first).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize) / size_of::<i32>();
            let data = libc::CMSG_DATA(first).cast::<i32>();
            (0..count).map(|at| data.add(at).read_unaligned()).collect()
        }
    }
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
