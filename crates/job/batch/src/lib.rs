//! Batch systems: what the job of theirs that `mend` was started in has, and what they can be asked.
//!
//! ```text
//! detect ──► BatchSystem ──► nodes       which nodes, how many ranks on each
//!                        ├─► launcher    one command that starts `mendd` on all of them
//!                        ├─► draining    which of them their administrators want empty
//!                        └─► requeue     run the script again
//! ```
//! A new batch system is one file beside [`slurm`] and one line in [`detect`]; docs/batch.md says what each of its answers would come from
//! for PBS and Flux. [`queue`] tells what waits and runs, to whoever is in no job. Nothing here decides anything about a Mend job.
//!
//! Faults assumed: their commands are missing, fail, hang until their own timeouts, or say something of another release.

mod command;
pub mod queue;
pub mod slurm;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::process::Command;

/// A node of the batch job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchNode {
    /// Its name, as the batch system writes it.
    pub name: String,
    /// How it is reached from the others: a name or an address.
    pub address: String,
    /// Ranks that it is meant for, at least 1.
    pub slots: u32,
}

/// Which run of which batch job this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRun {
    /// The batch job's number, the same when it is queued again.
    pub job: String,
    /// How often it was queued again.
    pub restarts: u32,
}

/// A batch system, seen from within one of its jobs.
pub trait BatchSystem: fmt::Debug + Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// The batch job.
    fn run(&self) -> BatchRun;

    /// What of its environment says which job it is: [`resumed`] makes the same of it elsewhere.
    fn variables(&self) -> BTreeMap<String, String>;

    /// When the batch job's time is over, seconds since 1970; `None`: it has no end that is known.
    ///
    /// # Errors
    /// [`BatchError::Command`].
    fn ends_at(&self) -> Result<Option<u64>, BatchError>;

    /// The same, asked anew: a preemption brings it forward.
    ///
    /// # Errors
    /// [`BatchError::Command`].
    fn ends_at_by_now(&self) -> Result<Option<u64>, BatchError>;

    /// Ranks that the user asked the batch system for, if they did.
    fn tasks(&self) -> Option<u32>;

    /// The nodes, in the batch system's order.
    ///
    /// # Errors
    /// [`BatchError::Command`], [`BatchError::Unexpected`].
    fn nodes(&self) -> Result<Vec<BatchNode>, BatchError>;

    /// Of these nodes those that the batch job has no more: it goes on without nodes that it lost, where the user wants that.
    ///
    /// # Errors
    /// [`BatchError::Command`].
    fn lost(&self, nodes: &[BatchNode]) -> Result<BTreeSet<String>, BatchError>;

    /// A command that runs `program` once on each of the nodes, with its standard input copied to all and their standard output brought
    /// together, line by line. It does not end because one of the nodes does. The program is told the node's name with `--name`.
    fn launcher(&self, nodes: &[BatchNode], program: &Path, arguments: &[&str]) -> Command;

    /// Of these nodes those that are to be emptied, with the reason that was given.
    ///
    /// # Errors
    /// [`BatchError::Command`].
    fn draining(&self, nodes: &[BatchNode]) -> Result<BTreeMap<String, String>, BatchError>;

    /// Whether the batch job has to go for another one, and would be queued again for that.
    ///
    /// # Errors
    /// [`BatchError::Command`].
    fn is_preempted(&self) -> Result<bool, BatchError>;

    /// Has the batch job end and queued again.
    ///
    /// # Errors
    /// [`BatchError::Command`].
    fn requeue(&self) -> Result<(), BatchError>;
}

/// Why a batch system cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// A setting cannot be used.
    #[error(transparent)]
    Setting(#[from] mend_settings::SettingError),
    /// A command of its could not be run.
    #[error("cannot run {command}, which belongs to {system}")]
    Run {
        /// Whose command.
        system: &'static str,
        /// The command.
        command: String,
        /// What went wrong.
        source: io::Error,
    },
    /// A command of its failed.
    #[error("{command} failed ({how}){}", said(output))]
    Command {
        /// The command.
        command: String,
        /// Its exit status.
        how: String,
        /// What it said.
        output: String,
    },
    /// It says something that is not understood.
    #[error("{what} is not understood: `{text}`")]
    Unexpected {
        /// What should have been told.
        what: &'static str,
        /// What was said.
        text: String,
    },
    /// `mend run` was started once for each task.
    #[error("`mend` runs as one of {tasks} tasks of a job step: it is to be started once")]
    InTask {
        /// How many tasks.
        tasks: u32,
    },
    /// The setting names a batch system, and this is not in a job of it.
    #[error("MEND_BATCH={system}, but this is not within a job of {system}")]
    NotWithin {
        /// The batch system.
        system: &'static str,
    },
}

fn said(output: &str) -> String {
    let output = output.trim();
    if output.is_empty() { String::new() } else { format!(": {output}") }
}

impl BatchError {
    /// What a user can do about it; may be empty.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Setting(_) => "",
            Self::Run { .. } => "put the batch system's commands on the PATH, or name hosts with --hosts, or set MEND_BATCH=none",
            Self::Command { .. } | Self::Unexpected { .. } => {
                "name hosts with --hosts, or set MEND_BATCH=none to run on this machine alone"
            }
            Self::InTask { .. } => "write `mend run` itself into the batch script, without srun: it starts the ranks on all nodes",
            Self::NotWithin { .. } => "submit it with the batch system, or leave MEND_BATCH unset",
        }
    }
}

/// The batch system of this name, in the job that these variables say, on whichever node of it; `None`: this release knows none.
///
/// # Errors
/// [`BatchError::Unexpected`].
pub fn resumed(name: &str, variables: &BTreeMap<String, String>) -> Result<Option<Box<dyn BatchSystem>>, BatchError> {
    if name != slurm::TITLE {
        return Ok(None);
    }
    Ok(slurm::Slurm::of(|name| variables.get(name).cloned())?.map(|slurm| Box::new(slurm) as Box<dyn BatchSystem>))
}

/// The batch system whose job this process is in, as its environment says; `None`: there is none, or it is not to be used.
///
/// # Errors
/// [`BatchError::Setting`], [`BatchError::InTask`], [`BatchError::NotWithin`].
pub fn detect() -> Result<Option<Box<dyn BatchSystem>>, BatchError> {
    let wanted = mend_settings::BATCH.choice()?;
    if wanted == "none" {
        return Ok(None);
    }
    let found = slurm::Slurm::of(|name| std::env::var(name).ok())?;
    if found.is_none() && wanted == slurm::NAME {
        return Err(BatchError::NotWithin { system: slurm::NAME });
    }
    Ok(found.map(|slurm| Box::new(slurm) as Box<dyn BatchSystem>))
}
