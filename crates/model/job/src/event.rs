//! What reaches a job's machine and what it wants done: the whole of its contact with the world.
//!
//! Faults assumed: any event may come late, twice or for something that is over; the machine drops what does not fit. Only whoever
//! carries out effects is trusted: each effect that has an answer gets it, once, however long it takes.

pub use crate::end::{End, GoesOn};
pub use crate::notice::{Notice, SpawnTrouble};
pub use crate::phase::NodeLoss;
use crate::phase::RankPhase;
use mend_coordination::failure::{Failure, Refusal, Trouble};
use mend_coordination::worlds::Worlds;
use mend_image::cpu::CpuNeeds;
use mend_journal::event::{Cause, Code};
use mend_messages::agent::{ImageId, Inspection};
use mend_messages::control::{Ask, MigrationDone, MoveProgress, Phases};
use mend_messages::daemon::{FromDaemon, Stream, ToDaemon};
use mend_messages::files::KeptFile;
use mend_messages::health::{LeaveReason, Leaving};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::Destination;
use mend_policy::follow::Scan;
pub use mend_policy::precopy::MeasuredRates;
use mend_policy::restarts::Restarts;
use mend_policy::retention::{Bounds, Weighed};
use mend_policy::schedule::CheckpointKind;
use serde::{Deserialize, Serialize};

/// Names a verb that waits for an answer. Whoever brings it chooses the number, never the same twice.
pub type VerbId = u64;

/// Who wants an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asker {
    /// Somebody who asked.
    Verb(VerbId),
    /// The schedule of periodic checkpoints.
    Schedule,
    /// This rank is to leave its node, for this reason.
    Leaving(Rank, LeaveReason),
    /// The end of the job's time.
    TimeUp,
    /// This rank is to go back to a node that it has left, or to a better one.
    Back(Rank),
    /// This rank is to go where its data is.
    Data(Rank),
}

/// What a round of upkeep did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpkeepDone {
    /// The newest checkpoint that can be restarted, and for each rank how many images it builds on.
    pub newest: Option<(u64, Vec<u32>)>,
    /// Checkpoints that were removed.
    pub removed: Vec<u64>,
    /// The one whose images were merged with those that they built on.
    pub merged: Option<u64>,
    /// What went wrong, for people.
    pub failure: Option<String>,
    /// The newest chain is damaged: build on it no more.
    pub damaged: bool,
    /// A merge that is not worth its work yet; for the next round.
    pub weighed: Option<Weighed>,
}

/// What a file system says of its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeSpace {
    /// Bytes that are left.
    pub left: u64,
    /// Bytes that it has.
    pub all: u64,
}

/// Something for the job's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// As the journal has it.
    Happened {
        /// The node it is about.
        node: Option<NodeIndex>,
        /// The rank it is about.
        rank: Option<Rank>,
        /// It has to be durable before anything that follows is done.
        durable: bool,
        /// What has happened.
        event: mend_journal::Event,
    },
    /// A node is lost: a restart does not wait for it.
    NodeLost {
        /// The node that is lost.
        node: NodeIndex,
        /// How its loss was noticed.
        how: NodeLoss,
        /// With it.
        ranks: Vec<Rank>,
    },
    /// There is no such checkpoint; the job runs on.
    CheckpointFailed {
        /// Its number.
        checkpoint: u64,
        /// Who wanted it.
        by: mend_journal::event::Asker,
        /// What is to blame.
        code: Code,
        /// What made it fail.
        failure: Failure,
    },
    /// A rank stays where it was.
    MigrationUndone {
        /// Where that is.
        node: Option<NodeIndex>,
        /// The rank that was to move.
        rank: Rank,
        /// What is to blame.
        code: Code,
        /// Why it does not move.
        failure: Failure,
    },
    /// Ranks that are to leave a node have nowhere to go.
    NowhereToGo {
        /// The node.
        node: NodeIndex,
        /// Who wants them to leave.
        by: mend_journal::event::Asker,
        /// The ranks, which run on.
        ranks: Vec<Rank>,
        /// What kept the first of them.
        failure: Failure,
    },
    /// Why the job ends, if it ends by that. The first counts.
    Cause(Cause),
}

/// Everything that reaches the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A node's daemon says something.
    Daemon {
        /// Which node.
        node: NodeIndex,
        /// What the daemon says.
        message: FromDaemon,
    },
    /// No more will come from a node.
    NodeLost {
        /// The node that is silent now.
        node: NodeIndex,
        /// How its loss was noticed.
        how: NodeLoss,
    },
    /// Somebody asks. → [`Effect::Answer`]
    Ask {
        /// The verb that asks, and gets the answer.
        verb: VerbId,
        /// What it asks for.
        ask: Ask,
    },
    /// Storage was looked at: how long ranks waited for their data, and which moves would help.
    DataSeen(Scan),
    /// Ranks are to leave a node, which takes none until nobody has a reason for that any more. What is said again takes the place of what
    /// was said before with the same reason.
    Leave {
        /// The node.
        node: NodeIndex,
        /// Who says so. What one says does not touch what another has said.
        reason: LeaveReason,
        /// How they are to leave; `None`: this reason is no more.
        leaving: Option<Leaving>,
    },
    /// Answer to [`Effect::ListDrained`]: names of nodes.
    Drained(Vec<String>),
    /// A piece of standard input; empty at its end.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// SIGINT, SIGTERM or SIGHUP to the job.
    Signal(i32),
    /// The batch system wants the job to end: a last checkpoint is taken first.
    TimeUp {
        /// The signal that it has sent.
        signal: i32,
    },
    /// Time passed; the next deadline may be due.
    Time,
    /// Answer to [`Effect::Prepare`].
    Prepared {
        /// Of the checkpoint.
        number: u64,
        /// Whether what it is to build on is still good.
        result: Result<bool, Trouble>,
    },
    /// Answer to [`Effect::Publish`]: the checkpoint is durable in this directory, or does not exist.
    Published {
        /// Of the checkpoint.
        number: u64,
        /// Its directory.
        result: Result<String, Trouble>,
    },
    /// Answer to [`Effect::Remove`].
    Removed {
        /// As in the effect.
        asker: Asker,
        /// All of them, or none.
        result: Result<(), Trouble>,
    },
    /// Answer to [`Effect::List`].
    Listed(Vec<u64>),
    /// Answer to [`Effect::StartUpkeep`], after a while.
    Upkeep(UpkeepDone),
    /// Answer to [`Effect::MeasureFreeSpace`].
    FreeSpace(Option<FreeSpace>),
    /// Answer to [`Effect::StoreManifest`] if there is nothing to store; else the node answers.
    ManifestUnreadable {
        /// As in the effect.
        task: u64,
        /// What is wrong with the manifest.
        why: String,
    },
    /// Answer to [`Effect::RemoveIfEmpty`].
    Emptied {
        /// Of the checkpoint.
        number: u64,
        /// It held no image and is gone.
        gone: bool,
    },
    /// Answer to [`Effect::List`] if they can't be listed now.
    NotListed,
}

/// One image of a checkpoint that is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedImage {
    /// The rank whose image this is.
    pub rank: Rank,
    /// Node the rank is on.
    pub node: NodeIndex,
    /// Length of the file, bytes.
    pub bytes: u64,
    /// The stream's own checksum.
    pub checksum: u64,
    /// The image's name.
    pub id: ImageId,
    /// Number of the checkpoint whose image of this rank it builds on; `None`: it is full, or builds on an unknown one.
    pub base: Option<u64>,
    /// 0 for a full image; else larger than that of the image it builds on.
    pub sequence: u32,
    /// What the rank needs of a processor.
    pub needs: CpuNeeds,
}

/// A checkpoint whose images are all durable: what its manifest is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// From 1.
    pub number: u64,
    /// One per rank that has not ended, ascending.
    pub images: Vec<PublishedImage>,
    /// The process manager at the moment of the snapshot.
    pub worlds: Worlds,
    /// Files that programs had open, each once.
    pub files: Vec<KeptFile>,
    /// Slowest rank of each phase.
    pub phases: Phases,
    /// How long the rank that took longest was stopped, microseconds.
    pub stopped_us: u64,
    /// From the first request to suspend until every image was durable, microseconds.
    pub durable_us: u64,
    /// Taken by the schedule.
    pub periodic: bool,
}

impl Publication {
    /// Length of all images.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.images.iter().map(|image| image.bytes).fold(0, u64::saturating_add)
    }

    /// How much of it is incremental.
    #[must_use]
    pub fn kind(&self) -> CheckpointKind {
        match self.images.iter().filter(|image| image.base.is_none()).count() {
            0 => CheckpointKind::Incremental,
            full if full == self.images.len() => CheckpointKind::Full,
            _ => CheckpointKind::Mixed,
        }
    }
}

/// Everything the machine wants done, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Send this to a node's daemon. To a lost node: dropped.
    Send {
        /// The node whose daemon gets it.
        node: NodeIndex,
        /// What the daemon gets.
        message: ToDaemon,
    },
    /// Answer a verb. All but [`Outcome::Progress`] and [`Outcome::Moving`] are the last.
    Answer {
        /// The verb that asked.
        verb: VerbId,
        /// What came of its request.
        outcome: Outcome,
    },
    /// Take what a rank wrote: count it, and print what was not printed before.
    Print {
        /// The rank that wrote it.
        rank: Rank,
        /// Where to.
        stream: Stream,
        /// The bytes that it wrote.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A rank has ended by itself: nothing more of it is printed.
    OutputEnds {
        /// The rank that has ended.
        rank: Rank,
    },
    /// Note what each rank has printed and what was read of standard input: it belongs to this checkpoint.
    Note {
        /// Of the checkpoint.
        number: u64,
    },
    /// What is to be done about standard input.
    Stdin(StdinEffect),
    /// Tell the user, or the log.
    Tell(Notice),
    /// Put something into the job's journal.
    Record(Box<Record>),
    /// Measure how much space is left for checkpoints. → [`Event::FreeSpace`]; `None`: nobody knows
    MeasureFreeSpace,
    /// Make the directory in which checkpoint `number` is written; look whether `base` can be built on. → [`Event::Prepared`]
    Prepare {
        /// Of the checkpoint.
        number: u64,
        /// The checkpoint to build on, and its images.
        base: Option<(u64, Vec<ImageId>)>,
    },
    /// Write the manifest and publish. → [`Event::Published`]
    Publish(Box<Publication>),
    /// Remove what there is of a checkpoint that is not going to be.
    Discard {
        /// Of the checkpoint.
        number: u64,
    },
    /// Remove checkpoints, all or none. → [`Event::Removed`]
    Remove {
        /// Who wants that.
        asker: Asker,
        /// The checkpoints that are to go, by number.
        numbers: Vec<u64>,
    },
    /// Look which checkpoints there are. → [`Event::Listed`] or [`Event::NotListed`]
    List,
    /// Look which nodes an administrator has drained. → [`Event::Drained`]
    ListDrained,
    /// Remove what is superseded, merge what takes too much space. → [`Event::Upkeep`], after a while
    StartUpkeep {
        /// What is kept; `None`: only leftovers are removed.
        bounds: Option<Bounds>,
        /// What the round before found.
        weighed: Option<Weighed>,
    },
    /// Have the round of upkeep end soon.
    CancelUpkeep,
    /// Put on the job's record what restarts took.
    KeepRestarts(Restarts),
    /// Put on record what was measured of a rank that moved.
    KeepRates {
        /// The rank.
        rank: Rank,
        /// What was measured.
        rates: MeasuredRates,
    },
    /// Put on record which tiers hold the whole checkpoint.
    KeepTiers {
        /// Of the checkpoint.
        number: u64,
        /// Names, nearest first.
        complete: Vec<String>,
    },
    /// Have a node store a checkpoint's manifest. → the node's `Done`, or [`Event::ManifestUnreadable`]
    StoreManifest {
        /// Number of the task.
        task: u64,
        /// Of the checkpoint.
        number: u64,
        /// Which node.
        node: NodeIndex,
        /// The place on that node that it goes to.
        to: Destination,
    },
    /// Remove these ranks' images from the checkpoint directory.
    RemoveImages {
        /// Of the checkpoint.
        number: u64,
        /// The ranks whose images go.
        ranks: Vec<Rank>,
    },
    /// Remove a checkpoint's directory if no image is in it. → [`Event::Emptied`]
    RemoveIfEmpty {
        /// Of the checkpoint.
        number: u64,
    },
    /// The job is over: no more events are wanted.
    Over,
    /// Make durable what the machine was told so far, if that is written down, before anything that follows is done: a successor has to know it.
    MakeDurable,
}

/// What is to be done about standard input. What is counted of it is counted where it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinEffect {
    /// Read a piece. → [`Event::Stdin`]
    Read,
    /// The rank has its piece: read the next. → [`Event::Stdin`]
    Taken,
    /// Keep pieces back from now on.
    Freeze,
    /// Give them again. → [`Event::Stdin`] with what was kept back
    Release,
    /// What the rank had not read when it was saved, bytes; and what it had been given of the last piece.
    Held {
        /// Bytes that it will be given again.
        again: u64,
        /// Bytes of the piece under way that it was given.
        begun: u64,
    },
    /// What a rank that moved away was not given was lost with its node. → [`Event::Stdin`] with what its image has not
    Lost,
    /// A rank that moved away was not given these bytes. → [`Event::Stdin`] with them
    Left(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// What becomes of a verb.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// It waits for another operation.
    Progress,
    /// To `Status`.
    Status(Box<Status>),
    /// To `Checkpoint`.
    Checkpoint {
        /// What was published.
        publication: Box<Publication>,
        /// The directory that the checkpoint is in.
        directory: String,
        /// What was done in another way than ordered, by rank.
        notes: Vec<(Rank, String)>,
    },
    /// To `Migrate`, before the last.
    Moving(MoveProgress),
    /// To `Migrate`.
    Migrated(MigrationDone),
    /// To `Hurry`: the rank is stopped, or will be as soon as its move begins.
    Hurried,
    /// To `CancelMove`: the rank stays where it is.
    CancelledMove,
    /// To `Explain`: per rank its node, and what its agent found or why it could not be asked.
    Explained(Vec<(Rank, NodeIndex, Result<Inspection, Unexplained>)>),
    /// To `Remove`.
    Removed,
    /// To `Kill`.
    Killed,
    /// To `NotePortable`.
    Noted,
    /// It could not be done.
    Failed(Failure),
}

/// Why a rank was not inspected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unexplained {
    /// It has ended, or its node is lost.
    Gone(mend_coordination::failure::Gone),
    /// Its agent did not do it.
    Refused(Refusal),
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobPhase {
    /// Not all ranks run yet.
    Starting,
    /// They run, or one operation's steps do not stop them.
    Running,
    /// A checkpoint is being taken.
    Checkpointing,
    /// A rank moves.
    Migrating,
    /// It ends.
    Ending,
}

/// State of a job, for `mend ps`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What it is doing.
    pub phase: JobPhase,
    /// Since it was started or restarted.
    pub uptime_us: u64,
    /// One per rank: its node, whether it moves, what it does.
    pub ranks: Vec<(NodeIndex, bool, RankPhase)>,
    /// Ranks that are on their way, and where to.
    pub coming: Vec<(Rank, NodeIndex)>,
    /// The first rank of each spawned world.
    pub worlds: Vec<Rank>,
    /// Newest complete checkpoint.
    pub last_checkpoint: Option<u64>,
    /// For a restarted job whose ranks all run again: how long that took.
    pub restart: Option<Phases>,
    /// Seconds from one periodic checkpoint to the next; `None`: when somebody asks.
    pub interval_s: Option<f64>,
    /// Incremental checkpoints between two full ones.
    pub incrementals: u32,
    /// How much longer each of them is taken to make a restart, seconds.
    pub extra_recovery_s: Option<f64>,
    /// Restarts by which that was measured.
    pub restarts_measured: u32,
}
