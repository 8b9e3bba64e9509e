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
        let reply = self.drain(|network, limit| network.suspend(limit));
        if let Reply::Suspended { .. } = reply {
            self.stage = Stage::Suspended;
            self.suspended_at.get_or_insert(began);
        }
        reply
    }

    pub(super) fn let_go(&mut self, peer: Rank) -> Reply {
        let reply = self.drain(|network, limit| network.suspend_peer(peer, limit));
        if matches!(reply, Reply::Suspended { .. }) && self.network.in_use() {
            self.lets_go.get_or_insert_with(Instant::now);
        }
        reply
    }

    fn drain(&mut self, drain: impl Fn(&dyn Network, Duration) -> Result<(), Undrained>) -> Reply {
        if let Stage::Parked { .. } = self.stage {
            return refused("the rank is parked already");
        }
        let began = Instant::now();
        let limit = self.environment.drain_limit;
        let mut drained = drain(&self.network, limit.min(SLOW_DRAIN_TIME));
        if drained.is_err() && limit > SLOW_DRAIN_TIME && began.elapsed() >= SLOW_DRAIN_TIME {
            let report = Report::DrainSlow { peers: self.network.draining(), waited_us: micros_since(began) };
            // What is wrong with the link shows at the next message.
            let _ = self.link.send(&FromAgent::Report(report));
            // It goes on with what has not drained.
            drained = drain(&self.network, limit - SLOW_DRAIN_TIME);
        }
        match drained {
            Ok(()) => Reply::Suspended { us: micros_since(began) },
            Err(Undrained { error, hint }) => Reply::Failed { error, hint: hint.to_owned() },
        }
    }
}
