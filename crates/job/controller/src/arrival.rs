//! What reaches the loop of a running job.

use crate::job_link::NodeEvent;
use crate::kill_request;
use crate::offload_news::Told;
use crate::record::{JobRecord, now};
use crate::wish::Wish;
use mend_coordination::worlds::Worlds;
use mend_job::event::UpkeepDone;
use mend_messages::control::{Answer, Ask, JobStatus, RankStatus};
use mend_messages::health::Leaving;
use mend_messages::job::{NodeIndex, Rank};
use mend_policy::follow::Scan;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Where a verb's answers go. A verb that went away is not waited for.
pub type AnswerSender = mpsc::UnboundedSender<Answer>;

/// Everything that reaches the loop.
#[derive(Debug)]
pub enum Arrival {
    /// From a node's connection.
    Node(NodeIndex, NodeEvent),
    /// From a verb.
    Ask(Ask, AnswerSender),
    /// Standard input; empty at its end.
    Stdin(Vec<u8>),
    /// SIGINT, SIGTERM or SIGHUP to this process.
    Signal(i32),
    /// The batch system wants the job to end, and has sent this signal.
    TimeUp(i32),
    /// The batch system wants a node empty, or not any more.
    Leave(NodeIndex, Option<Leaving>),
    /// What ranks read was looked at.
    DataSeen(Scan),
    /// Files that ranks wrote were sent away, or could not be.
    Offload(Told),
    /// A round of upkeep of the checkpoints is over.
    Upkeep(UpkeepDone),
}

impl Arrival {
    /// What is to be heard although no machine of the job is there to be told; a verb is answered, when what it wants is on record in the job's directory. `None`: it is nothing
    /// of that kind.
    pub(crate) fn wish(&self, directory: Option<&Path>) -> Option<Wish> {
        match self {
            Self::Signal(signal) => Some(Wish::End(*signal)),
            Self::TimeUp(signal) => Some(Wish::TimeUp(*signal)),
            Self::Ask(Ask::Kill, answers) => {
                match directory.map(kill_request::promise) {
                    // Whoever asked and went away does not take it back.
                    Some(Ok(())) => drop(answers.send(Answer::Killed)),
                    // It is done all the same, unless this process is lost first.
                    Some(Err(error)) => tracing::warn!(%error, "that the job was killed is not on record"),
                    None => {}
                }
                Some(Wish::Kill)
            }
            _ => None,
        }
    }
}

/// What has come before the job began, and is for its machine.
#[derive(Debug)]
pub(crate) struct Early {
    /// All of it.
    pub(crate) arrivals: Vec<Arrival>,
    /// The job's directory.
    pub(crate) directory: PathBuf,
    /// How the job stands meanwhile.
    pub(crate) status: JobStatus,
    /// When it was started, seconds since 1970.
    pub(crate) started: u64,
}

/// The state of a job whose data is staged, and of its ranks.
pub const STAGING: &str = "staging";

/// How a job stands while its data is staged. Its ranks have not begun.
pub(crate) fn while_staged(
    record: &JobRecord,
    daemons: Vec<SocketAddr>,
    places: &[NodeIndex],
    worlds: &Worlds,
    gone: &[Rank],
) -> JobStatus {
    let living = (0..).zip(places).filter(|(rank, _)| !gone.contains(rank));
    let rank = |(rank, place): (Rank, &NodeIndex)| {
        let (world, world_rank) = worlds.place(rank);
        let host = record.hosts.get(*place as usize).cloned().unwrap_or_default();
        RankStatus { rank, host, to: None, state: STAGING.into(), ended: false, world: world as u32, world_rank }
    };
    JobStatus {
        id: record.id.clone(),
        command: record.command.clone(),
        state: STAGING.into(),
        uptime_s: 0,
        hosts: record.hosts.clone(),
        daemons,
        ranks: living.map(rank).collect(),
        last_checkpoint: record.branch.newest(&record.checkpoints),
        restart: None,
        interval_s: None,
        incrementals: 0,
        extra_recovery_s: None,
        restarts_measured: 0,
    }
}

impl Early {
    /// Returns when somebody wants the job to end before it begins. Whoever asks how it stands is answered; what else comes is kept.
    pub(crate) async fn wish(&mut self, arrivals: &mut mpsc::Receiver<Arrival>) -> Wish {
        while let Some(arrival) = arrivals.recv().await {
            if let Arrival::Ask(Ask::Status, answers) = &arrival {
                let uptime_s = now().saturating_sub(self.started);
                // Whoever asked may have gone.
                let _ = answers.send(Answer::Status(JobStatus { uptime_s, ..self.status.clone() }));
                continue;
            }
            match arrival.wish(Some(&self.directory)) {
                Some(wish) => return wish,
                None => self.arrivals.push(arrival),
            }
        }
        std::future::pending().await
    }
}
