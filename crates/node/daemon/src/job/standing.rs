//! Ranks that an earlier life of the job left standing here and that cannot go back in place; and those that are left standing in their turn
//! ([`crate::paused`]).

use super::Job;
use crate::agents::AgentEvent;
use crate::failure::RankFailure;
use crate::paused::{self, PausedJob, PausedRank};
use crate::rank::{Command, NotInPlace, RankOrigin};
use crate::restore::Source;
use mend_messages::daemon::FromDaemon;
use mend_messages::job::Rank;
use mend_messages::report::Report;
use mend_node_job::event::{AgentId, Event, FileOrder};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

impl Job {
    /// Another process of a rank that could not go back in place.
    pub(super) fn begin_anew(&mut self, (rank, attempt): (Rank, u64), order: FileOrder) -> Option<Event> {
        let failed = self.not_in_place.take()?;
        match self.restore_anew((rank, attempt), order, failed) {
            Ok(agent) => Some(Event::AgentAwaited { rank, attempt, agent }),
            Err(failure) => {
                self.no_process(rank, attempt, true, &failure);
                Some(Event::NotBegun { rank, attempt })
            }
        }
    }

    fn restore_anew(&mut self, (rank, attempt): (Rank, u64), order: FileOrder, mut failed: NotInPlace) -> Result<AgentId, RankFailure> {
        while let Ok(command) = failed.commands.try_recv() {
            // What is said of the agent that failed is not for the next one.
            if !matches!(command, Command::Abandon(_) | Command::Settle) {
                failed.held.push(command);
            }
        }
        tracing::info!(rank, why = failed.why, "a rank could not go back in place: it is restored anew");
        self.urgent.send(FromDaemon::Report { rank, report: Report::NotInPlace { why: failed.why } });
        let (restoration, agent) = self.restoration(rank, Source::Files { chain: order.chain, put_back: order.put_back }, order.image)?;
        let origin = RankOrigin::Restore(Box::new(restoration));
        self.run_rank((rank, attempt), order.stdin, (failed.commands, failed.held), origin);
        Ok(agent)
    }

    /// Kills ranks that an earlier life left standing.
    pub(super) fn drop_standing(&mut self, which: &[Rank]) {
        let dropped = self.paused.extract_if(|rank, _| which.contains(rank)).map(|(_, rank)| rank).collect();
        let namespace = self.namespace.clone();
        tokio::spawn(async move { paused::end(dropped, &namespace).await });
    }

    /// The processes of all ranks that their agents have parked. What they wrote is on its way.
    pub(super) async fn put_aside(&mut self, until: Instant) -> Vec<(Rank, PausedRank)> {
        let mut asked = Vec::new();
        for (rank, agent) in self.machine.stand_still() {
            let (taker, process) = oneshot::channel();
            if let (Some((_, commands)), Some(link)) = (self.tasks.get(&rank), self.agent_links.link(agent)) {
                let _ = commands.send(Command::Pause(taker));
                asked.push((rank, agent, link, process));
            }
        }
        // Those that this life had not come to stand as they did.
        let mut paused: Vec<_> = self.paused.drain().collect();
        for (rank, agent, link, process) in asked {
            // One that ended meanwhile gives none, and one whose output is not taken in time is given up alone.
            if let Ok(Ok(process)) = timeout_at(until, process).await {
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
