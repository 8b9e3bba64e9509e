//! A thread that others must not feel.
//!
//! Lowest processor share (nice 19) and the idle class of disk access (ioprio_set(2)), of the calling thread alone. An
//! ordinary user cannot take either back: for threads made for the purpose.

use std::io;

const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_CLASS_IDLE: libc::c_int = 3;
const IOPRIO_CLASS_SHIFT: u32 = 13;
const LEAST_NICE: i32 = 19;

/// The calling thread stands back from now on.
///
/// # Errors
/// The kernel refused one of the two; the other may hold.
pub fn stand_back() -> io::Result<()> {
    // On Linux, nice values are of threads (sched(7)), and raising one's own is always allowed.
    let nice = rustix::process::setpriority_process(None, LEAST_NICE);
    // SAFETY: plain integers; who = 0 is the calling thread.
    let disk = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT) };
    nice?;
    if disk == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_stands_back() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let there = std::thread::spawn(move || {
            stand_back().unwrap();
            niceness()
        });
        assert_eq!((there.join().unwrap(), niceness()), (LEAST_NICE, before));
    }
}
