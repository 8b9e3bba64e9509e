//! `mend lab …`: the arguments, what is printed, the exit codes.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use mend_kernel::signal_queue::SignalQueue;
use rustix::process::Signal;

use crate::client::Lab;
use crate::error::{LabError, doing};
use crate::launch::{Fresh, UpOptions, up};
use crate::plan::{Bandwidth, LabName};
use crate::protocol::{LabStatus, NodeState, NodeStatus, ready};

const DEFAULT_NAME: &str = "lab";

/// A cluster on one machine: nodes with their own network, host name, processes and files.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    #[command(after_help = "Examples:\n  mend lab up --nodes 3\n  mend lab up --bandwidth 1gbit --name slow")]
    /// Start a lab: `head`, and nodes `node1`, `node2`… with a daemon on each.
    Up {
        /// How many nodes besides `head` (1 to 64)
        #[arg(long, default_value_t = 2)]
        nodes: u32,
        /// Name of the lab
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
        /// Rate of each node's link in each direction, as tc writes it (1gbit, 250mbit); default: no limit
        #[arg(long)]
        bandwidth: Option<String>,
        /// Stay in the foreground: Ctrl-C ends the lab
        #[arg(long)]
        foreground: bool,
        /// Don't start mendd on the nodes
        #[arg(long)]
        no_daemons: bool,
    },
    #[command(
        after_help = "Examples:\n  mend lab exec head mend run -n 2 --hosts node1,node2 ./app\n  mend lab exec node1                a shell there"
    )]
    /// Run a command (default: your shell) on a node, with this terminal, directory and environment.
    Exec {
        /// Name of the lab
        #[arg(long, env = "MEND_LAB", default_value = DEFAULT_NAME)]
        name: String,
        /// `head`, `node1`, `node2`…
        node: String,
        /// The command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Show labs and their nodes.
    #[command(visible_alias = "status", after_help = "Examples:\n  mend lab ls\n  mend lab ls --json | jq '.[].nodes'")]
    Ls {
        /// Only the lab of this name
        #[arg(long)]
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    #[command(after_help = "Examples:\n  mend lab kill node2")]
    /// Make a node dead: its link goes down and all its processes are killed.
    Kill {
        /// Name of the lab
        #[arg(long, env = "MEND_LAB", default_value = DEFAULT_NAME)]
        name: String,
        /// `head`, `node1`, `node2`…
        node: String,
    },
    #[command(after_help = "Examples:\n  mend lab down\n  mend lab down --force              for scripts")]
    /// End a lab and everything in it, with the checkpoints that lie in it. At a terminal it asks first.
    Down {
        /// Name of the lab
        #[arg(long, env = "MEND_LAB", default_value = DEFAULT_NAME)]
        name: String,
        /// Neither ask about checkpoints nor name them
        #[arg(long)]
        force: bool,
    },
}

/// Does what the command says and returns the exit code to end with. To be called before any thread is started.
///
/// # Errors
/// Everything that keeps the command from being done; see `LabError::hint` and `LabError::exit_code`.
pub fn run(command: LabCommand) -> Result<i32, LabError> {
    match command {
        LabCommand::Up { nodes, name, bandwidth, foreground, no_daemons } => {
            let options = UpOptions {
                name: name.parse()?,
                nodes,
                bandwidth: bandwidth.map(|rate| rate.parse::<Bandwidth>()).transpose()?,
                daemons: !no_daemons,
            };
            let fresh = up(&options)?;
            match foreground {
                true => stay(fresh),
                false => {
                    // Detached last: whoever interrupts the command before it has spoken has no lab.
                    greet(&fresh.lab)?;
                    fresh.detach()?;
                    Ok(0)
                }
            }
        }
        LabCommand::Exec { name, node, command } => {
            let argv = match command.is_empty() {
                true => vec![env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())],
                false => command,
            };
            find(&name)?.exec(&node, &argv)
        }
        LabCommand::Ls { name, json } => list(name, json),
        LabCommand::Kill { name, node } => {
            find(&name)?.kill(&node)?;
            Ok(0)
        }
        LabCommand::Down { name, force } => {
            let lab = find(&name)?;
            if !force && !may_go(&lab)? {
                return Ok(1);
            }
            lab.down()?;
            Ok(0)
        }
    }
}

fn find(name: &str) -> Result<Lab, LabError> {
    Lab::find(&name.parse::<LabName>()?)
}

/// Says which checkpoints go with a lab. At a terminal the user decides.
fn may_go(lab: &Lab) -> Result<bool, LabError> {
    // One that does not answer is ended by force.
    let Ok(status) = lab.status() else { return Ok(true) };
    let (jobs, checkpoints) = checkpoints_in(&status);
    if checkpoints == 0 {
        return Ok(true);
    }
    let what = format!("{checkpoints} checkpoint(s) of {jobs} job(s) in the lab `{}` go with it", status.name);
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        mend_report::tell!("mend: {what}");
        return Ok(true);
    }
    mend_report::tell_part!("mend: {what}. End it? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(doing("read the answer"))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Jobs that have checkpoints in the lab's own files, and how many they have.
fn checkpoints_in(status: &LabStatus) -> (usize, usize) {
    // Its files are to be seen where it is.
    let seen = |path: &Path| match status.holder {
        0 => path.to_owned(),
        holder => Path::new(&format!("/proc/{holder}/root")).join(path.strip_prefix("/").unwrap_or(path)),
    };
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_number = |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u64>().is_ok());
    // A home elsewhere stays.
    let home = status.home.starts_with(&status.shared).then(|| seen(&status.home));
    let of_jobs = home.iter().flat_map(|home| entries(&home.join("jobs"))).map(|job| job.join("checkpoints"));
    // Those of --checkpoint-dir are below the jobs' names, in any directory.
    let elsewhere = entries(&seen(&status.shared)).flat_map(|one| entries(&one).chain([one]).collect::<Vec<_>>());
    let count = |one: PathBuf| entries(&one).filter(|path| is_number(path) && path.join("manifest.json").exists()).count();
    let jobs: Vec<usize> = of_jobs.chain(elsewhere).map(count).filter(|count| *count > 0).collect();
    (jobs.len(), jobs.iter().sum())
}

/// Holds a lab in the foreground until a signal or somebody's `down` ends it.
fn stay(fresh: Fresh) -> Result<i32, LabError> {
    let ending = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].map(Signal::as_raw);
    let signals = SignalQueue::new(&ending).map_err(doing("signalfd"))?;
    greet(&fresh.lab)?;
    say("Ctrl-C ends it.\n");
    loop {
        let woken = ready(&[signals.as_fd(), fresh.watch().as_fd()], None).map_err(doing("poll"))?;
        if woken[1] {
            say("The lab has ended.\n");
            return Ok(0);
        }
        if woken[0] && signals.next().map_err(doing("signalfd"))?.is_some() {
            fresh.lab.down()?;
            return Ok(0);
        }
    }
}

fn greet(lab: &Lab) -> Result<(), LabError> {
    let status = lab.status()?;
    let name = match status.name.as_str() {
        DEFAULT_NAME => String::new(),
        name => format!("--name {name} "),
    };
    let nodes: Vec<&str> = status.nodes.iter().map(|node| node.name.as_str()).collect();
    let nodes = match nodes[..] {
        [head, first, _, .., last] => format!("{head}, {first} to {last}"),
        _ => nodes.join(", "),
    };
    say(&format!(
        "The lab `{}` is up: {nodes}; they share {}.\nTry: mend lab exec {name}head hostname\n",
        status.name,
        status.shared.display(),
    ));
    Ok(())
}

fn list(name: Option<String>, json: bool) -> Result<i32, LabError> {
    mend_kernel::signal_queue::end_on_closed_pipe();
    let states = match name {
        Some(name) => vec![find(&name)?.status()?],
        None => states_of_all()?,
    };
    if json {
        let text = serde_json::to_string_pretty(&states).map_err(|error| doing("write JSON")(io::Error::from(error)))?;
        say(&format!("{text}\n"));
    } else if states.is_empty() {
        say("No lab is up. `mend lab up` starts one.\n");
    } else {
        states.iter().for_each(|state| say(&table(state)));
    }
    Ok(0)
}

/// What the caller's labs say of themselves. One that ends meanwhile is left out; one that does not answer is named on stderr.
fn states_of_all() -> Result<Vec<LabStatus>, LabError> {
    let mut states = Vec::new();
    for lab in Lab::all()? {
        match lab.status() {
            Ok(state) => states.push(state),
            Err(error) if error.is_an_end() => {}
            Err(error) => {
                mend_report::tell!("mend: {error}");
                error.hint().iter().for_each(|hint| mend_report::tell!("  hint: {hint}"));
            }
        }
    }
    Ok(states)
}

fn table(lab: &LabStatus) -> String {
    let links = lab.bandwidth.map_or("unlimited".to_owned(), |rate| rate.to_string());
    let row = |node: &NodeStatus| {
        let state = match node.state {
            NodeState::Up => "up",
            NodeState::Dead => "dead",
        };
        let daemon = match (node.daemon, node.state, node.listens) {
            (true, NodeState::Up, true) => "mendd",
            (true, NodeState::Up, false) => "mendd is dead",
            (true, NodeState::Dead, _) | (false, ..) => "-",
        };
        vec![node.name.clone(), node.address.to_string(), state.into(), daemon.into()]
    };
    let nodes = mend_report::table(&["NODE", "ADDRESS", "STATE", "DAEMON"], &lab.nodes.iter().map(row).collect::<Vec<_>>());
    format!("{}  holder {}  links {links}  shared {}\n{nodes}\n", lab.name, lab.holder, lab.shared.display())
}

/// Prints; a reader that has gone away (`mend lab ls | head -1`) is no error.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
