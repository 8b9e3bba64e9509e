//! All that goes into the machine of a job on a node, and all that comes out of it.

use crate::hold::LinkState;
use mend_messages::agent::{FromAgent, ImageId, Reply, Request, SaveOrder, ToAgent, Unasked, Written};
use mend_messages::daemon::{FromDaemon, ToDaemon, Way};
use mend_messages::files::{PutBack, PutOrder};
use mend_messages::health::NodeHealth;
use mend_messages::job::Rank;
use mend_messages::needs::NodeNeeds;
use mend_messages::progress::{RankProgress, RankTraffic};
use mend_messages::tier::TierOrder;
use mend_messages::world::World;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Names the connection of an agent within its job.
pub type AgentId = u64;

/// What a job begins with on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Number of ranks.
    pub size: u32,
    /// The lease that the controller asks for, microseconds.
    pub lease_us: u64,
    /// How the node is.
    pub health: NodeHealth,
    /// Ranks that an earlier life of the job left standing here, and their agents.
    pub standing: Vec<(Rank, AgentId)>,
    /// Somebody wants to know to whom ranks send.
    pub watches_traffic: bool,
}

/// What has happened, in the order in which the machine hears of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The controller says this.
    Told(ToDaemon),
    /// The controller has renewed the lease beside its messages, by a word that it has sent at this time of its clock, microseconds.
    Pinged {
        /// As in [`ToDaemon::Ping`].
        at_us: u64,
    },
    /// Nothing more comes from the controller: it said what cannot be.
    ControllerLost,
    /// The connection to it is another.
    Link(LinkState),
    /// Whether a successor of it was started, as [`Effect::StartSuccessor`] asked.
    Successor {
        /// One was started.
        started: bool,
        /// As was asked.
        silent: bool,
    },
    /// Time has passed.
    Time,
    /// A later start of the job has come.
    Superseded,
    /// The PID namespace of the ranks has ended.
    NamespaceEnded,
    /// The batch system has sent this signal.
    TimeUp {
        /// Number of the signal.
        signal: i32,
    },
    /// How the node is, which has changed.
    Health(NodeHealth),
    /// The agent of a rank that is being restored will speak on this connection: the answer to [`Effect::Begin`] and [`Effect::Anew`].
    AgentAwaited {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
        /// The connection on which it will speak.
        agent: AgentId,
    },
    /// There is no task for a rank's process, and the controller knows why: the other answer.
    NotBegun {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
    },
    /// The controller has been told that the program runs.
    Started {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
        /// No agent will speak for it.
        agentless: bool,
    },
    /// The restorer is done; the agent will speak next.
    Built {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
        /// Microseconds from the restorer's start.
        us: u64,
        /// Bytes of the image.
        bytes: u64,
    },
    /// The task of a rank's process is over, and no process of it is left.
    Ended {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
        /// It could not go back in place.
        not_in_place: bool,
    },
    /// An agent says something.
    Agent {
        /// On which connection.
        agent: AgentId,
        /// It is the first that comes on it.
        first: bool,
        /// What the agent says.
        message: FromAgent,
    },
    /// The connection of an agent ended.
    AgentGone {
        /// The agent that it is about.
        agent: AgentId,
    },
    /// Where a save goes that the controller left open: the answer to [`TierOrder::Save`].
    Placed {
        /// The controller's number.
        seq: u64,
        /// The rank that the image is of.
        rank: Rank,
        /// With its place.
        order: SaveOrder,
    },
    /// A question can be put to its agent, or cannot and is answered so: the answer to [`Effect::Prepare`].
    Prepared {
        /// The question's number.
        number: u64,
        /// What to ask.
        request: Result<Request, Reply>,
    },
    /// The answer to a save is on its way to the controller: the answer to [`Effect::Keep`].
    Kept {
        /// The controller's number.
        seq: u64,
        /// It is no failure.
        good: bool,
    },
}

/// Something is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Tell the controller, ahead of output.
    Send(FromDaemon),
    /// Tell the controller why an agent is not asked.
    Refuse {
        /// The controller's number.
        seq: u64,
        /// The rank that the agent speaks for.
        rank: Rank,
        /// What stands in the way.
        why: Refusal,
    },
    /// Tell the controller why a rank gets no process.
    NotAdmitted {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
        /// It was to be restored.
        restore: bool,
        /// What stands in the way.
        why: Inadmissible,
    },
    /// Answer a ping.
    Pong,
    /// The kernel's deadline for the ranks: they have a lease that began so long ago.
    Renew {
        /// So many microseconds ago.
        age_us: u64,
    },
    /// Start a successor of the controller, and say whether that could be done. → [`Event::Successor`]
    StartSuccessor {
        /// The controller's end was not seen, it is only not heard.
        silent: bool,
    },
    /// A successor has the job: whoever started this daemon may be gone.
    Succeeded,
    /// A task for a rank's process. → [`Event::AgentAwaited`] or [`Event::NotBegun`] if it is restored
    Begin {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
        /// It is fed standard input.
        stdin: bool,
        /// How the process comes to be.
        origin: Origin,
    },
    /// Another process for a task whose process could not go back in place. → as [`Effect::Begin`]
    Anew {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
        /// What was ordered.
        order: FileOrder,
    },
    /// Tell the task of a rank.
    Tell {
        /// The rank's number in the job.
        rank: Rank,
        /// What it is told.
        word: Word,
    },
    /// Let go of a rank's task: it kills what is left, and ends.
    Release {
        /// The rank's number in the job.
        rank: Rank,
        /// The controller's number for this process of the rank.
        attempt: u64,
    },
    /// Kill ranks that an earlier life left standing.
    DropStanding(Vec<Rank>),
    /// An agent speaks for a rank: tell it about the job.
    Welcome {
        /// The agent that it is about.
        agent: AgentId,
        /// For which rank.
        rank: Rank,
        /// For which of its processes.
        attempt: u64,
        /// It came out of an image.
        restored: bool,
    },
    /// Tell an agent.
    TellAgent {
        /// The agent that it is about.
        agent: AgentId,
        /// What the agent is told.
        message: ToAgent,
    },
    /// End the connection of an agent, if it is there.
    Close {
        /// The agent that it is about.
        agent: AgentId,
    },
    /// Ask an agent. What was made ready for the question goes with it.
    Ask {
        /// The agent that it is about.
        agent: AgentId,
        /// The rank that the agent speaks for.
        rank: Rank,
        /// Which of the rank's processes.
        attempt: u64,
        /// Names the question.
        number: u64,
        /// What the agent is to do.
        request: Request,
    },
    /// Make ready what a question takes, and, for an image, stop the rank's input. → [`Event::Prepared`]
    Prepare {
        /// Names the question.
        number: u64,
        /// Whose agent is to be asked.
        rank: Rank,
        /// What it is about.
        what: Preparation,
    },
    /// Pass an agent's answer on.
    Answer {
        /// The controller's number.
        seq: u64,
        /// The rank that the agent speaks for.
        rank: Rank,
        /// What the agent has answered.
        reply: Reply,
    },
    /// Keep what a save has written, or throw it away, and pass the answer on behind what the rank wrote. → [`Event::Kept`]
    Keep {
        /// The agent that answered.
        agent: AgentId,
        /// Names the question that it answers.
        number: u64,
        /// The controller's number.
        seq: u64,
        /// The rank that the image is of.
        rank: Rank,
        /// What the agent has answered.
        reply: Reply,
    },
    /// The same for an image that was written behind its rank.
    Written {
        /// The agent that wrote it.
        agent: AgentId,
        /// The rank that the image is of.
        rank: Rank,
        /// The image that it is about.
        image: ImageId,
        /// What the agent says.
        result: Result<Written, String>,
    },
    /// How far a rank has come, for the next message about that.
    Progress(RankProgress),
    /// To whom a rank sends, likewise.
    Traffic(RankTraffic),
    /// Compare what a rank needs with what is here, and tell the controller.
    Compare {
        /// The controller's number.
        seq: u64,
        /// The rank that may come.
        rank: Rank,
        /// What it needs.
        needs: Box<NodeNeeds>,
    },
    /// Put files back, and tell the controller.
    PutFiles(Box<PutOrder>),
    /// About copies of checkpoints. → [`Event::Placed`] to a save
    Tier(Box<TierOrder>),
    /// The job has a world more.
    Grow(World),
    /// Somebody did what is not expected.
    Notice(Notice),
    /// The job leaves this node: nothing more comes of this machine.
    Leave(End),
}

/// Why a job leaves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The controller said so.
    Asked {
        /// The job is about to go on.
        goes_on: bool,
    },
    /// The controller said so, and wants ranks to stand still that can.
    Paused,
    /// The controller is unintelligible.
    Lost,
    /// The controller was silent for as long as the job's lease.
    LeaseOver,
    /// A later start of the job has come.
    Superseded,
}

impl End {
    /// Somebody takes what the ranks wrote last.
    #[must_use]
    pub fn is_orderly(self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Paused)
    }

    /// The job's next life is to come: if it does not, its controller is lost.
    #[must_use]
    pub fn goes_on(self) -> bool {
        matches!(self, Self::Asked { goes_on: true } | Self::Paused)
    }
}

/// A restore from files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOrder {
    /// Images, newest first, down to a full one.
    pub chain: Vec<PathBuf>,
    /// The image that must be there.
    pub image: Option<ImageId>,
    /// The rank is fed standard input.
    pub stdin: bool,
    /// Which of the program's files have been put back.
    pub put_back: Option<PutBack>,
}

/// How a rank's process comes to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The program, from its beginning.
    Start,
    /// Files of checkpoints.
    Files(FileOrder),
    /// The process that an earlier life left standing goes back to files of checkpoints.
    InPlace {
        /// The agent of that process.
        agent: AgentId,
        /// Files that it goes back to.
        order: FileOrder,
    },
    /// A transfer from another node.
    Transfer {
        /// Names it.
        token: [u8; 16],
        /// Where the image is stored on its way.
        way: Way,
        /// The image that must come.
        image: Option<ImageId>,
    },
}

/// What the task of a rank is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// A signal for the rank.
    Signal(i32),
    /// Standard input; empty is the end.
    Stdin(Vec<u8>),
    /// A PMI reply.
    Pmi(Vec<u8>),
    /// Give the rank input again.
    Feed,
    /// The restored agent reported success: from here on the rank is as if started here.
    Settle,
    /// The restore has failed.
    Abandon(Abandonment),
}

/// Why a restore is given up that had a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Abandonment {
    /// Its agent gives it up.
    Agent {
        /// Why, in the agent's words.
        error: String,
        /// The cause is a file that is no longer as it was when the image was taken.
        files: bool,
    },
    /// It spoke before its memory was complete.
    SpokeEarly,
    /// It went away before it was complete.
    WentAway,
}

/// What a question takes before its agent can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// A save into what was begun before, or into a file.
    Save(SaveOrder),
    /// A save into a transfer.
    Transfer {
        /// The other node's daemon.
        address: SocketAddr,
        /// Names the transfer.
        token: [u8; 16],
        /// Where the image is stored on its way.
        way: Way,
    },
    /// A copy of the rank, which runs on, into a transfer.
    Precopy {
        /// The other node's daemon.
        address: SocketAddr,
        /// Names the transfer.
        token: [u8; 16],
    },
}

/// Why an agent is not asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// For one of the reasons that controllers know.
    Unasked(Unasked),
    /// Its program was found to take no agent.
    Agentless,
    /// Nobody has spoken for it.
    NoAgent,
    /// The MPI program is a child of the process that was started.
    Descendant {
        /// The executable of that child.
        executable: String,
    },
    /// A save into a transfer without one.
    NoTransfer,
    /// A copy into a transfer without one.
    NoTransferOfCopy,
}

/// Why a rank gets no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inadmissible {
    /// It is here already.
    Present,
    /// The job has fewer ranks.
    NoSuchRank {
        /// It has so many.
        size: u32,
    },
}

/// What is worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The controller introduced its job twice.
    IntroducedTwice,
    /// Something for a rank that is not here.
    NotHere(Rank),
    /// An agent is of another release.
    OtherRelease {
        /// The rank that the agent speaks for.
        rank: Rank,
        /// What it speaks.
        protocol: u32,
    },
    /// An agent of a rank that does not run here.
    UnknownRank(Rank),
    /// A restore failed that nobody waits for.
    UnknownFailure(String),
    /// An agent said something else first.
    NoIntroduction,
    /// An agent says that it is restored, which nobody waits for.
    NotAwaited(Rank),
    /// An agent introduced itself twice.
    AgentTwice(Rank),
    /// An agent answered what nobody asked.
    NotAsked,
    /// An agent answered what another one was asked.
    AnothersQuestion,
    /// A rank cannot be paused.
    NotPaused {
        /// The rank that it is about.
        rank: Rank,
        /// In its agent's words, if it said why.
        error: Option<String>,
    },
    /// The controller was silent for too long.
    NotAWord {
        /// How long the lease is, microseconds.
        lease_us: u64,
    },
    /// The ranks' PID namespace has ended.
    NamespaceEnded,
}
