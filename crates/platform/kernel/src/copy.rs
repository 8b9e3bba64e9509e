//! A copy of this process that holds its memory as it is now, and that the program does not notice.
//!
//! The copy is made like a fork, but its end sends no signal and is seen by no `wait` of the program's (clone(2): exit signal
//! 0). Until [`keep_only`] it shares the descriptors, so that it never keeps a pipe or socket open that the program has closed;
//! until then the original must leave open what the copy keeps. It has one thread, the caller's: everything in it is raw system calls and memory.
//!
//! Sources: clone(2), pidfd_open(2), close_range(2), waitid(2), ioprio_set(2).

use core::ffi::c_void;
use mend_freestanding::{check, syscall};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Descriptors of the parts of Mend inside a rank start here, out of the way of the program's.
pub const FIRST_DESCRIPTOR: i32 = 200;

/// Which of the two this is.
#[derive(Debug)]
pub enum Side {
    /// The process as it was.
    Original(Copy),
    /// The copy. Its address space is its own.
    Copy,
}

/// The copy, as the original sees it.
#[derive(Debug)]
pub struct Copy {
    /// Its id, as this process sees it.
    pub pid: i32,
    pidfd: OwnedFd,
}

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By `exit`, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// Makes the copy.
///
/// # Safety
/// The copy must not return into code that needs other threads, locks that they hold, or descriptors after [`keep_only`]. It
/// must end by [`leave`].
///
/// # Errors
/// The errno: `EAGAIN` (processes are limited), `ENOMEM`, `ENOSYS` (a kernel before Linux 5.3). There is no copy then.
pub unsafe fn copy() -> Result<Side, i32> {
    const FLAGS: i32 = libc::CLONE_FILES | libc::CLONE_PIDFD;
    let mut pidfd = -1i32;
    // SAFETY: without a stack and without CLONE_VM both sides go on here, each on its own memory; the kernel writes one int
    // into `pidfd`, in the original alone.
    let result = unsafe { syscall(libc::SYS_clone, [FLAGS as usize, 0, (&raw mut pidfd) as usize, 0, 0, 0]) };
    match check(result)? as i32 {
        0 => Ok(Side::Copy),
        pid => known(pid, pidfd).map(Side::Original),
    }
}

/// Starts a process that shares all memory with this one instead, and otherwise is like a copy: it runs `function(argument)` on
/// the stack that ends at `stack_top`.
///
/// # Safety
/// `function` must not unwind, must use neither thread-local memory nor locks, and nothing that anybody else changes or gives
/// back before [`Copy::reap`] tells of its end; the stack and `argument` above all. It must end by [`leave`].
///
/// # Errors
/// As [`copy()`].
pub unsafe fn beside(stack_top: usize, function: unsafe extern "C" fn(*mut c_void) -> !, argument: *mut c_void) -> Result<Copy, i32> {
    const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PIDFD;
    let mut pidfd = -1i32;
    let result: usize;
    // SAFETY: the new process begins behind the system call, on its own stack, and leaves this code for good; in the original the
    // kernel writes one int into `pidfd`.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as usize => result,
            in("rdi") FLAGS as usize,
            in("rsi") stack_top & !15,
            in("rdx") &raw mut pidfd,
            in("r10") 0usize,
            in("r8") 0usize,
            in("r12") argument,
            in("r13") function,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    known(check(result as isize)? as i32, pidfd)
}

/// What the kernel has just made.
fn known(pid: i32, pidfd: i32) -> Result<Copy, i32> {
    if pidfd < 0 {
        // SAFETY: plain numbers; a child of this thread that nobody else knows.
        unsafe {
            syscall(libc::SYS_kill, [pid as usize, libc::SIGKILL as usize, 0, 0, 0, 0]);
            syscall(libc::SYS_wait4, [pid as usize, 0, libc::__WALL as usize, 0, 0, 0]);
        }
        return Err(libc::ENOSYS);
    }
    // SAFETY: the kernel has just made it for this call.
    let low = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let pidfd = rustix::io::fcntl_dupfd_cloexec(&low, FIRST_DESCRIPTOR).unwrap_or(low);
    Ok(Copy { pid, pidfd })
}

impl Copy {
    /// Readable once the copy has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        rustix::fd::AsFd::as_fd(&self.pidfd)
    }

    /// SIGKILL. Nothing happens if it has ended.
    pub fn kill(&self) {
        // SAFETY: plain numbers.
        unsafe { syscall(libc::SYS_pidfd_send_signal, [self.pidfd.as_raw_fd() as usize, libc::SIGKILL as usize, 0, 0, 0, 0]) };
    }

    /// Takes notice of its end, if it has ended: nothing of it remains then. `Some` once.
    #[must_use]
    pub fn reap(&self) -> Option<End> {
        const P_PIDFD: usize = 3;
        const OPTIONS: i32 = libc::WEXITED | libc::WNOHANG | libc::__WALL;
        let mut info = [0i32; 32];
        let arguments = [P_PIDFD, self.pidfd.as_raw_fd() as usize, info.as_mut_ptr() as usize, OPTIONS as usize, 0, 0];
        // SAFETY: the kernel writes a siginfo of 128 bytes into `info`.
        check(unsafe { syscall(libc::SYS_waitid, arguments) }).ok()?;
        // siginfo_t of SIGCHLD: signo, errno, code, padding, pid, uid, status.
        match (info[0], info[2]) {
            (0, _) => None,
            (_, libc::CLD_EXITED) => Some(End::Exited(info[6])),
            _ => Some(End::Killed(info[6])),
        }
    }

    /// Waits until it has ended, for as long as that takes. Nobody has been told of its end before.
    #[must_use]
    pub fn await_end(&self) -> End {
        loop {
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.ended(), PollFlags::IN)], None);
            if let Some(end) = self.reap() {
                return end;
            }
        }
    }

    /// Its id as `/proc` shows it, which may belong to an outer PID namespace.
    #[must_use]
    pub fn outer(&self) -> Option<i32> {
        let text = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", self.pidfd.as_raw_fd())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
    }
}

/// In a copy: it ends when the thread that made it does. False if that has ended already.
#[must_use]
pub fn end_with(original: i32) -> bool {
    // SAFETY: plain numbers.
    unsafe {
        syscall(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0, 0]);
        syscall(libc::SYS_getppid, [0; 6]) as i32 == original
    }
}

/// In a copy: descriptors of its own, of which only these (ascending) stay open. From here on the original may close or reuse its
/// numbers.
///
/// # Errors
/// The errno if they cannot be made its own.
pub fn keep_only(kept: &[i32]) -> Result<(), i32> {
    const CLOSE_RANGE_UNSHARE: usize = 2;
    let mut from = 0usize;
    // From the top down: what lies above the highest kept one is not even copied.
    let top = kept.last().map_or(0, |fd| *fd as usize + 1);
    // SAFETY: plain numbers; this process has one thread, which knows what it keeps.
    let close = |first: usize, last: usize| unsafe { syscall(libc::SYS_close_range, [first, last, CLOSE_RANGE_UNSHARE, 0, 0, 0]) };
    if check(close(top, u32::MAX as usize)).is_err() {
        return keep_only_one_by_one(kept);
    }
    for fd in kept.iter().map(|fd| *fd as usize) {
        if from < fd {
            close(from, fd - 1);
        }
        from = fd + 1;
    }
    Ok(())
}

/// Before Linux 5.9.
fn keep_only_one_by_one(kept: &[i32]) -> Result<(), i32> {
    const MAX_DESCRIPTORS: u64 = 1 << 16;
    // SAFETY: plain numbers.
    check(unsafe { syscall(libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0]) })?;
    let mut limit = [0u64; 2];
    let arguments = [0, libc::RLIMIT_NOFILE as usize, 0, limit.as_mut_ptr() as usize, 0, 0];
    // SAFETY: prlimit64 writes two words into `limit`.
    unsafe { syscall(libc::SYS_prlimit64, arguments) };
    for fd in (0..limit[1].min(MAX_DESCRIPTORS) as i32).filter(|fd| kept.binary_search(fd).is_err()) {
        // SAFETY: a descriptor of this process alone, which nothing here uses.
        unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
    }
    Ok(())
}

/// In a copy: behind everybody else at the processor and the disk. Each step is tried; none is needed.
pub fn stand_back() {
    const NICE: usize = 10;
    const IOPRIO_WHO_PROCESS: usize = 1;
    const LOWEST_BEST_EFFORT: usize = 2 << 13 | 7;
    let parameter = 0i32;
    // SAFETY: plain numbers; sched_setscheduler reads one int, prctl a short name, setrlimit two words.
    unsafe {
        syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, c"mend-writer".as_ptr() as usize, 0, 0, 0, 0]);
        syscall(libc::SYS_sched_setscheduler, [0, libc::SCHED_BATCH as usize, (&raw const parameter) as usize, 0, 0, 0]);
        syscall(libc::SYS_setpriority, [libc::PRIO_PROCESS as usize, 0, NICE, 0, 0, 0]);
        syscall(libc::SYS_ioprio_set, [IOPRIO_WHO_PROCESS, 0, LOWEST_BEST_EFFORT, 0, 0, 0]);
        // A copy that fails leaves no core of the program behind.
        let limit = [0u64; 2];
        syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_CORE as usize, limit.as_ptr() as usize, 0, 0, 0]);
    }
}

/// In a copy whose memory is its own: it is the first that the out-of-memory killer takes.
pub fn die_first() {
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, rustix::fs::Mode::empty()) {
        let _ = rustix::io::write(file, b"1000");
    }
}

/// Ends a copy.
pub fn leave(code: i32) -> ! {
    loop {
        // SAFETY: exit_group does not return.
        unsafe { syscall(libc::SYS_exit_group, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_memory_of_the_moment_and_nobody_sees_it() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (go, went) = rustix::pipe::pipe().unwrap();
        let mut value = 7u8;
        let original = std::process::id() as i32;
        let kept = {
            let mut kept = [writer.as_raw_fd(), go.as_raw_fd()];
            kept.sort_unstable();
            kept
        };
        // SAFETY: the copy makes system calls only and leaves.
        match unsafe { copy() }.unwrap() {
            Side::Copy => {
                let good = end_with(original) && keep_only(&kept).is_ok();
                stand_back();
                let _ = rustix::io::write(&writer, b"r");
                let _ = rustix::io::read(&go, &mut [0u8]);
                let _ = rustix::io::write(&writer, &[value]);
                leave(if good && value == 7 { 3 } else { 4 });
            }
            Side::Original(copy) => {
                value += 1;
                assert!(copy.reap().is_none());
                let outer = copy.outer().unwrap();
                // SAFETY: wait4 with no place for a status, of one process.
                let seen = unsafe { libc::waitpid(outer, std::ptr::null_mut(), libc::WNOHANG) };
                assert_eq!((seen, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));
                let mut byte = [0u8];
                assert_eq!((rustix::io::read(&reader, &mut byte).unwrap(), byte[0]), (1, b'r'));
                drop(writer);
                rustix::io::write(&went, b"x").unwrap();
                assert_eq!((rustix::io::read(&reader, &mut byte).unwrap(), byte[0], value), (1, 7, 8));
                assert_eq!(copy.await_end(), End::Exited(3));
                assert!(copy.reap().is_none());
            }
        }
    }

    #[test]
    fn a_copy_closes_what_the_program_closes_and_can_be_killed() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (told, tells) = rustix::pipe::pipe().unwrap();
        // SAFETY: the copy makes system calls only and never returns.
        match unsafe { copy() }.unwrap() {
            Side::Copy => {
                let _ = keep_only(&[tells.as_raw_fd()]);
                let _ = rustix::io::write(&tells, b"x");
                loop {
                    std::hint::spin_loop();
                }
            }
            Side::Original(copy) => {
                rustix::io::read(&told, &mut [0u8]).unwrap();
                drop(writer);
                // The end of the pipe is seen while the copy lives.
                assert_eq!(rustix::io::read(&reader, &mut [0u8]).unwrap(), 0);
                copy.kill();
                assert_eq!(copy.await_end(), End::Killed(libc::SIGKILL));
            }
        }
    }

    #[test]
    fn a_copy_ends_with_the_thread_that_made_it() {
        let copy = std::thread::spawn(|| {
            let original = std::process::id() as i32;
            let (told, tells) = rustix::pipe::pipe().unwrap();
            // SAFETY: the copy makes system calls only and never returns.
            match unsafe { copy() }.unwrap() {
                Side::Copy => {
                    let _ = end_with(original);
                    let _ = rustix::io::write(&tells, b"x");
                    loop {
                        std::hint::spin_loop();
                    }
                }
                Side::Original(copy) => {
                    rustix::io::read(&told, &mut [0u8]).unwrap();
                    copy
                }
            }
        })
        .join()
        .unwrap();
        assert_eq!(copy.await_end(), End::Killed(libc::SIGKILL));
    }
}
