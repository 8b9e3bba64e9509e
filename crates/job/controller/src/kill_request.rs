//! `mend kill` for a job that is between two lives: its controller, on whatever node it is, answers no verbs then. A file in the job's directory,
//! which all nodes share, says that the job is to end.

use crate::record::JobDirectory;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

const FILE_NAME: &str = "kill";
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

/// Returns when somebody wants this job to end, of which no life is under way.
pub(crate) async fn wanted(id: &str) {
    let Ok(directory) = JobDirectory::open(id) else { return std::future::pending().await };
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
        if path.exists() && directory.record().is_ok_and(|record| record.goes_on) {
            let _ = fs::remove_file(&path);
            return;
        }
    }
}
