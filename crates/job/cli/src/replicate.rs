//! `mend data replicate`: second copies of files in data spaces, made or removed by hand, or as the queue of Slurm says.

use crate::failure::Failure;
use clap::Args;
use mend_batch::BatchError;
use mend_batch::queue::{QueuedJob, queue, script};
use mend_data::directives;
use mend_data::request::SpaceRequest;
use mend_data::space::split;
use mend_data::space::window::{Job, Rules};
use std::collections::HashMap;

/// `mend data replicate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data replicate input:                     all files of the space
  mend data replicate input:run7/in.dat
  mend data replicate --remove input:run7        the job that needed them is over
  mend data replicate --queue --every 30 input:  for your jobs that run or start soon; others lose theirs

Each stripe gets a second copy on another target, on another node if the space has one. Readers take it when the first one is lost or silent, without the \
file's source. A copy that is lost later is made again while a job uses the space. What is there already is not copied again, so an interrupted command is repeated.

With --queue Slurm is asked. A job script says what it reads, before its first command: #MEND data NAME:[PATH]…, or #MEND stage-in URI… NAME:PATH. Files that no such \
job reads lose their second copies, also those that were made by hand: name only what the queue is to decide. Together these copies have at most \
MEND_SPACE_COPY_PERCENT of the free room; the least urgent are left out, and named.

The exit code is 0 if all is done, 69 if a file is not whole or a target is lost, else 1.")]
pub struct Replicate {
    /// Files, and directories with all below them
    #[arg(required = true, value_name = "NAME:[PATH]")]
    pub places: Vec<String>,
    /// Remove second copies; the first ones stay
    #[arg(long, conflicts_with = "queue")]
    pub remove: bool,
    /// Have second copies of what your jobs read that run or start soon, and of nothing else
    #[arg(long)]
    pub queue: bool,
    /// Look at the queue again and again, until it is interrupted
    #[arg(long, value_name = "SECONDS", requires = "queue", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub every: Option<u64>,
    /// Jobs start soon that together ask for more than what is in use, and more than this share of all nodes
    #[arg(long, value_name = "SHARE", requires = "queue", default_value_t = Rules::default().ahead, value_parser = share)]
    pub ahead: f64,
    /// A job that asks for at most this share of all nodes starts soon wherever it stands in the queue
    #[arg(long, value_name = "SHARE", requires = "queue", default_value_t = Rules::default().small, value_parser = share)]
    pub small: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn share(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or("expected a number from 0 to 1")
}

/// What a job's script says that it reads.
#[derive(Clone, Debug, Default)]
struct Reads {
    places: Vec<String>,
    /// A directive makes no sense, or cannot be resolved here: it may read more.
    is_unsure: bool,
}

/// What scripts of jobs that were seen before read. A script does not change while its job waits.
#[derive(Debug, Default)]
pub struct Scripts(HashMap<String, Reads>);

impl Scripts {
    fn of(&mut self, job: &QueuedJob) -> Result<Reads, BatchError> {
        if !job.own {
            return Ok(Reads::default());
        }
        // The jobs of an array have one script.
        let id = job.id.split('_').next().unwrap_or(&job.id);
        if let Some(known) = self.0.get(id) {
            return Ok(known.clone());
        }
        let Some(text) = script(id)? else { return Ok(Reads::default()) };
        Ok(self.read(id, &text))
    }

    fn read(&mut self, id: &str, text: &str) -> Reads {
        let said = directives::read(text, &|name| std::env::var(name).ok());
        for (line, why) in &said.problems {
            mend_report::tell!("mend: job {id}, line {line} of its script: {why}");
        }
        let reads = Reads { is_unsure: !said.problems.is_empty(), places: said.reads };
        self.0.insert(id.to_owned(), reads.clone());
        reads
    }
}

impl Replicate {
    /// Whether its places make sense, which no time changes.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), Failure> {
        match self.places.iter().find(|place| split(place).is_none()) {
            Some(bad) => Err(Failure::usage(format!("{bad} is no place in a data space"), "write NAME:PATH, or NAME: for all of it")),
            None => Ok(()),
        }
    }

    /// What is asked for: with `--queue`, by how the queue is now.
    ///
    /// # Errors
    /// If a place makes no sense, or Slurm does not tell.
    pub fn request(&self, scripts: &mut Scripts) -> Result<SpaceRequest, Failure> {
        let Self { places, remove, queue: by_queue, ahead, small, json, .. } = self;
        self.check()?;
        if !by_queue {
            return Ok(SpaceRequest::Replicate { places: places.clone(), remove: *remove, json: *json });
        }
        let failed = |error: BatchError| {
            let hint = "--queue asks Slurm: put its commands on the PATH, or name files without --queue";
            Failure::new(mend_report::with_causes(&error), hint, 1)
        };
        let queue = queue().map_err(failed)?;
        let job = |job: QueuedJob| -> Result<Job, BatchError> {
            let Reads { places, is_unsure } = scripts.of(&job)?;
            Ok(Job { reads: places, is_unsure, name: job.id, nodes: job.nodes, runs: job.runs })
        };
        let jobs = queue.jobs.into_iter().map(job).collect::<Result<Vec<Job>, BatchError>>().map_err(failed)?;
        let rules = Rules { ahead: *ahead, small: *small };
        Ok(SpaceRequest::ReplicateFor { places: places.clone(), jobs, nodes: queue.nodes, rules, json: *json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_with_a_directive_that_cannot_be_resolved_may_read_more() {
        let mut scripts = Scripts::default();
        let job = |id: &str| QueuedJob { id: id.to_owned(), nodes: 1, runs: true, own: true };
        scripts.read("1", "#!/bin/sh\n#MEND data in:a\n");
        scripts.read("2", "#!/bin/sh\n#MEND data in:a\n#MEND data in:$MEND_NO_SUCH_VARIABLE\n");
        // Both are known from then on.
        let of = |id: &str, scripts: &mut Scripts| scripts.of(&job(id)).map(|reads| (reads.places, reads.is_unsure)).unwrap();
        assert_eq!(of("1", &mut scripts), (vec!["in:a".to_owned()], false));
        assert_eq!(of("2_7", &mut scripts), (vec!["in:a".to_owned()], true));
    }
}
