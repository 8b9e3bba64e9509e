//! What all jobs on this node share.

use crate::job_link::Resumed;
use crate::paused::PausedJobs;
use crate::privileges::Isolation;
use crate::room;
use crate::spaces::Spaces;
use crate::stay::Stay;
use crate::targets::Targets;
use crate::tiers::NodeTiers;
use mend_health::monitor::Monitor;
use mend_image::cpu::{Cpu, Features};
use mend_messages::daemon::{JobIntroduction, Resumption, Succession};
use mend_messages::health::NodeReport;
use mend_messages::job::Secret;
use mend_node_job::JobTable;
use mend_node_job::table::{Identity, LeaseOver, Present};
use mend_transfer::peer::Admitted;
use mend_wire::Connection;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, broadcast, mpsc};

/// This node.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The user's secret: controllers must hold it.
    pub secret: Secret,
    /// Address for ranks of other nodes; `None` takes the one that the controller reached.
    pub advertised: Option<IpAddr>,
    /// It listens on all addresses.
    pub everywhere: bool,
    /// Limit on open files that this daemon was started with, for its ranks; `None` if there was none.
    pub open_files: Option<u64>,
    /// Whether ranks get namespaces.
    pub isolation: Isolation,
    /// What the processor offers.
    pub processor: Cpu,
    /// What of it this node acts as if it lacked.
    pub hidden_features: Features,
    /// `libmend-fi.so`, if it was found.
    pub library: Option<PathBuf>,
    /// `mend-restorer`, if it was found.
    pub restorer: Option<PathBuf>,
    /// Jobs that are here.
    pub jobs: Mutex<Jobs>,
    /// Ranks that stand still for the next life of their job.
    pub paused: Arc<PausedJobs>,
    /// How this node is.
    pub health: Arc<Monitor>,
    /// Ranks that are here, of all jobs.
    pub ranks: AtomicU32,
    /// Targets of data spaces that are here.
    pub targets: Targets,
    /// What jobs' tiers here share.
    pub tiers: NodeTiers,
    /// Data spaces that ranks see here.
    pub spaces: Arc<Spaces>,
    /// Why this daemon goes on when whoever started it is gone.
    pub stay: Arc<Stay>,
    /// Signals of a batch system that wants its job to end.
    pub time_up: broadcast::Sender<i32>,
}

/// The jobs that are here.
#[derive(Debug, Default)]
pub struct Jobs {
    /// Which start of each, and which controller may have it.
    table: JobTable,
    /// How connections find them.
    registered: HashMap<Identity, (Secret, JobQueues)>,
}

impl Jobs {
    fn queues(&self, identity: &Identity) -> Option<&JobQueues> {
        self.registered.get(identity).map(|(_, queues)| queues)
    }
}

/// Where a job waits for what concerns it and comes by the daemon's port.
#[derive(Clone, Debug)]
pub struct JobQueues {
    /// Images on their way between nodes.
    pub transfers: mpsc::Sender<Admitted>,
    /// Its controller, after a connection broke.
    pub resumptions: mpsc::Sender<Resumed>,
    /// A later start of the job has come: this one has to leave.
    pub superseded: Arc<Notify>,
    /// When its controller was heard last.
    pub heard: Arc<Mutex<Instant>>,
    /// Words of a controller that renew the lease beside its messages: who it is, and when it was, microseconds of its clock.
    pub ping: mpsc::Sender<(Resumption, u64)>,
}

/// A job's presence; dropping it takes the job off the list.
#[derive(Debug)]
pub struct JobRegistration {
    node: Arc<Node>,
    identity: Identity,
}

impl Node {
    /// Features that no rank of a job needs here: nobody uses them.
    pub fn unused_features(&self, job: &JobIntroduction) -> Features {
        self.hidden_features.with(job.unused_features)
    }

    /// What the processor offers to a job's ranks. What they do not use they need not find.
    pub fn processor_for(&self, job: &JobIntroduction) -> Cpu {
        let features = self.processor.features.without(self.hidden_features).with(job.unused_features);
        Cpu { features, ..self.processor }
    }

    /// A rank is here until what is returned goes.
    pub fn count_rank(self: &Arc<Self>) -> RankHere {
        self.ranks.fetch_add(1, Ordering::Relaxed);
        RankHere(self.clone())
    }

    /// All that is told of this node to who looks at it.
    pub fn report(&self) -> NodeReport {
        let (readings, unread) = self.health.readings();
        NodeReport {
            name: self.name.clone(),
            watched: self.health.watches(),
            health: self.health.verdict(),
            room: room::now(),
            memory: room::memory(),
            ranks: self.ranks.load(Ordering::Relaxed),
            readings,
            unread,
        }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        // It is only ever changed by whole entries, so a panic elsewhere leaves it sound.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job on the list. An earlier start of it that is still here is told to leave.
    ///
    /// # Errors
    /// [`Present`].
    pub fn register(self: &Arc<Self>, job: &JobIntroduction, queues: JobQueues) -> Result<JobRegistration, Present> {
        let mut jobs = self.jobs();
        let entered = jobs.table.enter(job.identity, job.epoch, job.session);
        if entered == Err(Present::Leaving)
            && let Some(earlier) = jobs.queues(&job.identity)
        {
            earlier.superseded.notify_one();
        }
        entered?;
        jobs.registered.insert(job.identity, (job.secret.clone(), queues));
        Ok(JobRegistration { node: self.clone(), identity: job.identity })
    }

    /// Hands a controller that has come back to its job. The connection is returned if that job is not here, or not this start of it.
    pub async fn resume(&self, resumption: &Resumption, connection: Connection) -> Result<(), Connection> {
        let queue = {
            let jobs = self.jobs();
            let queues = jobs.queues(&resumption.identity).filter(|_| jobs.table.may_resume(resumption));
            queues.map(|queues| queues.resumptions.clone())
        };
        let Some(queue) = queue else { return Err(connection) };
        let resumed = Resumed { connection, delivered: resumption.delivered, successor: false };
        queue.send(resumed).await.map_err(|refused| refused.0.connection)
    }

    /// Hands a job to its controller's successor. Who had it before cannot resume it any more. The connection is returned as [`Node::resume`] does.
    pub async fn succeed(&self, succession: &Succession, connection: Connection) -> Result<(), Connection> {
        let of = &succession.of;
        let queue = {
            let mut jobs = self.jobs();
            let may = jobs.table.succeed(succession);
            jobs.queues(&of.identity).filter(|_| may).map(|queues| {
                // It was heard just now: no other node is to take it for silent, too.
                *queues.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                queues.resumptions.clone()
            })
        };
        let Some(queue) = queue else { return Err(connection) };
        let resumed = Resumed { connection, delivered: of.delivered, successor: true };
        queue.send(resumed).await.map_err(|refused| refused.0.connection)
    }

    /// Whether the controller of this session may still go on with its job here.
    pub fn may_resume(&self, of: &Resumption) -> bool {
        self.jobs().table.may_resume(of)
    }

    /// Votes for a successor of a job's controller if that was silent for so long. Returns whether it does; `None` if that start of the job is not here.
    pub fn vote(&self, of: &Resumption, silence: Duration) -> Option<bool> {
        let mut jobs = self.jobs();
        let heard = jobs.queues(&of.identity).filter(|_| jobs.table.is_here(of))?.heard.clone();
        let silent = heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= silence;
        Some(jobs.table.vote(of, silent))
    }

    /// Whether the controller of this session has the job, as far as this node knows. `ping_us`: it renews the lease, at this time of its clock.
    pub fn confirms(&self, of: &Resumption, ping_us: Option<u64>) -> bool {
        let jobs = self.jobs();
        if let (Some(at_us), Some(queues)) = (ping_us.filter(|_| jobs.table.may_resume(of)), jobs.queues(&of.identity)) {
            // One that waits does as well.
            let _ = queues.ping.try_send((of.clone(), at_us));
        }
        jobs.table.confirms(of)
    }

    /// Keeps in mind that a job leaves since its lease is over, in which this daemon stood still for so long, both in microseconds.
    pub fn note_lease_over(&self, identity: &Identity, lease_us: u64, stood_still_us: u64) {
        self.jobs().table.note_lease_over(identity, lease_us, stood_still_us);
    }

    /// What is kept in mind of a job that has left since its lease was over.
    pub fn lease_over(&self, session: &[u8; 16]) -> Option<LeaseOver> {
        self.jobs().table.lease_over(session)
    }

    /// The secret of a job that is here.
    pub fn secret_of(&self, identity: &Identity) -> Option<Secret> {
        self.jobs().registered.get(identity).map(|(secret, _)| secret.clone())
    }

    /// Hands a transfer to its job; closes it if the job has left.
    pub async fn deliver(&self, admitted: Admitted) {
        let transfers = self.jobs().queues(&admitted.job).map(|queues| queues.transfers.clone());
        if let Some(transfers) = transfers {
            // A job that is leaving drops it, which closes it.
            let _ = transfers.send(admitted).await;
        }
    }
}

/// A rank that is here.
#[derive(Debug)]
pub struct RankHere(Arc<Node>);

impl Drop for RankHere {
    fn drop(&mut self) {
        self.0.ranks.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for JobRegistration {
    fn drop(&mut self) {
        let mut jobs = self.node.jobs();
        jobs.registered.remove(&self.identity);
        jobs.table.leave(&self.identity);
    }
}
