//! Whether a job has ended, and how, as another process sees it.
//!
//! A job runs for as long as its controller has the job's lock, also while it goes on by itself after a failure. One that spools its output has
//! ended when the last byte of this is written. Faults assumed: the controller is killed, and has put no end on record (then a successor is waited for, if there
//! may be one); the job is restarted, or removed, while somebody looks.

use crate::client;
use crate::failover;
use crate::journal_file;
use crate::record::{JobDirectory, JobRecord, RecordError, by_itself};
use crate::spool;
use mend_journal::State;
use mend_messages::control::{Answer, Ask};
use std::time::Duration;

/// The exit code that stands for that of a job whose controller was killed, EX_SOFTWARE.
pub const CONTROLLER_KILLED: i32 = 70;
/// How the state of a rank reads that runs.
const RUNNING: &str = "running";
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// As its record says.
    Ended {
        /// The exit code of `mend run` or `mend restart`.
        code: i32,
        /// In words.
        how: String,
    },
    /// Its controller was killed and has left no exit code.
    ControllerKilled,
}

impl JobEnd {
    /// What stands for the job's exit code.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Self::Ended { code, .. } => *code,
            Self::ControllerKilled => CONTROLLER_KILLED,
        }
    }
}

/// Whether a controller still works for the job.
fn is_open(directory: &JobDirectory) -> bool {
    directory.is_running() || spool::is_open(directory.path())
}

/// How the job ended; `None` if it runs.
///
/// # Errors
/// If its record cannot be read; it may have been removed.
pub fn look(directory: &JobDirectory) -> Result<Option<JobEnd>, RecordError> {
    if is_open(directory) {
        return Ok(None);
    }
    let record = directory.record()?;
    // Another controller may be about to take its place.
    let over = record.ended.is_some() || !failover::is_expected(directory);
    // It may have been restarted since.
    Ok((over && !is_open(directory)).then(|| end(directory, &record)))
}

fn end(directory: &JobDirectory, record: &JobRecord) -> JobEnd {
    let Some((_, how)) = &record.ended else {
        // The record could not be written, as on a full disk, and the journal could.
        return of_journal(directory).map_or(JobEnd::ControllerKilled, |code| JobEnd::Ended { code, how: by_itself(code) });
    };
    // Earlier releases kept it in the journal alone.
    let code = record.exit_code.or_else(|| of_journal(directory));
    let code = code.or_else(|| how.strip_prefix("exit code ")?.parse().ok());
    JobEnd::Ended { code: code.unwrap_or(1), how: how.clone() }
}

/// Waits until all ranks of the job run, under a controller that has taken the place of one that was killed (`None`), or the job has ended.
///
/// # Errors
/// As of [`look`].
pub async fn wait_for_ranks(id: &str) -> Result<Option<JobEnd>, RecordError> {
    let directory = JobDirectory::open(id)?;
    loop {
        if let Some(end) = look(&directory)? {
            return Ok(Some(end));
        }
        let record = directory.record()?;
        // One that is between two lives is waited for.
        if let Ok(Answer::Status(status)) = client::ask(&directory, &record, &Ask::Status, |_| ()).await
            && status.ranks.iter().all(|rank| rank.ended || rank.state == RUNNING)
        {
            return Ok(None);
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// The exit code of the job's last life, if the journal has it.
#[must_use]
pub fn of_journal(directory: &JobDirectory) -> Option<i32> {
    let found = journal_file::read(directory.path()).ok()?;
    State::of(&found.entries).ended.and_then(|end| end.status)
}

/// Waits until the job has ended.
///
/// # Errors
/// As of [`look`].
pub async fn wait(directory: &JobDirectory) -> Result<JobEnd, RecordError> {
    loop {
        if let Some(end) = look(directory)? {
            return Ok(end);
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
