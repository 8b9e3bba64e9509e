//! `mend bench`: measures Mend on the nodes that somebody has, and makes the tables that a reader of the papers expects.
//!
//! ```text
//! --hosts A,B ─┐
//! a lab of two ┴─► for each size and number of ranks: a job of `bench rank`s ─► for each strategy: they move ─► table, CSV, JSON, SVG
//! ```
//! It calls the same verbs that people call, and reads what these print as JSON.

mod interruption;
mod measured;
mod moves;
mod peak;
mod pipe;
mod piped;
mod rank;
mod shown;

use crate::failure::Failure;
use crate::space::bytes;
use clap::{Args, Subcommand, ValueEnum};
use mend_controller::hosts;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Move ranks by each strategy, and compare.
    Migrate(BenchMoves),
    /// Send streams through the pipe, by size of chunks and of memory and number of writers.
    Pipe(pipe::BenchPipe),
    #[command(hide = true)]
    Rank(rank::BenchRank),
}

/// By which way ranks move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Strategy {
    /// Stopped, through the pipeline
    Pipeline,
    /// Stopped, through a file in the shared directory of checkpoints
    Shared,
    /// Stopped, through a file of the node that they leave
    Local,
    /// Stopped, through a file of the node that they come to
    Staged,
    /// Through the pipeline while they run, then stopped for the rest
    Live,
}

/// What ranks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Content {
    /// Bytes without a pattern
    Noise,
    /// Numbers as text, whose digits have no pattern
    Text,
}

/// By what ranks go to the other node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// One TCP connection
    Tcp,
    /// Chunks of registered memory, which the target reads
    OfiRead,
    /// Chunks of registered memory, which the source writes
    OfiWrite,
}

impl Transport {
    fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::OfiRead => "ofi-read",
            Self::OfiWrite => "ofi-write",
        }
    }

    /// The settings of a job whose ranks go so.
    fn settings(self) -> [(&'static str, &'static str); 2] {
        let (transport, mode) = match self {
            Self::Tcp => ("tcp", "read"),
            Self::OfiRead => ("ofi", "read"),
            Self::OfiWrite => ("ofi", "write"),
        };
        [(mend_settings::MIGRATE_TRANSPORT.name, transport), (mend_settings::MIGRATE_OFI_MODE.name, mode)]
    }
}

impl Content {
    fn word(self) -> &'static str {
        match self {
            Self::Noise => "noise",
            Self::Text => "text",
        }
    }
}

impl Strategy {
    fn word(self) -> &'static str {
        match self {
            Self::Pipeline => "pipeline",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Staged => "staged",
            Self::Live => "live",
        }
    }

    /// What `mend migrate` is told.
    fn options(self) -> [&'static str; 2] {
        match self {
            Self::Pipeline => ["--mode", "frozen"],
            Self::Live => ["--mode", "live"],
            stored => ["--strategy", stored.word()],
        }
    }
}

/// `mend bench migrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend bench migrate                                        on a lab of two nodes on this machine
  mend bench migrate --hosts a,b --sizes 1G,2G --csv moves.csv --svg moves.svg
  mend bench migrate --sizes 1G --ranks 1 --strategies pipeline --transports tcp,ofi-read,ofi-write
  mend bench migrate --bandwidth 2gbit --sizes 256M --ranks 1 --strategies pipeline,local

Ranks hold noise, which nothing can compress, unless --content says something else, and rewrite a part of it if --dirty says so. They move to and fro; the first move is not counted. \
Files in the shared directory are synced, temporary ones are not. \
STOPPED is how long the rank stood still that did so for longest; THERE is when its last page was on the other node, from when it was stopped; \
WHOLE is all of it as who asks waits for it. SENT is what went over the link. MEMORY is the most that both nodes have in use beyond the ranks, \
files in memory and the kernel's buffers included: of a lab, whose nodes are one machine, and not for several ranks that move live. Phases are means over the ranks. All are medians over the runs. \
What is on the nodes besides should have nothing to do.")]
pub struct BenchMoves {
    /// Two nodes on which mendd runs, as in `mend run`; default: a lab of two nodes, which is made for it
    #[arg(long, value_name = "A,B")]
    pub hosts: Option<String>,
    /// File with them, one per line
    #[arg(short = 'f', long, alias = "machinefile", value_name = "FILE", conflicts_with = "hosts")]
    pub hostfile: Option<PathBuf>,
    /// Numbers of ranks that move at once
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub ranks: Vec<u32>,
    /// What they hold together: 64M, 1G
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64M,256M,1G", value_parser = bytes)]
    pub sizes: Vec<u64>,
    /// Ways to move them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "pipeline,shared,local,staged,live")]
    pub strategies: Vec<Strategy>,
    /// By what they go to the other node; there is a job for each, and their moves take turns. Files on the way go by tcp
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tcp")]
    pub transports: Vec<Transport>,
    /// What each rank rewrites, bytes per second: 0, 8M
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = dirty)]
    pub dirty: u64,
    /// What they hold
    #[arg(long, default_value = "noise")]
    pub content: Content,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Rate of the lab's links, as tc writes it (1gbit); default: no limit
    #[arg(long, conflicts_with_all = ["hosts", "hostfile"])]
    pub bandwidth: Option<String>,
    /// Write each measured move as a line of CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON: each measured move
    #[arg(long)]
    pub json: bool,
    /// Both nodes are this machine
    #[arg(long, hide = true)]
    pub one_machine: bool,
}

fn dirty(text: &str) -> Result<u64, &'static str> {
    if text == "0" { Ok(0) } else { bytes(text) }
}

/// Runs the command.
pub fn run(command: BenchCommand) -> Result<i32, Failure> {
    match command {
        BenchCommand::Rank(rank) => rank.run(),
        BenchCommand::Pipe(pipe) => pipe.run(),
        BenchCommand::Migrate(moves) => match hosts::given(moves.hosts.as_deref(), moves.hostfile.as_deref())?.as_slice() {
            [] => in_a_lab(&moves),
            named => moves::measure(&moves, moves::two_of(named)?),
        },
    }
}

/// This program, to be called with these arguments.
fn mend(arguments: &[&str]) -> Result<Command, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::new(format!("mend does not find itself: {error}"), "", 1))?;
    let mut command = Command::new(program);
    command.args(arguments);
    // Here they are for a thread that takes them.
    mend_kernel::signal_queue::unblock_in(&mut command);
    Ok(command)
}

fn not_called(error: &std::io::Error) -> Failure {
    Failure::new(format!("mend cannot be started: {error}"), "", 1)
}

/// A lab that is ended when this is dropped.
struct OwnLab(String);

impl OwnLab {
    fn up(bandwidth: Option<&str>) -> Result<Self, Failure> {
        interruption::watch()?;
        let name = format!("bench-{}", std::process::id());
        let mut command = mend(&["lab", "up", "--nodes", "2", "--name", &name])?;
        command.args(bandwidth.iter().flat_map(|rate| ["--bandwidth", rate]));
        let up = interruption::output(command.stdout(Stdio::null())).map_err(|error| not_called(&error))?;
        let lab = up.status.success().then_some(Self(name));
        interruption::check()?;
        // It has said why.
        if let Some(lab) = lab { Ok(lab) } else { Err(Failure::new("there is no lab to measure in", "name two nodes with --hosts", 1)) }
    }
}

impl Drop for OwnLab {
    fn drop(&mut self) {
        if let Ok(mut command) = mend(&["lab", "down", "--name", &self.0]) {
            interruption::apart(&mut command);
        }
    }
}

/// Options for the files that are asked for, wherever the command is called.
fn files(csv: Option<&PathBuf>, svg: Option<&PathBuf>) -> Vec<OsString> {
    let all = [("--csv", csv), ("--svg", svg)].into_iter();
    let option = |(option, file): (&str, Option<&PathBuf>)| {
        let file = file?;
        Some([option.into(), std::path::absolute(file).unwrap_or_else(|_| file.clone()).into()])
    };
    all.filter_map(option).flatten().collect()
}

/// Calls the same command on the head of a lab of its own, with its nodes as the hosts.
fn in_a_lab(moves: &BenchMoves) -> Result<i32, Failure> {
    // Whoever measures there opens them again.
    drop((shown::Output::open(moves.csv.as_ref())?, shown::Output::open(moves.svg.as_ref())?));
    let lab = OwnLab::up(moves.bandwidth.as_deref())?;
    let list = |all: &mut dyn Iterator<Item = String>| all.collect::<Vec<_>>().join(",");
    let mut words = vec![
        "--ranks".to_owned(),
        list(&mut moves.ranks.iter().map(u32::to_string)),
        "--sizes".to_owned(),
        list(&mut moves.sizes.iter().map(u64::to_string)),
        "--strategies".to_owned(),
        list(&mut moves.strategies.iter().map(|strategy| strategy.word().to_owned())),
        "--transports".to_owned(),
        list(&mut moves.transports.iter().map(|transport| transport.word().to_owned())),
        "--dirty".to_owned(),
        moves.dirty.to_string(),
        "--content".to_owned(),
        moves.content.word().to_owned(),
        "--runs".to_owned(),
        moves.runs.to_string(),
        "--one-machine".to_owned(),
    ];
    words.extend(moves.json.then(|| "--json".to_owned()));
    let this = std::env::current_exe().map_err(|error| not_called(&error))?;
    let this = this.to_string_lossy().into_owned();
    let mut command = mend(&["lab", "exec", "--name", &lab.0, "head", &this, "bench", "migrate", "--hosts", "node1,node2"])?;
    command.args(&words).args(files(moves.csv.as_ref(), moves.svg.as_ref()));
    let done = interruption::output(&mut command).map_err(|error| not_called(&error))?;
    interruption::check()?;
    Ok(done.status.code().unwrap_or(1))
}
