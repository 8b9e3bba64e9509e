//! What the agent router knows of each rank on this node.

use crate::agents::{AgentId, AgentLink};
use crate::program::Agentless;
use crate::rank::Command;
use mend_messages::agent::Hello;
use mend_messages::job::Rank;
use std::collections::HashMap;
use tokio::sync::mpsc;

/// The ranks that are here.
pub type LocalRanks = HashMap<Rank, LocalRank>;

/// One rank that is here, as its job sees it.
#[derive(Debug)]
pub struct LocalRank {
    /// Which of its processes, by the controller's number.
    pub attempt: u64,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    /// The agent of its main process.
    pub(crate) main: Option<AgentId>,
    /// The agent of a descendant, which speaks if its main process has none.
    pub(crate) descendant: Option<AgentId>,
    /// A restore that is not complete.
    pub(crate) restore: Option<PendingRestore>,
    /// The controller has heard of its start.
    pub(crate) started: bool,
    /// Why no agent will speak.
    pub(crate) agentless: Option<Agentless>,
    /// Its main process had an agent.
    pub(crate) left: bool,
    /// Agents that spoke before the controller heard of the start.
    pub(crate) early: Vec<(AgentId, AgentLink, Hello)>,
}

/// A restore that is not complete.
#[derive(Debug)]
pub(crate) struct PendingRestore {
    pub(crate) agent: AgentId,
    pub(crate) built: Option<(u64, u64)>,
}

impl LocalRank {
    /// A rank whose task takes these commands; dropping the slot releases it.
    pub fn new(attempt: u64, commands: mpsc::UnboundedSender<Command>) -> Self {
        Self {
            attempt,
            commands,
            main: None,
            descendant: None,
            restore: None,
            started: false,
            agentless: None,
            left: false,
            early: Vec::new(),
        }
    }

    /// Passes a command on. To a task that has ended: dropped, its end is on its way.
    pub fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}
