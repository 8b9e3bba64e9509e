//! What can happen to a job.
//!
//! An event is written as JSON: it names itself and its fields, so that a reader of another release passes over fields and
//! events that it does not know, and takes the default for fields that it misses. So fields and events are added, and never
//! change their meaning or type; one that has to is a new one.

pub use crate::data::{HealingFault, SourceFault, TargetFault};
pub use crate::facts::{Asker, Cause, Code, ImageFacts, Lack, MAX_TEXT, Phase, PhaseTimes, Precopied, StaggeredTier, Storage, cut};
use crate::ranks::Ranks;
use crate::state::State;
use mend_messages::report::Report;
use mend_messages::space_report as told;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// One event with its circumstances.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Grows by one from event to event of a job, over all its restarts.
    pub seq: u64,
    /// When it was recorded, microseconds since 1970.
    pub at: u64,
    /// Name of the node it is about.
    pub node: Option<String>,
    /// The rank it is about.
    pub rank: Option<u32>,
    /// What happened.
    pub event: Event,
}

/// How an entry stands in the file.
#[derive(Serialize, Deserialize)]
struct Written {
    seq: u64,
    at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    event: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    data: Value,
}

impl Serialize for Entry {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (event, data) = self.event.clone().into_parts().map_err(serde::ser::Error::custom)?;
        Written { seq: self.seq, at: self.at, node: self.node.clone(), rank: self.rank, event, data }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { seq, at, node, rank, event, data } = Written::deserialize(deserializer)?;
        Ok(Self { seq, at, node, rank, event: Event::from_parts(event, data) })
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "fields are named after what they hold; units stand where a name does not say them")]
pub enum Event {
    /// A new job begins. `settings` are those that differ from their defaults.
    JobStarted {
        command: Vec<String>,
        ranks: u32,
        hosts: Vec<String>,
        settings: BTreeMap<String, String>,
        release: String,
        interval: String,
    },
    /// The job begins again from a checkpoint.
    JobRestarted { checkpoint: u64, ranks: u32, hosts: Vec<String>, settings: BTreeMap<String, String>, release: String, interval: String },
    /// A failure has stopped the job, and it is about to go on by itself. `checkpoint` is its newest.
    GoesOn { cause: Cause, checkpoint: u64 },
    /// A checkpoint was not used for a restart.
    PassedOver { checkpoint: u64, error: String },
    /// A restart ended before any rank was asked for.
    RestartFailed { cause: Cause },
    /// The controller before this one died without a word.
    ControllerDied,
    /// The controller before this one was lost; this one, on `host`, has taken its place, and the ranks run on.
    TookOver { host: String },
    /// The job's directory did not answer for so long, and nodes confirmed the controller meanwhile.
    DirectorySilent { ms: u64 },
    /// A node takes part.
    NodeReached { address: String },
    /// The connection to a node's daemon broke and was opened again within the job's lease.
    NodeReconnected { why: String },
    /// A host that was named does not answer, and the job does without.
    NodeLeftOut { error: String },
    /// A node is lost.
    NodeLost { why: String, ranks: Ranks },
    /// Ranks are to leave a node, which takes none: why, how (`live` or `frozen`), and in how many milliseconds, if anybody knows.
    NodeUnfit { by: Asker, why: String, mode: String, left_ms: Option<u64>, ranks: Ranks },
    /// That is over: as far as this one who said so is concerned, the node takes ranks again.
    NodeFit { by: Asker },
    /// Ranks that are to leave a node have nowhere to go: they run on where they are.
    NowhereToGo { by: Asker, ranks: Ranks, error: String, hint: String },
    /// This rank goes back to a node that it has left, or to a better one, and what it was weighed by (`steps`, `messages`, `load`): what a unit of
    /// its work takes here and there, microseconds; what is left takes here, what it saves there, what its last move cost, and what going has to
    /// save, seconds.
    GoesBack { from: String, to: String, by: String, here_us: f64, there_us: f64, left_s: f64, gain_s: f64, cost_s: f64, price_s: f64 },
    /// Why this rank does not go back to the node where it belongs; told when that changes.
    StaysAway { home: String, why: String },
    /// This rank moves to where its data is, changing places with another one if there is no room, or, with `goes` false, it would pay if it did: the share of its
    /// time for which a rank waits for data, the share of that which is saved, the share which messages take of it that begin to cross nodes; seconds that are left, that it saves, and that it has to save.
    FollowsData {
        from: String,
        to: String,
        with: Option<u32>,
        goes: bool,
        waits: f64,
        share: f64,
        #[serde(default)]
        messages: f64,
        left_s: f64,
        gain_s: f64,
        price_s: f64,
    },
    /// Why this rank does not move to where its data is; told when that changes.
    StaysFromData { to: String, why: String },
    /// This rank touches so many bytes of a data space that a rank of another job, on another node, touches, too. Nobody moves for that.
    SharesWithJob { job: String, other: u32, node: String, bytes: u64 },
    /// Files that ranks wrote into a data space have arrived where they are sent to.
    FilesSent { space: String, to: String, files: u64, bytes: u64 },
    /// Files of a data space cannot be sent away; told when that changes. `left`: how many are not sent.
    FilesNotSent { space: String, to: String, left: u64, error: String, hint: String },
    /// A target of a data space is lost, as this node sees it: the first one of the job's that does.
    TargetLost { space: String, target: String, why: TargetFault },
    /// A target of a data space that was lost answers all nodes again that had lost it.
    TargetBack { space: String, target: String, lost_ms: u64 },
    /// Blocks of a file came to this node from its source, since a target gave nothing: all of them since it told of such a file and target last.
    ReadFromSource { space: String, file: String, target: String, why: TargetFault, bytes: u64, reads: u64 },
    /// A file of a data space is whole again, by this node. `lacked`: targets that had lost something of it; `targets`: those that have it now.
    FileHealed {
        space: String,
        file: String,
        lacked: Vec<String>,
        fetched: u64,
        copied: u64,
        sources: Vec<String>,
        targets: Vec<String>,
        us: u64,
    },
    /// A file of a data space is not made whole, or, with an empty name, none of it is looked after; told when the reason changes.
    FileNotHealed { space: String, file: String, why: HealingFault },
    /// So many events of data spaces are not here: this node told of more than could be passed on.
    DataEventsLeftOut { count: u64 },
    /// Which ranks are where, by node. Durable before any rank is asked to start.
    Placed { places: BTreeMap<String, Ranks> },
    /// A rank's program runs.
    RankStarted,
    /// A rank could not be started.
    StartFailed { error: String, hint: String, status: i32 },
    /// A rank's memory is restored, its threads stand still.
    RankRestored { us: u64, bytes: u64 },
    /// A life of the job is over, and these ranks stand still on the node, to go back to a checkpoint in place.
    RanksPaused { ranks: Ranks },
    /// A rank's process went back to the checkpoint in place: so many bytes of its memory were rewritten.
    WentBack { bytes: u64 },
    /// A rank's process could not go back in place: another one is restored.
    NotInPlace { why: String },
    /// A rank could not be restored.
    RestoreFailed { error: String, hint: String, image: bool },
    /// All ranks of a restart run again.
    Resumed { us: u64 },
    /// A rank's agent spoke for the first time.
    AgentUp { executable: String, main_process: bool },
    /// No agent will speak for a rank.
    Agentless,
    /// A rank exited by itself.
    RankExited { status: i32 },
    /// A signal ended a rank.
    RankSignal { signal: i32 },
    /// A rank called `MPI_Abort`.
    Abort { status: i32 },
    /// A rank asked for more processes, and got none.
    SpawnRefused,
    /// This rank has asked for processes (`MPI_Comm_spawn`): a world more, whose ranks run this command at these places.
    WorldSpawned { world: u32, command: String, places: BTreeMap<String, Ranks> },
    /// This rank has asked for processes and has got none.
    SpawnFailed { why: String },
    /// A checkpoint begins.
    CheckpointAsked { checkpoint: u64, by: Asker, mode: String, base: Option<u64> },
    /// A phase of a checkpoint, migration or restart is over, after so many microseconds; of one rank, or of all.
    PhaseDone { phase: Phase, us: u64, checkpoint: Option<u64> },
    /// Something stands in the way of saving a rank.
    ObstacleFound { what: String, hint: String },
    /// A rank's image is durable.
    ImageWritten { checkpoint: u64, image: ImageFacts, note: Option<String> },
    /// All images are durable and the checkpoint is being published: the decision, durable before it takes effect.
    CheckpointDecided { checkpoint: u64 },
    /// It is published, and can be restarted.
    CheckpointCommitted { checkpoint: u64, by: Asker, kind: String, bytes: u64, stopped_us: u64, durable_us: u64, phases: PhaseTimes },
    /// There is no such checkpoint; the job runs on.
    CheckpointFailed { checkpoint: u64, by: Asker, code: Code, error: String, hint: String },
    /// Checkpoints were removed.
    CheckpointRemoved { checkpoints: Vec<u64>, by: Asker },
    /// Images of a checkpoint were merged with those that they built on.
    CheckpointMerged { checkpoint: u64 },
    /// How often checkpoints are taken from now on, and what that was chosen by. `cost_s` is of a full one; `None`: not measured yet. Seconds.
    IntervalChosen {
        interval_s: f64,
        incrementals: u32,
        cost_s: Option<f64>,
        incremental_cost_s: Option<f64>,
        mtbf_s: f64,
        averted_percent: u32,
    },
    /// Which checkpoints are copied to which tier from now on, nearest first. `interval_s`: from one checkpoint to the next, seconds.
    TiersStaggered { interval_s: f64, tiers: Vec<StaggeredTier> },
    /// A library in so many of the job's ranks has taken a portable checkpoint, in its own directory. `us`: from the request to the answer.
    PortableCheckpoint { directory: String, checkpoint: u64, ranks: u32, bytes: u64, us: u64 },
    /// It was asked for one, and has taken none.
    PortableFailed { directory: String, ranks: u32, error: String },
    /// Superseded checkpoints could not be removed or merged.
    UpkeepFailed { error: String },
    /// These tiers hold the whole checkpoint now.
    TierComplete { checkpoint: u64, tiers: Vec<String> },
    /// A tier will not hold the whole checkpoint.
    TierFailed { checkpoint: u64, tier: String, error: String },
    /// A node has no room in a tier; what it would hold goes to the next one.
    TierPassedOver { tier: String, why: String },
    /// A migration of this rank begins. `to` is empty if no node will do.
    MigrationAsked {
        by: Asker,
        from: String,
        to: String,
        /// Its image is stored in a file on its way. Journals of older releases lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        storage: Option<Storage>,
    },
    /// The copy on the target is complete and the one at the source is about to be ended: the decision, durable before it takes
    /// effect.
    MigrationDecided { from: String, to: String },
    /// The rank runs on the target.
    MigrationCommitted {
        from: String,
        to: String,
        bytes: u64,
        /// What went over the link for those bytes, if compression made it less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sent_bytes: Option<u64>,
        /// By what they went, if not by TCP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        transport: Option<String>,
        stopped_us: u64,
        phases: PhaseTimes,
        /// It ran on while most of it was sent. Journals of older releases lack it.
        #[serde(default)]
        precopied: Option<Precopied>,
    },
    /// A round of copying a rank that runs is complete. `left`: bytes that were changed meanwhile, if that is known.
    RoundDone { round: u32, bytes: u64, us: u64, left: Option<u64> },
    /// The rank stays where it was.
    MigrationUndone {
        code: Code,
        error: String,
        hint: String,
        /// What the target was found to lack before anything was sent. Journals of older releases say so only in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lacks: Option<Lack>,
    },
    /// A channel of this rank to or from a peer broke.
    ChannelBroke { peer: u32, why: String },
    /// This rank waits long for its channels to drain, for these peers.
    DrainSlow { peers: Ranks, us: u64 },
    /// Messages between this rank and a peer are lost, if both live.
    MessagesLost { peer: u32, why: String },
    /// The daemon tells of something else about this rank.
    Noticed { what: String },
    /// A signal reached the controller and is passed on to the ranks.
    Interrupted { signal: i32 },
    /// `mend kill`.
    KillAsked,
    /// The batch system wants the job to end: a last checkpoint comes first.
    TimeUp { signal: i32 },
    /// The job is over.
    Ended { status: i32, cause: Cause },
    /// What all events up to here add up to; all but some of them are left out from here back.
    Compacted { state: Box<State> },
    /// An event of a later release.
    #[serde(skip)]
    Unknown { event: String, data: Value },
}

impl From<Report> for Event {
    fn from(report: Report) -> Self {
        match report {
            Report::ChannelBroke { peer, why } => Self::ChannelBroke { peer, why },
            Report::DrainSlow { peers, waited_us } => Self::DrainSlow { peers: peers.into_iter().collect(), us: waited_us },
            Report::ImageRead { us, .. } => Self::PhaseDone { phase: Phase::Read, us, checkpoint: None },
            Report::Rebuilt { us } => Self::PhaseDone { phase: Phase::Rebuild, us, checkpoint: None },
            Report::ProcessKilled { what } => Self::Noticed { what },
            Report::WentBack { bytes } => Self::WentBack { bytes },
            Report::NotInPlace { why } => Self::NotInPlace { why: cut(why) },
        }
    }
}

impl Event {
    /// What happened to a space, as its journal tells it. `None`: nothing of that kind.
    #[must_use]
    pub fn of_space(space: String, event: told::SpaceEvent) -> Option<Self> {
        Some(match event {
            told::SpaceEvent::Begun => return None,
            told::SpaceEvent::TargetLost { target, why } => Self::TargetLost { space, target, why: why.into() },
            told::SpaceEvent::TargetBack { target, lost_ms } => Self::TargetBack { space, target, lost_ms },
            told::SpaceEvent::ReadFromSource { file, target, why, bytes, reads } => {
                Self::ReadFromSource { space, file, target, why: why.into(), bytes, reads }
            }
            told::SpaceEvent::Healed(told::Healed { file, lacked, fetched, copied, sources, targets, us }) => {
                Self::FileHealed { space, file, lacked, fetched, copied, sources, targets, us }
            }
            told::SpaceEvent::NotHealed { file, why } => Self::FileNotHealed { space, file, why: why.into() },
        })
    }
}

impl Event {
    /// Its name, and its data.
    fn into_parts(self) -> Result<(String, Value), serde_json::Error> {
        if let Self::Unknown { event, data } = self {
            return Ok((event, data));
        }
        match serde_json::to_value(self)? {
            Value::String(event) => Ok((event, Value::Null)),
            Value::Object(parts) => Ok(parts.into_iter().next().unwrap_or_default()),
            other => Ok((String::new(), other)),
        }
    }

    /// Whether it tells of a decision, with its reason: what `mend explain --why` shows.
    #[must_use]
    pub fn is_decision(&self) -> bool {
        matches!(
            self,
            Self::JobStarted { .. }
                | Self::JobRestarted { .. }
                | Self::GoesOn { .. }
                | Self::PassedOver { .. }
                | Self::RestartFailed { .. }
                | Self::NodeLeftOut { .. }
                | Self::NodeLost { .. }
                | Self::Placed { .. }
                | Self::NotInPlace { .. }
                | Self::CheckpointAsked { .. }
                | Self::CheckpointFailed { .. }
                | Self::CheckpointRemoved { .. }
                | Self::PortableFailed { .. }
                | Self::IntervalChosen { .. }
                | Self::TiersStaggered { .. }
                | Self::TierFailed { .. }
                | Self::TierPassedOver { .. }
                | Self::Compacted { .. }
                | Self::MigrationAsked { .. }
                | Self::MigrationUndone { .. }
                | Self::NodeUnfit { .. }
                | Self::NodeFit { .. }
                | Self::NowhereToGo { .. }
                | Self::GoesBack { .. }
                | Self::StaysAway { .. }
                | Self::FollowsData { .. }
                | Self::StaysFromData { .. }
                | Self::SharesWithJob { .. }
                | Self::TargetLost { .. }
                | Self::TargetBack { .. }
                | Self::ReadFromSource { .. }
                | Self::FileHealed { .. }
                | Self::FileNotHealed { .. }
                | Self::MessagesLost { .. }
                | Self::WorldSpawned { .. }
                | Self::SpawnFailed { .. }
                | Self::Interrupted { .. }
                | Self::KillAsked
                | Self::TimeUp { .. }
                | Self::Ended { .. }
        )
    }

    fn from_parts(event: String, data: Value) -> Self {
        let parts = match &data {
            Value::Null => Value::String(event.clone()),
            data => Value::Object([(event.clone(), data.clone())].into_iter().collect()),
        };
        serde_json::from_value(parts).unwrap_or(Self::Unknown { event, data })
    }

    /// Its name in the file.
    #[must_use]
    pub fn name(&self) -> String {
        self.clone().into_parts().map(|(event, _)| event).unwrap_or_default()
    }
}
