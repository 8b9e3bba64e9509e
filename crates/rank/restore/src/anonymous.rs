//! Memory without a file, as a process has it for itself; and what is advised of mappings.

use crate::{RestoreError, sys};
use mend_image::ranges::Range;
use mend_image::record::mapping;

const ENOMEM: i32 = 12;
/// Descriptor and offset of memory without a file.
pub(crate) const NO_FILE: (usize, u64) = (usize::MAX, 0);

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

/// Whether anything is advised of a mapping.
pub(crate) fn has_advice(flags: u32) -> bool {
    ADVICE.iter().any(|(flag, _)| flags & flag != 0)
}

/// A mark that a mapping carries for a while: the opposite of what is advised of it as to core dumps.
const fn mark(flags: u32) -> (usize, usize) {
    const DONT_DUMP: usize = 16;
    const DO_DUMP: usize = 17;
    if flags & mapping::NO_DUMP == 0 { (DONT_DUMP, DO_DUMP) } else { (DO_DUMP, DONT_DUMP) }
}

/// Gives a mapping that was just made what was advised of the one that it stands for.
pub(crate) fn advise(start: u64, length: usize, flags: u32) {
    for (flag, advice) in ADVICE {
        if flags & flag != 0 {
            // SAFETY: advice on a mapping just made; a kernel without it is none the worse.
            let _ = unsafe { sys::call(sys::MADVISE, [start as usize, length, advice, 0, 0, 0]) };
        }
    }
}

/// Gives a mapping that is there what was advised of the one that it stands for, and no more of what programs notice: memory that is pinned,
/// that a child does not get, or gets empty, and guard pages within it.
pub(crate) fn advise_anew((start, end): Range, flags: u32) {
    const DO_FORK: usize = 11;
    const KEEP_ON_FORK: usize = 19;
    const DO_DUMP: usize = 17;
    const GUARD_REMOVE: usize = 103;
    let length = (end - start) as usize;
    // SAFETY: changes no content, but for guard pages, which have none. What the kernel does not know was never advised.
    unsafe {
        let _ = sys::call(sys::MUNLOCK, [start as usize, length, 0, 0, 0, 0]);
        for advice in [DO_FORK, KEEP_ON_FORK, DO_DUMP, GUARD_REMOVE] {
            let _ = sys::call(sys::MADVISE, [start as usize, length, advice, 0, 0, 0]);
        }
    }
    advise(start, length, flags);
}

/// Maps at an address where nothing is mapped. Where there is too little memory to set aside, as on a node with less than the other, the
/// mapping comes back all the same. `how`: flags of mmap(2).
pub(crate) fn map_there(
    (start, length): (u64, usize),
    protection: usize,
    how: usize,
    (fd, offset): (usize, u64),
) -> Result<(), RestoreError<'static>> {
    let map = |more: usize| {
        let how = how | sys::MAP_FIXED_NOREPLACE | more;
        // SAFETY: MAP_FIXED_NOREPLACE: replaces nothing, neither of ours nor of the image.
        unsafe { sys::call(sys::MMAP, [start as usize, length, protection, how, fd, offset as usize]) }
    };
    let mut mapped = map(0);
    if mapped == Err(ENOMEM) {
        mapped = map(sys::MAP_NORESERVE);
    }
    match mapped {
        Ok(address) if address as u64 == start => Ok(()),
        Ok(_) => Err(RestoreError::MapThere { length, start }),
        Err(errno) => Err(RestoreError::Map { length, start, errno }),
    }
}

/// Flags of mmap(2) for private memory without a file.
fn private(flags: u32) -> usize {
    let more = if flags & mapping::RESERVED != 0 { 0 } else { sys::MAP_NORESERVE };
    sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | more
}

/// Maps private memory without a file, readable and writable, where nothing is mapped.
pub(crate) fn map_private(start: u64, end: u64, flags: u32) -> Result<(), RestoreError<'static>> {
    let length = (end - start) as usize;
    map_there((start, length), sys::PROT_READ | sys::PROT_WRITE, private(flags), NO_FILE)?;
    advise(start, length, flags);
    Ok(())
}

/// Marks private memory: until [`unmark`], the kernel joins it to nothing that is not marked too.
pub(crate) fn mark_private((start, end): Range, flags: u32) -> Result<(), RestoreError<'static>> {
    advise_one((start, end), mark(flags).0)
}

/// Takes the mark off again.
pub(crate) fn unmark((start, end): Range, flags: u32) -> Result<(), RestoreError<'static>> {
    advise_one((start, end), mark(flags).1)
}

fn advise_one((start, end): Range, advice: usize) -> Result<(), RestoreError<'static>> {
    let length = (end - start) as usize;
    // SAFETY: advice that changes no content, on mappings that nobody uses yet.
    let done = unsafe { sys::call(sys::MADVISE, [start as usize, length, advice, 0, 0, 0]) };
    done.map(drop).map_err(|errno| RestoreError::Map { length, start, errno })
}

/// Maps private memory as [`map_private`] does, but marked, and joined to marked neighbours alone: without access it is like none.
pub(crate) fn map_marked((start, end): Range, flags: u32) -> Result<(), RestoreError<'static>> {
    let length = (end - start) as usize;
    // What has no access is set aside when it becomes writable.
    for more in [0, sys::MAP_NORESERVE] {
        map_there((start, length), 0, private(flags) | more, NO_FILE)?;
        advise(start, length, flags);
        mark_private((start, end), flags)?;
        // SAFETY: what was just mapped.
        match unsafe { sys::call(sys::MPROTECT, [start as usize, length, sys::PROT_READ | sys::PROT_WRITE, 0, 0, 0]) } {
            Ok(_) => return Ok(()),
            // As in [`map_there`].
            Err(ENOMEM) => unmap((start, end)),
            Err(errno) => return Err(RestoreError::Protect { start, errno }),
        }
    }
    Err(RestoreError::Map { length, start, errno: ENOMEM })
}

/// Makes one mapping of memory what it stays when parts of it are protected in different ways: its parts can join again later. The kernel
/// sees to that from the first page on that it holds; this one is given back.
pub(crate) fn settle_as_one((start, end): Range) {
    // SAFETY: mapped, writable, and used by nobody yet; it holds zeros.
    unsafe { core::ptr::write_volatile(start as *mut u8, 0) };
    discard((start, end.min(start + 4096)));
}

/// Lets a part of memory be as a fresh mapping gives it.
pub(crate) fn discard((start, end): Range) {
    const MADV_DONTNEED: usize = 4;
    // SAFETY: callers name memory that nobody uses.
    let _ = unsafe { sys::call(sys::MADVISE, [start as usize, (end - start) as usize, MADV_DONTNEED, 0, 0, 0]) };
}

/// Takes a part of the address space away.
pub(crate) fn unmap((start, end): Range) {
    // SAFETY: callers name memory that nobody uses.
    let _ = unsafe { sys::call(sys::MUNMAP, [start as usize, (end - start) as usize, 0, 0, 0, 0]) };
}
