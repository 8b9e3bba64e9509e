//! Whether the controller of a job whose lock is free may have the job all the same: cut off from the file server, which has given up its lock, and confirmed by
//! more than half of its nodes.
//!
//! A successor waits for such a controller ([`super::take_over`]). `mend restart` refuses to begin the job's ranks a second time, and says for how long. Where the controller is
//! gone for certain, nodes that cannot be asked may still run ranks of the job until their lease is over: `mend restart` waits for that. Faults assumed: the controller and any
//! nodes are gone, or cannot be reached; the job has no log.

use super::{age, log};
use crate::being_restarted;
use crate::client;
use crate::error::RunError;
use crate::failover::log::LifeRecord;
use crate::failover::watch::LEASES;
use crate::job_link::{Vote, ask_vote, ranks_there};
use crate::job_lock::JobLock;
use crate::kill_request;
use crate::nodes::{DaemonAddresses, resolve};
use crate::record::{JobDirectory, JobRecord, RecordError, left_until};
use crate::run::LEASE_END_TIME;
use mend_coordination::renewal::confirmed_us;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use tokio::task::JoinSet;

/// Made when a restart first finds the lock free. When it is as old as the directory's timeout and a lease, no rank runs any more that a lost controller had.
const FILE_NAME: &str = "lock.replaced";
/// How long another successor may be at it that takes the lock: longer than what one leaves that was killed then counts.
const SEIZED_TIME: Duration = Duration::from_secs(3);
/// How long a daemon may take to answer, and which part of the lease that may be.
const ANSWER_TIME: (Duration, u32) = (Duration::from_millis(1500), 6);
/// Between two looks whether ranks have ended.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// So much later than it wrote last a controller may have spoken to a node: it gives up a node that does not answer after three seconds.
const LAST_WORD_TIME: Duration = Duration::from_secs(4);
/// Longest time for which ranks may live; more is a clock that goes wrong.
const MAX_LEFT: Duration = Duration::from_secs(660);

/// Takes the place of whoever had this lock, which was free. Waits until ranks of the job that may still run on nodes that cannot be asked have ended. `named`: the hosts that the
/// job is to go on with, if somebody has said so.
///
/// # Errors
/// [`RunError::MayRun`]; [`RecordError::Running`]; those of the file system, of settings and of the user's secret.
pub(crate) async fn replace(directory: &JobDirectory, lock: JobLock, named: Vec<String>) -> Result<JobLock, RunError> {
    let lock = match directory.record() {
        Ok(record) => {
            let life = log::read(directory.path()).map(|found| found.life).filter(|_| record.ended.is_none());
            let lock = match &life {
                // Else its process is known to be gone from this machine.
                Some(life) if record.controller_host != client::host_name() => outlasted(directory, &record, life, lock).await?,
                _ => lock,
            };
            LastRanks { directory, record: &record, life: life.as_ref(), named }.have_ended().await?;
            lock
        }
        // Nothing is known of it.
        Err(_) => lock,
    };
    forget(directory);
    kill_request::forget(directory.path());
    Ok(lock)
}

/// The lock, replaced, if the controller of the job that is on record cannot go on with it, by the confirmations of its nodes.
async fn outlasted(directory: &JobDirectory, record: &JobRecord, life: &LifeRecord, lock: JobLock) -> Result<JobLock, RunError> {
    let (id, mark) = (&record.id, directory.path().join(FILE_NAME));
    let lock = replaced(directory, id, lock).await.ok_or_else(|| RecordError::Running { id: id.clone() })?;
    // It is another file now.
    being_restarted::note(directory, lock.identity());
    let votes = votes(life, 0).await?;
    // One that has left the job cannot confirm anybody, nor one that has voted.
    let unknown = votes.iter().filter(|vote| !matches!(vote, Some(Vote::Absent | Vote::Successor | Vote::LeaseOver))).count();
    let timeout = Duration::from_micros(confirmed_us(unknown, votes.len(), false, life.directory_timeout_s * 1_000_000));
    if !timeout.is_zero() {
        let over = timeout + Duration::from_millis(life.lease_ms);
        let waited = marked(&mark)?;
        if waited < over {
            let (left_s, host) = ((over - waited).as_secs() + 1, record.controller_host.clone());
            return Err(RunError::MayRun { id: id.clone(), host, unknown, nodes: votes.len(), left_s });
        }
    }
    Ok(lock)
}

/// How long ago a restart has first found the lock free. Now, if none has.
fn marked(mark: &Path) -> Result<Duration, RecordError> {
    let written = fs::metadata(mark).and_then(|found| found.modified()).ok();
    if written.is_none() {
        fs::write(mark, []).map_err(|source| RecordError::Io { path: mark.to_owned(), source })?;
    }
    Ok(written.and_then(|written| age(written, SystemTime::now())).unwrap_or_default())
}

/// Ranks of the life of a job that was the last before a restart.
struct LastRanks<'a> {
    directory: &'a JobDirectory,
    record: &'a JobRecord,
    /// What is known of it; `None`: it is over, or has no log.
    life: Option<&'a LifeRecord>,
    /// The hosts that the restart was given, if it was.
    named: Vec<String>,
}

impl LastRanks<'_> {
    /// Waits until none can run any more beside its copy in the next life.
    async fn have_ended(&self) -> Result<(), RunError> {
        let until = Instant::now() + self.left()?;
        let mut told = false;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let nodes = self.nodes().await?;
            if nodes.is_empty() {
                return Ok(());
            }
            if !std::mem::replace(&mut told, true) {
                let (id, left) = (&self.record.id, left.as_secs_f32().ceil());
                mend_report::tell!(
                    "mend: ranks of job {id} may still run on {}: their end is waited for, {left} s at most",
                    nodes.join(", ")
                );
            }
            tokio::time::sleep(LOOK_INTERVAL.min(left)).await;
        }
    }

    /// For how long they may live where they cannot be seen to have ended.
    fn left(&self) -> Result<Duration, RunError> {
        if self.record.ended.is_some() || self.record.goes_on {
            return Ok(left_until(self.record.ranks_until_ms).min(MAX_LEFT));
        }
        let lease = match self.record.lease_ms {
            Some(lease) => Duration::from_millis(lease),
            None => mend_settings::LEASE.milliseconds()?,
        };
        Ok(match self.life {
            Some(_) => {
                // While it had nodes, it wrote at least once a second.
                let age = log::written(self.directory.path()).and_then(|written| age(written, SystemTime::now())).unwrap_or_default();
                (lease + lease / LEASES + LAST_WORD_TIME + LEASE_END_TIME).saturating_sub(age)
            }
            // Nobody knows when it spoke to them last: before this.
            None => (lease + LEASE_END_TIME).saturating_sub(marked(&self.directory.path().join(FILE_NAME))?),
        })
    }

    /// The nodes that may have some.
    async fn nodes(&self) -> Result<Vec<String>, RunError> {
        let record = self.record;
        if let Some(life) = self.life {
            // A node that the next life has, too, ends them before it begins others.
            let is_other = |name: &String| life.local || !self.named.is_empty() && !self.named.contains(name);
            let votes = votes(life, 0).await?.into_iter().zip(&life.setup.nodes).map(|(vote, node)| (vote, &node.name));
            let here =
                votes.filter(|(vote, name)| vote.is_none_or(|vote| !matches!(vote, Vote::Absent | Vote::LeaseOver) && is_other(name)));
            return Ok(here.map(|(_, name)| name.clone()).collect());
        }
        if record.ended.is_some() || record.goes_on {
            return Ok(if record.lost.is_empty() { &record.hosts } else { &record.lost }.clone());
        }
        if record.batch.is_some() {
            // Nobody knows where its daemons were.
            return Ok(record.hosts.clone());
        }
        let (secret, port) = (mend_wire::secret::load_or_create(&mend_settings::secret_file()?)?, mend_settings::PORT.number()? as u16);
        let mut asked = JoinSet::new();
        for (name, address) in record.hosts.iter().cloned().zip(resolve(&record.hosts, &DaemonAddresses::default(), port).await) {
            let (secret, is_other) = (secret.clone(), !self.named.is_empty() && !self.named.contains(&name));
            asked.spawn(async move {
                let ranks = match address {
                    Ok(address) => ranks_there(address, &secret, ANSWER_TIME.0).await,
                    Err(_) => None,
                };
                ranks.is_none_or(|ranks| ranks > 0 && is_other).then_some(name)
            });
        }
        Ok(asked.join_all().await.into_iter().flatten().collect())
    }
}

/// The job has a controller again: of a later one that is lost, what an earlier restart has found says nothing.
pub(super) fn forget(directory: &JobDirectory) {
    let _ = fs::remove_file(directory.path().join(FILE_NAME));
}

/// Puts another file in the place of a lock that was free. Its file server may have given it up for a controller that lives, and has to see that the job is another's. `None`
/// if another successor has taken the job.
pub(super) async fn replaced(directory: &JobDirectory, id: &str, lock: JobLock) -> Option<JobLock> {
    let until = Instant::now() + SEIZED_TIME;
    loop {
        match directory.seize_lock(id, lock.identity()) {
            Ok(ours) => return Some(ours),
            Err(_) if !lock.is_ours() => return None,
            // Another one is about to, or was killed when it was.
            Err(RecordError::Running { .. }) if Instant::now() < until => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(RecordError::Running { .. }) => return None,
            Err(error) => {
                tracing::warn!(%error, "the job's lock stays the file that it is");
                return Some(lock);
            }
        }
    }
}

/// What the nodes of a life say that are asked for their votes, which they give if its controller was silent for so long. `None`: a node does not answer.
///
/// # Errors
/// The user's secret cannot be used.
pub(super) async fn votes(life: &LifeRecord, silence_ms: u64) -> Result<Vec<Option<Vote>>, RunError> {
    let secret = mend_wire::secret::load_or_create(&mend_settings::secret_file()?)?;
    let mut asked = JoinSet::new();
    for (index, node) in life.setup.nodes.iter().enumerate() {
        let (of, secret, address, limit) = (life.resumption(index, 0), secret.clone(), node.address, answer_time(life));
        asked.spawn(async move { ask_vote(address, &secret, of, silence_ms, limit).await });
    }
    Ok(asked.join_all().await)
}

/// How long a daemon may take to answer.
pub(super) fn answer_time(life: &LifeRecord) -> Duration {
    ANSWER_TIME.0.min(Duration::from_millis(life.lease_ms) / ANSWER_TIME.1)
}
