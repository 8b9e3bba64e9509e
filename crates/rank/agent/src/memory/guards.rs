//! Guard pages within mappings (`MADV_GUARD_INSTALL`, Linux 6.13), which no list of mappings shows.

use crate::capture::scratch::Scratch;
use crate::capture::write_error::WriteError;
use crate::memory::layout::MappingPlan;
use crate::memory::pages::PAGE;
use mend_freestanding::{check, syscall};
use mend_image::END_OF_ADDRESSES;
use mend_image::record::mapping;
use mend_kernel::pagemap;
use mend_messages::agent::Compression;
use rustix::io::Errno;

/// All of the process, as ranges. None where the kernel cannot tell them.
pub(crate) fn find(pagemap: i32, scratch: &Scratch) -> Result<Vec<(u64, u64)>, WriteError> {
    let mut guards = Vec::new();
    if pagemap::probe(pagemap) != pagemap::Method::Scan {
        return Ok(guards);
    }
    // SAFETY: the writer has not begun; its buffers are borrowed nowhere else.
    let regions = unsafe { scratch.buffers(Compression::Off) }.regions;
    let mut at = 0;
    while at < END_OF_ADDRESSES {
        let (count, next) = pagemap::guards(pagemap, at, END_OF_ADDRESSES, regions)
            .map_err(|errno| WriteError::Pagemap(Errno::from_raw_os_error(errno)))?;
        guards.extend(regions[..count].iter().map(|region| (region.start, region.end)));
        at = next.max(at + PAGE);
    }
    Ok(guards)
}

/// Makes them again; where it failed, if it did. The kernel makes none in memory that is locked (madvise(2)), though it may be locked
/// afterwards: such mappings are unlocked meanwhile.
pub(crate) fn install(guards: &[(u64, u64)], plans: &[MappingPlan]) -> Result<(), (u64, Errno)> {
    const MADV_GUARD_INSTALL: usize = 102;
    let guarded = |plan: &&MappingPlan| guards.iter().any(|(start, end)| *start < plan.mapping.end && *end > plan.mapping.start);
    let locked: Vec<&MappingPlan> = plans.iter().filter(|plan| plan.mapping.flags & mapping::LOCKED != 0).filter(guarded).collect();
    let range = |plan: &MappingPlan| (plan.mapping.start as usize, (plan.mapping.end - plan.mapping.start) as usize);
    for (start, len) in locked.iter().map(|plan| range(plan)) {
        // SAFETY: changes no content.
        let _ = unsafe { syscall(libc::SYS_munlock, [start, len, 0, 0, 0, 0]) };
    }
    let installed = guards.iter().try_for_each(|(start, end)| {
        // SAFETY: the program's own guard pages; nothing is stored there.
        check(unsafe { syscall(libc::SYS_madvise, [*start as usize, (end - start) as usize, MADV_GUARD_INSTALL, 0, 0, 0]) })
            .map(drop)
            .map_err(|errno| (*start, Errno::from_raw_os_error(errno)))
    });
    for plan in locked {
        let ((start, len), on_fault) = (range(plan), usize::from(plan.mapping.flags & mapping::LOCK_ON_FAULT != 0));
        // SAFETY: as above. It fails for the guard pages, and locks the rest all the same; what it may not lock is merely not locked.
        let _ = unsafe { syscall(libc::SYS_mlock2, [start, len, on_fault, 0, 0, 0]) };
    }
    installed
}
