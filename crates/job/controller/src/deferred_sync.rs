//! A file that is written often and made durable now and then, on another thread, so that nobody waits for the disk.

use std::fs::File;
use std::time::{Duration, Instant};

/// What of a file is not known to be durable.
#[derive(Debug)]
pub(crate) struct DeferredSync {
    /// Since then.
    since: Option<Instant>,
    interval: Duration,
}

impl DeferredSync {
    /// All is durable. What is written is made so within `interval`, but for the time that takes.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { since: None, interval }
    }

    /// Something was written.
    pub(crate) fn written(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// True if something was written since it was made durable last; from now on it counts as durable.
    pub(crate) fn take(&mut self) -> bool {
        self.since.take().is_some()
    }

    /// When [`DeferredSync::tick`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.interval)
    }

    /// To be called now and then.
    pub(crate) fn tick(&mut self, file: &File) {
        if self.since.is_some_and(|since| since.elapsed() >= self.interval)
            && let Ok(file) = file.try_clone()
        {
            self.since = None;
            // An error comes again with what is written next.
            std::thread::spawn(move || drop(file.sync_data()));
        }
    }
}
