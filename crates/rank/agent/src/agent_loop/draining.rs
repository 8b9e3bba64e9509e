//! The agent and the channels of its fabric: suspends and lets go of peers, and tells the daemon of what goes slowly or broke.

use super::{Agent, Stage, micros_since, refused};
use crate::agent_loop::wakeup;
use crate::network::{Network, Undrained};
use mend_messages::agent::{FromAgent, Reply};
use mend_messages::job::Rank;
use mend_messages::report::Report;
use std::io;
use std::time::{Duration, Instant};

/// How long a channel has been broken before the daemon hears of it: ranks that end at about the same time say nothing.
const LOSS_REPORT_DELAY: Duration = Duration::from_secs(2);
/// A drain that takes longer is told of.
const SLOW_DRAIN_TIME: Duration = Duration::from_secs(2);
/// How long a rank drains before it looks whether it is to be paused.
const DRAIN_TIME: Duration = Duration::from_millis(100);

impl Agent {
    pub(super) fn tell_losses(&mut self) -> io::Result<()> {
        // After a save the fabric is locked, by this very thread.
        if matches!(self.stage, Stage::Parked { .. }) {
            return Ok(());
        }
        if wakeup::take_lost() {
            self.loses = true;
            for (peer, why) in self.network.broken() {
                self.link.send(&FromAgent::Report(Report::ChannelBroke { peer, why }))?;
            }
        }
        if !self.loses {
            return Ok(());
        }
        let (losses, left) = self.network.losses(LOSS_REPORT_DELAY);
        self.loses = left;
        losses.into_iter().try_for_each(|(peer, why)| self.link.send(&FromAgent::MessagesLost { peer, why }))
    }

    pub(super) fn suspend(&mut self) -> Reply {
        let began = Instant::now();
        let reply = self.drain(|network, limit, time| network.suspend(limit, time));
        if let Reply::Suspended { .. } = reply {
            self.stage = Stage::Suspended;
            self.suspended_at.get_or_insert(began);
        }
        reply
    }

    pub(super) fn let_go(&mut self, peer: Rank) -> Reply {
        let reply = self.drain(|network, limit, time| network.suspend_peer(peer, limit, time));
        if matches!(reply, Reply::Suspended { .. }) && self.network.in_use() {
            self.lets_go.get_or_insert_with(Instant::now);
        }
        reply
    }

    fn drain(&mut self, drain: impl Fn(&dyn Network, Duration, Duration) -> Result<bool, Undrained>) -> Reply {
        if let Stage::Parked { .. } = self.stage {
            return refused("the rank is parked already");
        }
        let (began, limit) = (Instant::now(), self.environment.drain_limit);
        let mut told = false;
        loop {
            match drain(&self.network, limit, DRAIN_TIME) {
                Ok(true) => return Reply::Suspended { us: micros_since(began) },
                Ok(false) => {}
                Err(Undrained { error, hint }) => return Reply::Failed { error, hint: hint.to_owned() },
            }
            // Whoever is waited for may be lost. What is wrong with the link shows at the next message.
            if self.link.brings_pause().unwrap_or(true) {
                return refused("the rank is to stand still at once");
            }
            if !told && began.elapsed() >= SLOW_DRAIN_TIME {
                told = true;
                let report = Report::DrainSlow { peers: self.network.draining(), waited_us: micros_since(began) };
                let _ = self.link.send(&FromAgent::Report(report));
            }
        }
    }
}
