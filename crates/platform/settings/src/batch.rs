//! Settings of jobs in batch systems.

use crate::{Kind, Setting};

/// Which batch system's job `mend run` looks for.
pub const BATCH: Setting = Setting {
    name: "MEND_BATCH",
    kind: Kind::Choice(&["auto", "slurm", "none"]),
    default: "auto",
    meaning: "Whose nodes mend run and mend restart take when no hosts are named: those of the batch job that they are in (auto), of Slurm's and no other (slurm), or this machine's alone (none).",
};
/// When a batch job is queued again.
pub const REQUEUE: Setting = Setting {
    name: "MEND_REQUEUE",
    kind: Kind::Choice(&["preempted", "always", "never"]),
    default: "preempted",
    meaning: "When a batch job whose time is up is queued again, after its last checkpoint: where the batch system would do so by itself (preempted), at its time limit too (always), or not (never).",
};
/// How often a batch system is asked which nodes drain.
pub const BATCH_POLL: Setting = Setting {
    name: "MEND_BATCH_POLL_S",
    kind: Kind::Number { min: 1, max: 3600 },
    default: "30",
    meaning: "Seconds from one question to the batch system to the next, which of the job's nodes are to be drained.",
};
