//! Ranks that come out of images: in processes that an earlier life of the job left standing here, or in new ones; and those that are left
//! standing in their turn ([`crate::paused`]).

use super::Job;
use crate::agents::{AgentEvent, AgentId};
use crate::failure::RankFailure;
use crate::launch_environment::shares_pid_namespace;
use crate::paused::{PausedJob, PausedRank};
use crate::rank::{Command, NotInPlace, RankOrigin};
use crate::restore::{Restoration, Source};
use mend_messages::agent::ImageId;
use mend_messages::daemon::{FromDaemon, RestoreSource};
use mend_messages::job::Rank;
use mend_messages::report::Report;
use std::path::PathBuf;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// A restore from files.
#[derive(Clone, Debug)]
pub(super) struct RestoreOrder {
    pub attempt: u64,
    pub chain: Vec<PathBuf>,
    pub image: Option<ImageId>,
    pub stdin: bool,
}

impl Job {
    pub(super) fn restore(
        &mut self,
        (rank, attempt): (Rank, u64),
        source: RestoreSource,
        image: Option<ImageId>,
        stdin: bool,
    ) -> Result<(), RankFailure> {
        if self.ranks.contains_key(&rank) {
            return Err(RankFailure::Present(rank));
        }
        let paused = self.paused.remove(&rank);
        let source = match source {
            RestoreSource::Files(chain) => {
                if let Some(PausedRank { agent, link, process }) = paused {
                    let order = RestoreOrder { attempt, chain, image, stdin };
                    let (restoration, restored) = self.restoration(rank, Source::Files(order.chain.clone()), image)?;
                    self.going_back.insert(rank, order);
                    self.agent_router.await_rollback(rank, agent, link.clone());
                    let origin = RankOrigin::RollBack(Box::new(restoration), Box::new(process), link);
                    self.admit((rank, attempt), stdin, origin)?;
                    self.agent_router.await_restored(rank, restored, &mut self.ranks);
                    return Ok(());
                }
                Source::Files(chain)
            }
            RestoreSource::Transfer { token, way } => {
                Source::Transfer(self.rendezvous.expect(token, Instant::now()), self.introduction.clone(), way)
            }
        };
        let (restoration, agent) = self.restoration(rank, source, image)?;
        self.admit((rank, attempt), stdin, RankOrigin::Restore(Box::new(restoration)))?;
        self.agent_router.await_restored(rank, agent, &mut self.ranks);
        Ok(())
    }

    /// What it takes, and the connection on which its agent will speak.
    fn restoration(&self, rank: Rank, source: Source, image: Option<ImageId>) -> Result<(Restoration, AgentId), RankFailure> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(RankFailure::Channels)?;
        let agent = self.agent_socket.adopt(ours.into()).map_err(RankFailure::Channels)?;
        let restoration = Restoration {
            rank,
            size: self.introduction.size,
            job: self.introduction.identity,
            source,
            image,
            key: self.key.clone(),
            progress: self.progress.clone(),
            agent: theirs.into(),
            processor: self.node.processor_for(&self.introduction),
            isolation: self.node.isolation.clone(),
            shared: shares_pid_namespace(&self.introduction),
            restorer: self.node.restorer.clone(),
            patience: self.patience,
            here: self.ip,
        };
        Ok((restoration, agent))
    }

    /// Another process of a rank that could not go back in place.
    pub(super) fn restore_anew(&mut self, rank: Rank, order: RestoreOrder, mut failed: NotInPlace) -> Result<(), RankFailure> {
        while let Ok(command) = failed.commands.try_recv() {
            // What is said of the agent that failed is not for the next one.
            if !matches!(command, Command::Abandon(_) | Command::Settle) {
                failed.held.push(command);
            }
        }
        tracing::info!(rank, why = failed.why, "a rank could not go back in place: it is restored anew");
        self.urgent.send(FromDaemon::Report { rank, report: Report::NotInPlace { why: failed.why } });
        let (restoration, agent) = self.restoration(rank, Source::Files(order.chain), order.image)?;
        let origin = RankOrigin::Restore(Box::new(restoration));
        self.run_rank((rank, order.attempt), order.stdin, (failed.commands, failed.held), origin);
        self.agent_router.await_restored(rank, agent, &mut self.ranks);
        Ok(())
    }

    /// The processes of all ranks that their agents have parked. What they wrote is on its way.
    pub(super) async fn put_aside(&mut self) -> Vec<(Rank, PausedRank)> {
        let mut asked = Vec::new();
        for (rank, agent, link) in self.agent_router.take_paused() {
            let (taker, process) = oneshot::channel();
            if let Some(slot) = self.ranks.get(&rank) {
                slot.tell(Command::Pause(taker));
                asked.push((rank, agent, link, process));
            }
        }
        let mut paused = Vec::new();
        for (rank, agent, link, process) in asked {
            // One that ended meanwhile gives none.
            if let Ok(process) = process.await {
                paused.push((rank, PausedRank { agent, link, process }));
            }
        }
        paused
    }

    /// The job is over on this node, but for ranks that stand still.
    pub(super) fn leave_standing(self, paused: Vec<(Rank, PausedRank)>, agents: mpsc::Receiver<AgentEvent>) {
        if paused.is_empty() {
            return;
        }
        let Self { node, introduction, agent_socket, namespace, shared_memory, spaces, lease, .. } = self;
        let (epoch, ranks) = (introduction.epoch, paused.into_iter().collect());
        let job = PausedJob { epoch, ranks, agents: (agent_socket, agents), namespace, shared_memory, spaces };
        node.paused.keep(introduction.identity, job, lease);
    }
}
