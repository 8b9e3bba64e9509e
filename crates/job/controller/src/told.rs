//! What the user is told of how ranks and jobs end.

use crate::job::{Job, OBEY};
use mend_messages::daemon::ExitStatus;
use mend_messages::job::Rank;

/// The exit code of `mend run` for a lost node: EX_TEMPFAIL.
pub const NODE_LOST: i32 = 75;

impl Job {
    /// The first rank that did not end well gives the job its exit code.
    pub(crate) fn tell_exit(&self, rank: Rank, status: ExitStatus) {
        let ExitStatus::Code(code) = status else { return };
        if self.ending.is_some() || self.interrupted.is_some() {
            return;
        }
        let host = &self.nodes[self.ranks[rank as usize].node as usize].name;
        let own = if code == NODE_LOST { "; the code is the program's own, no node was lost" } else { "" };
        eprintln!("mend: rank {rank} on {host} exited with code {code}{own}");
    }

    /// Ctrl-C, or another signal that ends programs.
    pub(crate) fn tell_interrupt(&self, signal: i32) {
        if self.quiet {
            return;
        }
        let obey = OBEY.as_secs();
        eprintln!(
            "mend: signal {signal} is passed on to the ranks; those that do not end within {obey} s, or at another signal, are killed"
        );
        if let Some(number) = self.newest_left() {
            eprintln!("mend: hint: `mend restart {}` continues the job from checkpoint {number}", self.record.id);
        }
    }
}
