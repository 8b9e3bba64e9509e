//! How a node is, as its daemon judges it, and why ranks are to leave one.

use crate::control::MoveMode;
use serde::{Deserialize, Serialize};

/// What a node has to spare, as its daemon sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRoom {
    /// Memory that processes of the daemon's can still get, bytes: of the machine or of the control group that has least.
    pub memory: u64,
    /// Processors that they may use.
    pub processors: u32,
    /// Threads that run or want to, on average over the last minute, in hundredths (proc_loadavg(5)).
    pub load: u32,
}

/// How a node, or one of its sensors, is; worse ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Nothing is wrong that is known.
    #[default]
    Well,
    /// A low mark is passed: the node may fail.
    Low,
    /// A high mark is passed: the node is about to fail.
    High,
}

/// Who says that ranks are to leave a node. A node may have several reasons at a time; it takes ranks again when none is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveReason {
    /// What its daemon measures.
    Health,
    /// The batch system drains it.
    BatchSystem,
}

/// How ranks leave a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// Whether they run on while they are copied.
    pub mode: MoveMode,
    /// Milliseconds from now until they are to be gone, as far as that can be; `None`: nobody knows.
    pub left_ms: Option<u64>,
    /// What is the matter, for people.
    pub why: String,
}

/// What a node's daemon makes of all its sensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// The worst of all sensors.
    pub grade: Grade,
    /// Milliseconds until a high mark is likely to be passed; `None`: not known, or it is passed.
    pub left_ms: Option<u64>,
    /// Which sensors have passed which marks, for people; empty if none has.
    pub why: String,
}

/// A number with three decimals, times 1000: messages hold no floating point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Milli(pub i64);

impl Milli {
    /// The nearest; what is too large, or is no number, becomes the nearest that there is.
    #[must_use]
    pub fn of(value: f64) -> Self {
        Self((value * 1000.0).round() as i64)
    }

    /// As a floating-point number.
    #[must_use]
    pub fn value(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

/// What one sensor of a node says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// What reads it, and its name there: `disk:/tmp`, `hwmon:coretemp/Package id 0`, `bmc:CPU Temp`.
    pub sensor: String,
    /// As read last.
    pub value: Milli,
    /// Unit of value and marks; empty for a number without one.
    pub unit: String,
    /// Low and high mark; `None`: the sensor is shown, and not judged.
    pub marks: Option<(Milli, Milli)>,
    /// How it is.
    pub grade: Grade,
    /// By how much it changes in a minute; `None`: not known yet.
    pub per_minute: Option<Milli>,
    /// Milliseconds until it is likely to pass its high mark; `None`: it will not, or nobody knows.
    pub left_ms: Option<u64>,
    /// Milliseconds since it was read.
    pub age_ms: u64,
}

/// Something that was to be read, and was not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// What reads it: `bmc`, `smart`, `plugin:/etc/mend/health.d/nhc`, `predictor`.
    pub source: String,
    /// What went wrong.
    pub error: String,
    /// It is to be mended; else this node merely has no such thing.
    pub failed: bool,
}

/// All that a daemon tells of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's own name.
    pub name: String,
    /// It measures anything at all.
    pub watched: bool,
    /// The verdict.
    pub health: NodeHealth,
    /// What it has to spare.
    pub room: NodeRoom,
    /// Memory of the machine, bytes; 0: not known.
    pub memory: u64,
    /// Ranks that are here, of all jobs of the user.
    pub ranks: u32,
    /// All sensors, by name.
    pub readings: Vec<Reading>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}
