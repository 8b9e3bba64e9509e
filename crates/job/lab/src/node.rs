//! Pid 1 of a node: builds the node from inside, reaps its orphans, runs commands for clients that cannot join.
//!
//! Invariants: it ends when the holder closes its end of the connection, and the kernel then ends everything in the
//! node. A command that it runs for a client is killed when that client goes away.
//! Faults assumed: a client that sends no sound command, or vanishes at any moment.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use mend_kernel::namespaces::fork_and_run;
use mend_kernel::signal_queue::{SignalQueue, unblock_in};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};

use crate::plan::{LabPlan, PlannedNode};
use crate::protocol::{Failure, LabConnection, NodeSays, Order, RunEvent, RunSignal, Spawn, ready};
use crate::{daemons, mounts, network};

/// Lives as pid 1 of `node`, in its namespaces, until the holder closes `holder`; returns the exit code.
pub(crate) fn live(plan: &LabPlan, node: &PlannedNode, holder: &LabConnection) -> i32 {
    let _ = rustix::thread::set_name(&name_of(&node.name));
    let children = match SignalQueue::new(&[Signal::CHILD.as_raw()]) {
        Ok(children) => children,
        Err(error) => return give_up(holder, &Failure::new(format!("signalfd: {error}"))),
    };
    let built = rustix::system::sethostname(node.name.as_bytes())
        .map_err(|error| Failure::new(format!("set the host name: {}", io::Error::from(error))))
        .and_then(|()| mounts::mount_node(&plan.base));
    if answer(holder, built).is_err() {
        return 1;
    }
    loop {
        let woken = match ready(&[holder.as_fd(), children.as_fd()], None) {
            Ok(woken) => woken,
            Err(_) => return 1,
        };
        if woken[1] {
            while let Ok(Some(_)) = children.next() {}
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
        if !woken[0] {
            continue;
        }
        let answered = match holder.receive::<Order>() {
            Ok(Some((Order::Network, _))) => answer(holder, network::configure(node, plan.bandwidth)),
            Ok(Some((Order::Daemon, _))) => match &plan.daemon {
                Some(program) => answer(holder, daemons::start(plan, program, &node.name)),
                None => Ok(()),
            },
            Ok(Some((Order::Run, files))) => {
                // A client whose command cannot even be forked sees its connection closed.
                let _ = fork_and_run(|| serve_client(files));
                Ok(())
            }
            Ok(None) => return 0,
            Err(_) => return 1,
        };
        if answered.is_err() {
            return 1;
        }
    }
}

/// The first 15 bytes, as prctl(2) takes them, so that ps(1) tells the nodes apart.
pub(crate) fn name_of(node: &str) -> std::ffi::CString {
    std::ffi::CString::new(format!("mend-{node}")).unwrap_or_default()
}

fn answer(holder: &LabConnection, done: Result<(), Failure>) -> io::Result<()> {
    let says = match done {
        Ok(()) => NodeSays::Ready,
        Err(failure) => NodeSays::Failed(failure),
    };
    holder.send(&says, &[])
}

fn give_up(holder: &LabConnection, failure: &Failure) -> i32 {
    let _ = holder.send(&NodeSays::Failed(failure.clone()), &[]);
    1
}

/// Runs one command for a client outside this node: `files` are its connection, then what it sent with the request.
fn serve_client(files: Vec<OwnedFd>) -> i32 {
    let mut files = files.into_iter();
    let mut next = || files.next();
    let (Some(client), Some(input), Some(output), Some(errors), Some(spawn)) = (next(), next(), next(), next(), next()) else {
        return 1;
    };
    let client = LabConnection::new(client);
    let Ok(spawn) = read_spawn(spawn) else {
        return 1;
    };
    let event = match start(spawn, input.into(), output.into(), errors.into()) {
        Ok(child) => match attend(&client, child) {
            Ok(code) => RunEvent::Exited(code),
            Err(_) => return 1,
        },
        Err(event) => event,
    };
    i32::from(client.send(&event, &[]).is_err())
}

fn read_spawn(file: OwnedFd) -> io::Result<Spawn> {
    const MAX_REQUEST_BYTES: u64 = 16 << 20;
    let mut file = File::from(file);
    file.rewind()?;
    let mut text = Vec::new();
    file.take(MAX_REQUEST_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn start(spawn: Spawn, input: Stdio, output: Stdio, errors: Stdio) -> Result<Child, RunEvent> {
    let mut argv = spawn.argv.into_iter().map(OsString::from_vec);
    let failed = |error: io::Error| error.raw_os_error().unwrap_or(0);
    let program = argv.next().ok_or(RunEvent::NotStarted(0))?;
    let directory = PathBuf::from(OsString::from_vec(spawn.directory));
    if let Err(error) = std::env::set_current_dir(&directory) {
        return Err(RunEvent::NoDirectory(failed(error)));
    }
    let pairs = spawn.environment.into_iter();
    let mut command = Command::new(program);
    command
        .args(argv)
        .env_clear()
        .envs(pairs.map(|(key, value)| (OsString::from_vec(key), OsString::from_vec(value))))
        .stdin(input)
        .stdout(output)
        .stderr(errors)
        // A group of its own, so that a signal reaches the command's own children too, as from a terminal.
        .process_group(0);
    unblock_in(&mut command);
    command.spawn().map_err(|error| RunEvent::NotStarted(failed(error)))
}

/// Waits for the command while passing the client's signals on to it; kills it when the client is gone.
fn attend(client: &LabConnection, mut child: Child) -> io::Result<i32> {
    let group = Pid::from_child(&child);
    let ended = SignalQueue::new(&[Signal::CHILD.as_raw()])?;
    loop {
        if let Some(status) = child.try_wait()? {
            let killed = status.signal().map_or(1, |signal| 128 + signal);
            return Ok(status.code().unwrap_or(killed));
        }
        let woken = ready(&[ended.as_fd(), client.as_fd()], None)?;
        if woken[0] {
            while ended.next()?.is_some() {}
        }
        if woken[1] {
            let signal = match client.receive::<RunSignal>() {
                Ok(Some((RunSignal(number), _))) => Signal::from_named_raw(number),
                _ => Some(Signal::KILL),
            };
            if let Some(signal) = signal {
                let _ = kill_process_group(group, signal);
            }
            if signal == Some(Signal::KILL) {
                child.wait()?;
                return Ok(128 + Signal::KILL.as_raw());
            }
        }
    }
}
