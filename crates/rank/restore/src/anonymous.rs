//! Memory without a file, as a process has it for itself; and what is advised of mappings.

use crate::{RestoreError, sys};
use mend_image::record::mapping;

pub(crate) const ENOMEM: i32 = 12;

/// Advice by flag, as madvise(2) numbers it.
const ADVICE: [(u32, usize); 8] = [
    (mapping::HUGE, 14),
    (mapping::NO_HUGE, 15),
    (mapping::NO_DUMP, 16),
    (mapping::NO_FORK, 10),
    (mapping::WIPE_ON_FORK, 18),
    (mapping::MERGEABLE, 12),
    (mapping::RANDOM, 1),
    (mapping::SEQUENTIAL, 2),
];

/// Gives a mapping that was just made what was advised of the one that it stands for.
pub(crate) fn advise(start: u64, length: usize, flags: u32) {
    for (flag, advice) in ADVICE {
        if flags & flag != 0 {
            // SAFETY: advice on a mapping just made; a kernel without it is none the worse.
            let _ = unsafe { sys::call(sys::MADVISE, [start as usize, length, advice, 0, 0, 0]) };
        }
    }
}

/// Maps private memory without a file, readable and writable, where nothing is mapped.
pub(crate) fn map_private(start: u64, end: u64, flags: u32) -> Result<(), RestoreError<'static>> {
    let length = (end - start) as usize;
    let map = |reserved: bool| {
        let more = if reserved { 0 } else { sys::MAP_NORESERVE };
        let how = sys::MAP_FIXED_NOREPLACE | sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | more;
        // SAFETY: MAP_FIXED_NOREPLACE: replaces nothing, neither of ours nor of the image.
        unsafe { sys::call(sys::MMAP, [start as usize, length, sys::PROT_READ | sys::PROT_WRITE, how, usize::MAX, 0]) }
    };
    let mut mapped = map(flags & mapping::RESERVED != 0);
    if mapped == Err(ENOMEM) {
        mapped = map(false);
    }
    match mapped {
        Ok(address) if address as u64 == start => {}
        Ok(_) => return Err(RestoreError::MapThere { length, start }),
        Err(errno) => return Err(RestoreError::Map { length, start, errno }),
    }
    advise(start, length, flags);
    Ok(())
}
