//! Bits by which the kernel remembers which pages of a process were written to: cleared by `/proc/self/clear_refs`, read
//! from `/proc/self/pagemap` (see [`crate::pagemap::soft_dirty`]).
//!
//! There is one set of bits per process: whoever else clears them (another checkpointer) takes them from us unnoticed. Not
//! all kernels are built with them, and those without still accept the order to clear.
//!
//! Source: Documentation/admin-guide/mm/soft-dirty.rst.

use crate::pagemap::{Region, soft_dirty};
use crate::raw::{check, syscall};

const PAGE: usize = 4096;

/// Clears all bits of the process whose `/proc/PID/clear_refs` is open for writing. Allocates nothing.
///
/// # Errors
/// The errno.
pub fn clear(clear_refs: i32) -> Result<(), i32> {
    let order = b"4\n";
    // SAFETY: writes from `order`, a live slice.
    check(unsafe { syscall(libc::SYS_pwrite64, [clear_refs as usize, order.as_ptr() as usize, order.len(), 0, 0, 0]) }).map(drop)
}

/// Whether the bits work here: a page is written, looked at, and written again after a clearing, which costs this process the
/// bits it had.
///
/// # Errors
/// The errno of what could not be done.
pub fn probe(pagemap: i32, clear_refs: i32) -> Result<bool, i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let arguments = [0, PAGE, (libc::PROT_READ | libc::PROT_WRITE) as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping at an address of the kernel's choice, unmapped below.
    let page = check(unsafe { syscall(libc::SYS_mmap, arguments) })?;
    let touch = || {
        // SAFETY: the page mapped above.
        unsafe { (page as *mut u8).write_volatile(1) };
    };
    let changed = || -> Result<bool, i32> {
        let mut found = [Region::default()];
        let (count, _) = soft_dirty(pagemap, page as u64, (page + PAGE) as u64, true, &mut found)?;
        Ok(count == 1 && found[0].written())
    };
    let round = || -> Result<bool, i32> {
        touch();
        let fresh = changed()?;
        clear(clear_refs)?;
        let cleared = changed()?;
        touch();
        Ok(fresh && !cleared && changed()?)
    };
    let result = round();
    // SAFETY: the page mapped above, no longer used.
    unsafe { syscall(libc::SYS_munmap, [page, PAGE, 0, 0, 0, 0]) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_probe_agrees_with_itself() {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let clear_refs = OpenOptions::new().write(true).open("/proc/self/clear_refs").unwrap();
        let first = probe(pagemap.as_raw_fd(), clear_refs.as_raw_fd()).unwrap();
        assert_eq!(probe(pagemap.as_raw_fd(), clear_refs.as_raw_fd()).unwrap(), first);
    }
}
