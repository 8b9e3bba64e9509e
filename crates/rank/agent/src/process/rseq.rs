//! Where the C library keeps a thread's restartable-sequences area.

use core::sync::atomic::{AtomicI64, Ordering};

/// Offset from the thread pointer; `i64::MIN` if the C library registers none.
static OFFSET: AtomicI64 = AtomicI64::new(i64::MIN);

/// Looks the C library's symbols up (glibc 2.35 and later). Called once, before any thread is parked.
pub(crate) fn find() {
    // SAFETY: names are NUL-terminated; the symbols, if present, are `const unsigned` and `const ptrdiff_t`.
    unsafe {
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<i64>();
        if !size.is_null() && !offset.is_null() && *size != 0 {
            OFFSET.store(*offset, Ordering::Relaxed);
        }
    }
}

/// Address of the area of the thread with this thread pointer, 0 if it has none. Async-signal-safe.
pub(crate) fn area(thread_pointer: u64) -> u64 {
    match OFFSET.load(Ordering::Relaxed) {
        i64::MIN => 0,
        offset => thread_pointer.wrapping_add_signed(offset),
    }
}
