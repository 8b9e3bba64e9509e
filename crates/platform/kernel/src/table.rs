//! Descriptor tables: numbers that a program does not meet, and a thread with a table of its own.
//!
//! A program expects the lowest free number from `open` (POSIX), closes ranges of numbers that it never opened and
//! duplicates onto numbers of its choice. What Mend keeps in the program's table therefore lies high ([`Placed`]): above the
//! soft limit on open files where the hard one allows, since no call of the program reaches a number there, else above
//! [`MAX_FIRST_NUMBER`]. What only Mend's own thread needs is not in the program's table at all ([`leave`]).
//!
//! A number may still be taken by a program that raises its limit or closes all numbers there are (closefrom(3)). A
//! [`Placed`] descriptor remembers what it was, and does not close what it is no more.
//!
//! Sources: fcntl(2), getrlimit(2), close_range(2), pidfd_getfd(2), unshare(2).

use crate::copy::{FIRST_DESCRIPTOR, keep_only};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, Ordering};
use mend_freestanding::{check, syscall};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Where the numbers begin if the hard limit leaves nothing above the soft one. A higher one would cost each `fork` of the
/// program time: the kernel copies a table up to its last number.
const MAX_FIRST_NUMBER: u64 = 4096;
/// Soft limits above this are as good as none.
const MAX_SOFT_LIMIT: u64 = 1 << 16;
/// How many numbers above the first one are wanted.
const WANTED_NUMBERS: u64 = 1 << 15;

/// Somebody has raised the soft limit for a moment.
static RAISED: AtomicBool = AtomicBool::new(false);

/// Soft and hard limit on open files.
fn limits() -> [u64; 2] {
    let mut limits = [1024; 2];
    // SAFETY: prlimit64 writes two words.
    unsafe { syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, 0, limits.as_mut_ptr() as usize, 0, 0]) };
    limits
}

fn set_limits(limits: [u64; 2]) -> bool {
    // SAFETY: prlimit64 reads two words.
    check(unsafe { syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, limits.as_ptr() as usize, 0, 0, 0]) }).is_ok()
}

/// The first number out of the program's way, and the soft limit that it takes, if that is another one.
fn first([soft, hard]: [u64; 2]) -> (u64, Option<u64>) {
    if hard > soft && soft <= MAX_SOFT_LIMIT {
        (soft, Some(hard.min(soft + WANTED_NUMBERS)))
    } else {
        ((soft - soft / 4).min(MAX_FIRST_NUMBER), None)
    }
}

/// The soft limit on open files, raised until this is dropped.
#[derive(Debug)]
pub struct RaisedLimit {
    before: Option<[u64; 2]>,
}

impl RaisedLimit {
    /// Raises it as far as `wanted` tells from soft and hard limit; `None` leaves it.
    fn to(wanted: impl FnOnce([u64; 2]) -> Option<u64>) -> Self {
        while RAISED.swap(true, Ordering::Acquire) {
            rustix::thread::sched_yield();
        }
        let before = limits();
        let raised = wanted(before).is_some_and(|soft| set_limits([soft, before[1]]));
        Self { before: raised.then_some(before) }
    }

    /// Raises it to the hard limit.
    #[must_use]
    pub fn fully() -> Self {
        Self::to(|[soft, hard]| (hard > soft).then_some(hard))
    }
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set_limits(before);
        }
        RAISED.store(false, Ordering::Release);
    }
}

/// The soft limit on open files as high as the hard one, until this is dropped: in a process whose other threads are parked.
#[derive(Debug)]
pub struct LiftedLimit {
    before: [u64; 2],
}

impl LiftedLimit {
    /// Lifts it.
    #[must_use]
    pub fn new() -> Self {
        let before = limits();
        set_limits([before[1]; 2]);
        Self { before }
    }
}

impl Default for LiftedLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for LiftedLimit {
    fn drop(&mut self) {
        set_limits(self.before);
    }
}

/// In a restored process: whoever had raised the limit in the former life will not say so any more in this one.
pub fn forget_raised() {
    RAISED.store(false, Ordering::Release);
}

/// Moves a descriptor out of the program's way. It stays where it is if there is no better place.
#[must_use]
pub fn high(low: OwnedFd) -> OwnedFd {
    let mut start = 0;
    let raised = RaisedLimit::to(|limits| {
        let (number, limit) = first(limits);
        start = number as RawFd;
        limit
    });
    let moved = if low.as_raw_fd() >= start { None } else { fcntl_dupfd_cloexec(&low, start).ok() };
    drop(raised);
    moved.unwrap_or(low)
}

/// Makes room in this process's table for numbers out of the program's way, by the help of any open descriptor. For a process with one thread that is about to become
/// a program, which keeps the room: where several threads share a table, the first number that does not fit into it makes the kernel wait for all processors
/// (`expand_fdtable` in fs/file.c), 10 ms and more.
pub fn make_room(any: BorrowedFd<'_>) {
    // Without room it is made later.
    if let Ok(low) = fcntl_dupfd_cloexec(any, 0) {
        drop(high(low));
    }
}

/// What a number leads to, as fstat(2) tells it.
type Identity = (u64, u64);

fn identity(fd: BorrowedFd<'_>) -> Option<Identity> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// A descriptor of Mend's in the program's table, out of the program's way.
#[derive(Debug)]
pub struct Placed {
    fd: ManuallyDrop<OwnedFd>,
    identity: Option<Identity>,
}

impl Placed {
    /// Whether the number still leads to what it did. Kernel objects without an inode of their own (epoll, eventfd) cannot be told from each other.
    #[must_use]
    pub fn intact(&self) -> bool {
        self.identity.is_some() && identity(self.fd.as_fd()) == self.identity
    }

    /// Leaves the number alone for good: in a restored process it is somebody else's.
    pub fn forget(mut self) {
        self.identity = None;
    }
}

impl From<OwnedFd> for Placed {
    fn from(low: OwnedFd) -> Self {
        let fd = high(low);
        Self { identity: identity(fd.as_fd()), fd: ManuallyDrop::new(fd) }
    }
}

impl From<std::os::unix::net::UnixStream> for Placed {
    fn from(stream: std::os::unix::net::UnixStream) -> Self {
        OwnedFd::from(stream).into()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.intact() {
            // SAFETY: dropped once, here, and used no more.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl AsFd for Placed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Placed {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A look from a thread with a table of its own into that of the process's first thread.
#[derive(Debug)]
pub struct Window {
    process: OwnedFd,
}

impl Window {
    /// Takes a descriptor of the other table; this one has a duplicate of it then.
    ///
    /// # Errors
    /// `EBADF`: there is none of this number.
    pub fn take(&self, fd: RawFd) -> Result<OwnedFd, Errno> {
        // SAFETY: plain numbers.
        let taken = check(unsafe { syscall(libc::SYS_pidfd_getfd, [self.process.as_raw_fd() as usize, fd as usize, 0, 0, 0, 0]) });
        // SAFETY: just made, owned by nobody else.
        taken.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) }).map_err(Errno::from_raw_os_error)
    }

    /// Leaves its descriptor alone: in a restored process it is somebody else's.
    pub fn forget(self) {
        core::mem::forget(self.process);
    }
}

/// Gives the calling thread a descriptor table of its own, in which only `kept` stay open. The standard streams lead to `/dev/null`
/// there.
///
/// # Errors
/// The errno, with the table as it was: the kernel (before Linux 5.9) or a filter of system calls does not let it.
pub fn leave(kept: &[RawFd]) -> Result<Window, i32> {
    let own = std::process::id() as usize;
    // SAFETY: plain numbers; both calls make a new descriptor.
    let new = |number, arguments| unsafe { check(syscall(number, arguments)).map(|fd| OwnedFd::from_raw_fd(fd as i32)) };
    let open = || new(libc::SYS_pidfd_open, [own, 0, 0, 0, 0, 0]);
    let probe = open()?;
    drop(new(libc::SYS_pidfd_getfd, [probe.as_raw_fd() as usize, probe.as_raw_fd() as usize, 0, 0, 0, 0])?);
    drop(probe);
    // SAFETY: plain numbers; nothing has the number 2^32 - 1.
    check(unsafe { syscall(libc::SYS_close_range, [u32::MAX as usize, u32::MAX as usize, 0, 0, 0, 0]) })?;
    let mut kept: Vec<RawFd> = kept.to_vec();
    kept.sort_unstable();
    keep_only(&kept)?;
    let raised = RaisedLimit::fully();
    for stream in 0..3 {
        if !kept.contains(&stream)
            && let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())
        {
            core::mem::forget(null);
        }
    }
    loop {
        match open() {
            Ok(process) => {
                // Room for high numbers, while nobody shares this table: see `make_room`.
                drop(fcntl_dupfd_cloexec(&process, FIRST_DESCRIPTOR));
                drop(raised);
                return Ok(Window { process });
            }
            // It could a moment ago: the kernel lacks memory.
            Err(_) => std::thread::sleep(core::time::Duration::from_millis(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lie_above_the_soft_limit_where_there_is_room() {
        assert_eq!(first([1024, 524_288]), (1024, Some(1024 + WANTED_NUMBERS)));
        assert_eq!(first([1024, 4096]), (1024, Some(4096)));
        assert_eq!(first([1024, 1024]), (768, None));
        assert_eq!(first([1 << 20, 1 << 20]), (MAX_FIRST_NUMBER, None));
        assert_eq!(first([1 << 17, 1 << 20]), (MAX_FIRST_NUMBER, None));
    }

    #[test]
    fn a_number_that_is_somebody_elses_by_now_stays_open() {
        let (ours, _theirs) = rustix::pipe::pipe().unwrap();
        let placed = Placed::from(ours);
        let number = placed.as_raw_fd();
        assert!(placed.intact() && number as u64 >= first(limits()).0.min(768));
        let file = tempfile::tempfile().unwrap();
        let raised = RaisedLimit::fully();
        // SAFETY: the number is the test's own.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number, "the number may lie above the soft limit");
        drop(raised);
        assert!(!placed.intact());
        drop(placed);
        // SAFETY: the number is the test's own.
        assert_eq!(unsafe { libc::close(number) }, 0);
    }

    #[test]
    fn a_thread_leaves_and_looks_back() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (far, text) = (writer.as_raw_fd(), b"through the window");
        std::thread::scope(|scope| {
            let away = scope.spawn(move || {
                let window = leave(&[]).unwrap();
                // SAFETY: only looked at.
                assert!(rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(far) }).is_err());
                rustix::io::write(window.take(far).unwrap(), text).unwrap();
                assert_eq!(window.take(1 << 20).unwrap_err(), Errno::BADF);
            });
            away.join().unwrap();
        });
        let mut got = [0; 32];
        assert_eq!(rustix::io::read(&reader, &mut got), Ok(text.len()));
        drop(writer);
        // The thread's table had no writer of its own.
        assert_eq!(rustix::io::read(&reader, &mut got), Ok(0));
    }
}
