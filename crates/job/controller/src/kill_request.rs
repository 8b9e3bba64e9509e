//! `mend kill` for a job that is between two lives, or being restarted: its controller, on whatever node it is, answers no verbs then. A file in the job's directory,
//! which all nodes share, says that the job is to end.

use crate::being_restarted;
use crate::record::{JobDirectory, JobRecord, home};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILE_NAME: &str = "kill";
/// A controller has promised that the job ends.
const PROMISE: &str = "killed";
/// Between two looks of the controller.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The request of this process. Dropping it takes it back.
#[derive(Debug)]
pub(crate) struct KillRequest {
    path: PathBuf,
}

impl KillRequest {
    /// Asks whoever is about to give the job another life.
    pub(crate) fn leave(directory: &JobDirectory) -> Result<Self, crate::record::RecordError> {
        let path = directory.path().join(FILE_NAME);
        fs::write(&path, "").map_err(|error| directory.io(error))?;
        Ok(Self { path })
    }

    /// Asks again if the request is gone: it came before anybody looked for one.
    pub(crate) fn renew(&self) {
        if !self.path.exists() {
            // Whatever keeps it from being written now may be over at the next time.
            let _ = fs::write(&self.path, "");
        }
    }
}

impl Drop for KillRequest {
    fn drop(&mut self) {
        // The controller may have heeded it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Puts on record, durably, that the job is to end: whoever has asked for it is answered then. A successor keeps the promise.
pub(crate) fn promise(directory: &Path) -> io::Result<()> {
    mend_durable::write(&directory.join(PROMISE), b"")
}

/// The job begins again, by its user's wish.
pub(crate) fn forget(directory: &Path) {
    let _ = fs::remove_file(directory.join(PROMISE));
}

/// Returns when somebody wants this job to end, of which no life is under way.
pub(crate) async fn wanted(id: &str) {
    let Ok(directory) = JobDirectory::open(id) else { return std::future::pending().await };
    if directory.path().join(PROMISE).exists() {
        return;
    }
    wanted_while(&directory, |record| record.goes_on).await;
}

/// The same of a job that is being restarted, until its next life is on record: that one is asked itself.
pub(crate) async fn wanted_of_restart(id: &str) {
    // Where there is no directory none is made: the restart may be refused.
    let found = home().map(|home| JobDirectory::at(&home.join("jobs").join(id)));
    let Ok((before, directory)) = found.and_then(|directory| Ok((directory.record()?, directory))) else {
        return std::future::pending().await;
    };
    wanted_while(&directory, |record| record.epoch == before.epoch && being_restarted::is(&directory)).await;
}

/// Returns when somebody asks for the job's end while it stands so.
async fn wanted_while(directory: &JobDirectory, stands: impl Fn(&JobRecord) -> bool) {
    let path = directory.path().join(FILE_NAME);
    // One that is there already is of a `mend kill` that was killed itself.
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(%error, "an old request to end the job cannot be removed");
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        if path.exists() && directory.record().is_ok_and(|record| stands(&record)) {
            let _ = fs::remove_file(&path);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrival::Arrival;
    use crate::wish::Wish;
    use mend_messages::control::{Answer, Ask};
    use tokio::sync::mpsc::unbounded_channel;

    #[test]
    fn who_is_told_that_the_job_is_killed_has_it_on_record() {
        let place = tempfile::tempdir().unwrap();
        let asked = |directory: &Path| {
            let (answers, mut received) = unbounded_channel();
            assert_eq!(Arrival::Ask(Ask::Kill, answers).wish(Some(directory)), Some(Wish::Kill));
            (received.try_recv().ok(), directory.join(PROMISE).exists())
        };
        assert_eq!(asked(place.path()), (Some(Answer::Killed), true));
        forget(place.path());
        assert!(!place.path().join(PROMISE).exists());
        assert_eq!(asked(&place.path().join("gone")), (None, false));
    }
}
