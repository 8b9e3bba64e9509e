//! What pipelines have moved: the one place where it is counted. Others may look while they run.

use std::sync::atomic::{AtomicU64, Ordering};

/// Of one pipeline, or of several that belong together.
#[derive(Debug, Default)]
pub struct Progress {
    read: AtomicU64,
    given: AtomicU64,
}

impl Progress {
    /// Bytes that sources gave.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes that targets took.
    #[must_use]
    pub fn bytes_given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_given(&self, bytes: usize) {
        self.given.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
