//! Settings of the places where checkpoints are kept.

use crate::{Kind, Setting};

/// Where checkpoints are kept.
pub const TIERS: Setting = Setting {
    name: "MEND_TIERS",
    kind: Kind::Text,
    default: "shared",
    meaning: "Where checkpoints are kept, nearest first, separated by commas: memory, partner, local:/DIRECTORY, shared, s3://BUCKET/PREFIX. memory is that of the rank's node, partner that of another node, shared the checkpoint directory. Ranks write to the first and go on; the others get their copies later. NAME@2 keeps two checkpoints there. Without a number memory and partner keep 1, a local directory 2, the others what MEND_KEEP says.",
};
/// Copying behind the job.
pub const TIER_RATE: Setting = Setting {
    name: "MEND_TIER_RATE_MIB",
    kind: Kind::Number { min: 0, max: 1 << 20 },
    default: "256",
    meaning: "MiB per second that each node may copy from tier to tier while the job runs. 0: no limit.",
};
/// How many nodes may copy at a time.
pub const TIER_WRITERS: Setting = Setting {
    name: "MEND_TIER_WRITERS",
    kind: Kind::Number { min: 1, max: 1_000_000 },
    default: "2",
    meaning: "Nodes that may copy to the shared directory, or to object storage, at the same time.",
};
/// How many failures take more than a node.
pub const WIDE_FAILURES: Setting = Setting {
    name: "MEND_WIDE_FAILURES_PERCENT",
    kind: Kind::Number { min: 0, max: 100 },
    default: "15",
    meaning: "Of a hundred failures those that take several nodes at once, and with them copies on partner nodes. With --interval auto tiers that only such failures need get only every n-th checkpoint (docs/tiers.md).",
};
/// Age of what is left behind.
pub const TIER_HOURS: Setting = Setting {
    name: "MEND_TIER_HOURS",
    kind: Kind::Number { min: 1, max: 87_600 },
    default: "72",
    meaning: "Hours since a job was on a node last, after which that node removes its images from its memory and local directories. Only a job that did not end well and was not restarted leaves any there.",
};
