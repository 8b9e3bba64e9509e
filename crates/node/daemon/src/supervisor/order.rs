//! Daemon ⇄ rank supervisor, over the supervisor's standard input (a socket pair).
//!
//! ```text
//! daemon                                     rank supervisor
//!   ── one byte with the descriptors (SCM_RIGHTS) ──►     a PID namespace to enter first, if there is one
//!   ── Instruction::Launch ────────────────────────►
//!   ◄───────────────────────── Event::Running ──         or Event::Failed, and the supervisor ends
//!   ── Instruction::Signal ────────────────────────►     any number
//!   ◄────────────────────────── Event::Ended ──          the rank ended; its descendants may still write output
//!   (daemon closes its end: every process that is left dies, and the supervisor ends)
//! ```

use mend_messages::daemon::ExitStatus;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most descriptors a launch can carry; the kernel's own limit is 253 (`SCM_MAX_FD`).
pub const MAX_FILES: usize = 64;

/// What to start, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Make namespaces for the rank; false where the kernel refuses them.
    pub isolated: bool,
    /// The first descriptor sent along is a PID namespace in which the program gets its id if it is free there (only if
    /// isolated); otherwise it gets a namespace of its own.
    pub shared: bool,
    /// Process id the program gets (only if isolated).
    pub pid: u32,
    /// Offsets of a new time namespace (only if isolated).
    pub clock: Option<ClockOffsets>,
    /// Directories in which the program sees data spaces (only if isolated), and whether it may write there. For each the descriptor of a socket is sent along, after the namespace.
    pub spaces: Vec<(PathBuf, bool)>,
    /// Whose these mounts are, encoded for the processes that serve them.
    pub whose: Vec<u8>,
    /// Directory that the program sees as `/dev/shm` (only if isolated).
    pub shared_memory: Option<PathBuf>,
    /// A directory of this node, and where the program sees it (only if isolated): for files of portable checkpoints.
    pub portable: Option<(PathBuf, PathBuf)>,
    /// Limit on open files that the program gets (`RLIMIT_NOFILE`, the soft one); `None` leaves the daemon's.
    pub open_files: Option<u64>,
    /// The program's umask; `None` leaves the daemon's.
    pub umask: Option<u32>,
    /// Executable, absolute or relative to `cwd`.
    pub path: PathBuf,
    /// Arguments, the name first.
    pub argv: Vec<String>,
    /// The whole environment. `MEND_RANK_PID` is added by the supervisor, which alone knows it.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// Leave the program its capabilities (the restorer needs them); otherwise it has none but root's own.
    pub privileged: bool,
    /// Numbers at which the program finds the descriptors sent along, in their order.
    pub numbers: Vec<i32>,
}

/// Clocks of a time namespace minus those of the initial one, nanoseconds (time_namespaces(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffsets {
    /// `CLOCK_MONOTONIC`.
    pub monotonic_ns: i64,
    /// `CLOCK_BOOTTIME`.
    pub boottime_ns: i64,
}

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Instruction {
    /// First and once.
    Launch(Box<Launch>),
    /// SIGKILL: everything the rank started too. Others: the rank's process group.
    Signal(i32),
}

/// Steps of a launch that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// unshare(2) of the namespaces.
    Namespaces,
    /// Writing `/proc/self/timens_offsets`.
    Clock,
    /// Making the directory of a data space, by its place in [`Launch::spaces`].
    SpaceDirectory(u16),
    /// mount(2) of a data space, by its place in [`Launch::spaces`].
    DataSpace(u16),
    /// fork(2), or clone3(2) with the wanted process id.
    Fork,
    /// Going to the working directory, by chdir(2).
    WorkingDirectory,
    /// Giving up capabilities, making a process group.
    Privileges,
    /// Becoming the program, by execve(2).
    Execute,
}

/// From the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The program runs.
    Running,
    /// It does not, and nothing is left.
    Failed {
        /// What did not work.
        step: Step,
        /// Error number of that step.
        errno: i32,
    },
    /// The rank's process ended.
    Ended(ExitStatus),
}
