//! Short turns on a busy processor.
//!
//! With more ranks than processors a thread that has a few microseconds of work waits for the slices of the others,
//! milliseconds each. A thread that asks for short slices of its own has an earlier deadline when it wakes, and so
//! preempts them; its share of the processor stays the same. Since Linux 6.12 anybody may ask (sched_setattr(2):
//! `sched_runtime` of a SCHED_OTHER thread, 0.1 to 100 ms); older kernels ignore it.

use std::io;

/// The shortest slice the kernel grants, nanoseconds.
const MIN_SLICE_NS: u64 = 100_000;

/// Short slices for the calling thread and all that it creates from now on.
///
/// # Errors
/// The kernel refused; nothing has changed.
pub fn shorten() -> io::Result<()> {
    set(MIN_SLICE_NS)
}

/// The kernel's usual slices for the calling thread and all that it creates from now on.
///
/// # Errors
/// The kernel refused; nothing has changed.
pub fn restore() -> io::Result<()> {
    set(0)
}

fn set(runtime: u64) -> io::Result<()> {
    // SAFETY: plain integers, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: writes at most `size` bytes into `attributes`.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.sched_runtime = runtime;
    // SAFETY: reads `attributes`, whose size field the kernel has filled in.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_ask_and_take_it_back() {
        shorten().unwrap();
        restore().unwrap();
    }
}
