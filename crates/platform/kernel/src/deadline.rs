//! A time by which this process is dead, unless it is put off: the kernel ends it, whether it runs, sleeps or is stopped.
//!
//! Measured: a timer of a PID namespace's first process cannot end that process (the kernel drops a SIGKILL that such a process
//! has coming from itself, stopped or not), one of any other process can, also while it is stopped (SIGSTOP). What is to die with it asks for
//! that by its parent-death signal, which ends a namespace's first process, too, as it comes from outside.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Duration;

/// The time since the machine began, that in which it was suspended included (`CLOCK_BOOTTIME`): the same to all processes.
#[must_use]
pub fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// This process's deadline; none until it is [set](Deadline::set).
#[derive(Debug)]
pub struct Deadline {
    timer: libc::timer_t,
}

impl Deadline {
    /// A deadline that is not set yet. It counts the time that the machine is suspended, too (`CLOCK_BOOTTIME`).
    ///
    /// # Errors
    /// What timer_create(2) says.
    pub fn new() -> io::Result<Self> {
        // SAFETY: all-zero bytes are a valid `sigevent`, of which only the fields below mean anything.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer: libc::timer_t = null_mut();
        // SAFETY: both point to values of their types that live for the call.
        match unsafe { libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer) } {
            0 => Ok(Self { timer }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// From now on the deadline is at this time since the machine began ([`since_boot`]), whatever it was; zero takes it away. One that is over ends
    /// the process at once.
    ///
    /// # Errors
    /// What timer_settime(2) says.
    pub fn set(&self, at: Duration) -> io::Result<()> {
        let value = libc::timespec { tv_sec: at.as_secs() as libc::time_t, tv_nsec: at.subsec_nanos().into() };
        let new = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: the timer is this process's own and lives as long as `self`; `new` lives for the call.
        match unsafe { libc::timer_settime(self.timer, libc::TIMER_ABSTIME, &raw const new, null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // SAFETY: the timer is this process's own and nobody uses it any more.
        unsafe { libc::timer_delete(self.timer) };
    }
}
