//! The tasks of ranks: each has one process on this node, from a program's beginning or out of an image.

use super::Job;
use crate::failure::RankFailure;
use crate::launch_environment::shares_pid_namespace;
use crate::paused::PausedRank;
use crate::privileges::Isolation;
use crate::rank::{Command, RankContext, RankOrigin, run_rank};
use crate::restore::{Restoration, Source};
use crate::start::ProgramStart;
use mend_messages::agent::ImageId;
use mend_messages::job::Rank;
use mend_node_job::event::{AgentId, Event, FileOrder, Origin};
use std::time::Instant;
use tokio::sync::mpsc;
use tracing::Instrument;

impl Job {
    /// Begins a rank's task. What the machine waits for, of one that is restored.
    pub(super) fn begin(&mut self, (rank, attempt): (Rank, u64), stdin: bool, origin: Origin) -> Option<Event> {
        let (origin, agent) = match self.origin(rank, origin) {
            Ok(found) => found,
            Err(failure) => {
                self.no_process(rank, attempt, true, &failure);
                return Some(Event::NotBegun { rank, attempt });
            }
        };
        let (sender, commands) = mpsc::unbounded_channel();
        self.run_rank((rank, attempt), stdin, (commands, Vec::new()), origin);
        self.tasks.insert(rank, (attempt, sender));
        agent.map(|agent| Event::AgentAwaited { rank, attempt, agent })
    }

    /// How the process comes to be, and the connection of the agent that is to speak then.
    fn origin(&mut self, rank: Rank, origin: Origin) -> Result<(RankOrigin, Option<AgentId>), RankFailure> {
        let (source, image, in_place) = match origin {
            Origin::Start => return Ok((RankOrigin::Start(Box::new(self.program_start(rank))), None)),
            Origin::Files(FileOrder { chain, image, put_back, .. }) => (Source::Files { chain, put_back }, image, None),
            Origin::InPlace { order: FileOrder { chain, image, put_back, .. }, .. } => {
                (Source::Files { chain, put_back }, image, self.paused.remove(&rank))
            }
            Origin::Transfer { token, way, image } => {
                let arrival = self.rendezvous.expect(token, Instant::now());
                (Source::Transfer(arrival, self.introduction.clone(), way), image, None)
            }
        };
        let (restoration, agent) = self.restoration(rank, source, image)?;
        let origin = match in_place {
            None => RankOrigin::Restore(Box::new(restoration)),
            Some(PausedRank { agent, link, process }) => {
                self.agent_links.adopt(agent, link.clone());
                RankOrigin::RollBack(Box::new(restoration), Box::new(process), link)
            }
        };
        Ok((origin, Some(agent)))
    }

    fn program_start(&self, rank: Rank) -> ProgramStart {
        ProgramStart {
            rank,
            job: self.introduction.clone(),
            socket: self.agent_socket.name().to_owned(),
            isolated: matches!(self.node.isolation, Isolation::Available { .. }),
            shared: shares_pid_namespace(&self.introduction),
            library: self.node.library.clone(),
            known: self.known.clone(),
        }
    }

    /// What it takes, and the connection on which its agent will speak.
    pub(super) fn restoration(&self, rank: Rank, source: Source, image: Option<ImageId>) -> Result<(Restoration, AgentId), RankFailure> {
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

    pub(super) fn run_rank(
        &mut self,
        (rank, attempt): (Rank, u64),
        fed: bool,
        (commands, held): (mpsc::UnboundedReceiver<Command>, Vec<Command>),
        origin: RankOrigin,
    ) {
        let (ordered, urgent, rank_events) = (self.ordered.clone(), self.urgent.clone(), self.rank_event_sender.clone());
        let shared_memory = self.shared_memory.as_ref().map(|own| own.path().to_owned());
        let portable = self.tiers.portable();
        let open_files = self.node.open_files;
        let (namespace, spaces) = (self.namespace.clone(), self.spaces.clone());
        let context = RankContext {
            rank,
            attempt,
            fed,
            shared_memory,
            portable,
            spaces,
            namespace,
            open_files,
            ordered,
            urgent,
            commands,
            rank_events,
        };
        let here = self.node.count_rank();
        let rank_task = async move {
            let ended = run_rank(context, origin, held).await;
            drop(here);
            (rank, attempt, ended)
        };
        self.rank_tasks.spawn(rank_task.instrument(tracing::info_span!("rank", rank, attempt)));
    }
}
