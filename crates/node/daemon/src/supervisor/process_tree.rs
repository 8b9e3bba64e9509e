//! Ending all descendants of this process without a PID namespace of their own.
//!
//! Faults assumed: descendants fork while they are being killed, or take long to give up much memory; the walk repeats until
//! none is left. One that changed its user (setuid) cannot be killed and is left.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

const KILL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a process that has ended may wait for its last thread, or for a parent that cannot be killed.
const ENDING_TIME: Duration = Duration::from_secs(30);

/// SIGKILL to every descendant, until there is none that is not a zombie and can be killed. The caller reaps.
///
/// The caller is a child subreaper, so orphans stay descendants.
pub(super) fn kill_descendants() {
    loop {
        let mut found = Vec::new();
        descendants(getpid(), &mut found);
        found.retain(|&pid| !is_zombie(pid) && kill_process(pid, Signal::KILL).is_ok());
        if found.is_empty() {
            return;
        }
        sleep(KILL_INTERVAL);
    }
}

/// Takes the children that have ended off the kernel's books. When none of the descendants is a zombie any more, their ids are
/// free.
pub(super) fn reap() {
    let patience = Instant::now() + ENDING_TIME;
    loop {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Err(_) => return,
                Ok(None) => break,
            }
        }
        let mut left = Vec::new();
        descendants(getpid(), &mut left);
        // The first of several threads is one until the others have ended, too.
        if !left.into_iter().any(is_zombie) || Instant::now() > patience {
            return;
        }
        sleep(KILL_INTERVAL);
    }
}

fn descendants(of: Pid, found: &mut Vec<Pid>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", of.as_raw_nonzero())) else { return };
    for thread in threads.flatten() {
        let Ok(children) = fs::read_to_string(thread.path().join("children")) else { continue };
        for child in children.split_whitespace().filter_map(|text| Pid::from_raw(text.parse().ok()?)) {
            if !found.contains(&child) {
                found.push(child);
                descendants(child, found);
            }
        }
    }
}

fn is_zombie(pid: Pid) -> bool {
    // The state is the first field after the parenthesised name, which may hold anything (proc_pid_stat(5)).
    fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .ok()
        .and_then(|stat| stat.rsplit(')').next().map(|rest| rest.trim_start().starts_with(['Z', 'X'])))
        .unwrap_or(true)
}
