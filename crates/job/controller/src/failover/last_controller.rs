//! Whether the controller of a job whose lock is free may have the job all the same: cut off from the file server, which has given up its lock, and confirmed by
//! more than half of its nodes.
//!
//! A successor waits for such a controller ([`super::take_over`]). `mend restart` refuses to begin the job's ranks a second time, and says for how long. Faults assumed: the
//! controller and any nodes are gone, or cannot be reached.

use super::{age, log};
use crate::client;
use crate::error::RunError;
use crate::failover::take_over::{answer_time, replaced};
use crate::job_link::{Vote, ask_vote};
use crate::job_lock::JobLock;
use crate::record::{JobDirectory, RecordError};
use mend_coordination::renewal::confirmed_us;
use std::fs;
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;

/// Of this file's age a lost controller cannot have seen the job's lock any more.
const FILE_NAME: &str = "lock.replaced";

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
        let _ = fs::remove_file(mark);
        return Ok(lock);
    };
    let lock = replaced(directory, id, lock).await.ok_or_else(|| RecordError::Running { id: id.to_owned() })?;
    let life = found.life;
    let secret = mend_wire::secret::load_or_create(&mend_settings::secret_file()?)?;
    let mut asked = JoinSet::new();
    for (index, node) in life.setup.nodes.iter().enumerate() {
        let (of, secret, address, limit) = (life.resumption(index, 0), secret.clone(), node.address, answer_time(&life));
        asked.spawn(async move { ask_vote(address, &secret, of, 0, limit).await });
    }
    let votes = asked.join_all().await;
    // One that has left the job cannot confirm anybody, nor one that has voted.
    let unknown = votes.iter().filter(|vote| !matches!(vote, Some(Vote::Absent | Vote::Successor))).count();
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
    let _ = fs::remove_file(mark);
    Ok(lock)
}
