//! Controller ⇄ daemon, over one authenticated connection per job and node at a time.
//!
//! The job has a lease on the node, which each message of the controller renews; when it ends, the job's ranks end there. Both sides send
//! [`ToDaemon::Ping`]/[`FromDaemon::Pong`] traffic at least every second, more often under a short lease; silence of a daemon for longer than the `node_timeout` setting
//! means that it is dead.
//!
//! The first message of each side is sent as it is: `Introduce` and `Ready` for a job that begins, `Resume` and `Resumed` for one whose
//! connection broke, `Succeed` and `Succeeded` for one whose controller is lost, `Refused` for any. All that follows is numbered ([`crate::delivery`]), so that it is delivered once and in order,
//! however often the connection breaks.
//!
//! A restore (restart or migration target) is two steps, so that a failed one hurts nobody: `Restore` builds the
//! process with its threads parked and answers `Restored` or `RestoreFailed`; `Ask` with `Resume` lets it run, `Discard` kills it.

use crate::agent::{Compression, ImageId, Reply, Request, Round, Unwritten, Written};
use crate::chunks::Transport;
use crate::files::{NotPut, PutBack, PutOrder};
pub use crate::health::NodeRoom;
use crate::health::{NodeHealth, NodeReport};
use crate::job::{FabricAddress, JobMap, NodeIndex, Program, Rank, Secret};
use crate::needs::NodeNeeds;
use crate::progress::{RankProgress, RankTraffic};
use crate::report::Report;
use crate::space_report::SpaceReports;
use crate::tier::{TierOrder, TierReport};
use crate::world::World;
use mend_image::cpu::{Cpu, Features};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Introduces a job to a daemon; first message on a job connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobIntroduction {
    /// Name people use ("lmp-3f2a").
    pub id: String,
    /// Permanent identity, part of endpoint names.
    pub identity: [u8; 16],
    /// Key of the job's fabric and of its transfers.
    pub secret: Secret,
    /// Number of ranks, those of spawned worlds included.
    pub size: u32,
    /// Which start of the job this is. A later start or restart has a higher number; the daemon ends what an earlier one left.
    pub epoch: u64,
    /// Ranks that are on this node. What an earlier start left standing here of other ranks ends.
    pub ranks: Vec<Rank>,
    /// Random; who resumes a connection of this start must name it.
    pub session: [u8; 16],
    /// Index of this node in the job.
    pub node: NodeIndex,
    /// Program, environment and working directory.
    pub program: Program,
    /// File on this node with the key that images are encrypted with; `None`: they are not. The key itself is never sent.
    pub encryption_key: Option<PathBuf>,
    /// Whether bulk data is encrypted on its way to other nodes.
    pub encrypt_data: bool,
    /// Whether memory of ranks that move is compressed on its way.
    pub compression: Compression,
    /// By what images of ranks that move go to other nodes.
    pub transport: Transport,
    /// Milliseconds that other nodes may be silent before they count as dead.
    pub node_timeout_ms: u64,
    /// Milliseconds without a word from the controller after which the job's ranks end here.
    pub lease_ms: u64,
    /// Features of processors that the job's program does not use, as its user says.
    pub unused_features: Features,
    /// How the daemon starts a successor of the controller if that is lost; `None`: it starts none.
    pub successor: Option<SuccessorCommand>,
    /// Worlds that were spawned, by ascending first rank.
    pub worlds: Vec<World>,
}

impl JobIntroduction {
    /// With what the program has to know of the worlds that were spawned before.
    #[must_use]
    pub fn with_worlds(mut self) -> Self {
        self.worlds.iter().for_each(|world| self.program.add_world(world));
        self
    }

    /// The job has a world more.
    pub fn grow(&mut self, world: &World) {
        self.size = self.size.max(world.ranks().end);
        self.program.add_world(world);
        self.worlds.push(world.clone());
    }
}

/// Exit code of a successor that is not needed now: the job is not over, and may need one later.
pub const BETWEEN_LIVES: i32 = 3;

/// What a daemon runs when the controller of a job is lost. Several daemons may: the job's lock decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuccessorCommand {
    /// The `mend` that runs the job; on a node that does not have it, the one beside `mendd`.
    pub executable: PathBuf,
    /// The job's directory, which the node has to share.
    pub directory: PathBuf,
    /// The controller's environment, as far as it is Mend's.
    pub environment: Vec<(String, String)>,
}

/// Goes on with a job after its connection broke; first message on the new connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumption {
    /// As in [`JobIntroduction`].
    pub identity: [u8; 16],
    /// As in [`JobIntroduction`].
    pub epoch: u64,
    /// As in [`JobIntroduction`].
    pub session: [u8; 16],
    /// The last message that came from the daemon.
    pub delivered: u64,
}

/// Goes on with a job whose controller is lost, in its place; first message on a new connection. Who held the job before cannot resume it
/// any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succession {
    /// As the lost controller would have said it. `delivered`: the last message of the daemon's that is not needed any more.
    pub of: Resumption,
    /// Takes the place of the session.
    pub session: [u8; 16],
}

/// What is to blame for a process that could not be rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestoreBlame {
    /// The image cannot be used, whatever the node: it is missing, torn, damaged, of something else.
    Image,
    /// A file that the process used is no longer as it was when the image was taken.
    Files,
    /// The node, or what is not known.
    Other,
}

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestoreSource {
    /// Files of checkpoints: the image to restore and those it builds on, newest first, down to a full one.
    Files(Vec<PathBuf>),
    /// The transfer connection on which the source daemon will present this token.
    Transfer {
        /// One-time random token, chosen by the controller.
        token: [u8; 16],
        /// Where the image is stored on its way.
        way: Way,
    },
}

/// Where an image is stored on its way from one daemon to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Nowhere: the agent writes into the connection from which the restorer reads.
    #[default]
    Direct,
    /// In this file, which both nodes see under this name.
    Shared(PathBuf),
    /// In an unnamed file of the source's node, until it is complete.
    Local,
    /// In an unnamed file of the target's node, until it is complete.
    Staged,
}

/// Standard streams of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One of the requests of [`ToDaemon::Ask`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Number of the request.
    pub seq: u64,
    /// Whose agent.
    pub rank: Rank,
    /// What to do.
    pub request: Request,
}

/// Everything a controller says to a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDaemon {
    /// First message of a job. → `Ready` or `Refused`
    Introduce(Box<JobIntroduction>),
    /// Start this rank. → `Started` or `StartFailed`
    Start {
        /// The rank that is to start.
        rank: Rank,
        /// Number of its process. No other process of the job has it; what is said of this one repeats it.
        attempt: u64,
        /// True if this rank's standard input is fed by `Stdin`; otherwise it reads end of file.
        stdin: bool,
    },
    /// Bytes for a rank's PMI socket.
    Pmi {
        /// The rank that gets them.
        rank: Rank,
        /// Whole lines.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Standard input for a rank; empty means end of file.
    Stdin {
        /// The rank that gets it.
        rank: Rank,
        /// At most 64 KiB.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// New job map for all agents of the job on this node.
    Map(JobMap),
    /// Ask agents of this node, step by step: each step when everything before it has been answered and nothing of that failed. → `Agent`
    /// for each that was asked; for a save, before anything that its rank says later.
    ///
    /// What is left after a failure, or when another `Ask` or `SaveTo` comes, is dropped and not answered.
    Ask(Vec<Vec<Question>>),
    /// Save the (suspended) rank into a transfer connection to another daemon. → `Agent` with the same `seq`
    SaveTo {
        /// Number of the request.
        seq: u64,
        /// Whose agent.
        rank: Rank,
        /// The target node's daemon.
        address: SocketAddr,
        /// Token that the target's daemon was told in `Restore`.
        token: [u8; 16],
        /// As the target's daemon was told.
        way: Way,
    },
    /// Have the rank's agent copy its memory into a transfer connection to another daemon while it runs. → `Agent` with the same `seq`, then
    /// `Round`s. It is saved behind that with `Ask`, into [`crate::agent::SaveTarget::Begun`].
    PrecopyTo {
        /// Number of the request.
        seq: u64,
        /// Whose agent.
        rank: Rank,
        /// The target node's daemon.
        address: SocketAddr,
        /// Token that the target's daemon was told in `Restore`.
        token: [u8; 16],
    },
    /// Build a rank from an image, threads parked. → `Restored` or `RestoreFailed`
    ///
    /// Input that it had not read comes first; without `stdin` the end of file follows.
    Restore {
        /// The rank that is to be built.
        rank: Rank,
        /// As in `Start`.
        attempt: u64,
        /// Where its image comes from.
        source: RestoreSource,
        /// The image that must be there; `None` where the source alone decides.
        image: Option<ImageId>,
        /// As in `Start`.
        stdin: bool,
        /// Which of the program's files have been put back. `None`: none of them, as far as is known.
        put_back: Option<PutBack>,
    },
    /// Compare what a rank needs that may move here with what is here. → `Agent` with the same `seq`, with [`Reply::Compared`] or a failure
    Compare {
        /// Number of the request.
        seq: u64,
        /// The rank that may move here.
        rank: Rank,
        /// What it needs; the processor has been compared already.
        needs: Box<NodeNeeds>,
    },
    /// Put files back as they were at a checkpoint, before ranks are built. → `FilesPut`
    PutFiles(Box<PutOrder>),
    /// SIGKILL this rank and forget it: its exit is not reported.
    Discard {
        /// The rank that is to go.
        rank: Rank,
    },
    /// About the tiers that checkpoints are kept in.
    Tier(Box<TierOrder>),
    /// Send a signal to all ranks of the job on this node.
    Signal(i32),
    /// As `End`, but ranks that can go back to a checkpoint in place stand still, with all their threads parked, until the job's next
    /// start is introduced. → `Paused`, then `Left`
    Pause,
    /// SIGKILL all ranks of the job on this node and forget it. → `Left` when all are reaped
    End {
        /// The job is about to go on: if its next start does not come, its controller is lost.
        goes_on: bool,
    },
    /// Proof of life, and what renews the job's lease on the node. → `Pong`
    Ping {
        /// When it was sent, microseconds of a clock of the controller's that only goes forward.
        at_us: u64,
    },
    /// First message on a connection that goes on with a job. → `Resumed` or `Refused`
    Resume(Resumption),
    /// First message of a controller that takes the place of one that is lost. → `Succeeded` or `Refused`
    Succeed(Box<Succession>),
    /// Vote for a successor of the job's controller if that has been silent for so long; only before `Introduce`, or without it. → `Voted`,
    /// `LeaseOver` or `Refused`
    AskVote {
        /// The controller, by what it would say to go on.
        of: Resumption,
        /// How long, milliseconds.
        silence_ms: u64,
    },
    /// Tell of the node; only before `Introduce`, or without it. → `Seen`
    Look,
    /// The job has a world more, whose ranks have the next numbers. To all nodes, before any of its ranks is started.
    Grow(World),
    /// Confirm that this controller has the job, which it cannot see in the job's directory; only before `Introduce`, or without it. → `Confirmed`
    AskConfirmed {
        /// The controller, by what it would say to go on.
        of: Resumption,
        /// Renews the lease, as a `Ping` of this time does: the controller may do so by what nodes have confirmed, and what serves the job there may be held up by the directory.
        ping_us: Option<u64>,
    },
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// By `exit`, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Everything a daemon says to a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDaemon {
    /// Answer to `Introduce`. A successor is told again.
    Ready {
        /// The node's own name.
        name: String,
        /// What its processor offers to the job: without what is hidden there, with what the job does not use.
        processor: Box<Cpu>,
        /// The node has what it takes to start a successor of the controller.
        succeeds: bool,
    },
    /// The rank's process runs the program.
    Started {
        /// The rank that has started.
        rank: Rank,
    },
    /// The rank could not be started (no such program, no permission, …).
    StartFailed {
        /// The rank that did not start.
        rank: Rank,
        /// Which of the rank's processes, by the controller's number.
        attempt: u64,
        /// What and why.
        error: String,
        /// Way out; may be empty.
        hint: String,
        /// Exit code as a shell would give: 127 not found, 126 not executable, else 1.
        code: i32,
    },
    /// The rank's agent spoke for the first time.
    AgentUp {
        /// The rank whose agent spoke.
        rank: Rank,
        /// False when it is a descendant of the started process that speaks.
        main_process: bool,
        /// Its executable.
        executable: String,
    },
    /// No agent will speak for the rank as it was started: the preloaded library cannot get into its program. What is asked of
    /// the agent is answered with the reason.
    Agentless {
        /// The rank that has no agent.
        rank: Rank,
    },
    /// The rank's fabric listens here.
    FabricUp {
        /// The rank whose fabric listens.
        rank: Rank,
        /// Which of the rank's processes, by the controller's number.
        attempt: u64,
        /// Where other ranks reach it.
        address: FabricAddress,
    },
    /// The rank's MPI library uses Mend's fabric.
    FabricInUse {
        /// The rank whose library uses it.
        rank: Rank,
    },
    /// Messages between two ranks are lost, if both live; see [`crate::agent::FromAgent::MessagesLost`].
    MessagesLost {
        /// Who says so.
        rank: Rank,
        /// The other end.
        peer: Rank,
        /// How the channel broke.
        why: String,
    },
    /// Bytes from a rank's PMI socket.
    Pmi {
        /// The rank that sent them.
        rank: Rank,
        /// As read.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Output of a rank.
    Output {
        /// The rank that wrote it.
        rank: Rank,
        /// Which stream.
        stream: Stream,
        /// At most 64 KiB, as read.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Answer to a request of `Ask`, to `SaveTo`, to `PrecopyTo` and to `Compare`.
    Agent {
        /// Number of the request.
        seq: u64,
        /// Whose agent.
        rank: Rank,
        /// The answer; a failure also when there is no agent.
        reply: Reply,
    },
    /// The image of an earlier `Saved` with `behind` is durable, or is not going to be.
    Written {
        /// The rank whose image it is.
        rank: Rank,
        /// Which image.
        id: ImageId,
        /// Its totals, or what went wrong.
        result: Result<Written, Unwritten>,
    },
    /// The rank is complete, parked, its fabric will follow with `FabricUp`.
    Restored {
        /// The rank that is complete.
        rank: Rank,
        /// Which of the rank's processes, by the controller's number.
        attempt: u64,
        /// Reading and mapping the image, microseconds.
        restart_us: u64,
        /// Bytes read.
        bytes: u64,
    },
    /// No process remains of the attempt.
    RestoreFailed {
        /// The rank that was to be built.
        rank: Rank,
        /// Which of the rank's processes, by the controller's number.
        attempt: u64,
        /// What and why, with file and rank.
        error: String,
        /// Way out; may be empty.
        hint: String,
        /// What is to blame.
        blame: RestoreBlame,
    },
    /// Answer to `PutFiles`: what users should know, or which file could not be put back and why.
    FilesPut(Result<Vec<String>, NotPut>),
    /// A rank ended by itself (or by a signal that the controller asked for). All its output came before this.
    Exited {
        /// The rank that has ended.
        rank: Rank,
        /// Which of the rank's processes, by the controller's number.
        attempt: u64,
        /// How its process ended.
        status: ExitStatus,
    },
    /// About the tiers that checkpoints are kept in.
    Tier(TierReport),
    /// Answer to `Ping`.
    Pong(NodeRoom),
    /// The daemon refuses to go on with this job.
    Refused {
        /// The reason, for the user.
        error: String,
    },
    /// One `Stdin` message has been written to the rank (or dropped, if nobody reads). A controller that keeps only a
    /// few such messages under way bounds what the daemon holds for a rank that does not read.
    StdinTaken {
        /// Receiver of the bytes.
        rank: Rank,
    },
    /// From now on nothing is written to the rank's standard input until it resumes: its image is about to be taken. Every `StdinTaken`
    /// that came before this is of bytes that the image has, none that comes later is.
    StdinHeld {
        /// The rank whose input is held.
        rank: Rank,
        /// Bytes that an earlier process of the rank had been given and not read, and that this one was not given again yet.
        again: u64,
        /// Bytes of the `Stdin` message under way that are written already.
        begun: u64,
    },
    /// A process of rank 0 that ran was discarded, and this is what was not written to its standard input, instead of `StdinTaken` for
    /// that. The bytes belong to the rank's next process.
    StdinLeft {
        /// Rank 0.
        rank: Rank,
        /// Which of the rank's processes, by the controller's number.
        attempt: u64,
        /// The bytes; may be none.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// How far copying a rank that runs on has come.
    Round {
        /// The rank that is copied.
        rank: Rank,
        /// How far.
        round: Round,
    },
    /// The rank is copied no more: the target or the connection is gone. It runs on.
    PrecopyFailed {
        /// The rank whose copy failed.
        rank: Rank,
        /// What went wrong.
        error: String,
        /// Way out; may be empty.
        hint: String,
    },
    /// Something about a rank for the job's journal.
    Report {
        /// The rank that it is about.
        rank: Rank,
        /// What was noticed.
        report: Report,
    },
    /// Answer to `Resume`.
    Resumed {
        /// The last message that came from the controller.
        delivered: u64,
    },
    /// Answer to `Succeed`.
    Succeeded {
        /// Orders that came from the lost controller and those before it: numbered messages other than `Ping`.
        orders: u64,
    },
    /// Answer to `AskVote`.
    Voted {
        /// For the successor: from now on the daemon does not confirm the controller to it.
        successor: bool,
    },
    /// These ranks stand still; what they wrote has been sent.
    Paused {
        /// The ranks.
        ranks: Vec<Rank>,
    },
    /// Answer to `End` and `Pause`, and the daemon's last message: no process of the job is here any more, but ranks that stand still.
    Left,
    /// How the node is: after `Ready` if it is not well, and whenever that changes.
    Health(NodeHealth),
    /// Answer to `Look`.
    Seen(Box<NodeReport>),
    /// How far ranks here have come that came further since this was said last; once a second at most.
    Progress(Vec<RankProgress>),
    /// What ranks here sent to whom, in a job that may follow its data: of each rank the newest reading, once a second at most.
    Traffic(Vec<RankTraffic>),
    /// The batch system has sent the daemon this signal: it wants the job to end.
    TimeUp {
        /// The signal's number.
        signal: i32,
    },
    /// Answer to `Resume` and `AskVote` by a daemon that was without a word from the controller for as long as the job's lease, and has ended its ranks.
    LeaseOver {
        /// The lease, milliseconds.
        ms: u64,
        /// For how much of it the daemon itself got no processor, or its whole machine stood still, milliseconds.
        stood_still_ms: u64,
    },
    /// Answer to `AskConfirmed`.
    Confirmed {
        /// The controller's session is here, nobody has succeeded it, and the daemon has voted for nobody else.
        yes: bool,
    },
    /// What happened to data spaces that the job uses; once a second at most.
    Spaces(SpaceReports),
}
