//! Joining, leaving and populating Linux namespaces.
//!
//! Invariants: nothing here allocates between a fork and what follows it in the child unless the process had a
//! single thread (`fork_and_run` refuses otherwise), so the child may use the whole standard library.
//! Faults assumed: any call may be refused by the kernel's configuration; the error is returned as it came, and
//! the caller says what to do about it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::process::Pid;
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, configure_capability_in_ambient_set, set_capabilities};

/// Number of threads of this process (from `/proc/self/task`, proc(5)).
pub fn thread_count() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Forks, runs `child` in the new process and ends that process with the returned code, without running exit
/// handlers or flushing the parent's buffers. Returns the child's pid to the parent.
///
/// # Errors
/// `ResourceBusy` in a process with more than one thread: the child would inherit locks that nobody holds any
/// more. Otherwise what fork(2) says. A panic in `child` ends the child with code 101.
pub fn fork_and_run(child: impl FnOnce() -> i32) -> io::Result<Pid> {
    if thread_count()? != 1 {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "this process has several threads and cannot be forked safely"));
    }
    // SAFETY: the process has a single thread, so the child finds every lock and the allocator in a sound state.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: `_exit` never returns and touches no state of this process.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no pid")),
    }
}

/// Forks a sibling: the new process has the caller's parent, not the caller, as its parent (`CLONE_PARENT`,
/// clone(2)). Returns `None` in the new process, its pid (as the caller's own PID namespace numbers it) in the
/// caller. A `setns` to a PID namespace made before takes effect for the new process.
///
/// # Errors
/// What clone(2) says; `EINVAL` when the caller is pid 1 of its namespace.
///
/// # Safety
/// As after fork(2) in a threaded program: until it calls execve(2) or `_exit(2)`, the new process may only call
/// async-signal-safe functions.
pub unsafe fn fork_sibling() -> io::Result<Option<Pid>> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is fork(2) with another parent; the contract about what
    // the new process may do is the caller's.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid as i32)),
    }
}

/// Ends the calling process at once: no exit handlers, no flushing (`_exit(2)`).
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` never returns and touches no state of this process.
    unsafe { libc::_exit(code) }
}

/// Moves the calling thread into new namespaces (unshare(2)). A new PID namespace is that of the next children.
///
/// # Errors
/// What unshare(2) says. `EINVAL` for anything that would split the open-file table or other shared state:
/// only `NEW…` flags are accepted.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    let namespaces = UnshareFlags::NEWCGROUP
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWTIME
        | UnshareFlags::NEWUSER
        | UnshareFlags::NEWUTS;
    if !namespaces.contains(flags) {
        return Err(io::Error::from(rustix::io::Errno::INVAL));
    }
    // SAFETY: CLONE_FILES is not among the flags, so no thread's file descriptors change meaning.
    unsafe { rustix::thread::unshare_unsafe(flags) }?;
    Ok(())
}

/// Maps `uid` and `gid`, and nothing else, to themselves in the user namespace the caller has just made, and
/// forbids setgroups(2) there, as user_namespaces(7) demands of a process without privileges outside.
///
/// # Errors
/// `EPERM` when `uid` and `gid` were not the caller's effective ids before it made the namespace.
pub fn map_identity(uid: u32, gid: u32) -> io::Result<()> {
    match fs::write("/proc/self/setgroups", "deny") {
        // Kernels before 3.19 have no such file and need no such step.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => other?,
    }
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))
}

/// Lets programs that this thread executes keep all capabilities it is permitted now, though its user id is not 0
/// (ambient capabilities, capabilities(7)). Allocates nothing, so it may be used between fork and exec.
///
/// # Errors
/// What capset(2) and prctl(2) say.
pub fn keep_capabilities_over_exec() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable = sets.permitted;
    set_capabilities(None, sets)?;
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if sets.permitted.contains(capability) {
            configure_capability_in_ambient_set(capability, true)?;
        }
    }
    Ok(())
}

/// Effective user id of the process at the other end of a unix socket, and its pid in this process's PID namespace,
/// or `None` when it has none there (`SO_PEERCRED`, unix(7)). rustix's own call takes the pid for non-zero, which
/// it is not for a peer in an outer PID namespace.
///
/// # Errors
/// `ENOTCONN`, `EOPNOTSUPP` for a socket that is not a connected unix one.
pub fn peer_of(socket: BorrowedFd<'_>) -> io::Result<(u32, Option<Pid>)> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is a plain structure of `length` bytes, of which the kernel writes no more.
    let failed = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &mut length) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((peer.uid, Pid::from_raw(peer.pid)))
}

/// Sends SIGKILL to every process this one may signal, except itself and pid 1 (kill(2) with pid -1).
///
/// # Errors
/// `EPERM` in a process that is not pid 1 of a PID namespace: there, "every process" is not a lab but a machine.
/// No process being left is not an error.
pub fn kill_rest_of_pid_namespace() -> io::Result<()> {
    if rustix::process::getpid() != Pid::INIT {
        return Err(io::Error::from(rustix::io::Errno::PERM));
    }
    // SAFETY: kill(2) reads no memory; as pid 1 the caller reaches its own PID namespace only.
    match unsafe { libc::kill(-1, libc::SIGKILL) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

/// Closes every file descriptor above 2 that is not listed in `keep`.
///
/// # Errors
/// Failing to list `/proc/self/fd`.
///
/// # Safety
/// Nothing in this process may use any other descriptor afterwards; meant for a process just forked.
pub unsafe fn close_other_files(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open {
        if fd > 2 && keep.iter().all(|kept| kept.as_raw_fd() != fd) {
            // SAFETY: the caller promised that nobody uses this descriptor any more. The listing's own
            // descriptor is closed already, which close(2) answers with EBADF.
            unsafe { libc::close(fd) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitOptions, waitpid};

    // One test: each assertion forks, and the harness's own threads make `fork_and_run` refuse.
    #[test]
    fn refuses_to_fork_with_threads() {
        assert!(thread_count().unwrap() > 1);
        let error = fork_and_run(|| 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    }

    #[test]
    fn refuses_to_split_open_files() {
        assert!(unshare(UnshareFlags::FILES).is_err());
    }

    #[test]
    fn refuses_to_kill_a_machine() {
        if rustix::process::getpid() != Pid::INIT {
            assert!(kill_rest_of_pid_namespace().is_err());
        }
    }

    #[test]
    fn sibling_belongs_to_the_caller_s_parent() {
        // A child forks a sibling, which therefore is our child and can be waited for here.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child only calls clone, write and _exit.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: both processes only write and exit from here.
            let code = match unsafe { fork_sibling() } {
                Ok(None) => 7,
                Ok(Some(pid)) => {
                    let raw = pid.as_raw_nonzero().get().to_ne_bytes();
                    rustix::io::write(&writer, &raw).map_or(2, |_| 0)
                }
                Err(_) => 3,
            };
            exit_now(code);
        }
        let mut raw = [0; 4];
        assert_eq!(rustix::io::read(&reader, &mut raw).unwrap(), 4);
        let sibling = Pid::from_raw(i32::from_ne_bytes(raw)).unwrap();
        let (_, status) = waitpid(Some(sibling), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(7));
        let child = Pid::from_raw(child).unwrap();
        let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }
}
