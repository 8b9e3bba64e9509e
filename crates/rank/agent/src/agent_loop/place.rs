//! Where an agent finds itself.

use mend_messages::job::Rank;
use std::path::PathBuf;
use std::time::Duration;

/// What the environment tells the agent.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub socket: PathBuf,
    pub rank: Rank,
    pub main_process: bool,
    pub pmi: Option<i32>,
    pub drain_limit: Duration,
    /// As `MEND_TRACKING` says.
    pub tracking: String,
}
