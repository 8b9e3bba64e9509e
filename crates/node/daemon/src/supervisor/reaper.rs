//! The reaper's loop: starts the rank, passes signals on, reaps, and ends when the daemon lets go.

use super::order::{Event, Instruction, Launch};
use super::process_tree::{kill_descendants, reap};
use super::{Refused, receive, send, start};
use mend_kernel::namespaces::kill_rest_of_pid_namespace;
use mend_kernel::signal_queue::SignalQueue;
use mend_messages::daemon::ExitStatus;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, set_child_subreaper, wait};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

const SIGCHLD: i32 = Signal::CHILD.as_raw();
const SIGKILL: i32 = Signal::KILL.as_raw();

/// Runs the rank to its end and until the daemon closes its end of `control`. Returns the exit code.
pub(super) fn run(mut control: UnixStream, launch: &Launch, files: Vec<OwnedFd>) -> i32 {
    let Ok(children) = SignalQueue::new(&[SIGCHLD]) else { return 1 };
    let alone = launch.isolated && !launch.shared;
    if !alone {
        // Orphans come here instead of to the machine's pid 1, so that they can be found and ended.
        let _ = set_child_subreaper(Some(rustix::process::getpid()));
    }
    let rank = match start::start(launch, files) {
        Ok(rank) => rank,
        Err(Refused { step, errno }) => {
            let _ = send(&mut control, &Event::Failed { step, errno });
            return 1;
        }
    };
    let _ = send(&mut control, &Event::Running);
    watch(&mut control, &children, rank, alone);
    end_everything(alone);
    if !alone {
        // Their ids are free for another process of the rank.
        reap();
    }
    0
}

/// Returns when the daemon has let go (or cannot be understood, which must not keep processes alive).
fn watch(control: &mut UnixStream, children: &SignalQueue, rank: Pid, alone: bool) {
    loop {
        let mut ready = [PollFd::new(control, PollFlags::IN), PollFd::new(children, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let (instructed, signalled) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
        if signalled {
            while let Ok(Some(_)) = children.next() {}
            // One SIGCHLD may stand for several deaths.
            while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                if pid == rank && send(control, &Event::Ended(exit_status(status))).is_err() {
                    return;
                }
            }
        }
        if instructed {
            match receive(control) {
                Ok(Instruction::Signal(SIGKILL)) => end_everything(alone),
                Ok(Instruction::Signal(number)) => {
                    if let Some(signal) = Signal::from_named_raw(number) {
                        let _ = kill_process_group(rank, signal);
                    }
                }
                Ok(Instruction::Launch(_)) | Err(_) => return,
            }
        }
    }
}

/// `alone`: in a namespace of the rank's own.
fn end_everything(alone: bool) {
    if alone {
        // Fails for nobody: this is pid 1 of the namespace. What it misses dies with this process.
        let _ = kill_rest_of_pid_namespace();
    } else {
        kill_descendants();
    }
}

fn exit_status(status: WaitStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        // Stopped or continued are not asked for in `wait`.
        (None, None) => ExitStatus::Signal(SIGKILL),
    }
}
