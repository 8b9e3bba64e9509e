//! What events say of a job, as data of their own: who asked, what is to blame, why it ended, what was written, how long it took.

use mend_messages::control::{Phases, StopReason};
use mend_messages::health::LeaveReason;
use serde::{Deserialize, Serialize};

/// Longest text in an event, bytes. What is longer is cut.
pub const MAX_TEXT: usize = 2000;

/// Who asked for something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asker {
    /// A command of the user's.
    #[default]
    User,
    /// The job's schedule.
    Schedule,
    /// The node's health.
    Health,
    /// The batch system.
    BatchSystem,
    /// The end of the job's time.
    TimeUp,
    /// What a rank gains by going back to a node that it has left.
    BackMigration,
    /// What a job gains by having a rank where its data is.
    Data,
    /// One of a later release.
    #[serde(other)]
    Other,
}

impl From<LeaveReason> for Asker {
    fn from(reason: LeaveReason) -> Self {
        match reason {
            LeaveReason::Health => Self::Health,
            LeaveReason::BatchSystem => Self::BatchSystem,
        }
    }
}

/// A step of a checkpoint, migration or restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Looking for obstacles.
    Inspect,
    /// Asking the target of a move whether it has what the rank uses.
    Compare,
    /// Draining the channels.
    Suspend,
    /// Taking the images, or snapshots.
    Save,
    /// Keeping files that the program writes.
    Keep,
    /// Letting the ranks go on.
    Resume,
    /// Writing images behind the running ranks.
    Write,
    /// Copying a rank to another node while it runs.
    Precopy,
    /// A rank that is to move waits until another one has.
    Wait,
    /// Moving a rank's image to another node.
    Move,
    /// Waiting for the moved rank's listeners.
    Connect,
    /// Going back to where the rank was.
    Undo,
    /// Reading the images into memory.
    Read,
    /// Reopening files and the rest.
    Rebuild,
    /// One of a later release.
    #[serde(other)]
    Other,
}

impl Phase {
    /// Its name, as short as it can be.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inspect => "inspect",
            Self::Compare => "compare",
            Self::Suspend => "suspend",
            Self::Save => "save",
            Self::Keep => "keep",
            Self::Resume => "resume",
            Self::Write => "write",
            Self::Precopy => "precopy",
            Self::Wait => "wait",
            Self::Move => "move",
            Self::Connect => "connect",
            Self::Undo => "undo",
            Self::Read => "read",
            Self::Rebuild => "rebuild",
            Self::Other => "other",
        }
    }
}

/// Why a checkpoint or migration failed, as a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Something of a rank cannot be saved.
    Obstacle,
    /// A rank had ended, or ended meanwhile.
    RankEnded,
    /// A node was lost meanwhile.
    NodeLost,
    /// A rank's agent did not answer in time.
    NoAnswer,
    /// A rank's agent could not do what it was asked.
    Agent,
    /// An image was not written completely.
    Image,
    /// The directory of checkpoints cannot be used.
    Directory,
    /// The checkpoint could not be published.
    Publish,
    /// The target of a migration failed.
    Target,
    /// It was not possible from the beginning: no such rank, no such node.
    Refused,
    /// The target of a migration has too little memory.
    Memory,
    /// The processor of the target of a migration will not do.
    Processor,
    /// A file on the target of a migration is missing or differs.
    Files,
    /// The kernel of the target of a migration differs.
    Kernel,
    /// The job ended first.
    JobEnded,
    /// Something else; the text says what.
    #[serde(other)]
    Other,
}

/// What the target of a migration has not that the rank needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// Memory, in bytes.
    Memory {
        /// What the rank needs.
        needs: u64,
        /// What the node has left.
        left: u64,
    },
    /// Features of the processor.
    CpuFeatures {
        /// Their names.
        names: Vec<String>,
    },
    /// Room for the rank's registers as they are laid out, in bytes.
    Registers {
        /// Room there.
        here: u64,
        /// What the rank's take.
        saved: u64,
    },
    /// A file as the rank uses it.
    File {
        /// Its path.
        path: String,
        /// How it differs: `absent`, `unreadable`, `kind`, `size` or `content`.
        what: String,
        /// How many more there are, files or other.
        more: u32,
    },
    /// The kernel that the rank runs on.
    Kernel {
        /// Release of the one there.
        release: String,
    },
    /// Something of a later release.
    #[serde(untagged)]
    Other(serde_json::Value),
}

/// Why a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Cause {
    /// All ranks ended with 0.
    Done,
    /// A rank exited with another code.
    RankExited {
        /// Which; the first.
        rank: u32,
        /// Its exit code.
        status: i32,
        /// Where it was.
        node: String,
    },
    /// A signal ended a rank.
    RankSignal {
        /// Which; the first.
        rank: u32,
        /// Number of the signal.
        signal: i32,
        /// Where it was.
        node: String,
    },
    /// A rank called `MPI_Abort`.
    Abort {
        /// The rank that called it.
        rank: u32,
        /// With this code.
        status: i32,
    },
    /// `mend kill`.
    Killed,
    /// A signal to `mend run` or `mend restart`.
    Interrupted {
        /// Number of the signal.
        signal: i32,
    },
    /// The batch system wanted it to end, and sent this signal.
    TimeUp {
        /// Number of the signal.
        signal: i32,
    },
    /// A node with ranks on it was lost.
    NodeLost {
        /// The node that was lost.
        node: String,
        /// The ranks that were on it.
        ranks: String,
        /// How it showed.
        why: String,
    },
    /// Messages between two ranks that both live were lost.
    MessagesLost {
        /// The ranks.
        ranks: (u32, u32),
        /// Where they were.
        nodes: (String, String),
        /// How it showed.
        why: String,
    },
    /// A rank could not be started.
    StartFailed {
        /// The rank that did not start.
        rank: u32,
        /// The node that was to start it.
        node: String,
        /// What kept it from starting, as a text.
        error: String,
    },
    /// A rank could not be restored.
    RestoreFailed {
        /// The rank that was not restored.
        rank: u32,
        /// The node that was to restore it.
        node: String,
        /// What kept it from being restored, as a text.
        error: String,
        /// It is the image that cannot be used.
        image: bool,
    },
    /// No checkpoint could be used.
    NoCheckpoint {
        /// What was wrong with the last one.
        error: String,
    },
    /// A node did not answer, or refused the job.
    Unreachable {
        /// What the connection or the node said, as a text.
        error: String,
    },
    /// The controller died: nobody wrote down how the job ended.
    ControllerDied,
    /// Something else.
    Failed {
        /// What went wrong, as a text.
        error: String,
    },
    /// One of a later release.
    #[serde(other)]
    Other,
}

/// An image of one rank, as its checkpoint has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageFacts {
    /// Bytes that the image takes.
    pub bytes: u64,
    /// Pages that it stores.
    pub pages: u64,
    /// Microseconds from the snapshot, or from parking, until it was written.
    pub us: u64,
    /// It stores everything; else what changed since the image that it builds on.
    pub full: bool,
}

/// Durations of the five phases, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "they are those of `mend_messages::control::Phases`, with names that files keep")]
pub struct PhaseTimes {
    pub suspend_us: u64,
    pub write_us: u64,
    pub transfer_us: u64,
    pub restart_us: u64,
    pub reconnect_us: u64,
}

/// Where the image of a rank that moves is stored on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "they are those of `mend_messages::control::Storage`, with names that files keep")]
pub enum Storage {
    Shared,
    Local,
    Staged,
}

impl From<mend_messages::control::Storage> for Storage {
    fn from(storage: mend_messages::control::Storage) -> Self {
        match storage {
            mend_messages::control::Storage::Shared => Self::Shared,
            mend_messages::control::Storage::Local => Self::Local,
            mend_messages::control::Storage::Staged => Self::Staged,
        }
    }
}

/// What was sent of a rank while it ran on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "they are those of `mend_messages::control::Precopied`, with names that files keep")]
pub struct Precopied {
    pub rounds: u32,
    pub bytes: u64,
    pub stopped_bytes: u64,
    pub us: u64,
    pub why: String,
}

impl From<mend_messages::control::Precopied> for Precopied {
    fn from(done: mend_messages::control::Precopied) -> Self {
        let why = match done.why {
            StopReason::LittleLeft => "little_left",
            StopReason::NotShrinking => "not_shrinking",
            StopReason::Deadline => "deadline",
            StopReason::RoundLimit => "round_limit",
            StopReason::Urgent => "urgent",
        };
        Self { rounds: done.rounds, bytes: done.bytes, stopped_bytes: done.stopped_bytes, us: done.us, why: why.to_owned() }
    }
}

impl From<Phases> for PhaseTimes {
    fn from(phases: Phases) -> Self {
        let Phases { suspend_us, write_us, transfer_us, restart_us, reconnect_us } = phases;
        Self { suspend_us, write_us, transfer_us, restart_us, reconnect_us }
    }
}

/// Which checkpoints are copied to a tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StaggeredTier {
    /// The tier.
    pub tier: String,
    /// Every so manieth of those that nobody asked for.
    pub every: u32,
    /// How long a copy takes, seconds; `None`: not measured, or ranks write there.
    pub copy_s: Option<f64>,
    /// Mean time between two failures that need it, seconds; `None`: a nearer one outlives as much, or there are none.
    pub needed_s: Option<f64>,
}

/// A text that fits an event.
#[must_use]
pub fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let at = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(at);
        text.push('…');
    }
    text
}
