//! The event loop of one job. All state of the job is in [`Job`]; everything outside reaches it as an [`Event`].
//!
//! ```text
//! start:    Starting ──Started──► Running ──Exited──► Exited
//! restart:  Restoring ──Restored + FabricUp, all ranks──► Running
//! ```
//! The loop ends when a reason to end is known *and* every node confirmed (or is lost): until then output is printed.

use crate::error::RunError;
use crate::input::Input;
use crate::journal_file::Journal;
use crate::journaling::{Noted, cause_of};
use crate::losses::Losses;
use crate::manifest::numbers;
use crate::nodes::{Node, NodeEvent};
use crate::operation::{AnswerSender, Operation, Saving};
use crate::output::Output;
use crate::periodic::Periodic;
use crate::record::{JobDirectory, JobRecord, now};
use crate::tiers::Tiering;
use mend_coordination::pmi::{ClientState, Effect, PmiServer};
use mend_messages::agent::{Reply, Request};
use mend_messages::control::{Answer, Ask, Phases};
use mend_messages::daemon::{ExitStatus, FromDaemon, ToDaemon};
use mend_messages::job::{FabricAddress, JobMap, MapEntry, NodeIndex, Program, Rank};
use mend_policy::restarts::Restart;
use mend_sealed::Key;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Between two looks at what no event tells of, while something is under way.
const TICK: Duration = Duration::from_millis(20);
/// The same while the ranks just run: they may need this processor.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// From the first Ctrl-C to the end of ranks that do not obey.
pub(crate) const OBEY: Duration = Duration::from_secs(5);
/// For daemons to reap the ranks at the end.
const REAP: Duration = Duration::from_secs(10);
/// A verb that comes before all ranks' agents spoke waits this long for them.
const AGENTS: Duration = Duration::from_secs(10);

/// Way out where there is none.
pub(crate) const NO_CHECKPOINT: &str = "it had no checkpoint; take some with `mend checkpoint` next time";

/// Everything that reaches the loop.
#[derive(Debug)]
pub enum Event {
    /// From a node's connection.
    Node(NodeIndex, NodeEvent),
    /// From a verb.
    Ask(Ask, AnswerSender),
    /// Standard input; empty at its end.
    Stdin(Vec<u8>),
    /// SIGINT, SIGTERM or SIGHUP to this process.
    Signal(i32),
    /// A round of upkeep of the checkpoints is over.
    Upkeep(crate::upkeep::Done),
}

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankPhase {
    /// Asked to start.
    Starting,
    /// Being rebuilt; true once complete.
    Restoring(bool),
    /// Runs.
    Running,
    /// Ended.
    Exited(ExitStatus),
}

/// One rank.
#[derive(Debug)]
pub struct RankState {
    /// Where it is.
    pub node: NodeIndex,
    /// Grows with every move.
    pub generation: u64,
    /// False while it moves.
    pub open: bool,
    /// Its fabric's listener.
    pub address: Option<FabricAddress>,
    /// What it does.
    pub phase: RankPhase,
    /// Its agent spoke, or will not.
    pub agent: bool,
}

/// A request that an agent has not answered.
#[derive(Debug)]
pub struct Pending {
    /// Whose agent.
    pub rank: Rank,
    /// When it counts as failed.
    pub due: Due,
}

impl Pending {
    fn is_late(&self) -> bool {
        matches!(self.due, Due::At(time) if time < Instant::now())
    }
}

/// When an answer counts as failed.
#[derive(Clone, Debug)]
pub enum Due {
    /// Then.
    At(Instant),
    /// So long after this step of those asked in turn is awaited; with the answer, if it came before.
    Later(usize, Duration, Option<Reply>),
}

/// The job.
#[derive(Debug)]
pub struct Job {
    pub(crate) directory: JobDirectory,
    pub(crate) record: JobRecord,
    pub(crate) journal: Journal,
    pub(crate) noted: Noted,
    pub(crate) identity: [u8; 16],
    pub(crate) program: Program,
    pub(crate) local: bool,
    /// No message of ours unless something is wrong.
    pub(crate) quiet: bool,
    /// What images are encrypted with.
    pub(crate) key: Option<Key>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ranks: Vec<RankState>,
    pub(crate) pmi: PmiServer,
    pub(crate) output: Output,
    pub(crate) operation: Option<Operation>,
    pub(crate) periodic: Periodic,
    /// Of the newest checkpoint that this controller published, or 0. No number is given again: copies of what had it before may
    /// still be under way or be going.
    pub(crate) last_number: u64,
    /// A checkpoint whose images are still being written while all ranks run.
    pub(crate) background: Option<Operation>,
    pub(crate) waiting: VecDeque<(Ask, AnswerSender, Instant)>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) next_seq: u64,
    pub(crate) map_version: u64,
    pub(crate) map_dirty: bool,
    pub(crate) started: Instant,
    /// When copies in tiers were last looked after.
    pub(crate) tidied: Instant,
    pub(crate) restart: Option<Phases>,
    /// What a restart that is not complete reads, and how long it looked for that.
    pub(crate) restoring: Option<Restart>,
    /// `None`: the shared directory alone.
    pub(crate) tiers: Option<Tiering>,
    pub(crate) resumed_at_us: Option<u64>,
    pub(crate) input: Input,
    pub(crate) drain_timeout: Duration,
    pub(crate) losses: Losses,
    pub(crate) saving: Saving,
    pub(crate) exit_code: i32,
    pub(crate) interrupted: Option<(i32, Instant)>,
    pub(crate) spawn_told: bool,
    pub(crate) ending: Option<(Result<i32, RunError>, Instant)>,
}

impl Job {
    /// Runs the loop. Returns the job's exit code.
    ///
    /// # Errors
    /// What ended the job early.
    pub async fn run(mut self, mut events: mpsc::Receiver<Event>) -> Result<i32, RunError> {
        let mut ticked = Instant::now();
        loop {
            let next = ticked + self.until_tick();
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.handle(event).await,
                    None => break,
                },
                () = tokio::time::sleep_until(next.into()) => {
                    self.tick();
                    ticked = Instant::now();
                }
            }
            if let Some((_, since)) = &self.ending
                && (self.nodes.iter().all(|node| !node.alive) || since.elapsed() > REAP)
            {
                break;
            }
        }
        self.end_upkeep(&mut events).await;
        let result = self.ending.take().map_or(Ok(self.exit_code), |(result, _)| result);
        self.note_end(result.as_ref().map_or_else(RunError::exit_code, |code| *code), result.as_ref().err().map(cause_of));
        let how = match &result {
            Ok(code) => format!("exit code {code}"),
            Err(error) => error.to_string(),
        };
        self.record.ended = Some((now(), how));
        if let Err(error) = self.directory.write("job.json", &self.record) {
            tracing::warn!(%error, "the end of the job is not on record");
        }
        self.output.finish().await;
        result
    }

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Node(node, NodeEvent::Message(message)) => self.message(node, message).await,
            Event::Node(node, NodeEvent::Lost(why)) => self.node_lost(node, &why),
            Event::Ask(ask, answers) => self.asked(ask, answers),
            Event::Stdin(bytes) => self.feed(bytes),
            Event::Signal(signal) => self.interrupt(signal),
            Event::Upkeep(done) => self.upkeep_done(done),
        }
    }

    async fn message(&mut self, node: NodeIndex, message: FromDaemon) {
        self.note_message(node, &message);
        let at_home = |rank: Rank, job: &Self| job.ranks.get(rank as usize).is_some_and(|state| state.node == node);
        match message {
            FromDaemon::Output { rank, stream, bytes } => self.output.write(rank, stream, &bytes).await,
            FromDaemon::Pmi { rank, bytes } => {
                let effects = self.pmi.receive(rank, &bytes);
                self.apply(effects);
            }
            FromDaemon::Agent { seq, rank, reply } => {
                self.answered(seq, rank, reply);
            }
            FromDaemon::Written { rank, id, result } if at_home(rank, self) => self.image_written(rank, id, result),
            FromDaemon::Started { rank } if at_home(rank, self) => self.ranks[rank as usize].phase = RankPhase::Running,
            FromDaemon::AgentUp { rank, .. } | FromDaemon::Agentless { rank } if at_home(rank, self) => {
                self.ranks[rank as usize].agent = true;
                self.next_operation();
            }
            FromDaemon::FabricUp { rank, address } if at_home(rank, self) => {
                self.ranks[rank as usize].address = Some(address);
                self.map_dirty = true;
                self.restarted_if_complete();
                if self.ranks.iter().all(|rank| rank.address.is_some()) {
                    self.publish_map();
                }
            }
            FromDaemon::FabricUp { rank, address } => self.target_fabric_up(node, rank, address),
            FromDaemon::Restored { rank, restart_us, .. } if at_home(rank, self) => {
                let phases = self.restart.get_or_insert_default();
                phases.restart_us = phases.restart_us.max(restart_us);
                self.ranks[rank as usize].phase = RankPhase::Restoring(true);
                self.ranks[rank as usize].agent = true;
                self.restarted_if_complete();
            }
            FromDaemon::Restored { rank, restart_us, .. } => self.target_restored(node, rank, restart_us),
            FromDaemon::RestoreFailed { rank, error, hint, image } if at_home(rank, self) => {
                let host = self.nodes[node as usize].name.clone();
                self.end(Err(RunError::Restore { rank, host, error, hint, image }));
            }
            FromDaemon::RestoreFailed { rank, error, hint, .. } => self.target_refused(node, rank, error, hint),
            FromDaemon::StartFailed { rank, error, hint, code } => {
                let host = self.nodes[node as usize].name.clone();
                self.end(Err(RunError::Start { rank, host, error, hint, code }));
            }
            FromDaemon::Exited { rank, status } if at_home(rank, self) => {
                if matches!(status, ExitStatus::Code(_)) && self.interrupted.is_none() && self.ending.is_none() {
                    self.output.ended(rank).await;
                }
                self.exited(rank, status);
            }
            FromDaemon::Exited { rank, .. } => {
                self.target_refused(node, rank, "the restored process ended".into(), String::new());
            }
            FromDaemon::Refused { error } => {
                let host = self.nodes[node as usize].name.clone();
                self.end(Err(RunError::Refused { host, error }));
            }
            FromDaemon::StdinLeft { bytes, .. } => {
                self.input.left(bytes.len() as u64);
                self.feed(bytes);
            }
            FromDaemon::StdinTaken { .. } => self.input.acknowledged(),
            FromDaemon::StdinHeld { again, begun, .. } => self.input.held(again, begun),
            FromDaemon::MessagesLost { rank, peer, why } if at_home(rank, self) => self.messages_lost(rank, peer, why),
            FromDaemon::Tier(report) => self.tier_report(node, report),
            FromDaemon::Ready { .. }
            | FromDaemon::Pong
            | FromDaemon::Report { .. }
            | FromDaemon::FabricInUse { .. }
            | FromDaemon::MessagesLost { .. }
            | FromDaemon::FilesPut(_)
            | FromDaemon::Written { .. }
            | FromDaemon::Started { .. }
            | FromDaemon::AgentUp { .. }
            | FromDaemon::Agentless { .. } => {}
        }
    }

    /// Carries out what the PMI server wants.
    pub(crate) fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply { rank, line } => self.send_to_rank(rank, ToDaemon::Pmi { rank, bytes: line.into_bytes() }),
                Effect::Abort { rank, code } => {
                    eprintln!("mend: rank {rank} called MPI_Abort with code {code}");
                    self.note_abort(rank, code);
                    self.end(Ok(code));
                }
                // The program gets an MPI error that does not say why; users are told once.
                Effect::SpawnRefused { rank } => {
                    self.record_rank(rank, mend_journal::Event::SpawnRefused);
                    if !std::mem::replace(&mut self.spawn_told, true) {
                        eprintln!(
                            "mend: rank {rank} asked for more processes (MPI_Comm_spawn): refused, a job keeps the ranks it was started with"
                        );
                        eprintln!("  hint: start all of them at once, `mend run -n N`");
                    }
                }
                Effect::Violation { rank, text } => tracing::warn!(rank, text, "not a PMI-1 request"),
            }
        }
    }

    pub(crate) fn send_to_rank(&self, rank: Rank, message: ToDaemon) {
        if let Some(node) = self.ranks.get(rank as usize).and_then(|state| self.nodes.get(state.node as usize)) {
            node.send(message);
        }
    }

    /// Asks a rank's agent. An answer that does not come in time counts as a failure.
    pub(crate) fn ask_agent(&mut self, rank: Rank, request: Request) {
        let seq = self.new_seq(rank, self.patience(&request));
        self.send_to_rank(rank, ToDaemon::Agent { seq, rank, request });
    }

    /// How long an agent may take for an answer.
    pub(crate) fn patience(&self, request: &Request) -> Duration {
        match request {
            Request::Inspect { .. } | Request::Resume => Duration::from_secs(60),
            // It gives up by itself when a peer makes no progress for that long; until then channels drain.
            Request::Suspend | Request::SuspendPeer(_) => 3 * self.drain_timeout + Duration::from_secs(5),
            Request::Save(_) | Request::KeepFiles(_) | Request::SyncFiles => Duration::from_secs(3600),
        }
    }

    /// Number for a request whose answer is to be waited for.
    pub(crate) fn new_seq(&mut self, rank: Rank, patience: Duration) -> u64 {
        self.next_seq += 1;
        self.pending.insert(self.next_seq, Pending { rank, due: Due::At(Instant::now() + patience) });
        self.next_seq
    }

    /// Tells all nodes where every rank is.
    pub(crate) fn publish_map(&mut self) {
        self.map_version += 1;
        self.map_dirty = false;
        let entry = |(rank, state): (usize, &RankState)| MapEntry {
            rank: rank as Rank,
            node: state.node,
            generation: state.generation,
            open: state.open,
            address: state.address.clone(),
        };
        let map = JobMap { version: self.map_version, entries: self.ranks.iter().enumerate().map(entry).collect() };
        for node in self.nodes.iter().filter(|node| node.alive) {
            node.send(ToDaemon::Map(map.clone()));
        }
    }

    /// Lets the ranks of a restart run once all of them are complete.
    fn restarted_if_complete(&mut self) {
        let complete = |rank: &RankState| rank.phase == RankPhase::Restoring(true) && rank.address.is_some();
        if !self.ranks.iter().all(complete) {
            return;
        }
        self.publish_map();
        self.resumed_at_us = Some(self.now_us());
        for rank in 0..self.ranks.len() as Rank {
            self.ranks[rank as usize].phase = RankPhase::Running;
            self.ask_agent(rank, Request::Resume);
        }
        let effects = self.pmi.thaw();
        self.apply(effects);
        self.learn_restart();
        self.input.ask();
        self.note_resumed();
        match self.ranks.len() {
            _ if self.quiet => {}
            1 => eprintln!("mend: the rank is restored and runs"),
            ranks => eprintln!("mend: all {ranks} ranks are restored and run"),
        }
    }

    fn exited(&mut self, rank: Rank, status: ExitStatus) {
        self.note_exit(rank, status);
        self.ranks[rank as usize].phase = RankPhase::Exited(status);
        self.operation_lost(rank, "has ended");
        let code = match status {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => 128 + signal,
        };
        if code != 0 && self.exit_code == 0 {
            self.exit_code = code;
            self.tell_exit(rank, status);
        }
        if self.ending.is_some() {
            return;
        }
        if let (ExitStatus::Signal(signal), None) = (status, self.interrupted) {
            let host = &self.nodes[self.ranks[rank as usize].node as usize].name;
            eprintln!("mend: rank {rank} on {host} was ended by signal {signal}");
            if let Some(number) = self.newest_left() {
                eprintln!("mend: hint: `mend restart {}` continues the job from checkpoint {number}", self.record.id);
            }
        }
        let fatal = matches!(status, ExitStatus::Signal(_)) || (code != 0 && self.pmi.client(rank) == ClientState::Active);
        if self.ranks.iter().all(|rank| matches!(rank.phase, RankPhase::Exited(_))) {
            let code = self.interrupted.map_or(self.exit_code, |(signal, _)| 128 + signal);
            self.end(Ok(code));
        } else if fatal && self.interrupted.is_none() {
            // The others would wait for its messages for ever.
            self.end(Ok(code));
        }
    }

    fn node_lost(&mut self, index: NodeIndex, why: &str) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        node.alive = false;
        if self.ending.is_some() {
            return;
        }
        let host = node.name.clone();
        self.record.lost.push(host.clone());
        let here = |state: &RankState| state.node == index && !matches!(state.phase, RankPhase::Exited(_));
        let lost: Vec<Rank> = (0..self.ranks.len() as Rank).filter(|&rank| here(&self.ranks[rank as usize])).collect();
        self.note_node_lost(index, why, &lost);
        self.target_lost(index, why);
        self.tiers_lost(index);
        if lost.is_empty() {
            eprintln!("mend: node {host} is lost ({why}); no rank was on it");
            return;
        }
        for &rank in &lost {
            self.operation_lost(rank, "is lost with its node");
        }
        let id = &self.record.id;
        let hint = match self.newest_left() {
            Some(number) => format!("`mend restart {id}` continues it from checkpoint {number} on the hosts that are left"),
            None if numbers(&self.record.checkpoints).is_empty() => NO_CHECKPOINT.to_owned(),
            None => format!(
                "the nodes that are left do not have all of any checkpoint; `mend restart {id}` needs {host} back, or more tiers next time (--tiers)"
            ),
        };
        let ranks = lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        self.end(Err(RunError::NodeLost { host, why: why.to_owned(), ranks, hint }));
    }

    /// Begins the end: no rank is left on any node when it is over.
    pub(crate) fn end(&mut self, result: Result<i32, RunError>) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some((result, Instant::now()));
        self.abandon_operations();
        if matches!(self.ending, Some((Ok(0), _))) {
            self.close_tiers();
        }
        for node in &self.nodes {
            node.send(ToDaemon::End);
        }
    }

    fn interrupt(&mut self, signal: i32) {
        if self.interrupted.is_some() {
            return self.end(Ok(128 + signal));
        }
        self.note_interrupt(signal);
        self.interrupted = Some((signal, Instant::now()));
        self.tell_interrupt(signal);
        for node in &self.nodes {
            node.send(ToDaemon::Signal(signal));
        }
    }

    fn feed(&mut self, bytes: Vec<u8>) {
        if let Some(bytes) = self.input.pass(bytes) {
            self.send_to_rank(0, ToDaemon::Stdin { rank: 0, bytes });
        }
    }

    /// Feeds what was held back.
    pub(crate) fn release_stdin(&mut self) {
        if let Some(bytes) = self.input.release() {
            self.feed(bytes);
        }
    }

    /// From one tick to the next.
    fn until_tick(&self) -> Duration {
        let idle = self.operation.is_none()
            && self.background.is_none()
            && self.waiting.is_empty()
            && !self.map_dirty
            && self.ending.is_none()
            && self.interrupted.is_none();
        if idle { self.periodic_wait().clamp(TICK, IDLE_TICK) } else { TICK }
    }

    fn tick(&mut self) {
        if self.map_dirty {
            self.publish_map();
        }
        self.journal.tick();
        if self.tidied.elapsed() >= IDLE_TICK {
            self.tidied = Instant::now();
            if self.tiers.is_some() {
                self.tidy_tiers();
            }
        }
        let late: Vec<u64> = self.pending.iter().filter(|(_, pending)| pending.is_late()).map(|(seq, _)| *seq).collect();
        for seq in late {
            if let Some(pending) = self.pending.remove(&seq) {
                let error = "its agent did not answer in time".to_owned();
                self.journal.blame(mend_journal::event::Code::NoAnswer);
                self.replied(pending.rank, Reply::Failed { error, hint: "is the process stopped (SIGSTOP, a debugger)?".into() });
            }
        }
        if let Some((signal, since)) = self.interrupted
            && since.elapsed() > OBEY
        {
            self.end(Ok(128 + signal));
        }
        self.judge_losses();
        self.periodic_tick();
        self.next_operation();
    }

    fn asked(&mut self, ask: Ask, answers: AnswerSender) {
        match ask {
            Ask::Status => {
                let _ = answers.send(Answer::Status(self.status()));
            }
            Ask::Kill => {
                let _ = answers.send(Answer::Killed);
                eprintln!("mend: the job was ended by `mend kill`");
                self.note_kill();
                self.end(Ok(137));
            }
            ask => {
                if self.operation.is_some() {
                    let _ = answers.send(Answer::Progress("another operation is under way, waiting for it".into()));
                }
                self.waiting.push_back((ask, answers, Instant::now()));
                self.next_operation();
            }
        }
    }

    /// True if operations may begin, or if waiting for more agents is no use.
    pub(crate) fn agents_ready(&self, since: Instant) -> bool {
        let restoring = self.ranks.iter().any(|rank| matches!(rank.phase, RankPhase::Restoring(_)));
        !restoring && (self.ranks.iter().all(|rank| rank.agent) || since.elapsed() > AGENTS)
    }

    /// Microseconds since the job began; the clock of the state machines.
    pub(crate) fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Where checkpoints go.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.record.checkpoints.clone()
    }
}
