//! Whether there is memory for a copy of this process, of which each page may have to be copied in the end.
//!
//! Asked before anything is stopped. The answer is an estimate: what other processes take meanwhile is not known. The copy
//! is the first to die if it was wrong.

/// What is left to everybody else.
const RESERVE: u64 = 64 << 20;

/// Why a process with `private` bytes of private memory, one of `ranks` on this node that are copied at once, is not to be
/// copied. `None`: it may be.
pub(crate) fn too_little(private: u64, ranks: u64) -> Option<String> {
    judge(private, ranks, mend_kernel::memory::pools().iter().map(|pool| pool.free).min())
}

fn judge(private: u64, ranks: u64, free: Option<u64>) -> Option<String> {
    let free = free?;
    let share = free.saturating_sub(RESERVE) / ranks.max(1);
    let mebibytes = |bytes: u64| bytes >> 20;
    (private > share).then(|| {
        let others = if ranks > 1 { format!(" for the {ranks} ranks here") } else { String::new() };
        format!("a snapshot of {} MiB may need as much again, and {} MiB are free{others}", mebibytes(private), mebibytes(free))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_needs_as_much_as_the_process_has() {
        assert_eq!(judge(1 << 30, 1, None), None);
        assert_eq!(judge(1 << 30, 1, Some((1 << 30) + RESERVE)), None);
        assert!(judge(1 << 30, 2, Some((1 << 30) + RESERVE)).unwrap().contains("1024 MiB may need as much again"));
        assert!(judge(1, 1, Some(0)).is_some());
    }
}
