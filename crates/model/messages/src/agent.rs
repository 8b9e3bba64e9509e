//! Daemon ⇄ agent, over the daemon's unix socket.
//!
//! ```text
//! agent                         daemon
//!   ── Hello ──────────────────►
//!   ◄───────────────── Welcome ──   identity of the rank
//!   ── FabricInUse, FabricUp ──►    when the program begins to use the fabric, which opens its listeners then
//!   ◄───────────────────── Map ──   any number of times
//!   ◄── Request{seq, …} ─────────   answered by Reply{seq, …}, in order
//! ```
//! A restored agent starts with `Restored` on the socket that its restorer inherited, gets a new `Welcome`
//! and answers `FabricUp`; its threads stay parked until `Resume`.
//!
//! A save that is `behind` has only taken a snapshot when it is answered: the rank can be resumed, and `Written` follows
//! on its own when the image is complete (or is not going to be).
//!
//! A rank that moves live is copied before it is stopped. The agent tells of each round on its own, and goes on until the rank is saved
//! into the stream that it has begun ([`SaveTarget::Begun`]), or resumed, or the copying is ended:
//!
//! ```text
//!   ◄── Request{Precopy} + socket   answered by Precopying, at once
//!   ── Round, Round, … ─────────►    or PrecopyFailed, which ends it
//!   ◄── Request{Suspend}, Request{Save(Begun)}    or Request{EndPrecopy}
//! ```

use crate::files::{KeepOrder, KeptFile};
use crate::job::{FabricAddress, JobMap, NodeIndex, Rank, Secret};
use crate::needs::{Difference, NodeNeeds};
use crate::progress::{Progress, Traffic};
use crate::report::Report;
use mend_image::cpu::Features;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// How the name of a directory begins that a daemon binds over its ranks' `/dev/shm`.
pub const SHARED_MEMORY_PREFIX: &str = "mend-";
/// Name of the memory objects that rings of the fabric are in (memfd_create(2)).
pub const RING_MEMORY: &str = "mend-ring";
/// How long a restarted process waits, in seconds, for locks on files in a network file system. Of a client that is lost, servers keep them for a
/// while: NFS version 4 for 90 s.
pub const LOCK_LIMIT_S: u64 = 120;

/// First words of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL`] of the preloaded library.
    pub protocol: u32,
    /// Rank by its environment.
    pub rank: Rank,
    /// Process id as the process itself sees it.
    pub pid: u32,
    /// True if this is the process the daemon started, false for a descendant (a wrapper's child).
    pub main_process: bool,
    /// Path of the running executable.
    pub executable: String,
}

/// What a rank needs to know about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Permanent 16-byte identity of the job; part of every endpoint name.
    pub job: [u8; 16],
    /// Key of the fabric's handshakes.
    pub secret: Secret,
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub size: u32,
    /// Node this rank is on.
    pub node: NodeIndex,
    /// Address on which the fabric listens for ranks of other nodes.
    pub ip: IpAddr,
    /// Whether what goes to ranks of other nodes is encrypted.
    pub encrypt_data: bool,
    /// Features of the processor that the program is known not to use, as somebody says; images do not ask for them.
    pub unused_features: Features,
}

/// One thing that stands in the way of saving a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// What it is, by name: "socket to 10.0.0.7:443 (fd 12)".
    pub what: String,
    /// What a user can do about it.
    pub hint: String,
}

/// Names an image for good: random, made by the agent for each image it takes. What is built on an image names it so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImageId(pub [u8; 16]);

impl std::fmt::Display for ImageId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// Where an image goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SaveTarget {
    /// A new file: written beside it under a temporary name, fsynced, renamed.
    File(PathBuf),
    /// The file descriptor that came with this message (SCM_RIGHTS), a connected stream.
    Descriptor,
    /// The stream that [`Request::Precopy`] began: what changed since is written behind what it has.
    Begun,
}

/// How long the threads stand still for an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SaveMode {
    /// Until it is written.
    #[default]
    Stop,
    /// Until a copy-on-write snapshot is taken; it is written behind the running program. Where memory is too short for
    /// that, the agent stops and writes instead and says so.
    CopyOnWrite,
}

/// Whether memory is compressed on its way to another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compression {
    /// It never is.
    #[default]
    Off,
    /// While the link is slower than compressing is, and processors are idle.
    Auto,
    /// It always is. What gets no shorter goes as it is.
    Always,
}

/// An image to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveOrder {
    /// Where it goes.
    pub target: SaveTarget,
    /// How long the threads stand still.
    pub mode: SaveMode,
    /// Store only what changed since this image, if the agent still tracks exactly since it; else everything.
    pub base: Option<ImageId>,
    /// Notice from this image on what changes, so that a later one can build on it. Without it, what is tracked since an
    /// earlier image stays as it is.
    pub track: bool,
    /// Bound of writing behind the running program, bytes per second.
    pub rate: Option<u64>,
    /// Others put files back before the rank comes out of this image; else it cuts them to their length itself.
    pub files_kept: bool,
    /// Whether pages are compressed. For a stream to another node alone: an image that is kept has none that are.
    pub compression: Compression,
}

impl SaveOrder {
    /// A full image, written while the threads stand still.
    #[must_use]
    pub fn full(target: SaveTarget) -> Self {
        Self { target, mode: SaveMode::Stop, base: None, track: false, rate: None, files_kept: false, compression: Compression::Off }
    }
}

/// What a save did. Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Name of the image.
    pub id: ImageId,
    /// The image it builds on; `None`: it is full, whatever was ordered.
    pub base: Option<ImageId>,
    /// 0 for a full image, n for the n-th after it.
    pub sequence: u32,
    /// Memory is only snapshotted yet: [`FromAgent::Written`] follows, and has the totals. `bytes`, `pages` and `checksum`
    /// here are zero then.
    pub behind: bool,
    /// Bytes written to the stream, headers included.
    pub bytes: u64,
    /// Bytes by which the stream is shorter for compression.
    pub spared: u64,
    /// Pages stored.
    pub pages: u64,
    /// The stream's own checksum (`mend_image::record::End::stream`): covers the header and, through the heads, all content.
    pub checksum: u64,
    /// Parking the threads and reading the maps.
    pub park_us: u64,
    /// Writing the stream (and making it durable, for a file); with `behind`, taking the snapshot.
    pub write_us: u64,
    /// Why something was done in another way than ordered, for people.
    pub note: Option<String>,
}

/// An image written behind the running program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// As in [`Saved`].
    pub bytes: u64,
    /// As in [`Saved`].
    pub pages: u64,
    /// As in [`Saved`].
    pub checksum: u64,
    /// From the snapshot until it was durable, microseconds.
    pub write_us: u64,
}

/// Why an image was not written behind its rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unwritten {
    /// The rank's process came to its end first.
    Ended,
    /// In the writer's words.
    Failed(String),
}

/// How a rank notices which of its pages change between two images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracking {
    /// `write-protect`, `soft-dirty`, `hash`, or `off`: every image is full.
    pub method: String,
    /// Why none of the better ones, each by its name.
    pub why: Vec<String>,
    /// The image since which changes are noticed now.
    pub since: Option<ImageId>,
}

/// Facts `explain` shows about a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// Empty if the rank can be saved.
    pub obstacles: Vec<Obstacle>,
    /// Threads of the process, the agent's included.
    pub threads: u32,
    /// Bytes that a full image would hold now.
    pub image_bytes: u64,
    /// True if the program uses Mend's fabric (MPI over libfabric provider `mend`).
    pub fabric_in_use: bool,
    /// Executable of the process.
    pub executable: String,
    /// What the program has open for writing but not only for appending: path and length, bytes.
    pub written_files: Vec<(String, u64)>,
    /// How incremental images of it come about.
    pub tracking: Tracking,
    /// What a node must have for it.
    pub needs: Box<NodeNeeds>,
}

/// How far an agent has come with copying a rank that runs on. Said at the end of each round, and now and then within a long one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// 0 holds all memory, each later one what changed since the one before it.
    pub number: u32,
    /// It is complete, and the receiver has all of it.
    pub done: bool,
    /// Bytes of this round that were sent, as they are before compression.
    pub bytes: u64,
    /// Since it began, microseconds.
    pub us: u64,
    /// Bytes that were sent in all rounds, as they are before compression.
    pub total: u64,
    /// Bytes of those that compression has spared.
    pub spared: u64,
    /// Bytes that would have to be sent if the rank stopped now, as far as that is known without reading them.
    pub left: Option<u64>,
}

/// How a rank that is paused goes back to an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackOrder {
    /// The rank's image.
    pub image: ImageId,
    /// The zone of addresses that the image leaves free (`mend_image::ZONES`).
    pub zone: u32,
    /// How many images come: the rank's, and those that it builds on, newest first.
    pub images: u32,
    /// What the program's streams are, by the numbers of `mend_image::launch::Role`.
    pub roles: Vec<u8>,
}

/// What the daemon asks of an agent. Each is answered by exactly one [`Reply`] with the same `seq`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Look, touch nothing of the program's. → [`Reply::Inspected`]
    Inspect {
        /// An image that builds on this one is to follow soon, [`SaveMode::CopyOnWrite`]: memory for what changed since may be
        /// made ready.
        ahead: Option<ImageId>,
        /// List the files that a node must have for the rank, as a move is to follow.
        files: bool,
    },
    /// Stop sending to all peers, drain every channel in both directions. → [`Reply::Suspended`]
    ///
    /// The agent keeps serving markers of its peers until `Save`, `Resume`.
    Suspend,
    /// Drain and close the channels from and to one peer that is about to move. → [`Reply::Suspended`]
    SuspendPeer(Rank),
    /// Park the threads and write the image. Only after `Suspend`. Threads stay parked. → [`Reply::Saved`]
    Save(SaveOrder),
    /// Copy the rank's memory into the stream that came with this message while the program runs on, again and again what changed meanwhile.
    /// → [`Reply::Precopying`], then [`FromAgent::Round`]
    Precopy {
        /// The receiver's answers come back on that stream: it has a round when it says so. Else the agent counts it as taken when it is sent.
        answered: bool,
        /// Whether pages are compressed.
        compression: Compression,
    },
    /// Copy no more; the receiver gets no rank. → [`Reply::PrecopyEnded`]
    EndPrecopy,
    /// Keep the files that the program has open. Only after `Save`, while the ranks of the whole job stand still. → [`Reply::Kept`]
    KeepFiles(KeepOrder),
    /// Make what was kept durable; the threads may run. → [`Reply::Synced`]
    SyncFiles,
    /// Park the threads, in whatever the rank is about: it goes on from an image, or never. → [`Reply::Paused`]; a failure leaves it as it was.
    Pause,
    /// Go back to an image in place. Only after `Pause`. A socket comes with this message, and through it, with one byte, descriptors: the
    /// restorer's file, its control socket, the connection of the agent of the image, images, streams. Answered by a failure alone, which leaves the
    /// rank paused; else this connection ends, and the agent of the image says `Restored` on its own.
    RollBack(RollbackOrder),
    /// Unpark the threads, reopen the fabric. Legal after any of the above, also after a failure. → [`Reply::Resumed`]
    Resume,
}

/// Answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To `Inspect`.
    Inspected(Inspection),
    /// To `Suspend`, `SuspendPeer`: nothing is in flight; microseconds it took.
    Suspended {
        /// Duration of the drain.
        us: u64,
    },
    /// To `Save`.
    Saved(Saved),
    /// To `Precopy`: the first round begins.
    Precopying,
    /// To `EndPrecopy`: nothing more is copied.
    PrecopyEnded,
    /// To `KeepFiles`: the program's files. That one of them could not be kept is no failure.
    Kept(Vec<KeptFile>),
    /// To `SyncFiles`.
    Synced,
    /// To `Pause`.
    Paused,
    /// To `Resume`: the threads go on at this moment.
    Resumed {
        /// Microseconds since the rank was asked to suspend; 0 if it was not, or has come out of an image since.
        stopped_us: u64,
    },
    /// Not from an agent: the daemon of a target has compared what the rank needs with what is there ([`crate::daemon::ToDaemon::Compare`]). It
    /// tells what is not the same, at most [`crate::needs::MAX_DIFFERENCES`] of it.
    Compared(Vec<Difference>),
    /// The request could not be done; the rank is as it was before it (after a failed `Save` still suspended).
    Failed {
        /// What went wrong, and with which file, thread or peer.
        error: String,
        /// What to do about it; may be empty.
        hint: String,
    },
    /// The daemon could not ask the agent, or the agent never answered.
    Unasked(Unasked),
}

impl Reply {
    /// True unless the request was done.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Unasked(_))
    }
}

/// Why an agent did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unasked {
    /// It went away by itself: the process is ending, or has begun to run another program. Nothing is wrong if the rank ends now.
    Left,
    /// The rank is not on this node.
    NotHere,
    /// The rank is being restored.
    Restoring,
    /// The rank has ended.
    Ended,
    /// No answer came in time.
    Silent,
}

/// Everything an agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// First message of a fresh process.
    Hello(Hello),
    /// First message of a restored process; threads are parked.
    Restored {
        /// The rank that came back.
        rank: Rank,
        /// Reopening files and the rest after the memory was complete, in microseconds.
        rebuild_us: u64,
    },
    /// The process cannot run from here on (a file vanished, a descriptor number is taken).
    RestoreFailed {
        /// What and why.
        error: String,
        /// The cause is a file that is no longer as it was when the image was taken.
        files: bool,
    },
    /// The fabric listens. Sent after each `Welcome`.
    FabricUp(FabricAddress),
    /// Answer to a request.
    Reply {
        /// Number of the request.
        seq: u64,
        /// The answer.
        reply: Reply,
    },
    /// The program opened a libfabric domain of ours (an MPI library started).
    FabricInUse,
    /// A channel from or to this peer broke with messages under way, a while ago, and no newer map says that the peer has come back
    /// since. If it lives, both will wait for ever.
    MessagesLost {
        /// The other end.
        peer: Rank,
        /// How it broke.
        why: String,
    },
    /// The image of an earlier [`Saved`] with `behind` is durable, or is not going to be.
    Written {
        /// Which image.
        id: ImageId,
        /// Its totals, or what went wrong.
        result: Result<Written, String>,
    },
    /// Something for the job's journal.
    Report(Report),
    /// How far copying a rank that runs on has come.
    Round(Round),
    /// It came to its end: the receiver or the connection is gone. The program runs on.
    PrecopyFailed {
        /// What went wrong.
        error: String,
        /// What to do about it; may be empty.
        hint: String,
    },
    /// How far the program has come; once a second at most, and only if it has come further.
    Progress(Progress),
    /// What was sent to whom; only after [`ToAgent::WatchTraffic`], every two seconds while the program runs.
    Traffic(Traffic),
}

/// Everything a daemon says to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Answer to `Hello` and `Restored`.
    Welcome(Welcome),
    /// The job map changed.
    Map(JobMap),
    /// Something to do.
    Request {
        /// Numbers requests on this connection.
        seq: u64,
        /// What the agent is to do.
        request: Request,
    },
    /// The job may follow its data: whom its ranks send how much is wanted, for as long as the connection lasts.
    WatchTraffic,
}
