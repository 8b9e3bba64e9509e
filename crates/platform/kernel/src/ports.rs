//! Whether a thread may use all I/O ports (iopl(2)), which the kernel does not tell.
//!
//! A thread may ask again for the level that it has; only a higher one takes `CAP_SYS_RAWIO`. So one that does without that capability for a
//! moment is granted the highest level if it has that, and is refused otherwise.

use crate::thread_attributes::{capabilities, set_capabilities};
use mend_freestanding::{check, syscall};

/// The level at which ports may be used.
const HIGHEST_LEVEL: usize = 3;
const CAP_SYS_RAWIO: u64 = 1 << 17;

/// Of the calling thread. Usable from a signal handler.
#[must_use]
pub fn all_allowed() -> bool {
    let Some([effective, permitted, inheritable]) = capabilities() else { return false };
    let able = effective & CAP_SYS_RAWIO != 0;
    if able && set_capabilities([effective & !CAP_SYS_RAWIO, permitted, inheritable]).is_err() {
        return false;
    }
    // SAFETY: takes a number. Without the capability it changes nothing.
    let allowed = check(unsafe { syscall(libc::SYS_iopl, [HIGHEST_LEVEL, 0, 0, 0, 0, 0]) }).is_ok();
    if able {
        // It is permitted still.
        let _ = set_capabilities([effective, permitted, inheritable]);
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_changes_nothing_and_finds_what_is_so() {
        std::thread::spawn(|| {
            let before = capabilities();
            assert!(!all_allowed());
            assert!(!all_allowed());
            assert_eq!(capabilities(), before);
            // SAFETY: takes a number; this thread uses no port.
            let granted = check(unsafe { syscall(libc::SYS_iopl, [HIGHEST_LEVEL, 0, 0, 0, 0, 0]) }).is_ok();
            assert_eq!(all_allowed(), granted);
        })
        .join()
        .unwrap();
    }
}
