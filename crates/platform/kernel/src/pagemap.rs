//! Which pages of a mapping hold something, and which were written to: `PAGEMAP_SCAN` (Linux 6.7), else reading
//! `/proc/self/pagemap`, with leaps over what holds nothing: programs reserve terabytes, of which that file has eight bytes
//! for each page.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst, include/uapi/linux/fs.h.

use mend_freestanding::{check, syscall};

const PAGE_SIZE: u64 = 4096;
const PAGEMAP_SCAN: usize = 0xc060_6610;

const SCAN_PROTECT: u64 = 1;
const SCAN_CHECK: u64 = 2;

const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
const PAGE_IS_GUARD: u64 = 1 << 8;

const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE: u64 = 1 << 61;
const ENTRY_GUARD: u64 = 1 << 58;
const ENTRY_SOFT_DIRTY: u64 = 1 << 55;

/// A run of populated pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    categories: u64,
}

impl Region {
    /// True if the pages are not in memory; reading them directly may fault (swap, but also guard markers).
    #[must_use]
    pub fn absent(&self) -> bool {
        self.categories & PAGE_IS_SWAPPED != 0
    }

    /// True if the pages are in memory. Only said by [`written()`], and by [`missing`] if asked for huge ones.
    #[must_use]
    pub fn present(&self) -> bool {
        self.categories & PAGE_IS_PRESENT != 0
    }

    /// True if the pages are parts of huge ones. Only said by [`missing`] if asked for.
    #[must_use]
    pub fn huge(&self) -> bool {
        self.categories & PAGE_IS_HUGE != 0
    }

    /// True if the pages were written to since they were last protected or their bits cleared. Only said by [`written()`],
    /// [`missing`] and [`soft_dirty`].
    #[must_use]
    pub fn written(&self) -> bool {
        self.categories & PAGE_IS_WRITTEN != 0
    }
}

#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}
const _: () = assert!(size_of::<ScanArguments>() == 96 && size_of::<Region>() == 24);

/// How this kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The ioctl.
    Scan,
    /// One entry per page.
    Entries,
}

/// Finds the best method for an open `/proc/self/pagemap`.
#[must_use]
pub fn probe(pagemap: i32) -> Method {
    let mut arguments = ScanArguments { size: 96, return_mask: PAGE_IS_PRESENT, ..Default::default() };
    // SAFETY: an empty range; the kernel only reads and writes `arguments`.
    let result = unsafe { syscall(libc::SYS_ioctl, [pagemap as usize, PAGEMAP_SCAN, (&raw mut arguments) as usize, 0, 0, 0]) };
    if result >= 0 { Method::Scan } else { Method::Entries }
}

/// Collects populated pages of `start..end` into `found`, until the range or the room ends. `own_only` leaves out pages
/// that still are the mapped file's (or shared memory's). Returns how many regions there are and up to where the range
/// was looked at. Allocates nothing.
///
/// # Errors
/// The errno of the ioctl or the read.
pub fn populated(pagemap: i32, method: Method, start: u64, end: u64, own_only: bool, found: &mut [Region]) -> Result<(usize, u64), i32> {
    match method {
        Method::Scan => scan(pagemap, start, end, populated_pages(own_only), found),
        Method::Entries => entries(pagemap, start, end, own_only, false, found),
    }
}

/// Collects populated pages of `start..end` that were written to since they were last protected. With `protect` it protects at
/// the same instant those that it collects. The range lies in one mapping.
///
/// Only what is collected costs: to list what was not written to as well takes the kernel six times as long.
///
/// # Errors
/// The errno; `EPERM` if the range is not under observation (see [`crate::userfault`]), which is to be taken as "all written".
pub fn written(pagemap: i32, start: u64, end: u64, protect: bool, found: &mut [Region]) -> Result<(usize, u64), i32> {
    let arguments = ScanArguments {
        flags: SCAN_CHECK | if protect { SCAN_PROTECT } else { 0 },
        category_mask: PAGE_IS_WRITTEN,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_WRITTEN | PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        ..ScanArguments::default()
    };
    scan(pagemap, start, end, arguments, found)
}

/// The first populated page of `start..end` that was written to since it was last protected, as [`written()`] tells. The walk ends there.
///
/// # Errors
/// As [`written()`].
pub fn first_written(pagemap: i32, start: u64, end: u64) -> Result<Option<u64>, i32> {
    let arguments = ScanArguments {
        flags: SCAN_CHECK,
        max_pages: 1,
        category_mask: PAGE_IS_WRITTEN,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_WRITTEN,
        ..ScanArguments::default()
    };
    let mut found = [Region::default()];
    let (count, _) = scan(pagemap, start, end, arguments, &mut found)?;
    Ok((count > 0).then_some(found[0].start))
}

/// Collects what is not in memory: pages that are not populated, and, told by [`Region::absent`], those that are but have to be
/// fetched; [`Region::written`] is said of them as by [`written()`]. With `huge` also pages that are parts of huge ones, mapped as such:
/// [`Region::huge`] tells of those, [`Region::present`] which of all are in memory.
///
/// # Errors
/// As [`written()`].
pub fn missing(pagemap: i32, start: u64, end: u64, huge: bool, found: &mut [Region]) -> Result<(usize, u64), i32> {
    let (mask, anyof) = if huge { (0, PAGE_IS_PRESENT | PAGE_IS_HUGE) } else { (PAGE_IS_PRESENT, 0) };
    let arguments = ScanArguments {
        flags: SCAN_CHECK,
        category_inverted: PAGE_IS_PRESENT,
        category_mask: mask,
        category_anyof_mask: anyof,
        return_mask: PAGE_IS_SWAPPED | PAGE_IS_WRITTEN | anyof,
        ..ScanArguments::default()
    };
    scan(pagemap, start, end, arguments, found)
}

/// Whether the mapping that begins at or contains `start` is under the observation of some userfaultfd without a handler.
#[must_use]
pub fn observed(pagemap: i32, start: u64) -> bool {
    let mut found = [Region::default()];
    written(pagemap, start, start + PAGE_SIZE, false, &mut found).is_ok()
}

/// Collects populated pages as [`populated`] does, and tells which have their soft-dirty bit set.
///
/// # Errors
/// The errno of the read.
pub fn soft_dirty(pagemap: i32, start: u64, end: u64, own_only: bool, found: &mut [Region]) -> Result<(usize, u64), i32> {
    entries(pagemap, start, end, own_only, true, found)
}

/// Collects guard pages (`MADV_GUARD_INSTALL`) of `start..end` into `found`, as [`populated`] does populated ones. A kernel that
/// does not know them (before Linux 6.15) has none to tell of.
///
/// # Errors
/// The errno of the ioctl.
pub fn guards(pagemap: i32, start: u64, end: u64, found: &mut [Region]) -> Result<(usize, u64), i32> {
    let arguments = ScanArguments { category_mask: PAGE_IS_GUARD, return_mask: PAGE_IS_GUARD, ..ScanArguments::default() };
    match scan(pagemap, start, end, arguments, found) {
        Err(libc::EINVAL | libc::ENOTTY) => Ok((0, end)),
        result => result,
    }
}

/// What selects populated pages, and tells of them that they are.
fn populated_pages(own_only: bool) -> ScanArguments {
    let without = PAGE_IS_PFNZERO | if own_only { PAGE_IS_FILE } else { 0 };
    ScanArguments {
        category_inverted: without,
        category_mask: without,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        ..ScanArguments::default()
    }
}

/// The ioctl over `start..end`, with the flags and categories of `arguments`.
fn scan(pagemap: i32, start: u64, end: u64, arguments: ScanArguments, found: &mut [Region]) -> Result<(usize, u64), i32> {
    let mut arguments = ScanArguments { size: 96, start, end, vec: found.as_mut_ptr() as u64, vec_len: found.len() as u64, ..arguments };
    // SAFETY: the kernel writes at most `vec_len` regions into `found`, a live slice, and `arguments`.
    let result = unsafe { syscall(libc::SYS_ioctl, [pagemap as usize, PAGEMAP_SCAN, (&raw mut arguments) as usize, 0, 0, 0]) };
    let count = check(result)?;
    Ok((count.min(found.len()), if count < found.len() { end } else { arguments.walk_end.clamp(start, end) }))
}

fn entries(pagemap: i32, start: u64, end: u64, own_only: bool, dirty: bool, found: &mut [Region]) -> Result<(usize, u64), i32> {
    let mut buffer = [0u64; 512];
    let room = found.len();
    let mut count = 0;
    let mut at = start;
    // Of a file's mapping mincore tells what is in memory at all.
    let mut leaped = if own_only { end } else { start };
    while at < end {
        if leaped <= at {
            (at, leaped) = leap(at, end, &mut buffer);
            continue;
        }
        let wanted = (((end - at) / PAGE_SIZE) as usize).min(buffer.len());
        let offset = (at / PAGE_SIZE * 8) as usize;
        // SAFETY: reads at most `wanted` entries into `buffer`, which holds as many.
        let got =
            check(unsafe { syscall(libc::SYS_pread64, [pagemap as usize, buffer.as_mut_ptr() as usize, wanted * 8, offset, 0, 0]) })? / 8;
        if got == 0 {
            return Ok((count, end));
        }
        for entry in &buffer[..got] {
            let held = entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0 && entry & ENTRY_GUARD == 0 && !(own_only && entry & ENTRY_FILE != 0);
            if held {
                let written = if dirty && entry & ENTRY_SOFT_DIRTY != 0 { PAGE_IS_WRITTEN } else { 0 };
                let categories = written | if entry & ENTRY_PRESENT != 0 { PAGE_IS_PRESENT } else { PAGE_IS_SWAPPED };
                match found[..count].last_mut() {
                    Some(last) if last.end == at && last.categories == categories => last.end += PAGE_SIZE,
                    _ if count == room => return Ok((count, at)),
                    _ => {
                        found[count] = Region { start: at, end: at + PAGE_SIZE, categories };
                        count += 1;
                    }
                }
            }
            at += PAGE_SIZE;
        }
    }
    Ok((count, end))
}

/// Up to where `start..end` surely holds nothing, and up to where after that the entries are to be read.
///
/// mincore(2) takes a page that was swapped out for one that holds nothing. As a process whose threads stand still gets none back
/// unasked, there was none if afterwards no swap space is in use.
fn leap(start: u64, end: u64, buffer: &mut [u64; 512]) -> (u64, u64) {
    let pages = (((end - start) / PAGE_SIZE) as usize).min(size_of_val(buffer));
    let to = start + pages as u64 * PAGE_SIZE;
    // SAFETY: the kernel writes one byte per page into `buffer`, which has that many.
    let known = unsafe { syscall(libc::SYS_mincore, [start as usize, pages * PAGE_SIZE as usize, buffer.as_mut_ptr() as usize, 0, 0, 0]) };
    // SAFETY: bytes of a live array.
    let held = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), pages) };
    let empty = held.iter().position(|byte| byte & 1 != 0).unwrap_or(pages);
    if check(known).is_err() || empty != 0 && swapping() {
        return (start, to);
    }
    (start + empty as u64 * PAGE_SIZE, to)
}

/// Whether anything on this machine is swapped out, or that cannot be told.
#[must_use]
pub fn swapping() -> bool {
    let mut info = core::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills `info`, for which all zeros is a value, too.
    let told = unsafe { syscall(libc::SYS_sysinfo, [info.as_mut_ptr() as usize, 0, 0, 0, 0, 0]) };
    // SAFETY: as above.
    let info = unsafe { info.assume_init() };
    check(told).is_err() || info.freeswap != info.totalswap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::apart;
    use std::os::fd::AsRawFd;

    #[test]
    fn guard_pages_are_found_where_the_kernel_has_them() {
        const MADV_GUARD_INSTALL: i32 = 102;
        // SAFETY: a new private mapping at an address of the kernel's choice, unmapped below.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), 16 * 4096, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        let start = base as u64;
        // SAFETY: advice on the mapping made above.
        let known = unsafe { libc::madvise((start + 2 * PAGE_SIZE) as *mut libc::c_void, 3 * 4096, MADV_GUARD_INSTALL) } == 0;
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut found = [Region::default(); 4];
        let (count, next) = guards(pagemap.as_raw_fd(), start, start + 16 * PAGE_SIZE, &mut found).unwrap();
        assert_eq!(next, start + 16 * PAGE_SIZE);
        let ranges: Vec<_> = found[..count].iter().map(|region| (region.start - start, region.end - start)).collect();
        // A kernel may have them and not tell.
        assert!(
            ranges == [(2 * PAGE_SIZE, 5 * PAGE_SIZE)] || ranges.is_empty() && (!known || probe(pagemap.as_raw_fd()) == Method::Entries),
            "{ranges:?}"
        );
        // SAFETY: the mapping made above, no longer used.
        unsafe { libc::munmap(base, 16 * 4096) };
    }

    #[test]
    fn what_is_far_apart_is_found() {
        let size = 4u64 << 30;
        let start = apart(size / PAGE_SIZE);
        let end = start + size;
        // Beside the borders of a leap, and far from any.
        let expected = [0, 1, 4095, 4096, 4097, 8191, 12288, 300_000, 300_511, 300_512, size / PAGE_SIZE - 1];
        for page in expected {
            // SAFETY: within the mapping made above.
            unsafe { ((start + page * PAGE_SIZE) as *mut u8).write_volatile(1) };
        }
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut found = [Region::default(); 3];
        let (mut at, mut pages) = (start, vec![]);
        while at < end {
            let (count, next) = populated(pagemap.as_raw_fd(), Method::Entries, at, end, false, &mut found).unwrap();
            for region in &found[..count] {
                pages.extend((region.start..region.end).step_by(PAGE_SIZE as usize).map(|address| (address - start) / PAGE_SIZE));
            }
            at = next;
        }
        assert_eq!(pages, expected);
        // SAFETY: the mapping made above, no longer used.
        unsafe { libc::munmap(start as *mut libc::c_void, size as usize) };
    }

    #[test]
    fn both_methods_find_exactly_the_touched_pages() {
        let size = 64 * PAGE_SIZE as usize;
        let start = apart(64);
        for page in [0u64, 1, 5, 63] {
            // SAFETY: within the mapping made above.
            unsafe { ((start + page * PAGE_SIZE) as *mut u8).write_volatile(1) };
        }
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        for method in [Method::Scan, Method::Entries] {
            if method == Method::Scan && probe(pagemap.as_raw_fd()) != Method::Scan {
                continue;
            }
            let mut found = [Region::default(); 2];
            let (mut at, mut pages) = (start, vec![]);
            while at < start + size as u64 {
                let (count, next) = populated(pagemap.as_raw_fd(), method, at, start + size as u64, true, &mut found).unwrap();
                for region in &found[..count] {
                    pages.extend((region.start..region.end).step_by(PAGE_SIZE as usize).map(|address| (address - start) / PAGE_SIZE));
                }
                at = next;
            }
            assert_eq!(pages, [0, 1, 5, 63], "{method:?}");
        }
        // SAFETY: the mapping made above, no longer used.
        unsafe { libc::munmap(start as *mut libc::c_void, size) };
    }
}
