//! `mend wait`: waits for the end of jobs.

use crate::failure::Failure;
use crate::report;
use clap::Args;
use mend_controller::job_end::{self, CONTROLLER_KILLED, JobEnd};
use mend_controller::known_jobs;
use mend_controller::manifest::numbers;
use mend_controller::record::{JobDirectory, JobRecord};
use mend_controller::spool;
use serde::Serialize;

/// `mend wait`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend wait                                        for the job that runs
  mend wait lmp-3f2a; echo $?                      its exit code, as `mend run` would end with
  mend wait lmp-3f2a iters-81c0                    for both; the exit code is 0 if both have 0

The exit code is the job's, also if it ended long ago. Of several jobs it is that of the first, in the order in which they \
are named, whose exit code is not 0. A job that goes on by itself after a failure has not ended. If a job's controller was killed \
and no other one took its place, nobody knows the job's exit code: mend says so, and 70 stands for it.")]
pub struct Wait {
    /// The jobs; default: the one that runs, else the one that ended last, in a batch job of its own
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Waited {
    job: String,
    /// Not known if the controller was killed.
    exit_code: Option<i32>,
    how: String,
}

/// Says that nobody knows how the job ended.
pub fn tell_killed(directory: &JobDirectory, record: &JobRecord) {
    let id = &record.id;
    let what = format!("the controller of job {id} was killed: the job's exit code is not known");
    let kept =
        if spool::is_there(directory.path()) { format!("`mend logs {id}` prints what is kept of its output; ") } else { String::new() };
    let hint = match numbers(&record.checkpoints).last() {
        Some(_) => format!("{kept}`mend restart {id}` continues it from its last checkpoint"),
        None => format!("{kept}`mend log {id}` shows what happened to it"),
    };
    mend_report::tell!("{}", mend_report::failure("mend", &what, &hint));
}

/// Says what of its output was not sent away when it had ended.
pub fn tell_unsent(directory: &JobDirectory) {
    let Ok(record) = directory.record() else { return };
    for (space, uri) in &record.unsent {
        let id = &record.id;
        mend_report::tell!(
            "mend: not all files of {space} that job {id} wrote were sent to {uri}; `mend data offload {space}: {uri}` goes on"
        );
    }
}

/// `mend wait`.
pub async fn wait(arguments: Wait) -> Result<i32, Failure> {
    let jobs = match &arguments.jobs[..] {
        [] => vec![known_jobs::find_any_own(None)?],
        names => names.iter().map(|name| known_jobs::find_any(Some(name))).collect::<Result<_, _>>()?,
    };
    let (mut code, mut waited) = (0, Vec::new());
    for (directory, record) in jobs {
        let end = job_end::wait(&directory).await?;
        tell_unsent(&directory);
        code = if code == 0 { end.code() } else { code };
        let job = record.id.clone();
        match end {
            JobEnd::Ended { how, .. } if !arguments.json => crate::report::say!("{job} has ended: {how}"),
            JobEnd::Ended { code, how } => waited.push(Waited { job, exit_code: Some(code), how }),
            JobEnd::ControllerKilled => {
                tell_killed(&directory, &record);
                waited.push(Waited {
                    job,
                    exit_code: None,
                    how: format!("controller killed: exit code {CONTROLLER_KILLED} stands for it"),
                });
            }
        }
    }
    let mut told = Ok(());
    if arguments.json {
        told = report::json(&waited);
    }
    // The exit code is the job's.
    if let Err(failure) = told.and_then(|()| report::written()) {
        failure.report();
    }
    Ok(code)
}
