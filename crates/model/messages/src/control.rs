//! CLI ⇄ controller: the verbs on a running job. One request per connection; progress lines, then one answer.

use crate::agent::{Inspection, SaveMode};
use crate::job::Rank;
use serde::{Deserialize, Serialize};

/// What a verb asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// State of the job. → `Status`
    Status,
    /// Take a coordinated checkpoint. → `Checkpoint`
    Checkpoint {
        /// How long the ranks stand still; `None`: as the job's settings say.
        mode: Option<SaveMode>,
    },
    /// Move a rank. → `Migrated`
    Migrate {
        /// The rank that is to move.
        rank: Rank,
        /// Host name; `None` lets the controller choose a spare, else the least loaded node.
        to: Option<String>,
    },
    /// What stands in the way of saving, rank by rank. → `Explained`
    Explain,
    /// Remove checkpoints, all or none. → `Removed`
    Remove {
        /// The checkpoints that are to go, by number.
        numbers: Vec<u64>,
    },
    /// End all ranks. → `Killed`
    Kill,
}

/// Durations of the five phases, microseconds; zero where a phase does not occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Draining the channels.
    pub suspend_us: u64,
    /// Parking threads and writing the image.
    pub write_us: u64,
    /// Bytes under way to the target after the last was written (streams overlap: often near zero).
    pub transfer_us: u64,
    /// Rebuilding the process.
    pub restart_us: u64,
    /// From the restored process to running channels.
    pub reconnect_us: u64,
}

/// One rank as `ps` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatus {
    /// The rank that this is about.
    pub rank: Rank,
    /// Host name of its node.
    pub host: String,
    /// "starting", "running", "moving", "exited 0", …
    pub state: String,
}

/// State of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Name of the job.
    pub id: String,
    /// Command line.
    pub command: Vec<String>,
    /// "running", "checkpointing", "migrating", …
    pub state: String,
    /// Seconds since it was started or restarted.
    pub uptime_s: u64,
    /// Hosts that may run ranks, spares included.
    pub hosts: Vec<String>,
    /// One per rank.
    pub ranks: Vec<RankStatus>,
    /// Number of the newest complete checkpoint.
    pub last_checkpoint: Option<u64>,
    /// For a restarted job whose ranks all run again: how long that took.
    pub restart: Option<Phases>,
    /// Seconds from one periodic checkpoint to the next, as it stands; `None`: when somebody asks.
    pub interval_s: Option<f64>,
    /// Incremental checkpoints between two full ones, as it stands.
    pub incrementals: u32,
    /// How much longer each of them is taken to make a restart, seconds; `None` before one of either kind was taken.
    pub extra_recovery_s: Option<f64>,
    /// Restarts of the job by which that was measured; 0: it is an estimate by what writing took.
    pub restarts_measured: u32,
}

/// Result of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDone {
    /// Number within the job, from 1.
    pub number: u64,
    /// Directory with manifest and images.
    pub directory: String,
    /// Bytes of all images.
    pub bytes: u64,
    /// Slowest rank of each phase.
    pub phases: Phases,
    /// From the order to suspend until the program went on, of the rank that took longest, microseconds.
    pub stopped_us: u64,
    /// From the first request to suspend until every image was durable, microseconds.
    pub durable_us: u64,
    /// What was done in another way than ordered, rank by rank, for people.
    pub notes: Vec<String>,
}

/// Result of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationDone {
    /// The rank that moved.
    pub rank: Rank,
    /// From where.
    pub from: String,
    /// To where.
    pub to: String,
    /// Bytes of the image.
    pub bytes: u64,
    /// The five phases.
    pub phases: Phases,
    /// Time the rank was stopped, microseconds.
    pub stopped_us: u64,
}

/// `explain` for one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The rank that this is about.
    pub rank: Rank,
    /// Host name.
    pub host: String,
    /// What its agent found, or why it could not be asked.
    pub inspection: Result<Inspection, String>,
}

/// What a controller answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Something to show while waiting; more follows.
    Progress(String),
    /// To `Status`.
    Status(JobStatus),
    /// To `Checkpoint`.
    Checkpoint(CheckpointDone),
    /// To `Migrate`.
    Migrated(MigrationDone),
    /// To `Explain`.
    Explained(Vec<Explanation>),
    /// To `Remove`.
    Removed,
    /// To `Kill`.
    Killed,
    /// It could not be done; the job runs on.
    Failed {
        /// What and why.
        error: String,
        /// Way out; may be empty.
        hint: String,
    },
}
