//! What the kernel keeps for the process beside memory, threads and descriptors.

use crate::park::pending::Pending;
use crate::park::{Parked, monotonic};
use crate::process::attributes::Attributes;
use crate::process::scheduling::{self, Scheduling};
use crate::process::timers::{self, Timer};
use mend_freestanding::{check, syscall};
use mend_kernel::threads::{Disposition, disposition, set_disposition};
use std::io;

/// Resources of getrlimit(2).
const RESOURCE_COUNT: usize = 16;

/// As it was when the threads were parked.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// `CLOCK_MONOTONIC` when the timers were read, nanoseconds.
    pub monotonic: u64,
    pub executable: String,
    pub directory: String,
    umask: u32,
    /// Soft and hard.
    limits: [(u64, u64); RESOURCE_COUNT],
    /// By signal number - 1.
    dispositions: [Disposition; 64],
    /// Interval and value of the three interval timers: seconds, microseconds.
    timers: [[u64; 4]; 3],
    posix_timers: Vec<Timer>,
    pending: Pending,
    scheduling: Vec<Scheduling>,
    attributes: Attributes,
}

/// A step of a rebuild that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the working directory {0} cannot be entered: {1}")]
    Directory(String, rustix::io::Errno),
    #[error("the handler of signal {0} cannot be set (errno {1})")]
    Signal(i32, i32),
    #[error("POSIX timer {0} cannot be made again (errno {1})")]
    Timer(i32, i32),
    #[error("the process cannot get back {0}")]
    Attribute(&'static str),
}

/// Number of `ITIMER_REAL`.
const REAL_TIMER: usize = 0;
/// The signal of each interval timer.
const SIGNALS: [i32; 3] = [libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF];

fn interval_timers() -> [[u64; 4]; 3] {
    let mut timers = [[0; 4]; 3];
    for (which, timer) in timers.iter_mut().enumerate() {
        // SAFETY: getitimer writes four words into `timer`.
        unsafe { syscall(libc::SYS_getitimer, [which, timer.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    }
    timers
}

/// Stops all three.
pub(crate) fn stop_interval_timers() {
    let off = [0u64; 4];
    for which in 0..SIGNALS.len() {
        // SAFETY: setitimer reads four words from `off`.
        unsafe { syscall(libc::SYS_setitimer, [which, off.as_ptr() as usize, 0, 0, 0, 0]) };
    }
}

/// Timers, and the signals that they have sent. Time goes on while signals are taken and sent anew: a timer that has run out meanwhile
/// has either its signal among those that were taken, or is as it was before. So each is read twice.
fn timers_and_signals(parked: &Parked) -> io::Result<([[u64; 4]; 3], Vec<Timer>, Pending)> {
    let posix = || timers::read(parked).ok_or_else(|| io::Error::other("/proc/self/timers has an unknown form"));
    let before = (interval_timers(), posix()?);
    let pending = Pending::read(parked).ok_or_else(|| io::Error::other("there are too many pending signals"))?;
    let (mut interval, mut after) = (interval_timers(), posix()?);
    for ((now, before), signal) in interval.iter_mut().zip(before.0).zip(SIGNALS) {
        timers::undo_unless(now, before, || pending.has(signal));
    }
    for (now, before) in after.iter_mut().zip(&before.1) {
        now.undo_unless(before, |number| pending.has_of_timer(number));
    }
    Ok((interval, after, pending))
}

impl State {
    /// Reads it. Allocates, but not with the C library.
    pub fn read(parked: &Parked) -> io::Result<Self> {
        let link = |path: &str| rustix::fs::readlink(path, Vec::new()).map(|link| String::from_utf8_lossy(link.as_bytes()).into_owned());
        let status = std::fs::read_to_string("/proc/self/status")?;
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let umask = umask
            .and_then(|text| u32::from_str_radix(text.trim(), 8).ok())
            .ok_or_else(|| io::Error::other("/proc/self/status has no umask"))?;
        let (timers, posix_timers, pending) = timers_and_signals(parked)?;
        let mut state = Self {
            monotonic: monotonic(),
            executable: link("/proc/self/exe")?,
            directory: link("/proc/self/cwd")?,
            umask,
            limits: [(0, 0); RESOURCE_COUNT],
            dispositions: [Disposition::default(); 64],
            timers,
            posix_timers,
            pending,
            scheduling: scheduling::read(parked.threads().map(|slot| slot.tid)),
            attributes: Attributes::read(),
        };
        for (resource, limit) in state.limits.iter_mut().enumerate() {
            let mut raw = [0u64; 2];
            // SAFETY: prlimit64 writes two words into `raw`.
            check(unsafe { syscall(libc::SYS_prlimit64, [0, resource, 0, raw.as_mut_ptr() as usize, 0, 0]) })
                .map_err(io::Error::from_raw_os_error)?;
            *limit = (raw[0], raw[1]);
        }
        for (index, slot) in state.dispositions.iter_mut().enumerate() {
            *slot = disposition(index as i32 + 1).map_err(io::Error::from_raw_os_error)?;
        }
        Ok(state)
    }

    /// Brings it back, but for limits, timers and pending signals: see [`State::restore_last`].
    pub fn restore(&self) -> Result<(), StateError> {
        rustix::process::chdir(self.directory.as_str()).map_err(|errno| StateError::Directory(self.directory.clone(), errno))?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(self.umask));
        for (index, action) in self.dispositions.iter().enumerate() {
            let signal = index as i32 + 1;
            if signal == libc::SIGKILL || signal == libc::SIGSTOP {
                continue;
            }
            // SAFETY: the program's own handlers, in its own restored memory; all signals are blocked still.
            unsafe { set_disposition(signal, action) }.map_err(|errno| StateError::Signal(signal, errno))?;
        }
        Ok(())
    }

    /// Limits (as far as this process may have them), timers and signals. Threads are parked with all signals blocked, so
    /// nothing arrives before they go on.
    pub fn restore_last(&self, parked: &Parked) -> Result<(), StateError> {
        for (resource, (soft, hard)) in self.limits.iter().enumerate() {
            let mut now = [0u64; 2];
            // SAFETY: prlimit64 writes two words into `now`.
            unsafe { syscall(libc::SYS_prlimit64, [0, resource, 0, now.as_mut_ptr() as usize, 0, 0]) };
            let limit = [*soft.min(&now[1]), *hard.min(&now[1])];
            // SAFETY: prlimit64 reads two words from `limit`.
            unsafe { syscall(libc::SYS_prlimit64, [0, resource, limit.as_ptr() as usize, 0, 0, 0]) };
        }
        for (which, timer) in self.timers.iter().enumerate() {
            let mut timer = *timer;
            if which == REAL_TIMER && timer[2..] == [0, 0] {
                // Periodic and not armed: its signal is pending, and the kernel arms it again when that is taken. To a new
                // timer zero would mean "off". The other two the kernel arms itself.
                timer.copy_within(..2, 2);
            }
            // SAFETY: setitimer reads four words from `timer`.
            unsafe { syscall(libc::SYS_setitimer, [which, timer.as_ptr() as usize, 0, 0, 0, 0]) };
        }
        timers::restore(&self.posix_timers).map_err(|(number, errno)| StateError::Timer(number, errno))?;
        self.pending.send(parked);
        scheduling::restore(&self.scheduling);
        self.attributes.restore().map_err(StateError::Attribute)
    }
}
