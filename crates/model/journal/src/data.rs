//! What events say of data spaces: why a target gives nothing, why a file is not made whole.

use crate::facts::cut;
use mend_messages::space_report as told;
use serde::{Deserialize, Serialize};

/// Why a target of a data space gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[allow(missing_docs, reason = "they are those of `mend_messages::space_report::TargetFault`, with names that files keep")]
pub enum TargetFault {
    Silent {
        ms: u64,
    },
    Unreachable {
        error: String,
    },
    Absent,
    Damaged,
    Failed {
        error: String,
    },
    /// One of a later release.
    #[serde(other)]
    Other,
}

impl From<told::TargetFault> for TargetFault {
    fn from(fault: told::TargetFault) -> Self {
        match fault {
            told::TargetFault::Silent { ms } => Self::Silent { ms },
            told::TargetFault::Unreachable { error } => Self::Unreachable { error: cut(error) },
            told::TargetFault::Absent => Self::Absent,
            told::TargetFault::Damaged => Self::Damaged,
            told::TargetFault::Failed { error } => Self::Failed { error: cut(error) },
        }
    }
}

/// Why a file is not made whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[allow(missing_docs, reason = "they are those of `mend_messages::space_report::HealingFault`, with names that files keep")]
pub enum HealingFault {
    NoSource {
        lost: u64,
        lacked: Vec<String>,
        sources: Vec<SourceFault>,
    },
    NoRoom {
        lost: u64,
        error: String,
    },
    NoCopy {
        lacked: Vec<String>,
    },
    Target {
        error: String,
    },
    Program {
        program: String,
        error: String,
    },
    Failed {
        error: String,
        hint: String,
    },
    /// One of a later release.
    #[serde(other)]
    Other,
}

/// What a source is to blame for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFault {
    /// The source's address.
    pub uri: String,
    /// What it said; `None`: it was not asked.
    #[serde(default)]
    pub error: Option<String>,
}

impl From<told::HealingFault> for HealingFault {
    fn from(fault: told::HealingFault) -> Self {
        match fault {
            told::HealingFault::NoSource { lost, lacked, sources } => {
                let source = |one: told::SourceFault| SourceFault { uri: cut(one.uri), error: one.error.map(cut) };
                Self::NoSource { lost, lacked, sources: sources.into_iter().map(source).collect() }
            }
            told::HealingFault::NoRoom { lost, error } => Self::NoRoom { lost, error: cut(error) },
            told::HealingFault::NoCopy { lacked } => Self::NoCopy { lacked },
            told::HealingFault::Target { error } => Self::Target { error: cut(error) },
            told::HealingFault::Program { program, error } => Self::Program { program, error: cut(error) },
            told::HealingFault::Other { error, hint } => Self::Failed { error: cut(error), hint: cut(hint) },
        }
    }
}
