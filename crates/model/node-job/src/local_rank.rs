//! What is known of each rank on this node, and of each agent.

use crate::event::{AgentId, FileOrder};
use mend_messages::agent::{Hello, ImageId};
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};

/// One rank that is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRank {
    /// Which of its processes, by the controller's number.
    pub attempt: u64,
    /// The agent of its main process.
    pub(crate) main: Option<AgentId>,
    /// The agent of a descendant, which speaks if its main process has none.
    pub(crate) descendant: Option<AgentId>,
    /// A restore that is not complete.
    pub(crate) restore: Option<PendingRestore>,
    /// What is to be done anew if it cannot go back in place.
    pub(crate) in_place: Option<FileOrder>,
    /// The controller has heard of its start.
    pub(crate) started: bool,
    /// No agent will speak.
    pub(crate) agentless: bool,
    /// Its main process had an agent.
    pub(crate) left: bool,
    /// Agents that spoke before the controller heard of the start.
    pub(crate) early: Vec<(AgentId, Hello)>,
}

/// A restore that is not complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingRestore {
    /// Who will speak.
    pub agent: Option<AgentId>,
    /// How long its memory took, and how much there was.
    pub built: Option<(u64, u64)>,
}

impl LocalRank {
    pub(crate) fn starting(attempt: u64) -> Self {
        Self {
            attempt,
            main: None,
            descendant: None,
            restore: None,
            in_place: None,
            started: false,
            agentless: false,
            left: false,
            early: Vec::new(),
        }
    }

    pub(crate) fn restoring(attempt: u64, in_place: Option<FileOrder>) -> Self {
        Self { restore: Some(PendingRestore::default()), in_place, ..Self::starting(attempt) }
    }

    pub(crate) fn awaits(&self, agent: AgentId) -> bool {
        self.restore.is_some_and(|awaited| awaited.agent == Some(agent))
    }
}

/// An agent that speaks for a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub rank: Rank,
    pub attempt: u64,
    /// Its executable, if its process is a descendant.
    pub descendant: Option<String>,
    /// Its process is being killed.
    pub abandoned: bool,
    /// Images that it still writes.
    pub behind: Vec<ImageId>,
}
