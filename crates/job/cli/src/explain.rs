//! What `mend explain` takes: it says what stands in the way of saving a job, or why what was decided about it was decided.

use clap::Args;

/// `mend explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend explain                                     can the job that runs be saved?
  mend explain lmp-3f2a --why                      why ranks moved, checkpoints were taken, the job went on or ended
  mend explain --why --json | jq '.[].text'

What --why shows is in the job's journal, as all of `mend log` is; only what was decided is left, with the reasons. \
Without --why the exit code is 1 if something stands in the way.")]
pub struct Explain {
    /// The job; default: the one that runs; with --why else the one that ended last
    pub job: Option<String>,
    /// Show what was decided about the job, running or ended, and why
    #[arg(long)]
    pub why: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
