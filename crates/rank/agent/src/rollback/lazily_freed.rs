//! Pages that the program has freed lazily (`MADV_FREE`, madvise(2)) and not written to since: the kernel may drop them whenever it likes.
//!
//! One that still is as the image has it is not rewritten in place. It would stay of that kind, and be zeros some time after the program has gone back to where it uses it.

use crate::memory::maps;
use mend_kernel::pagemap;
use std::fs::{File, read_to_string};
use std::io;
use std::os::fd::AsRawFd;

const REGIONS: usize = 256;
const PAGE: u64 = 4096;

/// Makes them ordinary pages. All threads are parked.
///
/// # Errors
/// The system says what there is of the process's memory in no known way, or such a page may not be written to.
pub(super) fn keep() -> io::Result<()> {
    if !any(&read_to_string("/proc/self/smaps_rollup")?) {
        return Ok(());
    }
    let (advice, file) = (maps::advice(), File::open("/proc/self/pagemap")?);
    let method = pagemap::probe(file.as_raw_fd());
    for area in maps::read()?.iter().filter(|area| advice.get(&area.start).is_some_and(|advised| advised.fleeting)) {
        if area.protection & libc::PROT_WRITE as u32 == 0 {
            return Err(io::Error::other("memory that was freed lazily has become read-only"));
        }
        let (mut found, mut at) = ([pagemap::Region::default(); REGIONS], area.start);
        while at < area.end {
            let (count, next) =
                pagemap::populated(file.as_raw_fd(), method, at, area.end, true, &mut found).map_err(io::Error::from_raw_os_error)?;
            for region in found.iter().take(count).filter(|region| !region.absent()) {
                (region.start..region.end).step_by(PAGE as usize).for_each(write_to);
            }
            at = next;
        }
    }
    Ok(())
}

/// Whether the text of `smaps_rollup` tells of any.
fn any(rollup: &str) -> bool {
    rollup.lines().find_map(|line| line.strip_prefix("LazyFree:")).is_some_and(|rest| !rest.trim_start().starts_with("0 "))
}

/// A page that was written to stays.
fn write_to(page: u64) {
    let byte = page as *mut u8;
    // SAFETY: present and writable memory of the process, whose threads are parked. What it holds does not change.
    unsafe { byte.write_volatile(byte.read_volatile()) };
}

#[cfg(test)]
mod tests {
    use super::any;

    #[test]
    fn the_sum_of_all_areas_tells() {
        let rollup = |bytes: u64| {
            format!("00400000-7fff0000 ---p 00000000 00:00 0    [rollup]\nRss:    900 kB\nLazyFree:        {bytes} kB\nSwap:   0 kB\n")
        };
        assert!(!any(&rollup(0)));
        assert!(any(&rollup(4)) && any(&rollup(100)));
        assert!(!any("Rss: 900 kB\n"));
    }
}
