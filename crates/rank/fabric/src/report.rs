//! Faults told to people on standard error: one line, one write, no allocation in the C library.

/// Writes one line beginning with `mend: rank N:`.
pub fn fault(rank: Option<u32>, text: std::fmt::Arguments<'_>) {
    let line = match rank {
        Some(rank) => format!("mend: rank {rank}: {text}\n"),
        None => format!("mend: {text}\n"),
    };
    // SAFETY: descriptor 2 is only written to; if it is closed the write fails, which is no reason to fail here.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line.as_bytes());
}
