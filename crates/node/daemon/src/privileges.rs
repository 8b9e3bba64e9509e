//! What this daemon may do to its ranks, found out once at start.
//!
//! A rank keeps its process id over a restore only in a PID namespace of its own. Root may make one; others make a
//! user namespace first, in which they may. Where neither works (containers, hardened kernels) ranks run without
//! namespaces and cannot be restored here; the reason is kept for the user.
//!
//! Faults assumed: any step may be refused, or pass and be useless (user namespaces whose capabilities a security
//! module takes away): what counts is a trial in a child process.

use mend_kernel::namespaces::{fork_and_run, keep_capabilities_over_exec, map_identity, unshare};
use mend_kernel::program::fork_with_pid;
use rustix::process::{Pid, WaitOptions, getegid, geteuid, waitpid};
use rustix::thread::UnshareFlags;
use std::io;

/// Whether ranks get namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// They do.
    Available {
        /// Time namespaces too.
        clocks: bool,
    },
    /// They don't.
    Refused {
        /// What the kernel said, as a clause.
        reason: String,
    },
}

/// Tries what is needed and leaves this process able to do it. To be called while it has a single thread.
///
/// # Errors
/// Only when not even a trial process can be made.
pub fn prepare() -> io::Result<Isolation> {
    if trial(make_rank_namespaces)?.is_ok() {
        return available();
    }
    if let Err(error) = trial(|| make_user_namespace().and_then(|()| make_rank_namespaces()))? {
        return Ok(Isolation::Refused { reason: format!("this node refuses user and PID namespaces ({error})") });
    }
    match make_user_namespace() {
        Ok(()) => available(),
        Err(error) => Ok(Isolation::Refused { reason: format!("this node refuses user namespaces ({error})") }),
    }
}

fn available() -> io::Result<Isolation> {
    let clocks = trial(|| {
        unshare(UnshareFlags::NEWTIME)?;
        std::fs::write("/proc/self/timens_offsets", "monotonic 1 0\nboottime 1 0\n")
    })?;
    Ok(Isolation::Available { clocks: clocks.is_ok() })
}

/// Runs `attempt` in a child process.
fn trial(attempt: impl FnOnce() -> io::Result<()>) -> io::Result<io::Result<()>> {
    let child = fork_and_run(|| match attempt() {
        Ok(()) => 0,
        // Error numbers fit an exit code (the largest is 133); 0 would be success.
        Err(error) => error.raw_os_error().filter(|errno| (1..=255).contains(errno)).unwrap_or(255),
    })?;
    wait_for(child)
}

fn wait_for(child: Pid) -> io::Result<io::Result<()>> {
    let Some((_, status)) = waitpid(Some(child), WaitOptions::empty())? else { return Ok(Ok(())) };
    Ok(match status.exit_status() {
        Some(0) => Ok(()),
        Some(255) | None => Err(io::Error::other("the trial was killed")),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
    })
}

/// What a supervisor will do, on trial: namespaces, a first process, a second with a chosen id.
fn make_rank_namespaces() -> io::Result<()> {
    unshare(UnshareFlags::NEWPID | UnshareFlags::NEWNS)?;
    let first = fork_and_run(|| {
        let chosen = Pid::from_raw(1000).map_or(Err(io::ErrorKind::InvalidInput.into()), |pid| fork_with_pid(pid, || 0));
        match chosen.and_then(wait_for) {
            Ok(Ok(())) => 0,
            Ok(Err(error)) | Err(error) => error.raw_os_error().unwrap_or(255),
        }
    })?;
    wait_for(first)?
}

fn make_user_namespace() -> io::Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER)?;
    map_identity(uid, gid)?;
    // Supervisors are executed and must find them; the ranks' programs lose them again.
    keep_capabilities_over_exec()
}
