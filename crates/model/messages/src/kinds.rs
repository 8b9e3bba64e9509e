//! Messages between a daemon and an agent by kind, as they stand in records of conversations: without anything that differs from run to run.

use crate::agent::{FromAgent, Reply, Request, SaveMode, SaveTarget};

impl Request {
    /// What is asked.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Inspect { .. } => "inspect",
            Self::Suspend => "suspend",
            Self::SuspendPeer(_) => "suspend-peer",
            Self::Save(order) => match (&order.target, order.mode) {
                (SaveTarget::Descriptor, _) => "save-stream",
                (SaveTarget::Begun, _) => "save-begun",
                (SaveTarget::File(_), SaveMode::Stop) => "save",
                (SaveTarget::File(_), SaveMode::CopyOnWrite) => "save-behind",
            },
            Self::Precopy { .. } => "precopy",
            Self::EndPrecopy => "end-precopy",
            Self::KeepFiles(_) => "keep-files",
            Self::SyncFiles => "sync-files",
            Self::Pause => "pause",
            Self::RollBack(_) => "roll-back",
            Self::Resume => "resume",
        }
    }
}

impl Reply {
    /// What is answered.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Inspected(found) if found.obstacles.is_empty() => "inspected",
            Self::Inspected(_) => "obstacles",
            Self::Suspended { .. } => "suspended",
            Self::Saved(saved) if saved.behind => "saved-behind",
            Self::Saved(_) => "saved",
            Self::Precopying => "precopying",
            Self::PrecopyEnded => "precopy-ended",
            Self::Kept(_) => "kept",
            Self::Synced => "synced",
            Self::Resumed { .. } => "resumed",
            Self::Compared(_) => "compared",
            Self::Failed { .. } => "failed",
            Self::Paused => "paused",
            Self::Unasked(_) => "unasked",
        }
    }
}

impl FromAgent {
    /// What is said.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Restored { .. } => "restored",
            Self::RestoreFailed { .. } => "restore-failed",
            Self::FabricUp(_) => "fabric-up",
            Self::Reply { reply, .. } => reply.kind(),
            Self::FabricInUse => "fabric-in-use",
            Self::MessagesLost { .. } => "messages-lost",
            Self::Written { result: Ok(_), .. } => "written",
            Self::Written { result: Err(_), .. } => "unwritten",
            Self::Round(_) => "round",
            Self::PrecopyFailed { .. } => "precopy-failed",
            Self::Report(_) => "report",
            Self::Progress(_) => "progress",
            Self::Traffic(_) => "traffic",
        }
    }
}
