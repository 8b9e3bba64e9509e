//! Looks again and again whether a job is still this controller's. One that stood still, or was cut off, may have a successor.
//!
//! Two threads of their own, so that neither a slow disk nor a slow reader of output is taken for a lost controller. One looks at the job's lock. The other one
//! asks the job's nodes while such a look takes long, as it does where a network file system hangs: ranks need not end for that.

use crate::detached::is_detached;
use crate::failover::log::LifeRecord;
use crate::failover::pulse::Pulse;
use crate::job_link::{confirms, open};
use crate::lock_identity::LockIdentity;
use mend_messages::daemon::Resumption;
use mend_messages::job::Secret;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time;

/// Which part of a lease it may be since the job was seen to be this controller's for it to renew the lease.
pub const LEASES: u32 = 4;
/// Looks, and questions to each node, in that time.
const LOOKS: u32 = 3;
/// So many leases after the directory has answered again connections to the nodes are kept: it may be overloaded.
const CALM_LEASES: u32 = 3;
/// The user is told of a directory that has not answered for so long.
const TELLING_TIME: Duration = Duration::from_secs(5);

/// Looks and asks until it is dropped.
#[derive(Debug)]
pub struct LockWatch {
    /// What renews the lease.
    pub pulse: Pulse,
    silence_ms: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl LockWatch {
    /// Begins to watch the lock of this life of a job, which this process has taken.
    #[must_use]
    pub fn begin(directory: &Path, ours: LockIdentity, life: &LifeRecord, secret: &Secret) -> Self {
        let limit = Duration::from_millis(life.lease_ms) / LEASES;
        let timeout = Duration::from_secs(life.directory_timeout_s);
        let pulse = Pulse::begin(limit, life.setup.nodes.len(), timeout);
        let watch = Self { pulse, silence_ms: Arc::default(), over: Arc::default() };
        let nodes = life.setup.nodes.iter().enumerate();
        let looking = Looking {
            directory: directory.to_owned(),
            id: life.setup.id.clone(),
            nodes: nodes.map(|(index, node)| (node.address, life.resumption(index, 0))).collect(),
            secret: secret.clone(),
            limit,
            timeout,
            pulse: watch.pulse.clone(),
            silence_ms: watch.silence_ms.clone(),
            over: watch.over.clone(),
        };
        let asking = looking.clone();
        spawn(move || looking.look(ours));
        if !timeout.is_zero() {
            spawn(move || asking.ask());
        }
        watch
    }

    /// For how long the job's directory has not answered, milliseconds, if the user was told so and nobody has asked here since; else 0.
    #[must_use]
    pub fn take_silence_ms(&self) -> u64 {
        self.silence_ms.swap(0, Ordering::Relaxed)
    }
}

impl Drop for LockWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What either thread knows.
#[derive(Clone)]
struct Looking {
    directory: PathBuf,
    id: String,
    /// Where each node's daemon is, and what names this controller to it.
    nodes: Vec<(SocketAddr, Resumption)>,
    secret: Secret,
    /// For how long a look or a confirmation is good.
    limit: Duration,
    /// For how long confirmations count.
    timeout: Duration,
    pulse: Pulse,
    silence_ms: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Looking {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn look(&self, ours: LockIdentity) {
        while !self.is_over() {
            let now = Instant::now();
            match LockIdentity::of(&self.directory) {
                Some(found) if ours == found => self.pulse.seen(now),
                Some(_) => leave(&self.id),
                // What cannot be seen gives no leave to go on.
                None => {}
            }
            sleep(self.limit / LOOKS);
        }
    }

    fn ask(&self) {
        while !self.is_over() {
            sleep(self.limit / LOOKS / 2);
            if !self.pulse.needs_confirmations() {
                continue;
            }
            // Of its own: that of the job may be held up by the very file system.
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(self.ask_while_needed()),
                Err(error) => tracing::warn!(%error, "nodes cannot be asked to confirm this controller"),
            }
        }
    }

    async fn ask_while_needed(&self) {
        // They end when it goes.
        let mut asking = JoinSet::new();
        for (node, (address, of)) in self.nodes.iter().cloned().enumerate() {
            let looking = self.clone();
            asking.spawn(async move { looking.ask_node(node, address, &of).await });
        }
        let (mut calm, mut silence) = (Instant::now(), None);
        while !self.is_over() && calm.elapsed() < self.limit * LEASES * CALM_LEASES {
            time::sleep(self.limit / LOOKS / 2).await;
            if self.pulse.needs_confirmations() {
                calm = Instant::now();
                silence.get_or_insert_with(|| Silence::begin(calm)).look(self);
            } else if let Some(ended) = silence.take() {
                ended.end(self);
            }
        }
    }

    /// Asks a node as long as that is needed. What the others have said renews its lease.
    async fn ask_node(&self, node: usize, address: SocketAddr, of: &Resumption) {
        // A busy node may need several times the limit to take a connection, and still answer within the lease what it is asked then.
        let patience = self.limit * LEASES;
        let mut connection = None;
        loop {
            match &mut connection {
                _ if !self.pulse.needs_confirmations() => {}
                None => connection = time::timeout(patience, open(address, &self.secret)).await.ok().flatten(),
                Some(there) => {
                    let asked = Instant::now();
                    match time::timeout(patience, confirms(there, of, self.pulse.renew_us(node))).await {
                        Ok(Some(yes)) => self.pulse.confirmed(node, asked, yes),
                        Ok(None) | Err(_) => connection = None,
                    }
                }
            }
            time::sleep(self.limit / LOOKS / 2).await;
        }
    }
}

/// A time in which the directory does not answer.
struct Silence {
    began: Instant,
    /// Tells the user, on a thread of its own: standard error may be a file of that directory.
    told: Option<JoinHandle<()>>,
}

impl Silence {
    fn begin(began: Instant) -> Self {
        Self { began, told: None }
    }

    fn look(&mut self, looking: &Looking) {
        if self.told.is_none() && self.began.elapsed() > TELLING_TIME {
            let (directory, timeout, confirmed) =
                (looking.directory.display().to_string(), looking.timeout.as_secs(), looking.pulse.may_renew());
            self.told = Some(spawn(move || match confirmed {
                true => {
                    mend_report::tell!("mend: the job's directory {directory} does not answer; its ranks run on, for {timeout} s at most")
                }
                false => mend_report::tell!(
                    "mend: the job's directory {directory} does not answer, and not more than half of the nodes confirm this controller: the ranks end with their lease"
                ),
            }));
        }
    }

    fn end(self, looking: &Looking) {
        let Some(told) = self.told.filter(|_| !looking.is_over()) else { return };
        let (taken, answers) = (self.began.elapsed(), looking.pulse.unseen() < looking.timeout);
        looking.silence_ms.store(taken.as_millis() as u64, Ordering::Relaxed);
        let taken = taken.as_secs();
        spawn(move || {
            let _ = told.join();
            match answers {
                true => mend_report::tell!("mend: the job's directory answers again, after {taken} s"),
                false => mend_report::tell!("mend: the job's directory has not answered for {taken} s: the ranks end with their lease"),
            }
        });
    }
}

/// Ends this process: its job is another controller's.
pub fn leave(id: &str) -> ! {
    // What a detached one says goes to the job's output, which is another's, too. That one has said there that it goes on.
    if !is_detached() {
        mend_report::tell!("mend: another controller has taken job {id} over: this one was silent; `mend attach {id}` follows it");
    }
    std::process::exit(crate::error::TAKEN_OVER);
}
