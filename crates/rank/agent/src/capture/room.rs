//! Whether there is memory for a copy of this process, of which each page may have to be copied in the end.
//!
//! Asked before anything is stopped. The answer is an estimate: what other processes take meanwhile is not known. The copy
//! is the first to die if it was wrong; for a while no other one is made then.

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

/// What is learned from copies that the kernel killed: the next image is taken without one, and twice as many as the last time
/// if a copy had been tried again and was killed, too.
#[derive(Debug, Default)]
pub(crate) struct Caution {
    /// Images that are still to be taken without a copy.
    left: u32,
    /// How many it were to be after the last copy that was killed.
    last: u32,
}

impl Caution {
    const MOST: u32 = 64;

    /// A copy was killed.
    pub fn killed(&mut self) {
        self.last = (self.last * 2).clamp(1, Self::MOST);
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
        let mut caution = Caution::default();
        let mut images_until_a_copy = || {
            caution.killed();
            let mut images = 0;
            while caution.advises_against().is_some() {
                caution.stood_still();
                images += 1;
            }
            images
        };
        assert_eq!(std::array::from_fn(|_| images_until_a_copy()), [1, 2, 4, 8, 16, 32, 64, 64]);
        caution.written();
        caution.killed();
        caution.stood_still();
        assert_eq!(caution.advises_against(), None);
    }

    #[test]
    fn a_copy_needs_as_much_as_the_process_has() {
        assert_eq!(judge(1 << 30, 1, None), None);
        assert_eq!(judge(1 << 30, 1, Some((1 << 30) + RESERVE)), None);
        assert!(judge(1 << 30, 2, Some((1 << 30) + RESERVE)).unwrap().contains("1024 MiB may need as much again"));
        assert!(judge(1, 1, Some(0)).is_some());
    }
}
