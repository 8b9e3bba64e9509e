//! Ranks that stand still between two lives of their job, to go back to a checkpoint in place in the next one.
//!
//! ```text
//! a life ends ── Pause ──► agents park their ranks ──► PausedJob, kept by the node ── the next life's Introduce ──► Restore: in place
//!                                                          └── nobody comes for it ──► killed
//! ```
//! Invariants: a paused rank runs not one instruction of its program until it is back at a checkpoint, so that it may stand longer than the job's
//! lease. Whoever takes it over proves that it is a later life of the same job. Faults assumed: the controller dies meanwhile; the
//! next life has other ranks here, or none.

use crate::agents::{AgentEvent, AgentLink, AgentSocket};
use crate::rank::RankProcess;
use crate::shared_memory::SharedMemory;
use crate::spaces::JobSpaces;
use crate::supervisor::namespace::SharedNamespace;
use mend_messages::daemon::JobIntroduction;
use mend_messages::job::Rank;
use mend_node_job::event::AgentId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a paused rank waits at least: a next life may wait for a lease to end, then for nodes.
const LEAST_PATIENCE: Duration = Duration::from_secs(30);

/// How long ranks that are killed may take to be gone.
const ENDING_TIME: Duration = Duration::from_secs(3);

/// One rank that stands still.
#[derive(Debug)]
pub struct PausedRank {
    /// The connection of its agent.
    pub agent: AgentId,
    /// How to speak to it.
    pub link: AgentLink,
    /// Its process.
    pub process: RankProcess,
}

/// What is left of a life of a job. Dropping it ends all its processes.
#[derive(Debug)]
pub struct PausedJob {
    /// Which life it was.
    pub epoch: u64,
    /// The ranks that stand still.
    pub ranks: HashMap<Rank, PausedRank>,
    /// Where their agents speak, and what they say.
    pub agents: (AgentSocket, mpsc::Receiver<AgentEvent>),
    /// The PID namespace that they are in.
    pub namespace: Arc<SharedNamespace>,
    /// Their `/dev/shm`.
    pub shared_memory: Option<SharedMemory>,
    /// Data spaces that its ranks see.
    pub spaces: Arc<JobSpaces>,
}

/// Kills ranks that stand still. Returns when none of their processes is left, or after a while: the next processes of these ranks need the
/// same ids. A rank that is merely dropped would stay in a namespace that others of the job are in.
pub async fn end(ranks: Vec<PausedRank>, namespace: &SharedNamespace) {
    if ranks.is_empty() {
        return;
    }
    let mut ends: JoinSet<()> = ranks.into_iter().map(|rank| rank.process.end()).collect();
    let all = async { while ends.join_next().await.is_some() {} };
    if timeout(ENDING_TIME, all).await.is_err() {
        tracing::warn!("ranks that stood still do not end");
    }
    namespace.sweep();
}

impl PausedJob {
    /// For the job's next life: its memory files are empty, and ranks that shall not be here are gone.
    fn taken_over(mut self, next: &JobIntroduction, lease: Duration) -> Self {
        let unwanted = self.ranks.extract_if(|rank, _| !next.ranks.contains(rank)).map(|(_, rank)| rank).collect();
        if self.namespace.has_ended() {
            // Nobody has renewed it in time: what was in it is gone.
            self.namespace = Arc::new(SharedNamespace::new(lease));
        }
        self.namespace.renew(Duration::ZERO);
        let namespace = self.namespace.clone();
        // Whoever takes over is answered meanwhile.
        tokio::spawn(async move { end(unwanted, &namespace).await });
        if let Some(shared_memory) = &self.shared_memory {
            // A restart begins with an empty one: what the checkpoint has of it comes back.
            shared_memory.clear();
        }
        self
    }
}

/// The paused ranks of all jobs of this node, by the job's identity.
#[derive(Debug, Default)]
pub struct PausedJobs(Mutex<HashMap<[u8; 16], PausedJob>>);

impl PausedJobs {
    /// Keeps a job's for its next life, for a while.
    pub fn keep(self: &Arc<Self>, identity: [u8; 16], job: PausedJob, lease: Duration) {
        // Whoever takes them over may end them at once: nothing is held here meanwhile.
        let (epoch, namespace, patience) = (job.epoch, Arc::downgrade(&job.namespace), LEAST_PATIENCE.max(3 * lease));
        tracing::info!(ranks = job.ranks.len(), "ranks stand still for the job's next life");
        self.all().insert(identity, job);
        let jobs = self.clone();
        tokio::spawn(async move {
            let until = tokio::time::Instant::now() + patience;
            let there = || jobs.all().get(&identity).is_some_and(|job| job.epoch == epoch);
            while there() && tokio::time::Instant::now() < until {
                // They do not run, so the deadline of what runs does not concern them.
                if let Some(namespace) = namespace.upgrade() {
                    namespace.renew(Duration::ZERO);
                }
                tokio::time::sleep(lease / 4).await;
            }
            if there() {
                tracing::warn!("nobody came for ranks that stood still: they are killed");
                let mut left = jobs.all().remove(&identity);
                let unused = left.as_mut().and_then(|left| left.shared_memory.take());
                drop(left);
                // Much of it takes its time.
                tokio::task::spawn_blocking(move || drop(unused));
            }
        });
    }

    /// What an earlier life of this job left standing here. Of no later, and no other job's.
    pub fn take(&self, next: &JobIntroduction, lease: Duration) -> Option<PausedJob> {
        let mut all = self.all();
        if all.get(&next.identity)?.epoch >= next.epoch {
            return None;
        }
        let job = all.remove(&next.identity)?;
        drop(all);
        Some(job.taken_over(next, lease))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<[u8; 16], PausedJob>> {
        // Only ever changed by whole entries.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
