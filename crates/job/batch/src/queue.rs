//! The queue of Slurm, seen by anybody who may ask: which jobs run, which wait and in which order, and the scripts of one's own.
//!
//! Columns are those of squeue(1), `--format`. Others' jobs count with their nodes; their scripts are not to be had. Faults assumed: jobs end between two questions.

use crate::BatchError;
use crate::slurm::run;
use std::collections::HashSet;

/// Why a job waits that no free node would start: it is not in line.
const HELD: [&str; 5] = ["JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied", "BeginTime"];

/// A job in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJob {
    /// Its number; of one of an array with the place in it.
    pub id: String,
    /// Nodes that it asks for, or has.
    pub nodes: u64,
    /// It runs.
    pub runs: bool,
    /// It is of the user who asks.
    pub own: bool,
}

/// What waits and runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Jobs that run, then those that wait, in the order in which Slurm would start them. Those that are held are not there.
    pub jobs: Vec<QueuedJob>,
    /// Nodes that there are.
    pub nodes: u64,
}

/// Asks for the queue.
///
/// # Errors
/// [`BatchError::Run`], [`BatchError::Command`], [`BatchError::Unexpected`].
pub fn queue() -> Result<Queue, BatchError> {
    let states = "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING,PENDING";
    let told = run("squeue", &["--noheader", "--all", "--array", states, "--sort=-p,i", "--format=%i|%D|%T|%U|%r"])?;
    let jobs = jobs(&told, rustix::process::getuid().as_raw())?;
    let nodes = run("sinfo", &["--noheader", "--all", "--Node", "--format=%N"])?;
    let distinct: HashSet<&str> = nodes.split_whitespace().collect();
    Ok(Queue { jobs, nodes: distinct.len() as u64 })
}

/// What Slurm says of a job that is over, and of one that has no script.
const NO_SCRIPT: [&str; 2] = ["Invalid job id", "Job script not specified"];

/// The script of a job of one's own; `None` if the job is over, or has none (`salloc`, `srun`).
///
/// # Errors
/// [`BatchError::Run`], [`BatchError::Command`].
pub fn script(job: &str) -> Result<Option<String>, BatchError> {
    told(run("scontrol", &["write", "batch_script", job, "-"]))
}

/// Of all that a command can fail for, only these say that there is nothing to read.
fn told(script: Result<String, BatchError>) -> Result<Option<String>, BatchError> {
    match script {
        Ok(text) => Ok(Some(text)),
        Err(BatchError::Command { output, .. }) if NO_SCRIPT.iter().any(|none| output.contains(none)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads what squeue prints in the format above.
fn jobs(text: &str, user: u32) -> Result<Vec<QueuedJob>, BatchError> {
    let unexpected = |line: &str| BatchError::Unexpected { what: "a job of the queue", text: line.to_owned() };
    let (mut run, mut wait) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let fields: Vec<&str> = line.splitn(5, '|').collect();
        let [id, nodes, state, owner, reason] = fields[..] else { return Err(unexpected(line)) };
        let nodes = nodes.parse().map_err(|_| unexpected(line))?;
        let runs = state != "PENDING";
        if !runs && HELD.contains(&reason) {
            continue;
        }
        let job = QueuedJob { id: id.to_owned(), nodes, runs, own: owner.parse() == Ok(user) };
        if runs { run.push(job) } else { wait.push(job) }
    }
    run.append(&mut wait);
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slurm_that_does_not_tell_is_no_job_without_a_script() {
        let failed = |output: &str| BatchError::Command { command: "scontrol".into(), how: "exit status: 1".into(), output: output.into() };
        assert_eq!(told(Ok("#!/bin/sh".into())).unwrap().as_deref(), Some("#!/bin/sh"));
        assert_eq!(told(Err(failed("job script retrieval failed: Invalid job id specified"))).unwrap(), None);
        assert_eq!(told(Err(failed("job script retrieval failed: Job script not specified"))).unwrap(), None);
        for passing in ["slurm_load_jobs error: Unable to contact slurm controller (connect failure)", ""] {
            assert!(matches!(told(Err(failed(passing))), Err(BatchError::Command { .. })), "{passing}");
        }
    }

    #[test]
    fn a_queue_is_read_in_its_order_without_what_is_held() {
        let told = "9|2|PENDING|1000|Priority\n7_[1]|4|PENDING|7|Resources\n3|3|RUNNING|1000|None\n5|1|PENDING|1000|JobHeldUser\n\n6|1|COMPLETING|8|None\n";
        let job = |id: &str, nodes, runs, own| QueuedJob { id: id.into(), nodes, runs, own };
        let expected = [job("3", 3, true, true), job("6", 1, true, false), job("9", 2, false, true), job("7_[1]", 4, false, false)];
        assert_eq!(jobs(told, 1000).unwrap(), expected);
        for bad in ["3|x|RUNNING|0|None", "3|1|RUNNING", "nonsense"] {
            assert!(matches!(jobs(bad, 0), Err(BatchError::Unexpected { .. })), "{bad}");
        }
    }
}
