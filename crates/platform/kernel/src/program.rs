//! Starting a program exactly as asked: with a chosen process id, chosen descriptors at chosen numbers, and nothing
//! inherited by accident.
//!
//! Invariants: a fork is refused in a process with more than one thread, so the child may use the whole standard
//! library; what [`execute`] hands over is all that the program gets.
//! Faults assumed: the kernel may refuse any step (no privilege, the id is taken); the error is returned as it came.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::Pid;

use crate::namespaces::thread_count;

/// `struct clone_args` of linux/sched.h, version 1 (Linux 5.5, `set_tid`).
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
}
const _: () = assert!(size_of::<CloneArguments>() == 80);

/// Forks like [`crate::namespaces::fork_and_run`], and gives the child the process id `pid` in the PID namespace that
/// the caller's children belong to (clone3(2), `set_tid`).
///
/// # Errors
/// `ResourceBusy` in a process with several threads; `EEXIST` if the id is taken; `EINVAL` if it is out of the
/// namespace's range; `EPERM` without `CAP_CHECKPOINT_RESTORE` over the namespace; `ENOSYS` before Linux 5.5.
pub fn fork_with_pid(pid: Pid, child: impl FnOnce() -> i32) -> io::Result<Pid> {
    if thread_count()? != 1 {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "this process has several threads and cannot be forked safely"));
    }
    let wanted: libc::pid_t = pid.as_raw_nonzero().get();
    let arguments = CloneArguments {
        exit_signal: libc::SIGCHLD as u64,
        set_tid: (&raw const wanted) as u64,
        set_tid_size: 1,
        ..CloneArguments::default()
    };
    // SAFETY: without CLONE_VM this is fork(2); `arguments` and `wanted` live across the call and are of the size told.
    // The process has a single thread, so the child finds every lock and the allocator in a sound state.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            crate::namespaces::exit_now(code)
        }
        raw => Pid::from_raw(raw as i32).ok_or_else(|| io::Error::other("clone3 returned no pid")),
    }
}

/// A descriptor and the number at which the program finds it.
#[derive(Debug)]
pub struct InheritedFile {
    /// The descriptor.
    pub file: OwnedFd,
    /// Its number in the program, 0 or more.
    pub number: RawFd,
}

/// Becomes another program (execve(2)) that has the `files` at their numbers and no other descriptor, all signals
/// unblocked and at their default disposition. Meant for a process just forked.
///
/// Returns only on failure. Then the process has lost its descriptors but for `report` (which may have another
/// number): all it can do is tell the error there and end.
pub fn execute(path: &CStr, argv: &[CString], env: &[CString], files: &[InheritedFile], report: &mut OwnedFd) -> io::Error {
    match place_files(files, report) {
        Ok(()) => {}
        Err(error) => return error,
    }
    crate::table::make_room(report.as_fd());
    default_signals();
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end with a null pointer, and their strings live until the call returns, which is on failure.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

fn place_files(files: &[InheritedFile], report: &mut OwnedFd) -> io::Result<()> {
    // Everything moves out of the way first: one file's number may be another one's place.
    let above = files.iter().map(|placed| placed.number).max().unwrap_or(2).max(2) + 1;
    *report = fcntl_dupfd_cloexec(&*report, above)?;
    let moved: Vec<OwnedFd> = files.iter().map(|placed| fcntl_dupfd_cloexec(&placed.file, above)).collect::<Result<_, _>>()?;
    close_all_on_exec()?;
    for (file, placed) in moved.iter().zip(files) {
        // SAFETY: dup2(2) touches no memory. What was open at that number is not used any more: this process is about
        // to become another one, and what it still needs was moved above every number placed.
        if unsafe { libc::dup2(file.as_raw_fd(), placed.number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Marks every open descriptor, so that execve(2) closes it. Works through `/proc` as close_range(2) has no such flag
/// before Linux 5.11.
fn close_all_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        // SAFETY: fcntl(2) with F_SETFD touches no memory and closes nothing by itself.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Every signal at its default disposition and unblocked, as a program finds them after a login.
fn default_signals() {
    /// `struct sigaction` as rt_sigaction(2) takes it: handler (0 is `SIG_DFL`), flags, restorer, mask.
    const DEFAULT: [u64; 4] = [0; 4];
    for signal in 1..=libc::SIGRTMAX() {
        // By system call, as the C library refuses its own signals (32, 33), which its posix_spawn leaves ignored.
        // SAFETY: only called on the way to execve(2), which would drop every handler anyway; the kernel reads 32
        // bytes. SIGKILL and SIGSTOP are refused, rightly.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), 0usize, 8usize) };
    }
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given, and the mask call only reads it.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threaded_process_is_not_forked() {
        // The test harness has at least two threads.
        let error = fork_with_pid(Pid::from_raw(4711).unwrap(), || 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    }
}
