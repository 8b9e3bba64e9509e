//! A rank's process that outlives its task: paused, it goes from one life of the job to the next, and back to an image in place.

use super::{Command, Phase, ProcessEvent, RankContext, RankTask};
use crate::agents::{AgentLink, rollback_request};
use crate::bounded;
use crate::channels::RankEnds;
use crate::input::UnwrittenInput;
use crate::restore::Building;
use crate::supervisor::order::Launch;
use crate::supervisor::{RankSupervisor, send_files};
use mend_messages::daemon::FromDaemon;
use std::fs::File;
use tokio::sync::{mpsc, oneshot};

/// The process of a rank, with who watches it. Dropping it ends all processes of the rank.
#[derive(Debug)]
pub struct RankProcess {
    pub(super) launch: Launch,
    pub(super) link: RankSupervisor,
    pub(super) process_events: mpsc::UnboundedReceiver<ProcessEvent>,
    pub(super) sender: mpsc::UnboundedSender<ProcessEvent>,
}

impl RankProcess {
    /// Kills it. Returns when nothing of it is left.
    pub async fn end(mut self) {
        self.link.release().await;
    }
}

/// A rank that could not go back in place: no process of it is left.
#[derive(Debug)]
pub struct NotInPlace {
    /// What stood in the way.
    pub why: String,
    /// Where its commands come from.
    pub commands: mpsc::UnboundedReceiver<Command>,
    /// Those that were not carried out.
    pub held: Vec<Command>,
}

/// Tells a paused process's agent to take it back.
pub(super) async fn send_back(building: &mut Building, launch: &Launch, ends: RankEnds, agent: &AgentLink) -> std::io::Result<()> {
    let path = launch.path.clone();
    let restorer = bounded::apart(move || File::open(path)).await?;
    let (files, order) = building.in_place(restorer, ends)?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    send_files(&ours, &files)?;
    agent.send(&rollback_request(order), Some(theirs.into()));
    Ok(())
}

impl RankTask {
    /// The rank is parked: what it wrote goes its way, and its process to whoever keeps it.
    pub(super) async fn paused(mut self, context: &RankContext, taker: oneshot::Sender<RankProcess>) {
        let Some(mut pipes) = self.pipes.take().filter(|_| self.phase == Phase::Running) else { return self.end().await };
        let left = match pipes.stdin.take() {
            Some(feed) => feed.stop().await,
            None => UnwrittenInput::default(),
        };
        for pump in &pipes.pumps {
            // An error means that there is nothing to wait for.
            let _ = pump.flushed().await;
        }
        if context.rank == 0 {
            context.urgent.send(FromDaemon::StdinLeft { rank: 0, attempt: context.attempt, bytes: left.bytes });
        }
        let Self { launch, link, process_events, sender, .. } = self;
        // Nobody takes it any more: it ends.
        let _ = taker.send(RankProcess { launch, link, process_events, sender });
    }
}
