//! Why a rank has no process on this node: causes, exit codes and ways out.

use crate::program::ProgramError;
use crate::restore::RestoreError;
use crate::spaces::Unseen;
use crate::supervisor::SpawnError;
use crate::supervisor::order::{Launch, Step};
use mend_messages::daemon::{ExitStatus, FromDaemon, RestoreBlame};
use mend_messages::job::Rank;
use mend_report::{process_hint, with_causes};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// See the module's head. Exit codes are those of a shell: 127 not found, 126 found but not executable, else 1.
#[derive(Debug, thiserror::Error)]
pub enum RankFailure {
    /// The rank is here already.
    #[error("rank {0} has a process on this node already")]
    Present(u32),
    /// The job has fewer ranks.
    #[error("there is no rank {rank} in a job of {size}")]
    NoSuchRank {
        /// Asked for.
        rank: u32,
        /// Number of ranks.
        size: u32,
    },
    /// No descriptors for pipes.
    #[error("no pipes could be made for the rank")]
    Channels(#[source] io::Error),
    /// No supervisor.
    #[error(transparent)]
    Supervisor(#[from] SpawnError),
    /// The program was looked at and cannot run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel refused a step of the launch.
    #[error("{} {}", describe(*step), path.display())]
    Launch {
        /// What was launched, or where.
        path: PathBuf,
        /// Which step.
        step: Step,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process ended before it was the rank.
    #[error("its process {} before it was complete", ending(*.0))]
    DiedEarly(ExitStatus),
    /// A data space cannot be seen.
    #[error(transparent)]
    Space(#[from] Unseen),
    /// This node gives ranks no namespaces to mount one in.
    #[error("data spaces are mounted in namespaces of ranks, which this node refuses")]
    NoNamespace,
    /// An image could not be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

fn describe(step: Step) -> &'static str {
    match step {
        Step::Namespaces => "no namespaces could be made for",
        Step::Clock => "the clocks could not be set for",
        Step::Fork => "no process could be made for",
        Step::WorkingDirectory => "cannot change to the working directory",
        Step::Privileges => "privileges could not be given up for",
        Step::Execute => "cannot execute",
        Step::SpaceDirectory(_) => "no directory for a data space could be made:",
        Step::DataSpace(_) => "a data space could not be mounted at",
    }
}

fn ending(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exited with {code}"),
        ExitStatus::Signal(signal) => format!("was killed by signal {signal}"),
    }
}

impl RankFailure {
    /// A step that the supervisor reported.
    pub fn launch(launch: &Launch, step: Step, errno: i32) -> Self {
        let path = match step {
            Step::WorkingDirectory => &launch.cwd,
            Step::SpaceDirectory(at) | Step::DataSpace(at) => launch.spaces.get(usize::from(at)).map_or(&launch.path, |(seen, _)| seen),
            _ => &launch.path,
        };
        let path = path.clone();
        Self::Launch { path, step, source: io::Error::from_raw_os_error(errno) }
    }

    /// The exit code a shell would give.
    pub fn code(&self) -> i32 {
        match self {
            Self::Program(error) => error.code(),
            Self::Launch { step: Step::Execute, source, .. } => match source.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT) => 127,
                _ => 126,
            },
            _ => 1,
        }
    }

    /// A restorer has said nothing of why it ended.
    pub fn of_silent(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Signal(_) => Self::DiedEarly(status),
            ExitStatus::Code(_) => RestoreError::Speechless.into(),
        }
    }

    /// What the controller is told of a process that did not come to be. One that was killed is like a rank that was: it may be tried again.
    pub fn told(&self, (rank, attempt): (Rank, u64), restoring: bool) -> FromDaemon {
        let (error, hint) = (with_causes(self), self.hint());
        match self {
            Self::DiedEarly(status @ ExitStatus::Signal(_)) if restoring => FromDaemon::Exited { rank, attempt, status: *status },
            _ if restoring => FromDaemon::RestoreFailed { rank, attempt, error, hint, blame: self.blame() },
            _ => FromDaemon::StartFailed { rank, attempt, error, hint, code: self.code() },
        }
    }

    fn blame(&self) -> RestoreBlame {
        match self {
            Self::Restore(error) => error.blame(),
            _ => RestoreBlame::Other,
        }
    }

    /// What a user can do; may be empty.
    pub fn hint(&self) -> String {
        match self {
            Self::Program(error) => error.hint(),
            Self::Restore(error) => error.hint(),
            Self::Space(error) => error.hint.clone(),
            Self::NoNamespace => {
                "allow unprivileged user namespaces there (sysctl user.max_user_namespaces), or mount it yourself: `mend data mount`".into()
            }
            Self::Channels(source) | Self::Supervisor(SpawnError::Process(source)) => process_hint(source).into(),
            Self::Launch { step, source, .. } => launch_hint(*step, source).into(),
            Self::Supervisor(_) | Self::DiedEarly(_) | Self::Present(_) | Self::NoSuchRank { .. } => String::new(),
        }
    }
}

fn launch_hint(step: Step, source: &io::Error) -> &'static str {
    match (step, source.raw_os_error().map(Errno::from_raw_os_error)) {
        (Step::Execute, Some(Errno::NOEXEC)) => {
            "it is neither a program for this machine nor a script with an interpreter line (#!/bin/sh)"
        }
        (Step::Execute, Some(Errno::TOOBIG)) => "arguments and environment are too long for the kernel; shorten them",
        (Step::Execute, Some(Errno::NOENT)) => "the file exists, but the interpreter or loader it names does not",
        (Step::Execute, Some(Errno::ACCESS)) => "check its mode, and that its file system is not mounted noexec",
        (Step::Fork, Some(Errno::AGAIN)) => "raise the limit on processes (ulimit -u), or of the control group (pids.max)",
        (Step::Fork, Some(Errno::NOMEM)) => "free memory on this node",
        (Step::Fork, Some(Errno::EXIST)) => "another process has the saved process id: try again, or choose another node",
        (Step::Fork, Some(Errno::INVAL)) => "the saved process id is beyond this node's /proc/sys/kernel/pid_max",
        (Step::Namespaces, Some(Errno::NOSPC)) => "raise /proc/sys/user/max_user_namespaces and max_pid_namespaces",
        (Step::WorkingDirectory, Some(Errno::NOENT | Errno::NOTDIR)) => "create it on every node, or choose another with -wdir",
        (Step::WorkingDirectory, Some(Errno::ACCESS)) => "check its mode and those above it, or choose another with -wdir",
        (Step::SpaceDirectory(_), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
            "name a directory where you may make one, or have it made on every node: --data NAME:DIR"
        }
        (Step::SpaceDirectory(_), Some(Errno::EXIST | Errno::NOTDIR)) => "a file is in the way: name another directory, --data NAME:DIR",
        (Step::DataSpace(_), Some(Errno::ACCESS | Errno::PERM)) => {
            "/dev/fuse must be open to you on every node (mode 0666, as udev makes it)"
        }
        (Step::DataSpace(_), Some(Errno::NOENT | Errno::NODEV | Errno::NXIO)) => {
            "load the kernel's module fuse on every node (modprobe fuse)"
        }
        (Step::DataSpace(_), Some(Errno::PIPE | Errno::CONNRESET)) => {
            "look at mendd's log on that node: what serves the data space has ended"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch_failure(step: Step, errno: Errno) -> RankFailure {
        RankFailure::Launch { path: "/x".into(), step, source: errno.into() }
    }

    #[test]
    fn hints_are_for_what_the_kernel_said() {
        let pipes = |errno: Errno| RankFailure::Channels(errno.into()).hint();
        assert!(pipes(Errno::MFILE).contains("ulimit -n") && !pipes(Errno::MFILE).contains("ulimit -u"));
        assert_eq!(pipes(Errno::IO), "");
        let fork = |errno| launch_failure(Step::Fork, errno).hint();
        assert!(fork(Errno::AGAIN).contains("ulimit -u") && fork(Errno::NOMEM).contains("memory"));
        assert!(fork(Errno::INVAL).contains("pid_max") && !fork(Errno::EXIST).contains("pid_max"));
        assert_eq!(launch_failure(Step::WorkingDirectory, Errno::IO).hint(), "");
        assert!(launch_failure(Step::SpaceDirectory(0), Errno::EXIST).hint().contains("in the way"));
    }

    #[test]
    fn codes_are_a_shell_s() {
        assert_eq!(launch_failure(Step::Execute, Errno::NOENT).code(), 127);
        assert_eq!(launch_failure(Step::Execute, Errno::NOEXEC).code(), 126);
        assert_eq!(launch_failure(Step::WorkingDirectory, Errno::NOENT).code(), 1);
    }
}
