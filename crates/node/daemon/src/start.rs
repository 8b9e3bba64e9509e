//! Starting the program of a rank: everything that is looked at and put together before the supervisor gets it.

use crate::failure::RankFailure;
use crate::launch_environment::{PMI_FD, RankIdentity, WorldPlace, rank_environment};
use crate::mpi;
use crate::program::{self, Agentless, ExaminedPrograms, ProgramError};
use crate::supervisor::order::Launch;
use mend_messages::daemon::JobIntroduction;
use mend_messages::job::Rank;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The lowest process id of a rank.
const FIRST_PID: u32 = 1000;
/// The distance to the next rank's: ids between belong to the rank's reaper and to threads that help its restorer for a while.
const PID_STEP: u32 = 16;
/// So many places in a step may be a rank's: its reaper's is as far behind ([`crate::supervisor`]).
const PID_OFFSETS: u32 = 8;
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
        let program = self.job.program.of(self.rank);
        let variable = |wanted: &str| program.env.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let name = program.argv.first().ok_or(ProgramError::Empty)?;
        let path = program::find(name, program.cwd, variable("PATH"))?;
        // Nothing panics while it is held; a poisoned cache is still a cache.
        let agentless = self.known.lock().unwrap_or_else(PoisonError::into_inner).look(&path, &mpi::search_path(variable))?;
        let library = self.library.as_deref().ok_or(ProgramError::Incomplete { part: "libmend-fi.so" })?;
        let world = self.job.worlds.iter().rev().find(|world| world.first <= self.rank);
        let identity = RankIdentity {
            rank: self.rank,
            size: self.job.size,
            world: match world {
                Some(world) => WorldPlace { rank: self.rank - world.first, size: world.size(), spawned: true },
                None => {
                    WorldPlace { rank: self.rank, size: self.job.worlds.first().map_or(self.job.size, |world| world.first), spawned: false }
                }
            },
            job: &self.job.id,
            socket: &self.socket,
            library,
        };
        let launch = Launch {
            isolated: self.isolated,
            shared: self.isolated && self.shared,
            pid: process_id(&self.job.identity, self.rank),
            clock: None,
            spaces: Vec::new(),
            whose: Vec::new(),
            shared_memory: None,
            portable: None,
            open_files: None,
            umask: self.job.program.umask,
            path,
            argv: program.argv.to_vec(),
            env: rank_environment(program.env, identity)?,
            cwd: program.cwd.to_owned(),
            privileged: false,
            numbers: vec![0, 1, 2, PMI_FD],
        };
        Ok((launch, agentless))
    }
}

/// The process id of a rank, the same on every node: its own among the job's first 1900 ranks. Programs name files by host and process
/// id, so where the ids of a job begin is drawn from its identity: those of two jobs on one node, or with one file system, seldom meet.
fn process_id(job: &[u8; 16], rank: Rank) -> u32 {
    let steps = (COMMON_PID_MAX - 2 * FIRST_PID) / PID_STEP;
    // Below 2^15, so nothing is cut off.
    let drawn = (u128::from_be_bytes(*job) % u128::from(steps * PID_OFFSETS)) as u32;
    FIRST_PID + (drawn / PID_OFFSETS + rank % steps) % steps * PID_STEP + drawn % PID_OFFSETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn process_ids_are_distinct_and_in_range() {
        for job in [[0; 16], [7; 16], [255; 16]] {
            let ranks: HashSet<u32> = (0..1900).map(|rank| process_id(&job, rank)).collect();
            let reapers: HashSet<u32> = ranks.iter().map(|id| id + crate::supervisor::REAPER_PID_OFFSET).collect();
            assert!(ranks.len() == 1900 && ranks.is_disjoint(&reapers));
            // Between two of them are ids for the first one's reaper and its restorer's helpers.
            let ascending: std::collections::BTreeSet<u32> = ranks.iter().copied().collect();
            assert!(ascending.iter().zip(ascending.iter().skip(1)).all(|(one, next)| next - one >= PID_STEP));
            let far = (0..1_000_000).step_by(97).map(|rank| process_id(&job, rank));
            assert!(far.chain(reapers).all(|id| (FIRST_PID..COMMON_PID_MAX).contains(&id)));
        }
    }

    #[test]
    fn process_ids_of_two_jobs_seldom_meet() {
        let job = |number: u64| {
            let mut identity = [0; 16];
            identity[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            identity
        };
        let first: HashSet<u32> = (0..1000).map(|number| process_id(&job(number), 0)).collect();
        assert!(first.len() > 900, "rank 0 of 1000 jobs has {} different ids", first.len());
    }
}
