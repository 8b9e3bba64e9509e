//! What a job begins with: all that was found out about the world before its machine's first step.

use crate::healing::Healing;
use mend_coordination::worlds::Worlds;
use mend_image::cpu::CpuNeeds;
use mend_messages::agent::{ImageId, SaveMode};
use mend_messages::chunks::TransportWord;
use mend_messages::files::KeptFile;
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{ImageRef, Tier, TierSpec};
use mend_policy::follow::Mode;
use mend_policy::precopy::MeasuredRates;
use mend_policy::restarts::{Restart, Restarts};
use mend_policy::retention::Bounds;
use mend_policy::schedule::{Incremental, Interval, Rules};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A node of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSetup {
    /// Name as the user gave it.
    pub name: String,
    /// Its daemon.
    pub address: SocketAddr,
}

/// How images are taken unless a request says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saving {
    /// How long ranks stand still.
    pub mode: SaveMode,
    /// Bytes per second of writing behind them.
    pub rate: Option<u64>,
    /// Largest file of the program's that is copied into a checkpoint, bytes.
    pub keep_files: u64,
}

/// When checkpoints are taken and which are kept. Part of the job's record, so that a restart goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointPlan {
    /// When checkpoints are taken.
    pub interval: Interval,
    /// Which are full.
    pub incremental: Incremental,
    /// Periodic ones that are kept; `None`: all.
    pub keep: Option<u32>,
    /// Hours between failures of a node.
    pub mtbf_hours: u64,
    /// Of a hundred of them those that ranks leave in time.
    #[serde(default)]
    pub averted_percent: u32,
    /// Where merging begins; `None`: never.
    pub space_percent: Option<u32>,
}

impl CheckpointPlan {
    /// What upkeep keeps.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        Bounds { keep: self.keep.unwrap_or(u32::MAX), space_percent: self.space_percent.unwrap_or(u32::MAX) }
    }

    /// The rules for a job on `nodes` nodes. Where chains are not `merged`, new ones bound the space that they take.
    #[must_use]
    pub fn rules(&self, nodes: u32, merged: bool) -> Rules {
        Rules {
            interval: self.interval,
            incremental: self.incremental,
            node_mtbf_s: self.mtbf_hours.saturating_mul(3600),
            nodes,
            averted_percent: self.averted_percent,
            space_percent: self.space_percent.filter(|_| !merged),
        }
    }
}

/// How ranks are copied that run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// Bytes left that are few enough for a rank to be stopped.
    pub threshold: u64,
    /// Most rounds.
    pub rounds: u32,
    /// By what they go, unless they are stored on the way.
    #[serde(default)]
    pub transport: TransportWord,
}

/// The tiers that a job writes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSetup {
    /// Nearest first.
    pub specs: Vec<TierSpec>,
    /// Bound of copying, bytes per second; 0: none.
    pub rate: u64,
    /// Nodes that may write to a tier of all nodes at once, at least 1.
    pub writers: usize,
    /// Of a hundred failures those that take several nodes at once.
    pub wide_percent: u32,
}

/// A checkpoint that was there before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Its number.
    pub number: u64,
    /// Taken by the schedule.
    pub periodic: bool,
    /// One per rank, ascending.
    pub images: Vec<AdoptedImage>,
    /// Object tiers that have all that a restart from it reads, as is on record.
    pub objects: Vec<Tier>,
}

/// One of its images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedImage {
    /// The image, as later ones name it.
    pub image: ImageRef,
    /// Host the rank was on.
    pub host: String,
    /// Number of the checkpoint it builds on.
    pub base: Option<u64>,
    /// The checkpoint directory has it, at its full length.
    pub shared: bool,
}

/// What a restart has that a new job has not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restoring {
    /// Number of the checkpoint.
    pub number: u64,
    /// For each rank its image's file and those of the images it builds on, newest first.
    pub chains: Vec<Vec<PathBuf>>,
    /// For each rank its image's name.
    pub images: Vec<ImageId>,
    /// For each rank what it needs of a processor; what is missing is not known.
    pub needs: Vec<CpuNeeds>,
    /// What is read; no time yet.
    pub reads: Restart,
    /// The checkpoint's directory.
    pub checkpoint: PathBuf,
    /// Files that are put back before any rank is built.
    pub files: Vec<KeptFile>,
    /// Where the images are to be looked for; `None`: in those files.
    pub search: Option<SearchSetup>,
}

/// A search for images in tiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchSetup {
    /// Tiers of the checkpoint.
    pub specs: Vec<TierSpec>,
    /// As in [`TierSetup::rate`].
    pub rate: u64,
    /// For each rank its image and those it builds on, newest first.
    pub lineage: Vec<Vec<ImageRef>>,
    /// Lengths of the images in the checkpoint directory, by checkpoint and rank.
    pub shared: BTreeMap<(u64, Rank), u64>,
    /// Copies that are already where they are needed are checked before any process is built; else the restorer does.
    pub check: bool,
}

/// Everything a job begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Name people use.
    pub id: String,
    /// The job's permanent identity.
    pub identity: [u8; 16],
    /// Random, of this life of the job alone: tokens are drawn from it.
    pub token_key: [u8; 32],
    /// Hosts first, then spares.
    pub nodes: Vec<NodeSetup>,
    /// Where each rank is.
    pub places: Vec<NodeIndex>,
    /// Where checkpoints go.
    pub checkpoints: PathBuf,
    /// Numbers of those that are there, ascending.
    pub listed: Vec<u64>,
    /// Of these are given up, for each pair: those after the first number, up to the second.
    pub abandoned: Vec<(u64, u64)>,
    /// The one that the job was restarted from, if it is in another directory: all of it lies there.
    pub elsewhere: Option<u64>,
    /// Those that copies in tiers are looked after of, ascending.
    pub adopted: Vec<Adopted>,
    /// When checkpoints are taken.
    pub plan: CheckpointPlan,
    /// `None`: the shared directory alone.
    pub tiers: Option<TierSetup>,
    /// How images are taken.
    pub saving: Saving,
    /// How ranks move.
    pub moving: Moving,
    /// How long channels may take to drain.
    pub drain_timeout_us: u64,
    /// Silence after which a node counts as lost.
    pub node_timeout_us: u64,
    /// Bytes that periodic checkpoints leave free in their file system.
    pub reserve: u64,
    /// What restarts took before.
    pub restarts: Restarts,
    /// What was measured of ranks that moved, in earlier lives of the job.
    pub rates: BTreeMap<Rank, MeasuredRates>,
    /// The same of the program, in other jobs.
    pub program_rates: Option<MeasuredRates>,
    /// Ranks go back to nodes that they have left, where that is worth it.
    pub goes_back: bool,
    /// Ranks move to where their data is.
    pub follows_data: Mode,
    /// Seconds for which the job may still run; `None`: nobody knows.
    pub time_left_s: Option<u64>,
    /// The process manager's state.
    pub worlds: Worlds,
    /// Ranks of spawned worlds that have ended before the checkpoint that is restarted.
    pub gone: Vec<Rank>,
    /// Whether rank 0 gets standard input.
    pub stdin: bool,
    /// `None`: a new job.
    pub restoring: Option<Restoring>,
    /// What is remembered of its failures; `None`: it does not go on by itself.
    pub healing: Option<Healing>,
}
