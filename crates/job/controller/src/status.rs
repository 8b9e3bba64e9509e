//! How a running job stands, for `mend ps` and `mend explain`.

use crate::job::{Job, RankPhase, RankState};
use crate::manifest::numbers;
use mend_messages::control::{JobStatus, RankStatus};
use mend_messages::daemon::ExitStatus;
use mend_messages::job::Rank;

impl Job {
    /// For the verbs.
    pub(crate) fn status(&self) -> JobStatus {
        let rank_status = |(rank, state): (usize, &RankState)| RankStatus {
            rank: rank as Rank,
            host: self.nodes[state.node as usize].name.clone(),
            state: match state.phase {
                RankPhase::Starting => "starting".into(),
                RankPhase::Restoring(_) => "restoring".into(),
                RankPhase::Running if !state.open => "moving".into(),
                RankPhase::Running => "running".into(),
                RankPhase::Exited(ExitStatus::Code(code)) => format!("exited {code}"),
                RankPhase::Exited(ExitStatus::Signal(signal)) => format!("signal {signal}"),
            },
        };
        let state = match (&self.ending, &self.operation) {
            (Some(_), _) => "ending",
            (None, Some(operation)) => operation.name(),
            (None, None) if self.ranks.iter().any(|rank| rank.phase == RankPhase::Starting) => "starting",
            (None, None) => "running",
        };
        JobStatus {
            id: self.record.id.clone(),
            command: self.record.command.clone(),
            state: state.into(),
            uptime_s: self.started.elapsed().as_secs(),
            hosts: self.nodes.iter().map(|node| node.name.clone()).collect(),
            ranks: self.ranks.iter().enumerate().map(rank_status).collect(),
            last_checkpoint: numbers(&self.record.checkpoints).last().copied(),
            restart: self.restart,
            interval_s: self.periodic.interval_s(),
            incrementals: self.periodic.incrementals(),
            extra_recovery_s: self.periodic.extra_recovery_s(),
            restarts_measured: self.record.restarts.count(),
        }
    }
}
