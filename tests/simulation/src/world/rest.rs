//! The end of a world: nothing fails any more, what is under way comes to its end, and a user ends the job.
//!
//! What is asserted: nothing waits for ever; a job ends, and if somebody was told that it is killed, then by that.

use super::World;
use crate::coming::SECOND_US;
use mend_job::event::Event;
use mend_messages::control::Ask;

impl World {
    /// No more faults and verbs: what is under way comes to its end, and a verb ends the job.
    pub(super) fn come_to_rest(&mut self) -> Result<(), String> {
        self.quiet = true;
        self.queue.retain(|_, coming| !coming.is_fate());
        if self.job.is_none() {
            return Ok(());
        }
        self.all_have_left()?;
        if self.job.is_none() {
            return Ok(());
        }
        self.look_at_peace()?;
        self.check_hung()?;
        if !self.is_quiet() && !self.tries_for_ever() {
            return Err("something waits for ever".into());
        }
        self.kill()?;
        let limit = self.now + 60 * SECOND_US;
        while self.job.is_some() && self.now < limit {
            if !self.step_to_end()? {
                return Err("the job waits for ever for its end".into());
            }
        }
        if self.job.is_some() { Err("the job does not end".into()) } else { Ok(()) }
    }

    pub(super) fn step_to_end(&mut self) -> Result<bool, String> {
        let first = self.queue.first_key_value().map(|((time, _), _)| *time);
        let due = self.due();
        let Some(time) = first.into_iter().chain(due).min() else { return Ok(false) };
        self.now = self.now.max(time);
        match self.queue.pop_first() {
            Some((key, coming)) if key.0 == time => self.happens(coming)?,
            later => {
                self.queue.extend(later);
                self.feed(Event::Time)?;
            }
        }
        self.look()?;
        Ok(true)
    }

    /// A user ends the job, and tries again until somebody says that it ends; then the power may be lost.
    fn kill(&mut self) -> Result<(), String> {
        while !self.killed && self.job.as_ref().is_some_and(|job| job.end_reason().is_none()) {
            self.ask(Ask::Kill)?;
        }
        if self.answers_at_once() && self.failovers.draw(2) == 0 {
            let left = self.lose_power()?;
            self.carry_out(left)?;
        }
        Ok(())
    }
}
