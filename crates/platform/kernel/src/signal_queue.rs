//! Signals as a file to read: blocked, queued by the kernel and taken one by one (signalfd(2)).
//!
//! Invariants: a signal in the queue's set is never delivered to a handler while the queue lives in a process of
//! one thread; dropping the queue discards what it still holds and puts the thread's signal mask back.
//! Faults assumed: none beyond the kernel running out of descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals taken from ordinary delivery.
#[derive(Debug)]
pub struct SignalQueue {
    fd: OwnedFd,
    old_mask: libc::sigset_t,
}

/// One signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Signal number, signal(7).
    pub signal: i32,
    /// Whether the kernel made it (a terminal's Ctrl-C) rather than a process that called kill(2).
    pub from_kernel: bool,
}

impl SignalQueue {
    /// Blocks `signals` in the calling thread and queues them from now on. Reading never blocks.
    ///
    /// # Errors
    /// `EINVAL` for a number that is no signal; `EMFILE`.
    pub fn new(signals: &[i32]) -> io::Result<SignalQueue> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set it is given.
        let mut set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for &signal in signals {
            // SAFETY: `set` is an initialised set.
            if unsafe { libc::sigaddset(&mut set, signal) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: -1 asks for a new descriptor; `set` is an initialised set.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut old_mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both pointers are valid; on success the old mask is written.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, old_mask.as_mut_ptr()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: pthread_sigmask succeeded and wrote it.
        let old_mask = unsafe { old_mask.assume_init() };
        Ok(SignalQueue { fd, old_mask })
    }

    /// The next signal, if one is waiting.
    ///
    /// # Errors
    /// What read(2) says, except that nothing waiting is `None`.
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long and any bytes are a valid value of this plain structure.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read < 0 {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            };
        }
        // SAFETY: zeroed before, and signalfd only hands out whole structures.
        let info = unsafe { info.assume_init() };
        const SI_KERNEL: i32 = 0x80; // asm-generic/siginfo.h
        Ok(Some(Arrived { signal: info.ssi_signo as i32, from_kernel: info.ssi_code == SI_KERNEL }))
    }
}

impl SignalQueue {
    /// Makes `command`'s process start with the signal mask from before the queue: masks survive exec(2), and
    /// the standard library leaves them as they are.
    pub fn undo_in(&self, command: &mut Command) {
        start_with_mask(command, self.old_mask);
    }
}

/// Makes `command`'s process start with no signal blocked, as programs expect.
pub fn unblock_in(command: &mut Command) {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    let none = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        none.assume_init()
    };
    start_with_mask(command, none);
}

fn start_with_mask(command: &mut Command, mask: libc::sigset_t) {
    let set = move || {
        // SAFETY: `mask` is an initialised set; the old mask is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) } {
            0 => Ok(()),
            failed => Err(io::Error::from_raw_os_error(failed)),
        }
    };
    // SAFETY: `set` makes one system call, which is async-signal-safe.
    unsafe { command.pre_exec(set) };
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SignalQueue {
    fn drop(&mut self) {
        // Or they would be delivered as soon as they are unblocked, though they came for whom the queue served.
        while let Ok(Some(_)) = self.next() {}
        // SAFETY: the mask was written by the kernel; restoring it cannot fail.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.old_mask, std::ptr::null_mut());
        }
    }
}

/// Gives every signal its default disposition again, as a program started from a login has: what a shell set
/// to ignore for a background job (SIGINT, SIGQUIT) would otherwise be inherited by all descendants. Except
/// SIGPIPE, which the standard library ignores and gives back to the programs it starts.
///
/// # Safety
/// No code of this process may depend on a handler it installed; meant for a process just forked.
pub unsafe fn reset_dispositions() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: SIG_DFL refers to no code. SIGKILL, SIGSTOP and libc's own numbers are refused, rightly.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Lets a write to a pipe that nobody reads end this process, as it does any filter. Rust programs start with that
/// signal ignored.
pub fn end_on_closed_pipe() {
    // SAFETY: the default action needs no handler, and nothing else of this process relies on SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_and_restores() {
        let queue = SignalQueue::new(&[libc::SIGUSR2]).unwrap();
        assert_eq!(queue.next().unwrap(), None);
        // SAFETY: sends a blocked signal to this very thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        let arrived = queue.next().unwrap().unwrap();
        assert_eq!(arrived.signal, libc::SIGUSR2);
        assert!(!arrived.from_kernel);
        assert_eq!(queue.next().unwrap(), None);
    }

    #[test]
    fn what_was_not_taken_is_discarded() {
        let queue = SignalQueue::new(&[libc::SIGUSR2]).unwrap();
        // SAFETY: sends a blocked signal to this very thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        drop(queue); // delivered, the signal would end the tests
    }

    #[test]
    fn programs_start_with_their_signals() {
        let queue = SignalQueue::new(&[libc::SIGUSR1]).unwrap();
        let blocked = |change: fn(&SignalQueue, &mut Command)| {
            let mut command = Command::new("grep");
            change(&queue, command.args(["SigBlk", "/proc/self/status"]));
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        assert!(blocked(|_, _| ()).trim().ends_with("200"));
        assert!(blocked(|_, command| unblock_in(command)).trim().ends_with("0000000000000000"));
        assert!(!blocked(|queue, command| queue.undo_in(command)).trim().ends_with("200"));
    }

    #[test]
    fn refuses_what_is_no_signal() {
        assert!(SignalQueue::new(&[4711]).is_err());
    }
}
