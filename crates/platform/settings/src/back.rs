//! Settings of back migration.

use crate::{Kind, Setting};

/// Whether ranks go back.
pub const BACK_MIGRATION: Setting = Setting {
    name: "MEND_BACK_MIGRATION",
    kind: Kind::Choice(&["on", "off"]),
    default: "on",
    meaning: "Whether ranks that have left a node go back to it, or to a better one, when that saves more time than the move costs (docs/back-migration.md).",
};
/// How long a job may run.
pub const TIME_LIMIT: Setting = Setting {
    name: "MEND_TIME_LIMIT_S",
    kind: Kind::WordOrNumber { words: &["auto"], min: 1, max: 1_000_000_000 },
    default: "auto",
    meaning: "Seconds that mend run may take, counted from its start, or what the batch system says (auto). Ranks of programs that tell no time steps go back to a node only if this is known. Nothing ends the job when it is over.",
};
