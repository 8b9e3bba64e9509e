//! Settings of jobs that lose their controller, a node or a rank.

use crate::{Kind, Setting};

/// Whether a job outlives its controller.
pub const SUCCESSOR: Setting = Setting {
    name: "MEND_SUCCESSOR",
    kind: Kind::Choice(&["on", "off"]),
    default: "on",
    meaning: "Whether another process takes the controller's place when mend run is killed or its machine is lost (on), on one of the job's nodes that share the job's directory, or the job ends then (off).",
};
/// How long a job outlives its directory.
pub const DIRECTORY_TIMEOUT: Setting = Setting {
    name: "MEND_DIRECTORY_TIMEOUT_S",
    kind: Kind::Number { min: 0, max: 86_400 },
    default: "300",
    meaning: "Seconds that ranks run on while the job's directory does not answer, as when a network file system hangs, if more than half of the job's nodes can be reached (mend run). 0: they end with MEND_LEASE_MS.",
};
/// What follows a failure.
pub const ON_FAILURE: Setting = Setting {
    name: "MEND_ON_FAILURE",
    kind: Kind::Choice(&["pause", "restart", "stop"]),
    default: "pause",
    meaning: "pause: a job that loses a node, or a rank to a signal, goes on by itself from its last checkpoint, on the nodes that are left and its spares; ranks whose processes live go back to it in place. restart: the same, with new processes for all ranks. stop: it ends, for `mend restart` to continue it. A job without a checkpoint ends in any case.",
};
/// Bound of what is tried again.
pub const RETRIES: Setting = Setting {
    name: "MEND_RETRIES",
    kind: Kind::Number { min: 0, max: 1_000_000 },
    default: "3",
    meaning: "How often a job goes on by itself from one checkpoint after a signal killed a rank (a crash, no memory); then it ends with the rank's status. After nodes or connections were lost it goes on 10 times from one checkpoint.",
};
/// How long nodes are waited for.
pub const WAIT_FOR_NODES: Setting = Setting {
    name: "MEND_WAIT_FOR_NODES",
    kind: Kind::Number { min: 0, max: 1_000_000 },
    default: "0",
    meaning: "Seconds that a job which goes on by itself waits for nodes if none of its own answers; then it ends with exit code 75.",
};
