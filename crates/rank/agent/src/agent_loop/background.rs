//! Tells the daemon what became of an image that was written behind the program.

use super::Agent;
use mend_messages::agent::{FromAgent, Written};
use std::io;

impl Agent {
    /// Tells of the last image if it is complete, or cannot be.
    pub(super) fn look_behind(&mut self) -> io::Result<()> {
        let result = self.behind.as_mut().and_then(|behind| behind.check());
        result.map_or(Ok(()), |result| self.tell_written(result))
    }

    pub(super) fn tell_written(&mut self, result: Result<Written, String>) -> io::Result<()> {
        let Some(behind) = self.behind.take() else { return Ok(()) };
        self.tracker.take_hashes(behind.id, behind.hashes());
        if behind.was_killed_by_kernel() {
            self.caution.killed();
        } else if result.is_ok() {
            self.caution.written();
        }
        self.link.send(&FromAgent::Written { id: behind.id, result })
    }
}
