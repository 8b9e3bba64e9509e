//! `mend attach`: follows a detached job's output to its end.

use crate::failure::Failure;
use crate::logs::{FOLLOW_INTERVAL, Shown};
use crate::wait::{tell_killed, tell_unsent};
use clap::Args;
use mend_controller::job_end::{self, JobEnd};
use mend_controller::known_jobs;
use std::io::IsTerminal;
use tokio::signal::unix::{SignalKind, signal};

/// `mend attach`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend attach lmp-3f2a                             what it prints from now on
  mend attach lmp-3f2a --from-start                and what it has printed

The job must have been started with `--detach`, or have outlived its `mend run`. Its output is shown until it ends, and mend ends with the \
job's exit code (70 if its controller was killed and no other one took its place). Ctrl-C (SIGINT, SIGTERM) ends `mend attach` alone: the job runs on; `mend kill` ends the job. \
Several may be attached to a job. Standard input is not passed on: give the job a file when it is started, `mend run --detach … < FILE`.")]
pub struct Attach {
    /// The job; default: the one that runs, else the one that ended last
    pub job: Option<String>,
    /// Begin with what it has printed so far
    #[arg(long)]
    pub from_start: bool,
}

/// `mend attach`.
pub async fn attach(arguments: Attach) -> Result<i32, Failure> {
    let (directory, record) = known_jobs::find_any(arguments.job.as_deref())?;
    let mut shown = Shown::of(&directory, &record, arguments.from_start)?;
    let failed = |error: std::io::Error| Failure::new(format!("signals cannot be caught: {error}"), "", 1);
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?);
    if std::io::stderr().is_terminal() {
        mend_report::tell!("mend: attached to job {}; Ctrl-C detaches, and the job runs on", record.id);
    }
    loop {
        // Asked before it is read, so that all is read when it has ended.
        let end = job_end::look(&directory)?;
        if let Some(end) = end {
            shown.end()?;
            tell_unsent(&directory);
            if end == JobEnd::ControllerKilled {
                tell_killed(&directory, &record);
            }
            return Ok(end.code());
        }
        shown.more()?;
        let signal = tokio::select! {
            () = tokio::time::sleep(FOLLOW_INTERVAL) => continue,
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
        };
        mend_report::tell!("mend: detached from job {id}, which runs on; `mend kill {id}` ends it", id = record.id);
        return Ok(128 + signal.as_raw_value());
    }
}
