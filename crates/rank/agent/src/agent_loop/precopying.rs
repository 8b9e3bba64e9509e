//! The agent copies its rank while the program runs: begins it, goes on with it between all else, ends it.

use super::inspection::{INSPECTION_VALIDITY, Inspected};
use super::{Agent, Stage, refused};
use crate::capture::image_tables::running_header;
use crate::capture::precopy::{Next, Precopy};
use crate::memory::maps;
use mend_messages::agent::{Compression, FromAgent, Reply};
use std::io;
use std::time::{Duration, Instant};

/// An inspection that is older is made again at the end of a round: the rank may be stopped then, and the save relies on it.
const MAX_INSPECTION_AGE: Duration = Duration::from_millis(500);

impl Agent {
    pub(super) fn begin_precopy(&mut self, answered: bool, compression: Compression) -> Reply {
        self.precopy = None;
        let Some(socket) = self.link.take_descriptor() else { return refused("no descriptor came with the request") };
        if !matches!(self.stage, Stage::Running) {
            return refused("a rank is copied only while it runs");
        }
        if self.background.is_some() {
            return refused("its last image is still being written");
        }
        let Some(identity) = &self.identity else { return refused("the daemon has not welcomed this agent") };
        let known = self.inspected.as_ref().filter(|found| found.at.elapsed() < INSPECTION_VALIDITY);
        let (advice, cpu) = match known {
            Some(Inspected { advice, cpu, .. }) => (advice.clone(), *cpu),
            None => (maps::advice(), self.processor_needs()),
        };
        let begun = running_header(identity, &cpu).map_err(|error| error.to_string());
        let (start, end) = self.scratch.range();
        let scratch = (start as u64, end as u64);
        match begun.and_then(|header| Precopy::begin((socket, answered, compression), &mut self.tracker, header, advice, scratch)) {
            Ok(precopy) => {
                self.precopy = Some(Box::new(precopy));
                Reply::Precopying
            }
            Err(error) => refused(&format!("it cannot be copied while it runs: {error}")),
        }
    }

    /// What the loop waits for on account of a copy under way; nothing while the rank is suspended.
    pub(super) fn precopies(&self) -> Option<Next> {
        self.precopy.as_ref().filter(|_| matches!(self.stage, Stage::Running)).map(|precopy| precopy.next())
    }

    /// Goes on with the copy.
    pub(super) fn precopy_some(&mut self) -> io::Result<()> {
        let (start, end) = self.scratch.range();
        let excluded: Vec<_> = [(start as u64, end as u64)].into_iter().chain(self.tracker.memory()).collect();
        let Some(precopy) = &mut self.precopy else { return Ok(()) };
        match precopy.step(&excluded) {
            Ok(None) => Ok(()),
            Ok(Some(round)) => {
                let stale = self.inspected.as_ref().is_none_or(|found| found.at.elapsed() >= MAX_INSPECTION_AGE);
                if round.done && stale {
                    // An obstacle that has come meanwhile is told by the save.
                    let _ = self.inspect(None, false);
                }
                self.link.send(&FromAgent::Round(round))
            }
            Err(error) => {
                self.precopy = None;
                let hint = "the rank runs on where it is; look at the node that receives".to_string();
                self.link.send(&FromAgent::PrecopyFailed { error: format!("copying the rank while it runs: {error}"), hint })
            }
        }
    }

    /// Does what the fabric put off, when its time has come.
    pub(super) fn catch_up_if_late(&mut self, limit: Duration) {
        match self.late {
            None => self.late = Some(Instant::now()),
            Some(since) if since.elapsed() >= limit => {
                self.late = None;
                self.catch_up();
            }
            Some(_) => {}
        }
    }
}
