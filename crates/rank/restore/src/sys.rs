//! System calls, raw: there is no C library here.

#![expect(missing_docs, reason = "the names and values of constants are the kernel's")]

use crate::RestoreError;
use mend_freestanding::{check, syscall};

pub const READ: usize = 0;
pub const WRITE: usize = 1;
pub const OPEN: usize = 2;
pub const CLOSE: usize = 3;
pub const FSTAT: usize = 5;
pub const POLL: usize = 7;
pub const LSEEK: usize = 8;
pub const MMAP: usize = 9;
pub const MPROTECT: usize = 10;
pub const MUNMAP: usize = 11;
pub const RT_SIGPROCMASK: usize = 14;
pub const IOCTL: usize = 16;
pub const PREAD: usize = 17;
pub const PWRITE: usize = 18;
pub const SCHED_YIELD: usize = 24;
pub const MREMAP: usize = 25;
pub const MADVISE: usize = 28;
pub const GETPID: usize = 39;
pub const SETSOCKOPT: usize = 54;
pub const EXIT: usize = 60;
pub const FCNTL: usize = 72;
pub const FLOCK: usize = 73;
pub const FTRUNCATE: usize = 77;
pub const CAPGET: usize = 125;
pub const CAPSET: usize = 126;
pub const PERSONALITY: usize = 135;
pub const MUNLOCK: usize = 150;
pub const PRCTL: usize = 157;
pub const ARCH_PRCTL: usize = 158;
pub const GETTID: usize = 186;
pub const FUTEX: usize = 202;
pub const SCHED_GETAFFINITY: usize = 204;
pub const CLOCK_GETTIME: usize = 228;
pub const EXIT_GROUP: usize = 231;
pub const TGKILL: usize = 234;
pub const KEYCTL: usize = 250;
pub const PRLIMIT: usize = 302;
pub const MEMFD_CREATE: usize = 319;
pub const MLOCK2: usize = 325;
pub const CLOSE_RANGE: usize = 436;

pub const EINTR: i32 = 4;
pub const EAGAIN: i32 = 11;

pub const PROT_READ: usize = 1;
pub const PROT_WRITE: usize = 2;
pub const MAP_SHARED: usize = 0x01;
pub const MAP_PRIVATE: usize = 0x02;
pub const MAP_ANONYMOUS: usize = 0x20;
pub const MAP_GROWSDOWN: usize = 0x100;
pub const MAP_NORESERVE: usize = 0x4000;
pub const MAP_FIXED_NOREPLACE: usize = 0x10_0000;

/// A system call with its result as a `Result` of value and errno.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As the call demands of its arguments.
#[inline]
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the caller answers for it.
    check(unsafe { syscall(number as i64, arguments) })
}

/// Anonymous memory at a fixed address at which nothing is mapped.
///
/// # Errors
/// The kernel's.
pub fn map_at(address: u64, length: usize) -> Result<(), i32> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping that replaces nothing.
    unsafe { call(MMAP, [address as usize, length, PROT_READ | PROT_WRITE, flags, usize::MAX, 0]) }.map(drop)
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[must_use]
pub fn now() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: writes two words into `time`.
    let _ = unsafe { call(CLOCK_GETTIME, [1, time.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    time[0] * 1_000_000_000 + time[1]
}

/// Waits until something can be read, at most `milliseconds`. False if nothing came.
#[must_use]
pub fn readable(fd: i32, milliseconds: i32) -> bool {
    const POLLIN: u64 = 1;
    let mut wanted = fd as u32 as u64 | POLLIN << 32;
    // SAFETY: poll reads and writes one `struct pollfd` of 8 bytes.
    let ready = unsafe { call(POLL, [(&raw mut wanted) as usize, 1, milliseconds as usize, 0, 0, 0]) };
    ready != Ok(0)
}

/// A duplicate of a descriptor with a number above `top`.
///
/// # Errors
/// [`RestoreError::Descriptors`].
pub fn duplicate_above(fd: usize, top: u32) -> Result<usize, RestoreError<'static>> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    // SAFETY: plain numbers.
    let made = unsafe { call(FCNTL, [fd, F_DUPFD_CLOEXEC, top as usize + 1, 0, 0, 0]) };
    made.map_err(|errno| RestoreError::Descriptors { fd, top, errno })
}

/// Closes a descriptor of our own.
pub fn close(fd: usize) {
    // SAFETY: a plain number; callers give up what they opened.
    let _ = unsafe { call(CLOSE, [fd, 0, 0, 0, 0, 0]) };
}

/// This process, as it sees itself.
#[must_use]
pub fn process_id() -> usize {
    // SAFETY: no arguments.
    unsafe { call(GETPID, [0; 6]) }.unwrap_or(0)
}

/// Ends the process.
pub fn exit(code: usize) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { call(EXIT_GROUP, [code, 0, 0, 0, 0, 0]) };
    }
}

/// Writes all of `bytes`.
///
/// # Errors
/// The kernel's.
pub fn write_all(fd: i32, mut bytes: &[u8]) -> Result<(), i32> {
    while !bytes.is_empty() {
        // SAFETY: reads `bytes`.
        match unsafe { call(WRITE, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) } {
            Ok(count) => bytes = &bytes[count.min(bytes.len())..],
            Err(EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
