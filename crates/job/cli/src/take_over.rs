//! `mend take-over`: what a daemon runs when a job's controller is lost. It is not for people.

use crate::failure::Failure;
use clap::Args;
use mend_controller::{detached, failover};
use mend_messages::daemon::BETWEEN_LIVES;
use std::path::PathBuf;

/// Takes the place of a job's lost controller.
#[derive(Debug, Args)]
pub struct TakeOver {
    /// The job's directory
    pub directory: PathBuf,
    /// The controller is silent: take its place if most nodes say so, even if it has the job's lock
    #[arg(long)]
    pub silent: bool,
    /// The job left a node in this epoch, and was about to go on: end with a code of its own as long as it may need another look
    #[arg(long, value_name = "EPOCH")]
    pub between: Option<u64>,
}

/// Runs `controller` without a terminal.
pub fn detach(controller: impl FnOnce() -> i32) -> Result<i32, Failure> {
    detached::here(controller).map_err(|error| Failure::new(format!("a successor cannot be detached: {error}"), "", 1))
}

/// Sees the job to its end, or ends at once if another controller has it.
pub async fn take_over(arguments: &TakeOver) -> Result<i32, Failure> {
    let id = arguments.directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match failover::take_over(&id, arguments.silent).await? {
        Some(ended) => Ok(ended),
        None => match arguments.between {
            Some(epoch) if failover::is_awaited(&id, epoch)? => Ok(BETWEEN_LIVES),
            _ => Ok(0),
        },
    }
}
