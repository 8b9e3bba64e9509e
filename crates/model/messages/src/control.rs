//! CLI ⇄ controller: the verbs on a running job. One request per connection; progress lines, then one answer.

use crate::agent::{Inspection, SaveMode};
use crate::chunks::TransportWord;
use crate::job::Rank;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

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
        /// Host names that it does not choose.
        avoid: Vec<String>,
        /// Whether it runs on while most of it is copied.
        mode: MoveMode,
        /// Milliseconds after which it is to run on the target, as far as that can be: when they are too short for another round of
        /// copying, the rank is stopped.
        deadline_ms: Option<u64>,
    },
    /// Stop a rank that is being copied while it runs, and move the rest at once. → `Hurried`
    Hurry {
        /// The rank that is to stop now.
        rank: Rank,
    },
    /// Give up the move of a rank, or the wish for it: it goes on where it is. → `CancelledMove`
    CancelMove {
        /// The rank that is to stay.
        rank: Rank,
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
    /// Put into the journal what came of a request for a portable checkpoint, which the program's own library has answered. → `Noted`
    NotePortable(PortableNote),
}

/// What came of a request for a portable checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortableNote {
    /// The library's directory of checkpoints.
    pub directory: String,
    /// Ranks that the library is in.
    pub ranks: u32,
    /// From the request to the answer, microseconds.
    pub us: u64,
    /// Number and bytes of the checkpoint, or why there is none.
    pub taken: Result<(u64, u64), String>,
}

/// How a rank moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveMode {
    /// As it is likely to stand still for less.
    #[default]
    Auto,
    /// It runs on while its memory is copied, and stands still for what changed last.
    Live,
    /// It stands still for all of it.
    Frozen,
    /// It stands still, and its image is stored in a file on its way. To compare with.
    Stored(Storage),
}

impl MoveMode {
    /// Where the image is stored on its way, if it is.
    #[must_use]
    pub const fn storage(self) -> Option<Storage> {
        match self {
            Self::Stored(storage) => Some(storage),
            Self::Auto | Self::Live | Self::Frozen => None,
        }
    }
}

/// Where the image of a rank is stored on its way to another node: what migrations through a pipeline are compared with (Ouyang et al.,
/// High Performance Pipelined Process Migration with RDMA, CCGrid 2011).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// In the directory of the job's checkpoints, which both nodes share.
    Shared,
    /// In a file of the node that it leaves, which is then sent.
    Local,
    /// In a file of the node that it comes to, which is then read.
    Staged,
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
    /// Host name of the node that it is on its way to.
    pub to: Option<String>,
    /// For people: "starting", "running", "moving", "exited 0", …
    pub state: String,
    /// It has ended.
    pub ended: bool,
    /// Number of its world: 0 is that of the job's beginning, others were spawned, in this order.
    pub world: u32,
    /// Its rank there.
    pub world_rank: Rank,
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
    /// Where the daemon of each of them was reached: address and port.
    pub daemons: Vec<SocketAddr>,
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
    /// Bytes that were sent, as they are before compression.
    pub bytes: u64,
    /// Bytes that went over the link for them.
    pub sent_bytes: u64,
    /// By what they went.
    pub transport: TransportWord,
    /// The five phases.
    pub phases: Phases,
    /// Time the rank was stopped, microseconds.
    pub stopped_us: u64,
    /// What was sent before; `None`: it stood still for all of it.
    pub precopied: Option<Precopied>,
}

/// What was sent of a rank while it ran on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Precopied {
    /// Rounds, the first one included, and one that was not completed.
    pub rounds: u32,
    /// Bytes that were sent in them, as they are before compression.
    pub bytes: u64,
    /// Bytes that were sent while the rank stood still, as they are before compression.
    pub stopped_bytes: u64,
    /// From the first byte until the rank was asked to stop, microseconds.
    pub us: u64,
    /// Why it was stopped then.
    pub why: StopReason,
}

/// Why a rank that was copied while it ran was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// Little was left to be sent.
    LittleLeft,
    /// It changes as fast as it is sent: another round would leave as much.
    NotShrinking,
    /// The time that was given would be over.
    Deadline,
    /// There were as many rounds as may be.
    RoundLimit,
    /// Somebody wanted it.
    Urgent,
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveProgress {
    /// Which rank.
    pub rank: Rank,
    /// The round, from 0.
    pub round: u32,
    /// It is complete.
    pub done: bool,
    /// Bytes of this round so far.
    pub round_bytes: u64,
    /// Bytes of all rounds so far.
    pub bytes: u64,
    /// Bytes per second that are sent; 0: not known yet.
    pub rate: u64,
    /// Bytes per second that the program changes; `None`: not known yet.
    pub dirty_rate: Option<u64>,
    /// Bytes that would have to be sent if the rank stopped now; `None`: not known.
    pub left: Option<u64>,
    /// Until the round is likely to be complete, microseconds; `None`: not known.
    pub left_us: Option<u64>,
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
    /// To `Migrate`, before the last: a rank is copied while it runs.
    Moving(MoveProgress),
    /// To `Migrate`.
    Migrated(MigrationDone),
    /// To `Hurry`: the rank is stopped, or will be as soon as its move begins.
    Hurried,
    /// To `CancelMove`: the rank stays where it is.
    CancelledMove,
    /// To `Explain`.
    Explained(Vec<Explanation>),
    /// To `Remove`.
    Removed,
    /// To `Kill`.
    Killed,
    /// To `NotePortable`.
    Noted,
    /// It could not be done; the job runs on.
    Failed {
        /// What and why.
        error: String,
        /// Way out; may be empty.
        hint: String,
    },
}
