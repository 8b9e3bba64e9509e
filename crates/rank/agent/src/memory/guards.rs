//! Guard pages within mappings (`MADV_GUARD_INSTALL`, Linux 6.13), which no list of mappings shows.

use crate::capture::scratch::Scratch;
use crate::capture::write_error::WriteError;
use crate::memory::pages::PAGE;
use mend_freestanding::{check, syscall};
use mend_kernel::pagemap;
use mend_messages::agent::Compression;
use rustix::io::Errno;

/// All of the process, as ranges. None where the kernel cannot tell them.
pub(crate) fn find(pagemap: i32, scratch: &Scratch) -> Result<Vec<(u64, u64)>, WriteError> {
    const END_OF_USER_ADDRESSES: u64 = 0x7fff_ffff_f000;
    let mut guards = Vec::new();
    if pagemap::probe(pagemap) != pagemap::Method::Scan {
        return Ok(guards);
    }
    // SAFETY: the writer has not begun; its buffers are borrowed nowhere else.
    let regions = unsafe { scratch.buffers(Compression::Off) }.regions;
    let mut at = 0;
    while at < END_OF_USER_ADDRESSES {
        let (count, next) = pagemap::guards(pagemap, at, END_OF_USER_ADDRESSES, regions)
            .map_err(|errno| WriteError::Pagemap(Errno::from_raw_os_error(errno)))?;
        guards.extend(regions[..count].iter().map(|region| (region.start, region.end)));
        at = next.max(at + PAGE);
    }
    Ok(guards)
}

/// Makes them again; where it failed, if it did.
pub(crate) fn install(guards: &[(u64, u64)]) -> Result<(), (u64, Errno)> {
    const MADV_GUARD_INSTALL: usize = 102;
    for (start, end) in guards {
        // SAFETY: the program's own guard pages; nothing is stored there.
        check(unsafe { syscall(libc::SYS_madvise, [*start as usize, (end - start) as usize, MADV_GUARD_INSTALL, 0, 0, 0]) })
            .map_err(|errno| (*start, Errno::from_raw_os_error(errno)))?;
    }
    Ok(())
}
