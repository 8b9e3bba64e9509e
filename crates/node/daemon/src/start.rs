//! Starting the program of a rank: everything that is looked at and put together before the supervisor gets it.

use crate::failure::RankFailure;
use crate::launch_environment::{PMI_FD, RankIdentity, rank_environment};
use crate::mpi;
use crate::program::{self, Agentless, ExaminedPrograms, ProgramError};
use crate::supervisor::order::Launch;
use mend_messages::daemon::JobIntroduction;
use mend_messages::job::Rank;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Process id of rank 0, and the distance to the next rank's, so that ids of threads differ between ranks too.
const FIRST_PID: u32 = 1000;
const PID_STEP: u32 = 16;
/// Ids are kept below what every node accepts, so that an image can be restored on any (pid_max(5)).
const COMMON_PID_MAX: u32 = 32_768;

/// A start that was asked for.
#[derive(Debug)]
pub struct ProgramStart {
    /// Which rank.
    pub rank: Rank,
    /// The job.
    pub job: Arc<JobIntroduction>,
    /// Where the daemon waits for agents.
    pub socket: String,
    /// Whether the rank gets namespaces.
    pub isolated: bool,
    /// Whether one that others of the job are in will do.
    pub shared: bool,
    /// `libmend-fi.so`.
    pub library: Option<PathBuf>,
    /// What is known of programs.
    pub known: Arc<Mutex<ExaminedPrograms>>,
}

impl ProgramStart {
    /// Looks at the program and says what to launch, and why no agent will speak for it, if so.
    pub async fn prepare(self) -> Result<(Launch, Option<Agentless>), RankFailure> {
        // File systems may be slow: not in the thread that serves everybody.
        match tokio::task::spawn_blocking(move || self.look()).await {
            Ok(looked) => Ok(looked?),
            Err(_) => Err(RankFailure::Program(ProgramError::Empty)),
        }
    }

    fn look(&self) -> Result<(Launch, Option<Agentless>), ProgramError> {
        let program = &self.job.program;
        let variable = |wanted: &str| program.env.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let name = program.argv.first().ok_or(ProgramError::Empty)?;
        let path = program::find(name, &program.cwd, variable("PATH"))?;
        // Nothing panics while it is held; a poisoned cache is still a cache.
        let agentless = self.known.lock().unwrap_or_else(PoisonError::into_inner).look(&path, &mpi::search_path(variable))?;
        let library = self.library.as_deref().ok_or(ProgramError::Incomplete { part: "libmend-fi.so" })?;
        let identity = RankIdentity { rank: self.rank, size: self.job.size, job: &self.job.id, socket: &self.socket, library };
        let launch = Launch {
            isolated: self.isolated,
            shared: self.isolated && self.shared,
            pid: process_id(self.rank),
            clock: None,
            shared_memory: None,
            open_files: None,
            path,
            argv: program.argv.clone(),
            env: rank_environment(&program.env, identity)?,
            cwd: program.cwd.clone(),
            privileged: false,
            numbers: vec![0, 1, 2, PMI_FD],
        };
        Ok((launch, agentless))
    }
}

/// The process id of a rank: its own among the job's first 1900 ranks, and always far enough below the limit for the ids
/// of some threads.
fn process_id(rank: Rank) -> u32 {
    let choices = (COMMON_PID_MAX - 2 * FIRST_PID) / PID_STEP;
    FIRST_PID + (rank % choices) * PID_STEP
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn process_ids_are_distinct_and_in_range() {
        let ids: HashSet<u32> = (0..1900).map(process_id).collect();
        assert_eq!(ids.len(), 1900);
        assert!((0..1_000_000).step_by(97).map(process_id).all(|id| (FIRST_PID..COMMON_PID_MAX - 100).contains(&id)));
    }
}
