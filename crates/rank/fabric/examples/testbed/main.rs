//! Runs an MPI program over the fabric without daemons: plays PMI-1 server and the daemon's side of the agent's
//! conversation, puts ranks on pretended nodes, and disturbs them with suspends and moves at random moments.
//!
//! ```text
//! testbed -n RANKS [--per-node K] [--shake MEAN_MS] [--seed S] [--library DIR] -- PROGRAM ARGUMENTS…
//! ```
//! `--per-node K`: ranks 0..K pretend to be on node 0 and so on; 1 makes every channel TCP. `--shake`: every MEAN_MS
//! (on average) either all ranks are suspended and resumed, or one rank "moves": it is suspended, its peers drain
//! their channels to it, and the next map gives it a new generation and another node, so that its channels change
//! between shared memory and TCP.

mod agents;
mod pmi;

use agents::Agents;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct Options {
    ranks: u32,
    per_node: u32,
    shake: Option<u64>,
    seed: u64,
    library: String,
    program: Vec<String>,
}

fn options() -> Option<Options> {
    let mut options = Options { ranks: 2, per_node: u32::MAX, shake: None, seed: 1, library: String::from("."), program: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-n" => options.ranks = arguments.next()?.parse().ok()?,
            "--per-node" => options.per_node = arguments.next()?.parse().ok()?,
            "--shake" => options.shake = Some(arguments.next()?.parse().ok()?),
            "--seed" => options.seed = arguments.next()?.parse().ok()?,
            "--library" => options.library = arguments.next()?,
            "--" => {
                options.program = arguments.collect();
                break;
            }
            _ => return None,
        }
    }
    (!options.program.is_empty() && options.ranks > 0).then_some(options)
}

fn start(options: &Options, rank: u32, socket: &str, pmi: OwnedFd) -> std::io::Result<Child> {
    let library = std::fs::canonicalize(&options.library)?;
    // The rank's process id is known only to itself: a shell tells it on.
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg("MEND_RANK_PID=$$ LD_PRELOAD=\"$PRELOAD\" exec \"$@\"").arg("rank").args(&options.program);
    shell.env("MEND_RANK", rank.to_string()).env("MEND_SIZE", options.ranks.to_string()).env("MEND_SOCKET", socket);
    shell.env("PRELOAD", library.join("libmend-fi.so")).env("FI_PROVIDER_PATH", &library).env("FI_PROVIDER", "mend");
    shell.env("MPIR_CVAR_CH4_NETMOD", "ofi").env("PMI_RANK", rank.to_string()).env("PMI_SIZE", options.ranks.to_string());
    shell.env("PMI_FD", pmi.as_raw_fd().to_string());
    // SAFETY: only fcntl between fork and exec.
    unsafe {
        let number = pmi.as_raw_fd();
        shell.pre_exec(move || if libc::fcntl(number, libc::F_SETFD, 0) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) });
    }
    shell.spawn()
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: testbed -n RANKS [--per-node K] [--shake MEAN_MS] [--seed S] [--library DIR] -- PROGRAM ARGUMENTS…");
        return ExitCode::from(2);
    };
    let name = format!("@mend-testbed-{}", std::process::id());
    let agents = Arc::new(Agents::new(options.ranks, options.per_node));
    agents.listen(&name);
    let server = Arc::new(pmi::Server::new(options.ranks));
    let mut children = Vec::new();
    for rank in 0..options.ranks {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        server.serve(rank, ours);
        children.push(start(&options, rank, &name, theirs.into()).expect("the program starts"));
    }
    let over = Arc::new(AtomicBool::new(false));
    let shaker = options.shake.map(|mean| {
        let (agents, over, seed) = (agents.clone(), over.clone(), options.seed);
        std::thread::spawn(move || agents.shake(Duration::from_millis(mean), seed, &over))
    });
    let mut failed = false;
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait().expect("a child");
        if rank == 0 {
            over.store(true, Ordering::Relaxed);
        }
        if !status.success() {
            eprintln!("testbed: rank {rank} ended with {status}");
            failed = true;
        }
    }
    if let Some(shaker) = shaker {
        let (suspends, moves) = shaker.join().expect("the shaker");
        eprintln!("testbed: {suspends} suspends, {moves} moves");
    }
    ExitCode::from(u8::from(failed))
}
