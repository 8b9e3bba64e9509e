//! Memory headroom: whether there is memory for a copy of this process, of which each page may have to be copied in the end.
//!
//! Asked before anything is stopped. The answer is an estimate: what other processes take meanwhile is not known. The copy
//! is the first to die if it was wrong; for a while no other one is made then.

/// What is left to everybody else.
const RESERVE_BYTES: u64 = 64 << 20;

/// Why there is too little memory to copy a process with `private` bytes of private memory, one of `ranks` on this node that are copied at
/// once. `None`: there is enough.
pub(crate) fn shortage(private: u64, ranks: u64) -> Option<String> {
    shortage_with(private, ranks, mend_kernel::memory::pools().iter().map(|pool| pool.free).min())
}

fn shortage_with(private: u64, ranks: u64, free: Option<u64>) -> Option<String> {
    let free = free?;
    let share = free.saturating_sub(RESERVE_BYTES) / ranks.max(1);
    let mebibytes = |bytes: u64| bytes >> 20;
    (private > share).then(|| {
        let others = if ranks > 1 { format!(" for the {ranks} ranks here") } else { String::new() };
        format!("a snapshot of {} MiB may need as much again, and {} MiB are free{others}", mebibytes(private), mebibytes(free))
    })
}

/// What is learned from copies that the kernel killed: the next image is taken without one, and twice as many as the last time
/// if a copy had been tried again and was killed, too.
#[derive(Debug, Default)]
pub(crate) struct CopyBackoff {
    /// Images that are still to be taken without a copy.
    left: u32,
    /// How many it were to be after the last copy that was killed.
    last: u32,
}

impl CopyBackoff {
    const MAX_IMAGES: u32 = 64;

    /// A copy was killed.
    pub fn killed(&mut self) {
        self.last = (self.last * 2).clamp(1, Self::MAX_IMAGES);
        self.left = self.last;
    }

    /// A copy has written its image.
    pub fn written(&mut self) {
        *self = Self::default();
    }

    /// An image was taken while the program stood still.
    pub fn stood_still(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Why no copy is to be made now.
    pub fn advises_against(&self) -> Option<String> {
        (self.left > 0).then(|| "the last copy of it was killed by signal 9, as the kernel does where memory is short".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_copy_that_is_killed_delays_the_next_one_longer() {
        let mut backoff = CopyBackoff::default();
        let mut images_until_a_copy = || {
            backoff.killed();
            let mut images = 0;
            while backoff.advises_against().is_some() {
                backoff.stood_still();
                images += 1;
            }
            images
        };
        assert_eq!(std::array::from_fn(|_| images_until_a_copy()), [1, 2, 4, 8, 16, 32, 64, 64]);
        backoff.written();
        backoff.killed();
        backoff.stood_still();
        assert_eq!(backoff.advises_against(), None);
    }

    #[test]
    fn a_copy_needs_as_much_as_the_process_has() {
        assert_eq!(shortage_with(1 << 30, 1, None), None);
        assert_eq!(shortage_with(1 << 30, 1, Some((1 << 30) + RESERVE_BYTES)), None);
        assert!(shortage_with(1 << 30, 2, Some((1 << 30) + RESERVE_BYTES)).unwrap().contains("1024 MiB may need as much again"));
        assert!(shortage_with(1, 1, Some(0)).is_some());
    }
}
