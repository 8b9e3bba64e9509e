//! Checkpoint, migration and inspection of a running job: drives the pure machines of `mend-coordination`, one at a
//! time, and carries out what they ask for.

use crate::error::with_causes;
use crate::input::InputAt;
use crate::job::{Job, RankPhase};
use crate::manifest::{self, FORMAT, ImageEntry, Manifest, Printed};
use crate::record::now;
use crate::tiers::Tiering;
use mend_coordination::checkpoint::{self, Checkpoint, Failure, image_name};
use mend_coordination::migration::{self, Migration};
use mend_coordination::placement::choose_target;
use mend_coordination::pmi::PmiServer;
use mend_journal::event::Code;
use mend_messages::agent::{AGENT_LEFT, ImageId, Inspection, Reply, Request, SaveMode, SaveOrder, SaveTarget, Saved, Written};
use mend_messages::control::{Answer, Ask, CheckpointDone, Explanation, MigrationDone};
use mend_messages::daemon::{RestoreSource, ToDaemon};
use mend_messages::files::{KeepOrder, KeptFile};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_settings::SettingError;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;

/// Longest time the image of one rank may take to another node.
const STREAM_PATIENCE: Duration = Duration::from_secs(3600);

/// Where a verb's answers go. A verb that went away is not waited for.
pub type AnswerSender = mpsc::UnboundedSender<Answer>;

/// How images are taken unless a request says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Saving {
    /// How long ranks stand still.
    pub mode: SaveMode,
    /// Bytes per second of writing behind them.
    pub rate: Option<u64>,
    /// Largest file of the program's that is copied into a checkpoint, bytes.
    pub keep_files: u64,
}

impl Saving {
    /// As the settings say.
    ///
    /// # Errors
    /// One of them has a value that it may not have.
    pub fn from_settings() -> Result<Self, SettingError> {
        let mode = if mend_settings::CHECKPOINT_MODE.choice()? == "stop" { SaveMode::Stop } else { SaveMode::CopyOnWrite };
        let rate = mend_settings::WRITE_RATE.number()?;
        Ok(Self { mode, rate: (rate > 0).then_some(rate << 20), keep_files: mend_settings::KEEP_FILES.number()? << 20 })
    }
}

/// PMI server, what each rank had printed, and how far standard input had been read.
pub type Snapshot = (PmiServer, BTreeMap<Rank, Printed>, InputAt);

/// What is under way.
#[derive(Debug)]
pub enum Operation {
    /// A coordinated checkpoint.
    Checkpoint {
        /// Its steps.
        machine: Checkpoint,
        /// Its number.
        number: u64,
        /// The directory it is written into.
        part: PathBuf,
        /// Taken when all images were.
        snapshot: Option<Box<Snapshot>>,
        /// Who asked.
        answers: AnswerSender,
    },
    /// A migration.
    Migration {
        /// Its steps.
        machine: Migration,
        /// Where from.
        from: String,
        /// Where to.
        target: NodeIndex,
        /// The restored rank's listener there.
        address: Option<FabricAddress>,
        /// True while something may exist on the target.
        begun: bool,
        /// Who asked.
        answers: AnswerSender,
    },
    /// An inspection.
    Explain {
        /// Ranks that did not answer yet.
        waiting: BTreeSet<Rank>,
        /// What was found.
        found: BTreeMap<Rank, Result<Inspection, String>>,
        /// Who asked.
        answers: AnswerSender,
    },
}

impl Operation {
    /// For `mend ps`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Checkpoint { .. } => "checkpointing",
            Self::Migration { .. } => "migrating",
            Self::Explain { .. } => "running",
        }
    }
}

fn failed(failure: Failure) -> Answer {
    Answer::Failed { error: failure.error, hint: failure.hint }
}

impl Job {
    /// Begins the next waiting request if nothing is under way.
    pub(crate) fn next_operation(&mut self) {
        if self.ending.is_some() || self.operation.is_some() {
            return;
        }
        let Some((ask, _, since)) = self.waiting.front() else { return };
        let (explain, remove, since) = (matches!(ask, Ask::Explain), matches!(ask, Ask::Remove { .. }), *since);
        if self.background.is_some() && !explain || remove && self.upkeep_in_the_way() {
            return;
        }
        if !self.agents_ready(since) {
            return;
        }
        let Some((ask, answers, _)) = self.waiting.pop_front() else { return };
        match ask {
            Ask::Checkpoint { mode } => self.begin_checkpoint(mode, answers),
            Ask::Migrate { rank, to } => self.begin_migration(rank, to.as_deref(), answers),
            Ask::Explain => self.begin_explain(answers),
            Ask::Remove { numbers } => self.remove_checkpoints(&numbers, &answers),
            Ask::Status | Ask::Kill => {}
        }
    }

    fn begin_checkpoint(&mut self, mode: Option<SaveMode>, answers: AnswerSender) {
        let number = manifest::numbers(&self.checkpoints()).last().copied().unwrap_or(0).max(self.last_number) + 1;
        let mode = mode.unwrap_or(self.saving.mode);
        let (bases, base) = (self.choose_bases(), self.periodic.builds_on());
        self.note_checkpoint(number, mode, base.filter(|_| !bases.is_empty()), &answers);
        let ended = self.ranks.iter().position(|rank| matches!(rank.phase, RankPhase::Exited(_)));
        if let Some(rank) = ended {
            let error = format!("rank {rank} has ended already: a checkpoint holds all ranks or none");
            self.journal.blame(Code::RankEnded);
            return self.refuse_checkpoint(number, Failure { error, hint: String::new() }, &answers);
        }
        let part = match manifest::prepare(&self.checkpoints(), number) {
            Ok(part) => part,
            Err(error) => {
                self.journal.blame(Code::Directory);
                return self.refuse_checkpoint(number, Failure { error: with_causes(&error), hint: error.hint() }, &answers);
            }
        };
        let order = |rank: Rank| {
            let target = SaveTarget::File(part.join(image_name(rank)));
            let base = bases.get(rank as usize).copied();
            SaveOrder { mode, base, track: self.periodic.tracks(), rate: self.saving.rate, files_kept: true, ..SaveOrder::full(target) }
        };
        let orders = (0..self.ranks.len() as Rank).map(order).collect();
        let keep = KeepOrder { checkpoint: part.clone(), limit: self.saving.keep_files, seal: None };
        let (machine, actions) = Checkpoint::start(orders, keep, self.can_ask_in_turn());
        self.operation = Some(Operation::Checkpoint { machine, number, part, snapshot: None, answers });
        self.do_checkpoint(actions);
    }

    fn refuse_checkpoint(&mut self, number: u64, failure: Failure, answers: &AnswerSender) {
        self.note_checkpoint_failed(number, answers, &failure);
        let _ = answers.send(failed(failure));
    }

    fn begin_migration(&mut self, rank: Rank, to: Option<&str>, answers: AnswerSender) {
        let target = self.migration_target(rank, to);
        self.note_migration(rank, target.as_ref().ok().copied());
        match target {
            Ok(target) => {
                let running = |&rank: &Rank| !matches!(self.ranks[rank as usize].phase, RankPhase::Exited(_));
                let ranks: Vec<Rank> = (0..self.ranks.len() as Rank).filter(running).collect();
                let from = self.nodes[self.ranks[rank as usize].node as usize].name.clone();
                let (machine, actions) = Migration::start(rank, ranks);
                self.operation = Some(Operation::Migration { machine, from, target, address: None, begun: false, answers });
                self.do_migration(actions);
            }
            Err(failure) => {
                self.journal.blame(Code::Refused);
                self.note_migrated(rank, "", &Err(failure.clone()));
                let _ = answers.send(failed(failure));
            }
        }
    }

    fn migration_target(&self, rank: Rank, to: Option<&str>) -> Result<NodeIndex, Failure> {
        let refuse = |error: String, hint: String| Err(Failure { error, hint });
        let Some(state) = self.ranks.get(rank as usize) else {
            return refuse(format!("there is no rank {rank}"), format!("ranks are 0 to {}", self.ranks.len() - 1));
        };
        if matches!(state.phase, RankPhase::Exited(_)) {
            return refuse(format!("rank {rank} has ended"), String::new());
        }
        let names = || self.nodes.iter().filter(|node| node.alive).map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        match to {
            Some(name) => match self.nodes.iter().position(|node| node.name == name) {
                None => refuse(
                    format!("node {name} does not belong to this job"),
                    format!("its nodes are {}; name more with --spares when you start it", names()),
                ),
                Some(node) if !self.nodes[node].alive => refuse(format!("node {name} is lost"), format!("alive: {}", names())),
                Some(node) if node as NodeIndex == state.node => refuse(format!("rank {rank} is on {name} already"), String::new()),
                Some(node) => Ok(node as NodeIndex),
            },
            None => {
                let alive: Vec<NodeIndex> = (0..self.nodes.len() as NodeIndex).filter(|&node| self.nodes[node as usize].alive).collect();
                let places: Vec<NodeIndex> = self.ranks.iter().map(|rank| rank.node).collect();
                choose_target(&places, rank, &alive).ok_or_else(|| Failure {
                    error: "the job has no other node".into(),
                    hint: "name spares with --spares when you start it".into(),
                })
            }
        }
    }

    fn begin_explain(&mut self, answers: AnswerSender) {
        let mut waiting = BTreeSet::new();
        let mut found = BTreeMap::new();
        for rank in 0..self.ranks.len() as Rank {
            if matches!(self.ranks[rank as usize].phase, RankPhase::Exited(_)) {
                found.insert(rank, Err("it has ended".to_owned()));
            } else {
                waiting.insert(rank);
                self.ask_agent(rank, Request::Inspect { ahead: None });
            }
        }
        self.operation = Some(Operation::Explain { waiting, found, answers });
        self.finish_explain();
    }

    fn finish_explain(&mut self) {
        if !matches!(&self.operation, Some(Operation::Explain { waiting, .. }) if waiting.is_empty()) {
            return;
        }
        let Some(Operation::Explain { found, answers, .. }) = self.operation.take() else { return };
        let host = |rank: Rank| self.nodes[self.ranks[rank as usize].node as usize].name.clone();
        let explanations = found.into_iter().map(|(rank, inspection)| Explanation { rank, host: host(rank), inspection }).collect();
        let _ = answers.send(Answer::Explained(explanations));
    }

    /// An agent answered (or its time ran out).
    pub(crate) fn replied(&mut self, rank: Rank, reply: Reply) {
        let now_us = self.now_us();
        if let (Reply::Inspected(found), Some(tiers)) = (&reply, &mut self.tiers) {
            tiers.expect_size(rank, found.image_bytes);
        }
        self.note_reply(rank, &reply);
        if let Some(Operation::Checkpoint { machine, .. }) = &mut self.background
            && matches!(reply, Reply::Synced | Reply::Failed { .. })
        {
            let actions = machine.reply(now_us, rank, reply.clone());
            self.do_checkpoint(actions);
        }
        match &mut self.operation {
            Some(Operation::Checkpoint { machine, .. }) => {
                let actions = machine.reply(now_us, rank, reply);
                self.do_checkpoint(actions);
            }
            Some(Operation::Migration { machine, .. }) => {
                let actions = machine.reply(now_us, rank, reply);
                self.do_migration(actions);
            }
            Some(Operation::Explain { waiting, found, .. }) => {
                waiting.remove(&rank);
                match reply {
                    Reply::Inspected(inspection) => found.insert(rank, Ok(inspection)),
                    Reply::Failed { error, .. } => found.insert(rank, Err(error)),
                    _ => None,
                };
                self.finish_explain();
            }
            // A restart's ranks go on.
            None => match (reply, self.resumed_at_us, &mut self.restart) {
                // It ended as soon as it went on.
                (Reply::Failed { error, .. }, ..) if error == AGENT_LEFT => tracing::debug!(rank, error, "an agent left"),
                (Reply::Failed { error, .. }, ..) => tracing::warn!(rank, error, "an agent reports a failure"),
                (Reply::Resumed { .. }, Some(resumed), Some(phases)) => phases.reconnect_us = now_us.saturating_sub(resumed),
                _ => {}
            },
        }
    }

    /// An image that was written behind its rank is durable, or is not going to be.
    pub(crate) fn image_written(&mut self, rank: Rank, id: ImageId, result: Result<Written, String>) {
        let now_us = self.now_us();
        self.note_written(rank, id, &result);
        if let Some(Operation::Checkpoint { machine, .. }) = self.background.as_mut().or(self.operation.as_mut()) {
            let actions = machine.written(now_us, rank, id, result);
            self.do_checkpoint(actions);
        }
    }

    /// A rank ended or is lost.
    pub(crate) fn operation_lost(&mut self, rank: Rank, why: &str) {
        let now_us = self.now_us();
        self.pending.retain(|_, pending| pending.rank != rank);
        self.journal.blame(Code::RankEnded);
        if let Some(Operation::Checkpoint { machine, .. }) = &mut self.background {
            let actions = machine.lost(now_us, rank, why);
            self.do_checkpoint(actions);
        }
        match &mut self.operation {
            Some(Operation::Checkpoint { machine, .. }) => {
                let actions = machine.lost(now_us, rank, why);
                self.do_checkpoint(actions);
            }
            Some(Operation::Migration { machine, .. }) => {
                let actions = machine.lost(now_us, rank, why);
                self.do_migration(actions);
            }
            Some(Operation::Explain { waiting, found, .. }) => {
                if waiting.remove(&rank) {
                    found.insert(rank, Err(format!("it {why}")));
                }
                self.finish_explain();
            }
            None => {}
        }
    }

    fn do_checkpoint(&mut self, actions: Vec<checkpoint::Action>) {
        self.note_phase();
        for action in actions {
            match action {
                checkpoint::Action::Ask { rank, request } => {
                    let number = match &self.operation {
                        Some(Operation::Checkpoint { number, .. }) => *number,
                        _ => 0,
                    };
                    if request == Request::Resume {
                        self.forget_turns();
                    }
                    if !matches!(&request, Request::Save(order) if self.save_on_shelf(rank, number, order)) {
                        self.ask_agent(rank, request);
                    }
                }
                checkpoint::Action::AskInTurn(steps) => self.ask_in_turn(steps),
                checkpoint::Action::Await(step) => self.await_turn(step),
                checkpoint::Action::FreezePmi => self.pmi.freeze(),
                checkpoint::Action::Snapshot => {
                    let now = (self.pmi.clone(), self.output.printed(), self.input.at_hold());
                    if let Some(Operation::Checkpoint { snapshot, .. }) = &mut self.operation {
                        *snapshot = Some(Box::new(now));
                    }
                }
                checkpoint::Action::ThawPmi => {
                    let effects = self.pmi.thaw();
                    self.apply(effects);
                }
                checkpoint::Action::Finish(result) => {
                    self.finish_checkpoint(result);
                    self.next_operation();
                }
            }
        }
        if matches!(&self.operation, Some(Operation::Checkpoint { machine, .. }) if machine.is_writing()) {
            self.background = self.operation.take();
            self.next_operation();
        }
    }

    fn finish_checkpoint(&mut self, result: Result<checkpoint::Outcome, Failure>) {
        let ended = if self.background.is_some() { self.background.take() } else { self.operation.take() };
        let Some(Operation::Checkpoint { number, part, snapshot, answers, .. }) = ended else { return };
        match (result, snapshot.map(|snapshot| *snapshot)) {
            (Ok(outcome), Some((pmi, printed, input))) => {
                let host = |rank: Rank| self.nodes[self.ranks[rank as usize].node as usize].name.clone();
                let images = outcome.saved.iter().map(|(&rank, saved)| ImageEntry {
                    rank,
                    host: host(rank),
                    bytes: saved.bytes,
                    checksum: saved.checksum,
                    id: saved.id,
                    base: saved.base.and_then(|_| self.periodic.holder(rank, saved.base)),
                    sequence: saved.sequence,
                    merged: false,
                });
                let manifest = Manifest {
                    format: FORMAT,
                    release: mend_messages::RELEASE.into(),
                    job: self.record.id.clone(),
                    identity: self.identity,
                    number,
                    taken: now(),
                    program: self.program.clone(),
                    hosts: self.nodes.iter().map(|node| node.name.clone()).collect(),
                    local: self.local,
                    images: images.collect(),
                    files: outcome.files,
                    pmi,
                    printed,
                    input: Some(input),
                    phases: outcome.phases,
                    stopped_us: outcome.stopped_us,
                    periodic: self.periodic.asked_for(&answers),
                    durable_us: outcome.durable_us,
                    tiers: self.tiers.as_ref().map(Tiering::specs).unwrap_or_default(),
                    encrypted: self.key.is_some(),
                };
                let note = |(rank, saved): (&Rank, &Saved)| saved.note.as_ref().map(|note| format!("rank {rank}: {note}"));
                let notes = outcome.saved.iter().filter_map(note).chain(manifest.files.iter().filter_map(KeptFile::not_kept)).collect();
                self.publish_checkpoint(&manifest, &part, notes, &answers);
            }
            (Ok(_), None) => self.checkpoint_failed(number, &part, &answers, "no snapshot was taken".into(), String::new()),
            (Err(failure), _) => self.checkpoint_failed(number, &part, &answers, failure.error, failure.hint),
        }
    }

    /// All images are there: the checkpoint becomes one.
    fn publish_checkpoint(&mut self, manifest: &Manifest, part: &Path, notes: Vec<String>, answers: &AnswerSender) {
        self.note_deciding(manifest.number);
        let place = match manifest::publish(part, manifest, self.key.as_ref()) {
            Ok(place) => place,
            Err(error) => {
                self.journal.blame(Code::Publish);
                return self.checkpoint_failed(manifest.number, part, answers, with_causes(&error), error.hint());
            }
        };
        self.last_number = manifest.number;
        self.note_published(manifest);
        self.published(manifest);
        let _ = answers.send(Answer::Checkpoint(CheckpointDone {
            number: manifest.number,
            directory: place.to_string_lossy().into_owned(),
            bytes: manifest.bytes() + manifest.kept_bytes(),
            phases: manifest.phases,
            stopped_us: manifest.stopped_us,
            durable_us: manifest.durable_us,
            notes,
        }));
        self.replicate(manifest);
    }

    /// There is no checkpoint; nothing is left of it.
    fn checkpoint_failed(&mut self, number: u64, part: &Path, answers: &AnswerSender, error: String, hint: String) {
        manifest::discard(part);
        self.drop_checkpoint(number);
        self.refuse_checkpoint(number, Failure { error, hint }, answers);
    }

    fn do_migration(&mut self, actions: Vec<migration::Action>) {
        self.note_phase();
        for action in actions {
            let Some(Operation::Migration { machine, target, address, begun, .. }) = &mut self.operation else { return };
            let (rank, target) = (machine.rank(), *target);
            let state = &mut self.ranks[rank as usize];
            match action {
                migration::Action::Ask { rank, request } => self.ask_agent(rank, request),
                migration::Action::Freeze => {
                    self.pmi.freeze();
                    self.input.freeze();
                }
                migration::Action::Stream => {
                    *begun = true;
                    state.open = false;
                    let token = mend_wire::random_bytes();
                    let node = &self.nodes[target as usize];
                    let stdin = self.input.is_open() && rank == 0;
                    node.send(ToDaemon::Restore { rank, source: RestoreSource::Transfer { token }, image: None, stdin });
                    let to = node.address;
                    let seq = self.new_seq(rank, STREAM_PATIENCE);
                    self.send_to_rank(rank, ToDaemon::SaveTo { seq, rank, address: to, token });
                }
                migration::Action::Commit => {
                    let listener = address.take();
                    self.note_moving(rank, target);
                    let state = &mut self.ranks[rank as usize];
                    self.nodes[state.node as usize].send(ToDaemon::Discard { rank });
                    (state.node, state.address) = (target, listener);
                    self.reopen(rank);
                }
                migration::Action::Undo => {
                    if *begun {
                        self.nodes[target as usize].send(ToDaemon::Discard { rank });
                    }
                    self.reopen(rank);
                }
                migration::Action::Thaw => {
                    let effects = self.pmi.thaw();
                    self.apply(effects);
                    self.release_stdin();
                }
                migration::Action::Finish(result) => {
                    self.finish_migration(result);
                    self.next_operation();
                }
            }
        }
    }

    fn reopen(&mut self, rank: Rank) {
        let state = &mut self.ranks[rank as usize];
        state.open = true;
        state.generation += 1;
        self.publish_map();
    }

    fn finish_migration(&mut self, result: Result<migration::Outcome, Failure>) {
        let Some(Operation::Migration { machine, from, target, answers, .. }) = self.operation.take() else { return };
        let rank = machine.rank();
        self.note_migrated(rank, &from, &result);
        let answer = match result {
            Ok(outcome) => Answer::Migrated(MigrationDone {
                rank,
                from,
                to: self.nodes[target as usize].name.clone(),
                bytes: outcome.bytes,
                phases: outcome.phases,
                stopped_us: outcome.stopped_us,
            }),
            Err(failure) => failed(failure),
        };
        let _ = answers.send(answer);
    }

    /// The migration's target, if `node` is it and `rank` the one that moves there.
    fn moving_to(&mut self, node: NodeIndex, rank: Rank) -> Option<&mut Migration> {
        match &mut self.operation {
            Some(Operation::Migration { machine, target, .. }) if *target == node && machine.rank() == rank => Some(machine),
            _ => None,
        }
    }

    pub(crate) fn target_restored(&mut self, node: NodeIndex, rank: Rank, restart_us: u64) {
        let now_us = self.now_us();
        let actions = self.moving_to(node, rank).map(|machine| machine.restored(now_us, restart_us));
        self.do_migration(actions.unwrap_or_default());
    }

    pub(crate) fn target_fabric_up(&mut self, node: NodeIndex, rank: Rank, listener: FabricAddress) {
        let now_us = self.now_us();
        let actions = match &mut self.operation {
            Some(Operation::Migration { machine, target, address, .. }) if *target == node && machine.rank() == rank => {
                *address = Some(listener);
                machine.fabric_up(now_us)
            }
            _ => Vec::new(),
        };
        self.do_migration(actions);
    }

    pub(crate) fn target_refused(&mut self, node: NodeIndex, rank: Rank, error: String, hint: String) {
        let now_us = self.now_us();
        let host = self.nodes[node as usize].name.clone();
        let failure = Failure { error: format!("rank {rank} cannot be rebuilt on {host}: {error}"), hint };
        self.journal.blame(Code::Target);
        let actions = self.moving_to(node, rank).map(|machine| machine.target_failed(now_us, failure));
        self.do_migration(actions.unwrap_or_default());
    }

    pub(crate) fn target_lost(&mut self, node: NodeIndex, why: &str) {
        let Some(Operation::Migration { machine, target, .. }) = &self.operation else { return };
        if *target == node {
            let rank = machine.rank();
            self.target_refused(node, rank, format!("the node is lost ({why})"), String::new());
        }
    }

    /// The job ends: nobody is left waiting, nothing unfinished is left behind.
    pub(crate) fn abandon_operations(&mut self) {
        let failure = || Failure { error: "the job ended first".into(), hint: String::new() };
        let answer = || failed(failure());
        for operation in [self.operation.take(), self.background.take()].into_iter().flatten() {
            match operation {
                Operation::Checkpoint { part, number, answers, .. } => {
                    manifest::discard(&part);
                    self.journal.blame(Code::JobEnded);
                    self.refuse_checkpoint(number, failure(), &answers);
                }
                Operation::Migration { machine, from, answers, .. } => {
                    self.journal.blame(Code::JobEnded);
                    self.note_migrated(machine.rank(), &from, &Err(failure()));
                    let _ = answers.send(answer());
                }
                Operation::Explain { answers, .. } => {
                    let _ = answers.send(answer());
                }
            }
        }
        for (_, answers, _) in self.waiting.drain(..) {
            let _ = answers.send(answer());
        }
        self.pending.clear();
    }
}
