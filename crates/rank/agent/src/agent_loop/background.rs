//! Tells the daemon what became of an image that was written in the background.

use super::Agent;
use mend_messages::agent::{FromAgent, Written};
use std::io;

impl Agent {
    /// Tells of the last image if it is complete, or cannot be.
    pub(super) fn check_background_writer(&mut self) -> io::Result<()> {
        let result = self.background.as_mut().and_then(|background| background.check());
        result.map_or(Ok(()), |result| self.tell_written(result))
    }

    pub(super) fn tell_written(&mut self, result: Result<Written, String>) -> io::Result<()> {
        let Some(background) = self.background.take() else { return Ok(()) };
        self.tracker.take_hashes(background.id, background.hashes());
        if background.was_killed_by_kernel() {
            self.copy_backoff.killed();
        } else if result.is_ok() {
            self.copy_backoff.written();
        }
        self.link.send(&FromAgent::Written { id: background.id, result })
    }
}
