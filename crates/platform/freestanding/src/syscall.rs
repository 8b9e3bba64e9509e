//! The system call instruction itself, for code that may touch neither `errno` nor a C library's locks: the restorer, signal handlers that
//! interrupt the program anywhere, and the writer of an image while all threads are parked.

use core::arch::asm;

/// A system call; the result is as the kernel returns it, `-errno` on failure.
///
/// # Safety
/// As the called function demands of its arguments.
#[inline]
pub unsafe fn syscall(number: i64, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11; the caller answers for the call's effects on memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The result of [`syscall`] as a `Result` with the errno.
///
/// # Errors
/// The errno the kernel returned.
#[inline]
pub fn check(result: isize) -> Result<usize, i32> {
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as usize) }
}
