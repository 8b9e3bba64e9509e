//! Arguments of the verbs that move ranks.

use clap::{Args, ValueEnum};

/// How a rank moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Moving {
    /// Live, unless that is of no use
    Auto,
    /// It runs on while its memory is copied
    Live,
    /// It stands still for all of it
    Frozen,
}

/// Where the image of a rank that stands still is stored on its way to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// Nowhere: it is read while it is written
    Pipeline,
    /// In the directory of the job's checkpoints, which both nodes share, synced
    Shared,
    /// In a temporary file of the node that it leaves, which is then sent
    Local,
    /// In a temporary file of the node that it comes to, which is then read
    Staged,
}

/// `mend migrate`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
#[command(after_help = "\
Examples:
  mend migrate lmp-3f2a 3 --to c                   rank 3 of that job goes to node c
  mend migrate 3                                   rank 3 of the only job goes to a spare, or the emptiest node
  mend migrate 2,3,5 --to c                        several at once: each runs while it is copied, one at a time stands still
  mend migrate 3 --deadline 20                     it is to run there in 20 s, whatever it costs
  mend migrate 3 --urgent                          the move that is under way: stop the rank, and send the rest at once
  mend migrate 3 --cancel                          the same: it goes on where it is

The node is asked first. It must have memory for the rank, every feature of the processor that the rank may be using, the same \
program, libraries and data, the files that the rank has open, and a kernel with the same vdso. A node that lacks something is \
refused by name before anything is sent; without --to another node is tried.
With --json, what is told meanwhile is written to standard error, one line for each.")]
pub struct Migrate {
    /// The job; default: the only one there is
    pub job: Option<String>,
    /// The rank to move, or several: 2,3,5 or 4-7
    pub rank: String,
    /// Node of the job to move to; default: a spare, else the emptiest
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    /// Whether the rank runs on while most of it is copied; default: MEND_MIGRATE_MODE
    #[arg(long, value_name = "MODE", value_enum)]
    pub mode: Option<Moving>,
    /// Where the image is stored on its way, to compare with; what does not go through the pipeline is always frozen; not with --deadline
    #[arg(long, value_name = "STRATEGY", value_enum, conflicts_with = "deadline")]
    pub strategy: Option<Strategy>,
    /// When it is to run on the other node: it is stopped as soon as nothing else would do
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub deadline: Option<f64>,
    /// Stop the rank that is being copied now, and send the rest
    #[arg(long, conflicts_with_all = ["to", "mode", "strategy", "deadline", "cancel"])]
    pub urgent: bool,
    /// Give up the move that is under way: the rank goes on where it is
    #[arg(long, conflicts_with_all = ["to", "mode", "strategy", "deadline"])]
    pub cancel: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend drain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend drain b                   all ranks of your jobs leave b, for other nodes of their jobs
  mend drain b --deadline 20     in 20 s at best
  mend drain                     which nodes are drained

Jobs and restarts that begin later do without the node; where --hosts names it, they do not begin. A job needs another node to move to: give it spares with `mend run --spares`. \
The exit code is 1 if a rank is still on the node, or a job does not say whether one is.")]
pub struct Drain {
    /// The node, as in --hosts; default: show those that are drained
    pub node: Option<String>,
    /// Whether ranks run on while most of them is copied; default: MEND_MIGRATE_MODE
    #[arg(long, value_name = "MODE", value_enum, requires = "node")]
    pub mode: Option<Moving>,
    /// When each is to run on another node: it is stopped as soon as nothing else would do
    #[arg(long, value_name = "SECONDS", requires = "node", allow_negative_numbers = true)]
    pub deadline: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend undrain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend undrain b                 b takes ranks again; those that left may go back if that saves time")]
pub struct Undrain {
    /// The node
    pub node: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
