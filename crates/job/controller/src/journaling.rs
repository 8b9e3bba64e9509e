//! What of a job's life goes into its journal: each hook is one call where something happens.
//!
//! Invariant: nothing here decides anything, or can fail.

use crate::error::{RunError, with_causes};
use crate::job::Job;
use crate::manifest::Manifest;
use crate::operation::{AnswerSender, Operation};
use crate::periodic::Plan;
use crate::record::JobRecord;
use mend_coordination::checkpoint::Failure;
use mend_coordination::migration;
use mend_journal::Event;
use mend_journal::event::{Asker, Cause, Code, ImageFacts, Phase, cut};
use mend_journal::ranks::Ranks;
use mend_messages::agent::{ImageId, Reply, SaveMode, Saved, Written};
use mend_messages::daemon::{ExitStatus, FromDaemon};
use mend_messages::job::{NodeIndex, Rank};
use mend_policy::schedule::Interval;
use std::collections::BTreeMap;

/// What the journal has to remember from one event to the next.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// The phase of the operation under way, and when it began.
    phase: Option<(Phase, u64)>,
    /// Images that are being written behind their ranks.
    behind: BTreeMap<(Rank, ImageId), Saved>,
}

/// Settings of this environment that differ from their defaults.
pub(crate) fn settings() -> BTreeMap<String, String> {
    let other = |setting: &&mend_settings::Setting| setting.is_set() && setting.text() != setting.default;
    mend_settings::ALL.iter().filter(other).map(|setting| (setting.name.to_owned(), cut(setting.text()))).collect()
}

/// When checkpoints are taken, for people.
pub(crate) fn interval(plan: &Plan) -> String {
    match plan.interval {
        Interval::Every(seconds) => format!("a checkpoint every {seconds} s"),
        Interval::Auto => "checkpoints as often as their cost makes it best".into(),
        Interval::Off => String::new(),
    }
}

/// A beginning, for the journal.
pub(crate) fn beginning(record: &JobRecord, from: Option<u64>) -> Event {
    let (ranks, hosts, settings, release) = (record.size, record.hosts.clone(), settings(), mend_messages::RELEASE.to_owned());
    let interval = record.plan.as_ref().map(interval).unwrap_or_default();
    match from {
        Some(checkpoint) => Event::JobRestarted { checkpoint, ranks, hosts, settings, release, interval },
        None => Event::JobStarted { command: record.command.iter().cloned().map(cut).collect(), ranks, hosts, settings, release, interval },
    }
}

/// Which ranks are where.
pub(crate) fn places(places: &[NodeIndex], name: impl Fn(NodeIndex) -> String) -> Event {
    let mut found: BTreeMap<String, Vec<(u32, u32)>> = BTreeMap::new();
    for (rank, node) in (0..).zip(places) {
        found.entry(name(*node)).or_default().push((rank, rank));
    }
    Event::Placed { places: found.into_iter().map(|(node, ranks)| (node, Ranks::from(ranks))).collect() }
}

/// Why a job ended early, for its journal.
pub(crate) fn cause_of(error: &RunError) -> Cause {
    match error {
        RunError::Start { rank, host, error, .. } => Cause::StartFailed { rank: *rank, node: host.clone(), error: cut(error.clone()) },
        RunError::Restore { rank, host, error, image, .. } => {
            Cause::RestoreFailed { rank: *rank, node: host.clone(), error: cut(error.clone()), image: *image }
        }
        RunError::NodeLost { host, why, ranks, .. } => {
            Cause::NodeLost { node: host.clone(), ranks: cut(ranks.clone()), why: cut(why.clone()) }
        }
        RunError::MessagesLost { ranks, hosts, why, .. } => {
            Cause::MessagesLost { ranks: *ranks, nodes: hosts.clone(), why: cut(why.clone()) }
        }
        RunError::Interrupted { signal } => Cause::Interrupted { signal: *signal },
        RunError::Manifest(_) => Cause::NoCheckpoint { error: cut(with_causes(error)) },
        RunError::Node { .. } | RunError::NoSuchHost { .. } | RunError::NoHostLeft { .. } | RunError::Refused { .. } => {
            Cause::Unreachable { error: cut(with_causes(error)) }
        }
        _ => Cause::Failed { error: cut(with_causes(error)) },
    }
}

impl Job {
    fn node_name(&self, node: NodeIndex) -> Option<String> {
        self.nodes.get(node as usize).map(|node| node.name.clone())
    }

    /// Records what happened to a rank, where it is.
    pub(crate) fn record_rank(&mut self, rank: Rank, event: Event) {
        let node = self.ranks.get(rank as usize).map(|state| state.node).and_then(|node| self.node_name(node));
        self.journal.record_of(node.as_deref(), Some(rank), event);
    }

    /// Records what happened to a node.
    pub(crate) fn record_node(&mut self, node: NodeIndex, event: Event) {
        let node = self.node_name(node);
        self.journal.record_of(node.as_deref(), None, event);
    }

    /// A daemon says something.
    pub(crate) fn note_message(&mut self, node: NodeIndex, message: &FromDaemon) {
        let (rank, event) = match message {
            FromDaemon::Started { rank } => (*rank, Event::RankStarted),
            FromDaemon::StartFailed { rank, error, hint, code } => {
                (*rank, Event::StartFailed { error: cut(error.clone()), hint: cut(hint.clone()), status: *code })
            }
            FromDaemon::AgentUp { rank, main_process, executable } => {
                (*rank, Event::AgentUp { executable: cut(executable.clone()), main_process: *main_process })
            }
            FromDaemon::Agentless { rank } => (*rank, Event::Agentless),
            FromDaemon::MessagesLost { rank, peer, why } => (*rank, Event::MessagesLost { peer: *peer, why: cut(why.clone()) }),
            FromDaemon::Restored { rank, restart_us, bytes } => (*rank, Event::RankRestored { us: *restart_us, bytes: *bytes }),
            FromDaemon::RestoreFailed { rank, error, hint, image } => {
                (*rank, Event::RestoreFailed { error: cut(error.clone()), hint: cut(hint.clone()), image: *image })
            }
            FromDaemon::Exited { rank, status } => match status {
                ExitStatus::Code(status) => (*rank, Event::RankExited { status: *status }),
                ExitStatus::Signal(signal) => (*rank, Event::RankSignal { signal: *signal }),
            },
            FromDaemon::Report { rank, report } => (*rank, report.clone().into()),
            _ => return,
        };
        let node = self.node_name(node);
        self.journal.record_of(node.as_deref(), Some(rank), event);
    }

    /// A rank ended; if not well, that may be why the job does.
    pub(crate) fn note_exit(&mut self, rank: Rank, status: ExitStatus) {
        let node = self.node_name(self.ranks[rank as usize].node).unwrap_or_default();
        match status {
            _ if self.ending.is_some() => {}
            ExitStatus::Code(0) => {}
            ExitStatus::Code(status) => self.journal.cause(Cause::RankExited { rank, status, node }),
            ExitStatus::Signal(signal) => self.journal.cause(Cause::RankSignal { rank, signal, node }),
        }
    }

    /// A node is lost, with these ranks.
    pub(crate) fn note_node_lost(&mut self, node: NodeIndex, why: &str, ranks: &[Rank]) {
        self.record_node(node, Event::NodeLost { why: cut(why.to_owned()), ranks: ranks.iter().copied().collect() });
        self.journal.blame(Code::NodeLost);
    }

    /// A signal came to this process.
    pub(crate) fn note_interrupt(&mut self, signal: i32) {
        self.journal.record(Event::Interrupted { signal });
        self.journal.cause(Cause::Interrupted { signal });
    }

    /// `mend kill`.
    pub(crate) fn note_kill(&mut self) {
        self.journal.record(Event::KillAsked);
        self.journal.cause(Cause::Killed);
    }

    /// A rank called `MPI_Abort`.
    pub(crate) fn note_abort(&mut self, rank: Rank, status: i32) {
        self.record_rank(rank, Event::Abort { status });
        if self.ending.is_none() {
            self.journal.cause(Cause::Abort { rank, status });
        }
    }

    /// All ranks of a restart go on.
    pub(crate) fn note_resumed(&mut self) {
        let us = self.now_us();
        self.journal.record(Event::Resumed { us });
    }

    fn asker(&self, answers: &AnswerSender) -> Asker {
        if self.periodic.asked_for(answers) { Asker::Schedule } else { Asker::User }
    }

    /// A checkpoint begins.
    pub(crate) fn note_checkpoint(&mut self, checkpoint: u64, mode: SaveMode, base: Option<u64>, answers: &AnswerSender) {
        let by = self.asker(answers);
        let mode = if mode == SaveMode::Stop { "stop" } else { "copy-on-write" }.to_owned();
        self.journal.take_blame();
        self.noted.phase = Some((Phase::Inspect, self.now_us()));
        self.journal.record(Event::CheckpointAsked { checkpoint, by, mode, base });
    }

    /// There will be no such checkpoint.
    pub(crate) fn note_checkpoint_failed(&mut self, checkpoint: u64, answers: &AnswerSender, failure: &Failure) {
        self.note_phase();
        let (by, code) = (self.asker(answers), self.journal.take_blame());
        let (error, hint) = (cut(failure.error.clone()), cut(failure.hint.clone()));
        self.noted.behind.clear();
        self.journal.record(Event::CheckpointFailed { checkpoint, by, code, error, hint });
    }

    /// All images are there: from here on the checkpoint may be.
    pub(crate) fn note_deciding(&mut self, checkpoint: u64) {
        self.note_phase();
        self.journal.decide(Event::CheckpointDecided { checkpoint });
    }

    /// It is published.
    pub(crate) fn note_published(&mut self, manifest: &Manifest) {
        self.noted.behind.clear();
        self.journal.record(Event::CheckpointCommitted {
            checkpoint: manifest.number,
            by: if manifest.periodic { Asker::Schedule } else { Asker::User },
            kind: manifest.kind().to_string(),
            bytes: manifest.bytes(),
            stopped_us: manifest.stopped_us,
            durable_us: manifest.durable_us,
            phases: manifest.phases.into(),
        });
    }

    /// An agent answers what a checkpoint or migration asked.
    pub(crate) fn note_reply(&mut self, rank: Rank, reply: &Reply) {
        let number = match &self.operation {
            Some(Operation::Checkpoint { number, .. }) => Some(*number),
            Some(Operation::Migration { .. }) => None,
            Some(Operation::Explain { .. }) | None => return,
        };
        match (reply, number) {
            (Reply::Inspected(found), _) => {
                for obstacle in &found.obstacles {
                    let (what, hint) = (cut(obstacle.what.clone()), cut(obstacle.hint.clone()));
                    self.record_rank(rank, Event::ObstacleFound { what, hint });
                    self.journal.blame(Code::Obstacle);
                }
            }
            (Reply::Saved(saved), Some(_)) if saved.behind => drop(self.noted.behind.insert((rank, saved.id), saved.clone())),
            (Reply::Saved(saved), Some(number)) => self.note_image(rank, number, saved, saved.park_us + saved.write_us),
            (Reply::Failed { .. }, _) => self.journal.blame(Code::Agent),
            _ => {}
        }
    }

    /// An image that was written behind its rank is durable, or will not be.
    pub(crate) fn note_written(&mut self, rank: Rank, id: ImageId, result: &Result<Written, String>) {
        let Some(Operation::Checkpoint { number, .. }) = self.background.as_ref().or(self.operation.as_ref()) else { return };
        let number = *number;
        match (result, self.noted.behind.remove(&(rank, id))) {
            (Ok(written), Some(saved)) => {
                let saved = Saved { bytes: written.bytes, pages: written.pages, ..saved };
                self.note_image(rank, number, &saved, written.write_us);
            }
            (Err(_), _) => self.journal.blame(Code::Image),
            (Ok(_), None) => {}
        }
    }

    fn note_image(&mut self, rank: Rank, checkpoint: u64, saved: &Saved, us: u64) {
        let image = ImageFacts { bytes: saved.bytes, pages: saved.pages, us, full: saved.base.is_none() };
        self.record_rank(rank, Event::ImageWritten { checkpoint, image, note: saved.note.clone().map(cut) });
    }

    /// What is under way may have come to its next phase.
    pub(crate) fn note_phase(&mut self) {
        let of_checkpoint = |operation: &Operation| match operation {
            Operation::Checkpoint { machine, number, .. } => Some((machine.phase().and_then(phase_of), Some(*number))),
            _ => None,
        };
        let now = match &self.operation {
            Some(Operation::Migration { machine, .. }) => (machine.phase().and_then(phase_of), None),
            Some(operation @ Operation::Checkpoint { .. }) => of_checkpoint(operation).unwrap_or_default(),
            _ => self.background.as_ref().and_then(of_checkpoint).unwrap_or_default(),
        };
        let now_us = self.now_us();
        match self.noted.phase {
            Some((phase, _)) if Some(phase) == now.0 => {}
            Some((phase, since)) => {
                self.noted.phase = now.0.map(|phase| (phase, now_us));
                self.journal.record(Event::PhaseDone { phase, us: now_us.saturating_sub(since), checkpoint: now.1 });
            }
            None => self.noted.phase = now.0.map(|phase| (phase, now_us)),
        }
    }

    /// A migration begins.
    pub(crate) fn note_migration(&mut self, rank: Rank, to: Option<NodeIndex>) {
        let name = |node: Option<NodeIndex>| node.and_then(|node| self.node_name(node)).unwrap_or_default();
        let (from, to) = (name(self.ranks.get(rank as usize).map(|state| state.node)), name(to));
        self.journal.take_blame();
        self.noted.phase = Some((Phase::Inspect, self.now_us()));
        self.journal.record_of(Some(&from), Some(rank), Event::MigrationAsked { by: Asker::User, from: from.clone(), to });
    }

    /// From here on the rank is on its target.
    pub(crate) fn note_moving(&mut self, rank: Rank, target: NodeIndex) {
        let node = self.ranks.get(rank as usize).map(|state| state.node).and_then(|node| self.node_name(node));
        let (from, to) = (node.unwrap_or_default(), self.node_name(target).unwrap_or_default());
        self.journal.decide_of(Some(&to.clone()), Some(rank), Event::MigrationDecided { from, to });
    }

    /// A migration is over.
    pub(crate) fn note_migrated(&mut self, rank: Rank, from: &str, result: &Result<migration::Outcome, Failure>) {
        if let Some((phase, since)) = self.noted.phase.take() {
            let us = self.now_us().saturating_sub(since);
            self.journal.record(Event::PhaseDone { phase, us, checkpoint: None });
        }
        let to = self.ranks.get(rank as usize).map(|state| state.node).and_then(|node| self.node_name(node)).unwrap_or_default();
        let event = match result {
            Ok(done) => {
                let (from, phases) = (from.to_owned(), done.phases.into());
                Event::MigrationCommitted { from, to, bytes: done.bytes, stopped_us: done.stopped_us, phases }
            }
            Err(Failure { error, hint }) => {
                Event::MigrationUndone { code: self.journal.take_blame(), error: cut(error.clone()), hint: cut(hint.clone()) }
            }
        };
        self.record_rank(rank, event);
    }

    /// Checkpoints are gone.
    pub(crate) fn note_removed(&mut self, checkpoints: &[u64], by: Asker) {
        if !checkpoints.is_empty() {
            self.journal.record(Event::CheckpointRemoved { checkpoints: checkpoints.to_vec(), by });
        }
    }

    /// The job is over.
    pub(crate) fn note_end(&mut self, status: i32, early: Option<Cause>) {
        let otherwise = match early {
            // What ended it is known for sure.
            Some(cause) => return self.journal.end_for(status, cause),
            None if status == 0 => return self.journal.end_for(status, Cause::Done),
            None => Cause::Failed { error: format!("exit code {status}") },
        };
        self.journal.end(status, otherwise);
    }
}

/// A phase by the name that the machines have for it.
fn phase_of(name: &str) -> Option<Phase> {
    Some(match name {
        "inspect" => Phase::Inspect,
        "suspend" => Phase::Suspend,
        "save" => Phase::Save,
        "keep" => Phase::Keep,
        "resume" => Phase::Resume,
        "write" => Phase::Write,
        "move" => Phase::Move,
        "connect" => Phase::Connect,
        "undo" => Phase::Undo,
        _ => return None,
    })
}
