//! Write protection that the kernel lifts by itself at the first write, and remembers: userfaultfd with
//! `UFFD_FEATURE_WP_ASYNC` (Linux 6.7). Works without privileges, also for writes by system calls (`read`, `O_DIRECT`,
//! io_uring) and by other processes (`process_vm_writev`). [`crate::pagemap::written`] protects and tells.
//!
//! Not seen: writes of devices to pages that were pinned before they were protected.
//!
//! A userfaultfd also is a [`witness`] (Linux 5.7) of memory that stays where it is: what is moved, or mapped anew, is no longer
//! under its observation, and nothing else comes of that.
//!
//! Source: Documentation/admin-guide/mm/userfaultfd.rst, include/uapi/linux/userfaultfd.h.

use mend_freestanding::{check, syscall};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

const USER_MODE_ONLY: usize = 1;
const API: u64 = 0xaa;
const FEATURE_WP: u64 = 1;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
const ZEROPAGE_MODE_DONTWAKE: u64 = 1;
const PAGE_SIZE: u64 = 4096;

const IOCTL_API: usize = 0xc018_aa3f;
const IOCTL_REGISTER: usize = 0xc020_aa00;
const IOCTL_UNREGISTER: usize = 0x8010_aa01;
const IOCTL_ZEROPAGE: usize = 0xc020_aa04;
const IOCTL_WRITEPROTECT: usize = 0xc018_aa06;

#[repr(C)]
struct ApiArguments {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterArguments {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct ProtectArguments {
    start: u64,
    length: u64,
    mode: u64,
}
#[repr(C)]
struct ZeroArguments {
    start: u64,
    length: u64,
    mode: u64,
    zeroed: i64,
}
const _: () = assert!(size_of::<ApiArguments>() == 24 && size_of::<RegisterArguments>() == 32 && size_of::<ProtectArguments>() == 24);
const _: () = assert!(size_of::<ZeroArguments>() == 32);

/// Opens a userfaultfd of this process for it. Closing it ends all its protection.
///
/// # Errors
/// The errno: `ENOSYS` or `EPERM` where there is none or it is forbidden, `EINVAL` where the kernel is older than 6.7.
pub fn open() -> Result<OwnedFd, i32> {
    with(FEATURE_WP_ASYNC)
}

/// Opens a userfaultfd of this process that can tell what stays where it is: what is [`register`]ed with it is [`observed`] until it
/// is moved, unmapped or mapped anew. Nothing may ever be protected by it: the program would wait for a handler.
///
/// # Errors
/// As [`open`]; `EINVAL` where the kernel is older than 5.7.
pub fn witness() -> Result<OwnedFd, i32> {
    with(FEATURE_WP)
}

fn with(features: u64) -> Result<OwnedFd, i32> {
    let flags = libc::O_CLOEXEC as usize | libc::O_NONBLOCK as usize | USER_MODE_ONLY;
    // SAFETY: no pointers.
    let raw = check(unsafe { syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) })?;
    // SAFETY: just opened, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw as i32) };
    let mut arguments = ApiArguments { api: API, features, ioctls: 0 };
    // SAFETY: reads and writes `arguments`.
    check(unsafe { syscall(libc::SYS_ioctl, [fd.as_raw_fd() as usize, IOCTL_API, (&raw mut arguments) as usize, 0, 0, 0]) })?;
    Ok(fd)
}

/// Takes a part of one mapping (whole pages) under the observation of the userfaultfd with this number. Nothing is protected
/// yet. A part that is under its observation already stays as it is. Allocates nothing.
///
/// # Errors
/// The errno: `EBUSY` if the range is under another one's observation, `EINVAL` or `EPERM` if it cannot be observed.
pub fn register(userfault: i32, start: u64, end: u64) -> Result<(), i32> {
    let mut arguments = RegisterArguments { start, length: end - start, mode: REGISTER_MODE_WP, ioctls: 0 };
    // SAFETY: reads and writes `arguments`; protection without a handler changes nothing that the program can see.
    check(unsafe { syscall(libc::SYS_ioctl, [userfault as usize, IOCTL_REGISTER, (&raw mut arguments) as usize, 0, 0, 0]) }).map(drop)
}

/// Takes a range as [`register`] does that, or a part of it, was under nobody's observation: none of it is protected afterwards.
///
/// Memory may bear marks of a protection that ended long ago. Where mremap puts memory that was never touched beside some that is
/// observed, the kernel makes one mapping of both, ends its observation and leaves the marks; what is written then is not told
/// later (seen on Linux 6.18).
///
/// # Errors
/// As [`register`] and [`release`]; in either case the range is not observed.
pub fn register_anew(userfault: i32, start: u64, end: u64) -> Result<(), i32> {
    register(userfault, start, end)?;
    let released = release(userfault, start, end);
    if released.is_err() {
        let _ = unregister(userfault, start, end);
    }
    released
}

/// Ends the observation of a range, and all protection there.
///
/// # Errors
/// The errno: `EINVAL` if nothing there can be observed.
pub fn unregister(userfault: i32, start: u64, end: u64) -> Result<(), i32> {
    let mut arguments = [start, end - start];
    // SAFETY: reads `arguments`; to lift protection changes nothing that the program can see.
    check(unsafe { syscall(libc::SYS_ioctl, [userfault as usize, IOCTL_UNREGISTER, (&raw mut arguments) as usize, 0, 0, 0]) }).map(drop)
}

/// Whether the mapping with this page, which is populated, is under the observation of some userfaultfd. Allocates nothing.
#[must_use]
pub fn observed(userfault: i32, page: u64) -> bool {
    let mut arguments = ZeroArguments { start: page, length: PAGE_SIZE, mode: ZEROPAGE_MODE_DONTWAKE, zeroed: 0 };
    // SAFETY: reads and writes `arguments`. Where there is a page the kernel puts none, which it says once it knows of an observer.
    let result = unsafe { syscall(libc::SYS_ioctl, [userfault as usize, IOCTL_ZEROPAGE, (&raw mut arguments) as usize, 0, 0, 0]) };
    check(result).err() == Some(libc::EEXIST)
}

/// Lifts the protection of a range (whole pages) that is under the observation of the userfaultfd with this number: all of it
/// counts as written from here on.
///
/// # Errors
/// The errno: `ENOENT` if not all of it is under that observation.
pub fn release(userfault: i32, start: u64, end: u64) -> Result<(), i32> {
    let mut arguments = ProtectArguments { start, length: end - start, mode: 0 };
    // SAFETY: reads `arguments`; to lift protection changes nothing that the program can see.
    check(unsafe { syscall(libc::SYS_ioctl, [userfault as usize, IOCTL_WRITEPROTECT, (&raw mut arguments) as usize, 0, 0, 0]) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::apart;
    use crate::pagemap::{self, Region, missing, written};

    fn touch(base: u64, page: u64) {
        // SAFETY: the tests pass pages of their own mappings.
        unsafe { ((base + page * PAGE_SIZE) as *mut u8).write_volatile(1) };
    }

    #[test]
    fn only_what_is_written_after_protection_is_told() {
        let Ok(userfault) = open() else { return };
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let (pagemap, base) = (pagemap.as_raw_fd(), apart(16));
        for page in [0, 1, 2, 7, 8] {
            touch(base, page);
        }
        let mut found = [Region::default(); 16];
        assert!(!pagemap::observed(pagemap, base));
        assert_eq!(written(pagemap, base, base + 16 * PAGE_SIZE, true, &mut found), Err(libc::EPERM));
        register(userfault.as_raw_fd(), base, base + 16 * PAGE_SIZE).unwrap();
        register(userfault.as_raw_fd(), base, base + 16 * PAGE_SIZE).unwrap();
        assert!(pagemap::observed(pagemap, base));
        let mut look = |protect| {
            let end = base + 16 * PAGE_SIZE;
            let list = |found: &[Region], (count, next): (usize, u64)| {
                assert_eq!(next, end);
                let pages = |region: &Region| ((region.start - base) / PAGE_SIZE, (region.end - base) / PAGE_SIZE);
                found[..count].iter().map(pages).collect::<Vec<_>>()
            };
            let result = missing(pagemap, base, end, false, &mut found).unwrap();
            let missing = list(&found, result);
            let result = written(pagemap, base, end, protect, &mut found).unwrap();
            (list(&found, result), missing)
        };
        let before = vec![(3, 7), (9, 16)];
        assert_eq!(look(false), (vec![(0, 3), (7, 9)], before.clone()));
        assert_eq!(look(true), (vec![(0, 3), (7, 9)], before.clone()));
        assert_eq!(look(true), (vec![], before));
        touch(base, 1);
        touch(base, 12);
        let missing = vec![(3, 7), (9, 12), (13, 16)];
        for protect in [false, true] {
            assert_eq!(look(protect), (vec![(1, 2), (12, 13)], missing.clone()));
        }
        assert_eq!(look(true), (vec![], missing.clone()));
        assert_eq!(pagemap::first_written(pagemap, base, base + 16 * PAGE_SIZE), Ok(None));
        release(userfault.as_raw_fd(), base + 2 * PAGE_SIZE, base + 8 * PAGE_SIZE).unwrap();
        assert_eq!(look(false), (vec![(2, 3), (7, 8)], missing));
        assert_eq!(pagemap::first_written(pagemap, base, base + 16 * PAGE_SIZE), Ok(Some(base + 2 * PAGE_SIZE)));
        assert_eq!(pagemap::first_written(pagemap, base + 3 * PAGE_SIZE, base + 16 * PAGE_SIZE), Ok(Some(base + 7 * PAGE_SIZE)));
        assert_eq!(release(userfault.as_raw_fd(), base, base + 17 * PAGE_SIZE), Err(libc::ENOENT));
        let other = open().unwrap();
        assert_eq!(register(other.as_raw_fd(), base, base + 16 * PAGE_SIZE), Err(libc::EBUSY));
        unregister(userfault.as_raw_fd(), base, base + 16 * PAGE_SIZE).unwrap();
        assert!(!pagemap::observed(pagemap, base));
        register(other.as_raw_fd(), base, base + 16 * PAGE_SIZE).unwrap();
    }

    #[test]
    fn a_witness_tells_what_stayed_where_it_was() {
        let Ok(userfault) = witness() else { return };
        let (userfault, base, length) = (userfault.as_raw_fd(), apart(8), 2 * PAGE_SIZE as usize);
        (0..8).for_each(|page| touch(base, page));
        assert!(!observed(userfault, base));
        register(userfault, base, base + 8 * PAGE_SIZE).unwrap();
        let seen = || (0..8).map(|page| observed(userfault, base + page * PAGE_SIZE)).collect::<Vec<_>>();
        assert_eq!(seen(), [true; 8]);
        let at = |page: u64| (base + page * PAGE_SIZE) as *mut libc::c_void;
        // SAFETY: parts of the mapping made above, to which nobody refers.
        unsafe {
            libc::mremap(at(0), length, length, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at(4));
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(at(0), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        }
        (0..8).for_each(|page| touch(base, page));
        assert_eq!(seen(), [false, false, true, true, false, false, true, true]);
        let other = witness().unwrap();
        assert_eq!(register(other.as_raw_fd(), base + 2 * PAGE_SIZE, base + 4 * PAGE_SIZE), Err(libc::EBUSY));
        assert!(observed(other.as_raw_fd(), base + 2 * PAGE_SIZE), "whoever asks");
    }

    #[test]
    fn marks_that_outlived_their_observation_are_lifted() {
        let Ok(userfault) = open() else { return };
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let (userfault, pagemap, base, untouched) = (userfault.as_raw_fd(), pagemap.as_raw_fd(), apart(16), apart(16));
        (0..8).for_each(|page| touch(base, page));
        let end = base + 8 * PAGE_SIZE;
        let at = |page: u64| (base + page * PAGE_SIZE) as *mut libc::c_void;
        // SAFETY: the second half of the mapping made above.
        unsafe { libc::munmap(at(8), 8 * PAGE_SIZE as usize) };
        register(userfault, base, end).unwrap();
        register(userfault, untouched, untouched + 8 * PAGE_SIZE).unwrap();
        let mut found = [Region::default(); 16];
        let mut count = |protect| -> Result<u64, i32> {
            let (count, _) = written(pagemap, base, end, protect, &mut found)?;
            Ok(found[..count].iter().map(|region| (region.end - region.start) / PAGE_SIZE).sum())
        };
        assert_eq!(count(true), Ok(8));
        assert_eq!(count(false), Ok(0));
        let (length, flags) = (4 * PAGE_SIZE as usize, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: memory that nobody uses, to where nothing is mapped.
        assert_eq!(unsafe { libc::mremap(untouched as *mut libc::c_void, length, length, flags, at(8)) }, at(8));
        // A kernel may mend this one day, and keep the observation.
        let ended = count(false) == Err(libc::EPERM);
        (0..4).for_each(|page| touch(base, page));
        register_anew(userfault, base, end).unwrap();
        assert_eq!(count(false), Ok(8), "observation ended: {ended}");
        assert_eq!(count(true), Ok(8));
        assert_eq!(count(false), Ok(0));
    }
}
