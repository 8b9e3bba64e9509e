//! Whether the controller of a job whose lock is free may have the job all the same: cut off from the file server, which has given up its lock, and confirmed by
//! more than half of its nodes.
//!
//! A successor waits for such a controller ([`super::take_over`]). `mend restart` refuses to begin the job's ranks a second time, and says for how long. Faults assumed: the
//! controller and any nodes are gone, or cannot be reached.

use super::{age, log};
use crate::client;
use crate::error::RunError;
use crate::failover::log::LifeRecord;
use crate::job_link::{Vote, ask_vote};
use crate::job_lock::JobLock;
use crate::record::{JobDirectory, RecordError};
use mend_coordination::renewal::confirmed_us;
use std::fs;
use std::time::{Duration, Instant, SystemTime};
use tokio::task::JoinSet;

/// Made when a restart first finds the lock free. When it is as old as the directory's timeout and a lease, no rank runs any more that a lost controller had.
const FILE_NAME: &str = "lock.replaced";
/// How long another successor may be at it that takes the lock: longer than what one leaves that was killed then counts.
const SEIZED_TIME: Duration = Duration::from_secs(3);
/// How long a daemon may take to answer, and which part of the lease that may be.
const ANSWER_TIME: (Duration, u32) = (Duration::from_millis(1500), 6);

/// Takes the place of whoever had this lock, which was free.
///
/// # Errors
/// [`RunError::MayRun`]; [`RecordError::Running`]; those of the file system and of the user's secret.
pub(crate) async fn replace(directory: &JobDirectory, id: &str, lock: JobLock) -> Result<JobLock, RunError> {
    let mark = directory.path().join(FILE_NAME);
    let record = directory.record().ok().filter(|record| record.ended.is_none() && record.controller_host != client::host_name());
    let found = record.and_then(|record| Some((record, log::read(directory.path())?)));
    let Some((record, found)) = found else {
        // It has ended, or its process is known to be gone from this machine.
        forget(directory);
        return Ok(lock);
    };
    let lock = replaced(directory, id, lock).await.ok_or_else(|| RecordError::Running { id: id.to_owned() })?;
    let life = found.life;
    let votes = votes(&life, 0).await?;
    // One that has left the job cannot confirm anybody, nor one that has voted.
    let unknown = votes.iter().filter(|vote| !matches!(vote, Some(Vote::Absent | Vote::Successor | Vote::LeaseOver))).count();
    let timeout = Duration::from_micros(confirmed_us(unknown, votes.len(), false, life.directory_timeout_s * 1_000_000));
    if !timeout.is_zero() {
        let over = timeout + Duration::from_millis(life.lease_ms);
        let written = fs::metadata(&mark).and_then(|found| found.modified()).ok();
        if written.is_none() {
            fs::write(&mark, []).map_err(|source| RecordError::Io { path: mark.clone(), source })?;
        }
        let waited = written.and_then(|written| age(written, SystemTime::now())).unwrap_or_default();
        if waited < over {
            let left_s = (over - waited).as_secs() + 1;
            return Err(RunError::MayRun { id: id.to_owned(), host: record.controller_host, unknown, nodes: votes.len(), left_s });
        }
    }
    forget(directory);
    Ok(lock)
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
