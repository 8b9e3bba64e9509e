//! What the environment tells the agent.

use mend_messages::job::Rank;
use std::path::PathBuf;
use std::time::Duration;

/// Set by the daemon for each rank.
#[derive(Clone, Debug)]
pub(crate) struct AgentEnvironment {
    pub socket: PathBuf,
    pub rank: Rank,
    pub main_process: bool,
    pub pmi: Option<i32>,
    pub drain_limit: Duration,
    /// As `MEND_TRACKING` says.
    pub tracking: String,
}
