//! The process as a whole: what the restorer sets before the agent runs again.

pub(crate) mod attributes;
pub(crate) mod origin;
pub(crate) mod rseq;
pub(crate) mod scheduling;
pub(crate) mod shared_tables;
pub(crate) mod state;
pub(crate) mod system_v;
pub(crate) mod tasks;
pub(crate) mod timers;

use mend_freestanding::{check, syscall};
use mend_image::record::Process;
use std::io;

/// Reads it. `handoff` and the executable's text are filled in by the caller.
///
/// # Errors
/// `/proc/self` is not readable or not of a known form.
pub(crate) fn read() -> io::Result<Process> {
    let mut auxv = [0; 64];
    let raw = std::fs::read("/proc/self/auxv")?;
    if raw.len() > 512 {
        return Err(io::Error::other("the auxiliary vector is longer than known kernels make it"));
    }
    for (value, bytes) in auxv.iter_mut().zip(raw.chunks_exact(8)) {
        *value = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    let mut xstate_permitted = 0u64;
    // SAFETY: ARCH_GET_XCOMP_PERM (0x1022) writes 8 bytes; older kernels refuse it.
    unsafe { syscall(libc::SYS_arch_prctl, [0x1022, (&raw mut xstate_permitted) as usize, 0, 0, 0, 0]) };
    Ok(Process {
        layout: layout(&std::fs::read_to_string("/proc/self/stat")?)
            .ok_or_else(|| io::Error::other("/proc/self/stat has an unknown form"))?,
        auxv,
        auxv_size: raw.len() as u64,
        handoff: 0,
        // SAFETY: 0xffffffff only queries.
        personality: check(unsafe { syscall(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]) }).unwrap_or(0) as u64,
        capabilities: capabilities(),
        xstate_permitted,
        executable: 0,
        executable_length: 0,
    })
}

/// Fields of `struct prctl_mm_map`, from proc(5)'s `stat`: startcode is field 26, and so on.
fn layout(stat: &str) -> Option<[u64; 11]> {
    // The second field is the name in parentheses, which may contain anything.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    // SAFETY: brk(0) only queries.
    let top = unsafe { syscall(libc::SYS_brk, [0; 6]) } as u64;
    Some([field(26)?, field(27)?, field(45)?, field(46)?, field(47)?, top, field(28)?, field(48)?, field(49)?, field(50)?, field(51)?])
}

/// Effective, permitted and inheritable capabilities of the calling thread.
fn capabilities() -> [u64; 3] {
    let header = [0x2008_0522u32, 0]; // _LINUX_CAPABILITY_VERSION_3, this thread
    let mut data = [0u32; 6];
    // SAFETY: version 3 writes two structs of three words.
    unsafe { syscall(libc::SYS_capget, [header.as_ptr() as usize, data.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    [0, 1, 2].map(|kind| u64::from(data[kind]) | u64::from(data[kind + 3]) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_makes_sense() {
        let process = read().unwrap();
        let [start_code, end_code, start_data, end_data, start_brk, brk, start_stack, ..] = process.layout;
        assert!(start_code < end_code && start_data <= end_data && start_brk <= brk && start_stack != 0);
        assert!(process.auxv_size >= 16 * 10);
    }
}
