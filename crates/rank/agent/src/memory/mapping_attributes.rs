//! What a program may have said of a mapping beside its protection and the advice that `smaps` shows: where its memory comes from
//! (mbind(2)), a name (`PR_SET_VMA_ANON_NAME`), that it stays as it is (mseal(2)).

use crate::memory::layout::MappingPlan;
use crate::memory::maps::Area;
use mend_freestanding::{check, syscall};
use mend_image::record::mapping;
use mend_kernel::thread_attributes::MemoryPolicy;
use rustix::io::Errno;
use std::ffi::CString;

/// A mapping with a policy of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    start: u64,
    end: u64,
    policy: MemoryPolicy,
}

/// Why a mapping is not what it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MappingError {
    #[error("memory at {0:#x} cannot come from the memory nodes that it came from: {1}")]
    Policy(u64, Errno),
    #[error("memory at {0:#x} cannot be sealed again: {1}")]
    Seal(u64, Errno),
}

/// All mappings that have one.
pub(crate) fn policies(areas: &[Area]) -> Vec<Policy> {
    // Not of the kernel's own mappings, and of files that are read the pages are the kernel's to place.
    let asked = areas.iter().filter(|area| !area.is_vdso() && !area.is_vvar() && area.name != "[vsyscall]");
    asked
        .filter_map(|area| MemoryPolicy::of_mapping(area.start).map(|policy| Policy { start: area.start, end: area.end, policy }))
        .collect()
}

/// Brings back all of it. Afterwards nothing may be done to a mapping that is sealed.
pub(crate) fn restore(policies: &[Policy], areas: &[Area], plans: &[MappingPlan]) -> Result<(), MappingError> {
    for Policy { start, end, policy } in policies {
        policy.set_for(*start, *end).map_err(|errno| MappingError::Policy(*start, Errno::from_raw_os_error(errno)))?;
    }
    areas.iter().for_each(name);
    for plan in plans.iter().filter(|plan| plan.mapping.flags & mapping::SEALED != 0) {
        const MSEAL: i64 = 462;
        let (start, end) = (plan.mapping.start, plan.mapping.end);
        // SAFETY: changes nothing but what may be done to the mapping later.
        check(unsafe { syscall(MSEAL, [start as usize, (end - start) as usize, 0, 0, 0, 0]) })
            .map_err(|errno| MappingError::Seal(start, Errno::from_raw_os_error(errno)))?;
    }
    Ok(())
}

/// Names are for people: a kernel without them is none the worse.
fn name(area: &Area) {
    let prefixes = ["[anon:", "[anon_shmem:"];
    let Some(name) = prefixes.iter().find_map(|prefix| area.name.strip_prefix(prefix)?.strip_suffix(']')) else { return };
    let Ok(name) = CString::new(name) else { return };
    let arguments = [libc::PR_SET_VMA as usize, 0, area.start as usize, (area.end - area.start) as usize, name.as_ptr() as usize, 0];
    // SAFETY: the kernel copies the name.
    unsafe { syscall(libc::SYS_prctl, arguments) };
}
