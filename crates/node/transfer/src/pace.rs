//! How fast the copies of a job on this node may be, and whether they are still wanted.

use crate::TransferError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest sleep before looking whether the job has left.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// See the module. Shared by all pipelines that it bounds together.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second; 0: no bound.
    rate: u64,
    free_at: Mutex<Instant>,
    cancelled: AtomicBool,
}

impl Pace {
    /// At most `rate` bytes per second; 0: no bound.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self { rate, free_at: Mutex::new(Instant::now()), cancelled: AtomicBool::new(false) }
    }

    /// Ends all copies.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits until as many bytes may be moved.
    ///
    /// # Errors
    /// [`TransferError::Cancelled`].
    pub fn spend(&self, bytes: usize) -> Result<(), TransferError> {
        let mut due = Instant::now();
        if self.rate > 0 {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            due = (*free_at).max(due);
            *free_at = due + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        }
        loop {
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            match due.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => return Ok(()),
                Some(left) => std::thread::sleep(left.min(MAX_SLEEP)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_kept_and_can_be_ended() {
        let pace = Pace::new(1 << 20);
        // A minute's worth: this test may stand still for seconds.
        pace.spend(1 << 26).unwrap();
        assert!(*pace.free_at.lock().unwrap() > Instant::now());
        pace.cancel();
        assert!(matches!(pace.spend(1), Err(TransferError::Cancelled)));
    }
}
