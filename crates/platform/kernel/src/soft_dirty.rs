//! Bits by which the kernel remembers which pages of a process were written to: cleared by `/proc/self/clear_refs`, read
//! from `/proc/self/pagemap` (see [`crate::pagemap::soft_dirty`]).
//!
//! There is one set of bits per process: whoever else clears them (another checkpointer) takes them from us unnoticed. Not
//! all kernels are built with them, and those without still accept the order to clear.
//!
//! Linux since 5.0 moves whole page tables where `mremap` moves aligned blocks of 2 MiB, and the bits in them stay as they are (seen
//! on 6.1): there, memory that was written to long ago can appear at an address without a bit that says so.
//!
//! Source: Documentation/admin-guide/mm/soft-dirty.rst.

use crate::pagemap::{Region, soft_dirty};
use mend_freestanding::{check, syscall};

const PAGE_SIZE: usize = 4096;
/// What one page table maps.
const TABLE_SPAN_BYTES: usize = 512 * PAGE_SIZE;

/// What the bits of this kernel tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftDirtySupport {
    /// It has none.
    Nothing,
    /// What was written to, but of memory that was moved not always that it was.
    Writes,
    /// The kernel tells of writes and of moves.
    WritesAndMoves,
}

/// Clears all bits of the process whose `/proc/PID/clear_refs` is open for writing. Allocates nothing.
///
/// # Errors
/// The errno.
pub fn clear(clear_refs: i32) -> Result<(), i32> {
    let order = b"4\n";
    // SAFETY: writes from `order`, a live slice.
    check(unsafe { syscall(libc::SYS_pwrite64, [clear_refs as usize, order.as_ptr() as usize, order.len(), 0, 0, 0]) }).map(drop)
}

/// What the bits tell here: pages are written and looked at, and written or moved after a clearing, which costs this process the
/// bits it had.
///
/// # Errors
/// The errno of what could not be done.
pub fn probe(pagemap: i32, clear_refs: i32) -> Result<SoftDirtySupport, i32> {
    let arguments = [
        0,
        3 * TABLE_SPAN_BYTES,
        (libc::PROT_READ | libc::PROT_WRITE) as usize,
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize,
        usize::MAX,
        0,
    ];
    // SAFETY: a new mapping at an address of the kernel's choice, unmapped below.
    let base = check(unsafe { syscall(libc::SYS_mmap, arguments) })?;
    let (place, end) = (base.next_multiple_of(TABLE_SPAN_BYTES), base + 3 * TABLE_SPAN_BYTES);
    let mut given_up = (place, place);
    let result = tells(pagemap, clear_refs, place, &mut given_up);
    // What the program maps meanwhile may lie where the move left nothing.
    for (start, end) in [(base, given_up.0), (given_up.1, end)] {
        // SAFETY: of the mapping made above, no longer used.
        unsafe { syscall(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0]) };
    }
    result
}

/// With two tables' worth of new memory. `given_up`: addresses of it at which others may have mapped something by now.
fn tells(pagemap: i32, clear_refs: i32, place: usize, given_up: &mut (usize, usize)) -> Result<SoftDirtySupport, i32> {
    // A huge page is another thing. SAFETY: advice on memory of the caller's.
    unsafe { syscall(libc::SYS_madvise, [place, TABLE_SPAN_BYTES, libc::MADV_NOHUGEPAGE as usize, 0, 0, 0]) };
    let touch = || {
        // SAFETY: memory of the caller's.
        unsafe { (place as *mut u8).write_volatile(1) };
    };
    let changed = |page: usize| -> Result<bool, i32> {
        let mut found = [Region::default()];
        let (count, _) = soft_dirty(pagemap, page as u64, (page + PAGE_SIZE) as u64, true, &mut found)?;
        Ok(count == 1 && found[0].written())
    };
    touch();
    let fresh = changed(place)?;
    clear(clear_refs)?;
    let cleared = changed(place)?;
    touch();
    if !fresh || cleared || !changed(place)? {
        return Ok(SoftDirtySupport::Nothing);
    }
    clear(clear_refs)?;
    let (to, how) = (place + TABLE_SPAN_BYTES, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
    // A move that fails may have unmapped its target.
    *given_up = (to, to + TABLE_SPAN_BYTES);
    // SAFETY: both are the caller's, and nobody refers to what is there.
    check(unsafe { syscall(libc::SYS_mremap, [place, TABLE_SPAN_BYTES, TABLE_SPAN_BYTES, how as usize, to, 0]) })?;
    *given_up = (place, to);
    Ok(if changed(to)? { SoftDirtySupport::WritesAndMoves } else { SoftDirtySupport::Writes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_probe_agrees_with_itself() {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let clear_refs = OpenOptions::new().write(true).open("/proc/self/clear_refs").unwrap();
        let first = probe(pagemap.as_raw_fd(), clear_refs.as_raw_fd()).unwrap();
        assert_eq!(probe(pagemap.as_raw_fd(), clear_refs.as_raw_fd()).unwrap(), first);
    }

    /// Also in the place that the probe moves memory away from.
    #[test]
    fn what_others_map_during_a_probe_stays() {
        const LEN: usize = 33 * PAGE_SIZE;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let clear_refs = OpenOptions::new().write(true).open("/proc/self/clear_refs").unwrap();
        let over = AtomicBool::new(false);
        let lost = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut lost = 0;
                while !over.load(Ordering::Relaxed) {
                    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                    // SAFETY: new mappings of this test's own; msync(2) tells of what is not mapped.
                    unsafe {
                        let at: Vec<_> = (0..8).map(|_| libc::mmap(std::ptr::null_mut(), LEN, protection, flags, -1, 0)).collect();
                        std::thread::yield_now();
                        lost += at.iter().filter(|at| libc::msync(**at, LEN, libc::MS_ASYNC) != 0).count();
                        at.iter().for_each(|at| assert_eq!(libc::munmap(*at, LEN), 0));
                    }
                }
                lost
            });
            for _ in 0..300 {
                probe(pagemap.as_raw_fd(), clear_refs.as_raw_fd()).unwrap();
            }
            over.store(true, Ordering::Relaxed);
            other.join().unwrap()
        });
        assert_eq!(lost, 0);
    }
}
