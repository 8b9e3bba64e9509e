//! The command line.

mod moving;

pub use self::moving::{Drain, Migrate, Moving, Strategy, Undrain};
use crate::attach::Attach;
use crate::data::DataCommand;
use crate::explain::Explain;
use crate::job_data::JobData;
use crate::journal::Log;
use crate::logs::Logs;
use crate::nodes::{Health, NodeCommand};
use crate::pipe::PipeCommand;
use crate::settings::Settings;
use crate::version::Version;
use crate::wait::Wait;
use clap::{Args, Parser, Subcommand, ValueEnum};
use mend_controller::checkpoint_plan::PeriodicOptions;
use mend_controller::healing_options::{HealingOptions, OnFailure};
use mend_settings::SettingError;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Keeps MPI jobs running: checkpoints, migrates and restarts the ranks of unmodified MPI programs, without root.
#[derive(Debug, Parser)]
#[command(
    name = "mend",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  mend run -n 4 ./app                              4 ranks on this machine
  mend run -n 4 --hosts a,b --spares c -- lmp -in in.melt
  mend checkpoint                                  of the job that runs
  mend migrate lmp-3f2a 3 --to c                   move rank 3 to node c
  mend restart lmp-3f2a --hosts a,c                go on from its last checkpoint
  mend run --detach -n 4 ./app                     it outlives the terminal; see `mend logs`

A job is named by its id or the beginning of its id. The name can be left out where only one job can be meant.

Start `mendd` on the nodes of --hosts. `mend settings` lists environment variables."
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `mend` can be told to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program on some ranks.
    Run(Run),
    /// List jobs.
    Ps(Ps),
    /// Take a checkpoint of a running job.
    Checkpoint(TakeCheckpoint),
    /// List a job's checkpoints, or remove some.
    Checkpoints(Checkpoints),
    /// Continue a job from a checkpoint.
    Restart(Restart),
    /// Move a rank to another node while the others run on.
    Migrate(Migrate),
    /// Move all ranks of your jobs off a node, which takes no more of them.
    Drain(Drain),
    /// Let a drained node take ranks again.
    Undrain(Undrain),
    /// Show what nodes measure of their health: sensors, marks, trends.
    Health(Health),
    /// Nodes: list them, with what they have to spare.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show what happened to a job, running or ended: its journal.
    Log(Log),
    /// Show when what happened to a job, running or ended, as a chart.
    Timeline(Timeline),
    /// Show what a detached job has printed.
    Logs(Logs),
    /// Follow the output of a detached job to its end.
    Attach(Attach),
    /// Wait until jobs have ended, and end with their exit code.
    Wait(Wait),
    /// Show what stands in the way of saving a running job, or why things were decided.
    Explain(Explain),
    /// End a running job.
    #[command(after_help = "\
Examples:
  mend kill lmp-3f2a                               its checkpoints stay; `mend restart lmp-3f2a` goes on from the last")]
    Kill(Verb),
    /// Remove jobs that have ended, with their checkpoints.
    Rm(Remove),
    /// Fetch a job's input from where it permanently lives, check it, repair it.
    #[command(subcommand)]
    Data(DataCommand),
    /// Send what a tool writes on one node to what reads it on another, while it is written.
    #[command(subcommand)]
    Pipe(PipeCommand),
    /// Look into image files of checkpoints: show, verify, diff, compact.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Measure Mend on your nodes, or on a lab on this machine.
    #[command(subcommand)]
    Bench(crate::bench::BenchCommand),
    /// A cluster on this machine, to try things out.
    #[command(subcommand)]
    Lab(mend_lab::LabCommand),
    /// Show the release, and the formats it reads and writes.
    Version(Version),
    /// Show every setting (environment variable), its range and default.
    Settings(Settings),
    #[command(hide = true)]
    TakeOver(crate::take_over::TakeOver),
}

/// `mend run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend run -n 2 ./app < input                      standard input goes to rank 0
  mend run -n 4 --hosts a:1,b:3 ./app              1 rank on a, 3 on b
  mend run -n 20 --hosts 'n[01-10]:2' ./app        2 ranks on each of n01 to n10
  mend run --interval 600 --incremental 5 ./app    a checkpoint every 10 min, every sixth a full one
  mend run --interval auto --hosts a,b --spares c ./app    if a or b is lost, c takes its ranks
  mend run -np 4 -f hostfile -genv OMP_NUM_THREADS 2 -wdir /data ./app
  mend run -n 2 ./model : -n 2 ./filter            two programs, one MPI_COMM_WORLD
  job=$(mend run --detach -n 2 ./app < input)      its id, for `mend attach $job`, `mend wait $job`

If a node is lost, or a signal kills a rank, the job goes on by itself from its newest checkpoint, on the spares and the \
hosts that are left. A rank that a signal killed is tried again --retries times from one checkpoint. A job without a checkpoint \
ends: --interval auto has some taken.

The exit code is the program's (128 + signal if a signal ended it). It is 75 if a node, or a connection between two, was \
lost and the job does not go on by itself: `mend restart` can, from a checkpoint. Standard error names the rank that exited with a code other \
than 0, and says if a 75 was the program's own. It is 137, too, if this process was silent and another one has taken its place: the job \
goes on, and `mend wait` has its code. With `--detach` it is 0 when the ranks run; `mend wait` ends with the program's.")]
pub struct Run {
    /// Number of ranks (also -np); default: as the batch job has it, else 1
    #[arg(short = 'n', long = "np", value_parser = clap::value_parser!(u32).range(1..=i64::from(mend_messages::job::MAX_RANKS)))]
    pub ranks: Option<u32>,
    /// Hosts with commas, each NAME or NAME:RANKS, or several as n[01-10,12] (also -host); default: the nodes of the batch job, else this machine alone
    #[arg(long, alias = "host", value_name = "LIST")]
    pub hosts: Option<String>,
    /// File with one host per line, NAME or NAME:RANKS, or several as in --hosts
    #[arg(short = 'f', long, alias = "machinefile", value_name = "FILE", conflicts_with = "hosts")]
    pub hostfile: Option<PathBuf>,
    /// Hosts that get no rank at first, but can be targets of migrations. One that does not answer is left out
    #[arg(long, value_name = "LIST")]
    pub spares: Option<String>,
    /// Nodes of the batch job that get no rank at first
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["hosts", "hostfile", "spares"])]
    pub spare_nodes: u32,
    /// Environment variable for the ranks (also -env NAME VALUE)
    #[arg(long = "env", num_args = 2, value_names = ["NAME", "VALUE"], action = clap::ArgAction::Append)]
    pub env: Vec<String>,
    /// The same for the ranks of all programs, where `:` separates several (also -genv NAME VALUE)
    #[arg(long = "genv", num_args = 2, value_names = ["NAME", "VALUE"], action = clap::ArgAction::Append)]
    pub genv: Vec<String>,
    /// Job data that the ranks see
    #[command(flatten)]
    pub data: JobData,
    /// Working directory of the ranks (also -wdir)
    #[arg(long, value_name = "DIR")]
    pub wdir: Option<PathBuf>,
    /// Directory for checkpoints, shared by all hosts; default: the job's directory in MEND_HOME
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Where checkpoints are kept, nearest first, with commas: memory, partner, local:/DIR, shared, s3://BUCKET/PREFIX.
    /// NAME@2 keeps two there. Default: MEND_TIERS
    #[arg(long, value_name = "LIST")]
    pub tiers: Option<String>,
    /// File with the key that images are encrypted with: 64 hexadecimal digits, the same on all nodes, readable by you alone
    #[arg(long, value_name = "FILE")]
    pub encryption_key: Option<PathBuf>,
    /// When checkpoints are taken, and which are kept
    #[command(flatten)]
    pub periodic: Periodic,
    /// What follows a failure
    #[command(flatten)]
    pub healing: Healing,
    /// Return when the ranks run, and print the job's id. The job outlives the terminal; `mend logs` shows its output.
    /// Standard input is read if it is a file
    #[arg(long)]
    pub detach: bool,
    /// No messages of mend itself unless something is wrong
    #[arg(short, long)]
    pub quiet: bool,
    /// The program and its arguments. After an argument `:` follow -n, --env, --wdir and a program for further ranks
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Periodic checkpoints, of `mend run` and `mend restart`.
#[derive(Debug, Args)]
pub struct Periodic {
    /// How often checkpoints are taken: every SECONDS, as often as costs least (auto), or only when asked for (off); default: MEND_INTERVAL; a restart without either goes on as before
    #[arg(long, value_name = "auto|SECONDS|off", value_parser = interval)]
    pub interval: Option<String>,
    /// How many incremental checkpoints come between two full ones, at most; default: MEND_INCREMENTAL; a restart without either goes on as before
    #[arg(long, value_name = "auto|N|off", value_parser = incremental)]
    pub incremental: Option<String>,
    /// How many periodic checkpoints are kept, with what they build on; default: MEND_KEEP; a restart without either goes on as before
    #[arg(long, value_name = "all|N", value_parser = keep)]
    pub keep: Option<String>,
}

impl Periodic {
    /// As the controller takes it.
    pub fn options(self) -> PeriodicOptions {
        PeriodicOptions { interval: self.interval, incremental: self.incremental, keep: self.keep, as_before: false }
    }
}

/// What follows a failure, of `mend run` and `mend restart`.
#[derive(Debug, Args)]
pub struct Healing {
    /// After the loss of a node, or of a rank to a signal: go on by itself from the last checkpoint, with ranks that live going back in place
    /// (pause) or all restarted (restart), or end; default: MEND_ON_FAILURE. A restart does not take it over from the run before
    #[arg(long, value_name = "pause|restart|stop", value_parser = ["pause", "restart", "stop"])]
    pub on_failure: Option<String>,
    /// How often it goes on from one checkpoint after a signal killed a rank; default: MEND_RETRIES. A restart does not take it over
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// How long it waits for nodes if none answers; default: MEND_WAIT_FOR_NODES. A restart does not take it over
    #[arg(long, value_name = "SECONDS")]
    pub wait_for_nodes: Option<u32>,
}

impl Healing {
    /// As the controller takes it.
    pub fn options(&self) -> HealingOptions {
        let on_failure = self.on_failure.as_deref().map(OnFailure::named);
        HealingOptions { on_failure, retries: self.retries, wait_for_nodes: self.wait_for_nodes }
    }
}

fn interval(text: &str) -> Result<String, SettingError> {
    mend_settings::INTERVAL.word_or_number(Some(text)).map(|_| text.to_owned())
}

fn incremental(text: &str) -> Result<String, SettingError> {
    mend_settings::INCREMENTAL.word_or_number(Some(text)).map(|_| text.to_owned())
}

fn keep(text: &str) -> Result<String, SettingError> {
    mend_settings::KEEP.word_or_number(Some(text)).map(|_| text.to_owned())
}

/// `mend checkpoints`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend checkpoints                                 of the job that runs, or ended last
  mend checkpoints lmp-3f2a --remove 2,3           all of these or, if others build on one, none

NEEDS lists the checkpoints that one builds on. A restart reads them, too. They stay as long as it does. Portable ones \
(of programs with libmend-app) are in the program's directory: run the program again to go on from them, and use `mend rm` \
to remove them.")]
pub struct Checkpoints {
    /// The job; default: the one that runs, else the one that ended last
    pub job: Option<String>,
    /// Remove the checkpoints of these numbers (with commas)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub remove: Vec<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend ps`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend ps                                          jobs that run
  mend ps --all                                    those that have ended, too
  mend ps lmp-3f2a                                 this one, running or ended
  mend ps --json | jq -r '.[].id'                  for programs")]
pub struct Ps {
    /// Jobs, running or ended: their ids, or beginnings of them (default: all that run)
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Also list jobs that have ended, and the space that each takes
    #[arg(short, long)]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend rm`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend rm lmp-3f2a                                 this job, its checkpoints and its output, for good
  mend rm --ended                                  all jobs that do not run
  mend rm --ended --older 7d                       that ended at least 7 days ago; also 12h, 30m

A job that runs is refused. MEND_EXPIRE removes old jobs at each `mend run`. Copies of checkpoints in other tiers than \
the shared directory stay; the answer says so. Portable checkpoints that the job has taken are removed from the program's \
directory unless a run uses it now; MEND_EXPIRE leaves them there.")]
#[command(override_usage = "mend rm [--json] <JOB>...\n       mend rm [--json] --ended [--older <TIME>]")]
#[command(group = clap::ArgGroup::new("which").required(true).args(["jobs", "ended"]))]
pub struct Remove {
    /// The jobs to remove
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Remove all jobs that have ended
    #[arg(long)]
    pub ended: bool,
    /// Of these, only those that ended at least this long ago
    #[arg(long, value_name = "TIME", requires = "ended", value_parser = age)]
    pub older: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn age(text: &str) -> Result<Duration, String> {
    let length = text.parse().and_then(|span: jiff::Span| span.to_duration(jiff::SpanRelativeTo::days_are_24_hours())).ok();
    let length = length.and_then(|length| Duration::try_from(length).ok());
    length.ok_or_else(|| format!("`{text}` is no time: write for example 7d, 12h, 30m or 90s"))
}

/// How a timeline is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A chart for the terminal, and a table of checkpoints, moves and restarts
    Text,
    /// A drawing for a browser or a document
    Svg,
    /// A trace for ui.perfetto.dev
    Perfetto,
}

/// `mend timeline`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend timeline                                    of the job that runs, or ended last
  mend timeline lmp-3f2a --output job.svg          as a drawing
  mend timeline --output job.pftrace               as a trace: open it at ui.perfetto.dev
  mend timeline --json | jq '.operations[-1]'      the last checkpoint, move or restart

All of it is from the job's journal. A line stands for a rank, or for ranks that did the same. In JSON, times are \
microseconds since 1970.")]
pub struct Timeline {
    /// The job; default: the one that runs, else the one that ended last
    pub job: Option<String>,
    /// How it is drawn; default: as FILE's name ends (.svg, .pftrace), else text
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub format: Option<Format>,
    /// Write it there instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

/// A verb on one job.
#[derive(Debug, Args)]
pub struct Verb {
    /// The job; default: the only one there is
    pub job: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How long a checkpoint stops the job.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Mode {
    /// While a snapshot of its memory is taken. Images are written while the job runs on
    CopyOnWrite,
    /// Until its images are written
    Stop,
}

/// `mend checkpoint`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend checkpoint                                  of the job that runs; it runs on
  mend checkpoint lmp-3f2a --portable              the program's own variables, for another machine or number of ranks")]
pub struct TakeCheckpoint {
    /// The job; default: the only one there is
    pub job: Option<String>,
    /// How long the job is stopped; default: as MEND_CHECKPOINT_MODE said when it was started
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Have the program save its own variables, which restart elsewhere and on another number of ranks. It must use libmend-app
    #[arg(long, conflicts_with = "mode")]
    pub portable: bool,
    /// Give up a portable checkpoint after so long; default: wait as long as the job runs
    #[arg(long, value_name = "SECONDS", requires = "portable", allow_negative_numbers = true)]
    pub timeout: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What a restart takes its standard input for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Input {
    /// A file that begins with what was read is read on from there; anything else is new input
    Auto,
    /// Input that begins with what was read. That part is skipped
    Same,
    /// Input that follows what was read
    New,
}

/// `mend restart`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend restart                                     the job that ended last, its newest checkpoint
  mend restart lmp-3f2a --checkpoint 2
  mend restart /data/ckpt/lmp-3f2a/2 --hosts a,c   a checkpoint's directory, on other hosts

Ranks whose host is still there stay on it. The others go to the emptiest host.

Output that was printed before the job ended is not printed again. So the outputs of run and restart can be put one \
after the other. Where the output is not the same this time, mend says so and prints it from the beginning of that line.

Standard input goes on where the checkpoint was taken. A file is read on from there (`mend restart JOB < FILE`), if it \
begins with what was read; --input same skips that part in a pipe, too. What came through a pipe or was typed is kept \
with the job, up to 64 MiB. It is given again, and then what comes now. Once the end of input was read there is no more.")]
pub struct Restart {
    /// The job, the directory of a checkpoint, or that of all of a job's; default: the job that ended last
    #[arg(value_name = "JOB|DIR")]
    pub job: Option<String>,
    /// Number of the checkpoint. A damaged one is refused. Default: the newest that is complete and undamaged
    #[arg(long, value_name = "N")]
    pub checkpoint: Option<u64>,
    /// Other hosts than before, as in `mend run`; default: those of the job's last run that answer
    #[arg(long, alias = "host", value_name = "LIST")]
    pub hosts: Option<String>,
    /// File with one host per line
    #[arg(short = 'f', long, alias = "machinefile", value_name = "FILE", conflicts_with = "hosts")]
    pub hostfile: Option<PathBuf>,
    /// More hosts that get no rank at first, but can be targets of migrations
    #[arg(long, value_name = "LIST")]
    pub spares: Option<String>,
    /// Tiers for the checkpoints to come, as in `mend run`; default: the tiers that the job had; if that was only `shared`, MEND_TIERS
    #[arg(long, value_name = "LIST")]
    pub tiers: Option<String>,
    /// Print again what was printed between the checkpoint and the job's end
    #[arg(long)]
    pub repeat_output: bool,
    /// What the restart's standard input is
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub input: Input,
    /// Accept a checkpoint that another user wrote. Its programs run as you, and write the files that it names
    #[arg(long)]
    pub any_owner: bool,
    /// File with the key that the checkpoint's images were encrypted with. Later images are encrypted with it, too
    #[arg(long, value_name = "FILE")]
    pub encryption_key: Option<PathBuf>,
    /// When checkpoints are taken, and which are kept; default: as before, if MEND_INTERVAL and its like are not set
    #[command(flatten)]
    pub periodic: Periodic,
    /// What follows a failure
    #[command(flatten)]
    pub healing: Healing,
    /// Return when the ranks run, and print the job's id. The job outlives the terminal; `mend logs` shows its output.
    /// Standard input is read if it is a file
    #[arg(long)]
    pub detach: bool,
    /// No messages of mend itself unless something is wrong
    #[arg(short, long)]
    pub quiet: bool,
}

/// `mend image`.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Show what an image holds: its header, what it builds on, its mappings.
    Show(ShowImage),
    /// Compare every checksum of an image and of all that it builds on, or of all images of a checkpoint.
    Verify(VerifyImages),
    /// Show which pages of two images differ. Exit code 1 if any do.
    Diff(Diff),
    /// Merge an image with all that it builds on into one full image.
    Compact(Compact),
}

/// `mend image show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend image show 3/rank-0.image                   an image; mend finds what it builds on
  mend image show newest.image base.image          elsewhere: the image, then what it builds on")]
pub struct ShowImage {
    /// The image, then what it builds on, newest first. For an image of a checkpoint mend finds the others
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend image verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend image verify 3                              a checkpoint's directory: all of its ranks
  mend image verify 3/rank-0.image                 an image; mend finds what it builds on
  mend image verify newest.image base.image        elsewhere: the image, then what it builds on")]
pub struct VerifyImages {
    /// The directory of a checkpoint; or an image, then what it builds on, newest first. For an image of a checkpoint mend finds the others
    #[arg(required = true, value_name = "FILE|DIR")]
    pub files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend image diff`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend image diff 2/rank-0.image 3/rank-0.image
  mend image diff a.image newest.image,base.image")]
pub struct Diff {
    /// An image, or with commas an image and what it builds on, newest first
    #[arg(value_delimiter = ',', num_args = 1, required = true, value_name = "FILE[,FILE…]")]
    pub first: Vec<PathBuf>,
    /// What it is compared with
    #[arg(value_delimiter = ',', num_args = 1, required = true, value_name = "FILE[,FILE…]")]
    pub second: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend image compact`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend image compact 3/rank-0.image --to rank-0.image")]
pub struct Compact {
    /// The image, then what it builds on, newest first. For an image of a checkpoint mend finds the others
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// File for the merged image. It appears there only when it is whole and durable
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        assert_eq!(age("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!([age("12h"), age("30m"), age("0s")].map(|age| age.unwrap().as_secs()), [43_200, 1_800, 0]);
        assert_eq!(age("1w 2 days, 3h"), Ok(Duration::from_secs(9 * 86_400 + 3 * 3_600)));
        for wrong in ["", "7", "d", "-1d", "1 month", "7é", "99999999999999999999d"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}
