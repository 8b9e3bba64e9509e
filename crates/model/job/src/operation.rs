//! Checkpoint, migration and inspection of a running job: drives the machines of `mend-coordination`, one at a
//! time, and carries out what they ask for.
//!
//! ```text
//! checkpoint: Preparing ──Prepared──► Checkpoint ──all run, images being written──► (background) ──► Publishing ──Published──► over
//! ```
//! Invariants: one operation at a time, but for a checkpoint in the background, beside which ranks may be inspected; whoever asked is
//! answered once; what a failed checkpoint wrote is removed.

use crate::event::{Asker, Effect, JobPhase, Outcome, Publication, PublishedImage, StdinEffect, Unexplained};
use crate::job::{Job, RankPhase};
use crate::safeguard::Safeguard;
use mend_coordination::checkpoint::{self, Checkpoint, image_name};
use mend_coordination::failure::{Failure, Gone, Refusal, TargetTrouble, Trouble};
use mend_coordination::migration::{self, Migration};
use mend_coordination::placement::choose_target;
use mend_coordination::pmi::PmiServer;
use mend_journal::event::Code;
use mend_messages::agent::{ImageId, Inspection, Reply, Request, SaveMode, SaveOrder, SaveTarget, Saved, Unasked, Unwritten, Written};
use mend_messages::control::{Ask, MigrationDone};
use mend_messages::daemon::{RestoreSource, ToDaemon};
use mend_messages::files::KeepOrder;
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Longest time the image of one rank may take to another node, microseconds.
const MAX_STREAM_US: u64 = 3_600_000_000;

/// What is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// A checkpoint whose directory is being made.
    Preparing {
        /// Its number.
        number: u64,
        /// How it is to be taken.
        mode: SaveMode,
        /// The images to build on, one per rank, or none.
        bases: Vec<ImageId>,
        /// The checkpoint that has them.
        base: Option<u64>,
        /// Who asked.
        asker: Asker,
    },
    /// A coordinated checkpoint.
    Checkpoint {
        /// Its steps.
        machine: Box<Checkpoint>,
        /// Its number.
        number: u64,
        /// PMI server at the snapshot.
        snapshot: Option<PmiServer>,
        /// Who asked.
        asker: Asker,
    },
    /// A checkpoint whose images are durable.
    Publishing {
        /// What its manifest is made of.
        publication: Box<Publication>,
        /// What was done in another way than ordered.
        notes: Vec<(Rank, String)>,
        /// Who asked.
        asker: Asker,
    },
    /// A migration.
    Migration {
        /// Its steps.
        machine: Migration,
        /// Where from.
        from: NodeIndex,
        /// Where to.
        target: NodeIndex,
        /// The restored rank's listener there.
        address: Option<FabricAddress>,
        /// True while something may exist on the target.
        begun: bool,
        /// Who asked.
        asker: Asker,
    },
    /// An inspection.
    Explain {
        /// Ranks that did not answer yet.
        waiting: BTreeSet<Rank>,
        /// What was found.
        found: BTreeMap<Rank, Result<Inspection, Unexplained>>,
        /// Who asked.
        asker: Asker,
    },
}

impl Operation {
    /// For `mend ps`.
    pub(crate) fn phase(&self) -> JobPhase {
        match self {
            Self::Preparing { .. } | Self::Checkpoint { .. } | Self::Publishing { .. } => JobPhase::Checkpointing,
            Self::Migration { .. } => JobPhase::Migrating,
            Self::Explain { .. } => JobPhase::Running,
        }
    }

    /// Who asked.
    pub(crate) fn asker(&self) -> Asker {
        match self {
            Self::Preparing { asker, .. }
            | Self::Checkpoint { asker, .. }
            | Self::Publishing { asker, .. }
            | Self::Migration { asker, .. }
            | Self::Explain { asker, .. } => *asker,
        }
    }
}

impl Job {
    /// Begins the next waiting request if nothing is under way; the one after it, too, if that came to nothing.
    pub(crate) fn next_operation(&mut self) {
        while self.begin_next() {}
    }

    /// True if a request was taken from those that wait.
    fn begin_next(&mut self) -> bool {
        if self.ending.is_some() || (self.operation.is_some() && self.keeps(Safeguard::OneAtATime)) || self.removing.is_some() {
            return false;
        }
        let Some((ask, _, since)) = self.waiting.front() else { return false };
        let (explain, remove, since) = (matches!(ask, Ask::Explain), matches!(ask, Ask::Remove { .. }), *since);
        if self.background.is_some() && !explain || remove && self.upkeep_in_the_way() {
            return false;
        }
        if !self.agents_ready(since) {
            return false;
        }
        let Some((ask, asker, _)) = self.waiting.pop_front() else { return false };
        match ask {
            Ask::Checkpoint { mode } => self.begin_checkpoint(mode, asker),
            Ask::Migrate { rank, to } => self.begin_migration(rank, to.as_deref(), asker),
            Ask::Explain => self.begin_explain(asker),
            Ask::Remove { numbers } => {
                self.removing = Some((asker, numbers.clone()));
                self.effect(Effect::Remove { asker, numbers });
            }
            Ask::Status | Ask::Kill => {}
        }
        true
    }

    fn begin_checkpoint(&mut self, mode: Option<SaveMode>, asker: Asker) {
        let newest = self.listed.last().copied().unwrap_or(0);
        let last = if self.keeps(Safeguard::NumbersAreNew) { self.last_number } else { 0 };
        let number = newest.max(last) + 1;
        let (base, bases) = self.choose_bases();
        let mode = mode.unwrap_or(self.saving.mode);
        if let Some(rank) = self.ended_rank() {
            self.note_checkpoint(number, mode, base, asker);
            return self.refuse_checkpoint(number, asker, Code::RankEnded, Failure::RankEnded { rank });
        }
        let checked = base.map(|base| (base, bases.clone()));
        self.operation = Some(Operation::Preparing { number, mode, bases, base, asker });
        self.effect(Effect::Prepare { number, base: checked });
    }

    fn ended_rank(&self) -> Option<Rank> {
        self.ranks.iter().position(|rank| matches!(rank.phase, RankPhase::Exited(_))).map(|rank| rank as Rank)
    }

    /// The directory of a checkpoint is there, or cannot be made.
    pub(crate) fn prepared(&mut self, number: u64, result: Result<bool, Trouble>) {
        let (mode, bases, base, asker) = match self.operation.take() {
            Some(Operation::Preparing { number: its, mode, bases, base, asker }) if its == number => (mode, bases, base, asker),
            other => {
                self.operation = other;
                if self.discarding.remove(&number) {
                    self.drop_checkpoint(number);
                }
                return;
            }
        };
        let good = matches!(result, Ok(true)) || result.is_ok() && !self.keeps(Safeguard::BasesAreChecked);
        self.note_checkpoint(number, mode, base.filter(|_| good), asker);
        if let Err(trouble) = result {
            return self.refuse_checkpoint(number, asker, Code::Directory, Failure::Storage(trouble));
        }
        if let Some(rank) = self.ended_rank() {
            self.drop_checkpoint(number);
            return self.refuse_checkpoint(number, asker, Code::RankEnded, Failure::RankEnded { rank });
        }
        let part = self.checkpoints.join(format!("{number}.part"));
        let (track, rate) = (self.periodic.tracks(), self.saving.rate);
        let order = |rank: Rank| {
            let target = SaveTarget::File(part.join(image_name(rank)));
            let base = bases.get(rank as usize).copied().filter(|_| good);
            SaveOrder { mode, base, track, rate, files_kept: true, ..SaveOrder::full(target) }
        };
        let orders = (0..self.ranks.len() as Rank).map(order).collect();
        let keep = KeepOrder { checkpoint: part.clone(), limit: self.saving.keep_files, seal: None };
        let (machine, actions) = Checkpoint::start(orders, keep, self.one_daemon());
        self.operation = Some(Operation::Checkpoint { machine: Box::new(machine), number, snapshot: None, asker });
        self.do_checkpoint(actions);
    }

    fn refuse_checkpoint(&mut self, number: u64, asker: Asker, code: Code, failure: Failure) {
        self.blame(code);
        self.note_checkpoint_failed(number, asker, &failure);
        self.answer(asker, Outcome::Failed(failure));
    }

    fn begin_migration(&mut self, rank: Rank, to: Option<&str>, asker: Asker) {
        let target = self.migration_target(rank, to);
        self.note_migration(rank, target.as_ref().ok().copied());
        match target {
            Ok(target) => {
                let running = |&rank: &Rank| !matches!(self.ranks[rank as usize].phase, RankPhase::Exited(_));
                let ranks: Vec<Rank> = (0..self.ranks.len() as Rank).filter(running).collect();
                let from = self.ranks[rank as usize].node;
                let (machine, actions) = Migration::start(rank, ranks);
                self.operation = Some(Operation::Migration { machine, from, target, address: None, begun: false, asker });
                self.do_migration(actions);
            }
            Err(failure) => {
                self.blame(Code::Refused);
                self.note_migrated(rank, None, Err(&failure));
                self.answer(asker, Outcome::Failed(failure));
            }
        }
    }

    fn migration_target(&self, rank: Rank, to: Option<&str>) -> Result<NodeIndex, Failure> {
        let Some(state) = self.ranks.get(rank as usize) else {
            return Err(Failure::NoSuchRank { rank, size: self.ranks.len() as u32 });
        };
        if matches!(state.phase, RankPhase::Exited(_)) {
            return Err(Failure::MovesNoMore { rank });
        }
        match to {
            Some(name) => match self.nodes.iter().position(|node| node.setup.name == name) {
                None => Err(Failure::NoSuchNode { name: name.to_owned() }),
                Some(node) if !self.nodes[node].alive => Err(Failure::NodeIsLost { node: node as NodeIndex }),
                Some(node) if node as NodeIndex == state.node => Err(Failure::ThereAlready { rank, node: state.node }),
                Some(node) => Ok(node as NodeIndex),
            },
            None => {
                let alive: Vec<NodeIndex> = (0..self.nodes.len() as NodeIndex).filter(|&node| self.nodes[node as usize].alive).collect();
                let places: Vec<NodeIndex> = self.ranks.iter().map(|rank| rank.node).collect();
                choose_target(&places, rank, &alive).ok_or(Failure::NoOtherNode)
            }
        }
    }

    /// An agent answered (or its time ran out).
    pub(crate) fn replied(&mut self, rank: Rank, reply: Reply) {
        let now_us = self.now_us;
        if let (Reply::Inspected(found), Some(tiers)) = (&reply, &mut self.tiers) {
            tiers.expect_size(rank, found.image_bytes);
        }
        self.note_reply(rank, &reply);
        if let Some(Operation::Checkpoint { machine, .. }) = &mut self.background
            && (reply == Reply::Synced || reply.is_failure())
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
                if waiting.remove(&rank) {
                    match reply {
                        Reply::Inspected(inspection) => drop(found.insert(rank, Ok(inspection))),
                        reply => match Refusal::of(reply) {
                            Some(why) => drop(found.insert(rank, Err(Unexplained::Refused(why)))),
                            None => drop(waiting.insert(rank)),
                        },
                    }
                }
                self.finish_explain();
            }
            // A restart's ranks go on.
            Some(Operation::Preparing { .. } | Operation::Publishing { .. }) | None => match reply {
                // It ended as soon as it went on.
                Reply::Unasked(Unasked::Left) => {}
                Reply::Resumed { .. } => {
                    if let (Some(resumed), Some(phases)) = (self.resumed_at_us, &mut self.restart) {
                        phases.reconnect_us = now_us.saturating_sub(resumed);
                    }
                }
                reply => {
                    if let Some(why) = Refusal::of(reply) {
                        self.tell(crate::event::Notice::GoesOnBadly { rank, why });
                    }
                }
            },
        }
    }

    /// An image that was written behind its rank is durable, or is not going to be.
    pub(crate) fn image_written(&mut self, rank: Rank, id: ImageId, mut result: Result<Written, Unwritten>) {
        if !self.keeps(Safeguard::WritesAreChecked) {
            result = Ok(result.unwrap_or_default());
        }
        let now_us = self.now_us;
        self.note_written(rank, id, &result);
        let writing = match &mut self.background {
            Some(Operation::Checkpoint { machine, .. }) => Some(machine),
            _ => match &mut self.operation {
                Some(Operation::Checkpoint { machine, .. }) => Some(machine),
                _ => None,
            },
        };
        if let Some(machine) = writing {
            let actions = machine.written(now_us, rank, id, result);
            self.do_checkpoint(actions);
        }
    }

    /// A rank ended or is lost.
    pub(crate) fn operation_lost(&mut self, rank: Rank, how: Gone) {
        let now_us = self.now_us;
        self.pending.retain(|_, pending| pending.rank != rank);
        self.blame(Code::RankEnded);
        if !self.keeps(Safeguard::LostRanksAreTold) {
            return;
        }
        if let Some(Operation::Checkpoint { machine, .. }) = &mut self.background {
            let actions = machine.lost(now_us, rank, how);
            self.do_checkpoint(actions);
        }
        match &mut self.operation {
            Some(Operation::Checkpoint { machine, .. }) => {
                let actions = machine.lost(now_us, rank, how);
                self.do_checkpoint(actions);
            }
            Some(Operation::Migration { machine, .. }) => {
                let actions = machine.lost(now_us, rank, how);
                self.do_migration(actions);
            }
            Some(Operation::Explain { waiting, found, .. }) => {
                if waiting.remove(&rank) {
                    found.insert(rank, Err(Unexplained::Gone(how)));
                }
                self.finish_explain();
            }
            Some(Operation::Preparing { .. } | Operation::Publishing { .. }) | None => {}
        }
    }

    fn do_checkpoint(&mut self, actions: Vec<checkpoint::Action>) {
        self.note_phase();
        let mut step = Vec::new();
        for action in actions {
            match action {
                checkpoint::Action::Ask { rank, request } => {
                    let number = match &self.operation {
                        Some(Operation::Checkpoint { number, .. }) => *number,
                        _ => 0,
                    };
                    if request == Request::Resume {
                        self.forget_later_steps();
                    }
                    if !matches!(&request, Request::Save(order) if self.save_in_node_store(rank, number, order)) {
                        step.push((rank, request));
                    }
                }
                checkpoint::Action::AskBatch(steps) => self.ask_agents(steps),
                // What is asked as a batch is awaited from its first step on.
                checkpoint::Action::Await(0) => {}
                checkpoint::Action::Await(step) => self.await_step(step),
                checkpoint::Action::FreezePmi => self.pmi.freeze(),
                checkpoint::Action::Snapshot => {
                    if let Some(Operation::Checkpoint { snapshot, number, .. }) = &mut self.operation {
                        *snapshot = Some(self.pmi.clone());
                        let number = *number;
                        self.effect(Effect::Note { number });
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
        if !step.is_empty() {
            self.ask_agents(vec![step]);
        }
        if matches!(&self.operation, Some(Operation::Checkpoint { machine, .. }) if machine.is_writing()) {
            self.background = self.operation.take();
            self.next_operation();
        }
    }

    fn finish_checkpoint(&mut self, result: Result<checkpoint::Outcome, Failure>) {
        let ended = if self.background.is_some() { self.background.take() } else { self.operation.take() };
        let Some(Operation::Checkpoint { number, snapshot, asker, .. }) = ended else { return };
        match (result, snapshot) {
            (Ok(outcome), Some(pmi)) => {
                let images = outcome.saved.iter().map(|(&rank, saved)| PublishedImage {
                    rank,
                    node: self.ranks[rank as usize].node,
                    bytes: saved.bytes,
                    checksum: saved.checksum,
                    id: saved.id,
                    base: saved.base.and_then(|_| self.periodic.holder(rank, saved.base)),
                    sequence: saved.sequence,
                });
                let publication = Box::new(Publication {
                    number,
                    images: images.collect(),
                    pmi,
                    files: outcome.files,
                    phases: outcome.phases,
                    stopped_us: outcome.stopped_us,
                    durable_us: outcome.durable_us,
                    periodic: asker == Asker::Schedule,
                });
                let note = |(rank, saved): (&Rank, &Saved)| saved.note.as_ref().map(|note| (*rank, note.clone()));
                let notes = outcome.saved.iter().filter_map(note).collect();
                self.note_deciding(number);
                self.effect(Effect::Publish(publication.clone()));
                self.background = Some(Operation::Publishing { publication, notes, asker });
            }
            (Ok(_), None) => self.checkpoint_failed(number, asker, Failure::NoSnapshot),
            (Err(failure), _) => self.checkpoint_failed(number, asker, failure),
        }
    }

    /// A manifest was written, or could not be.
    pub(crate) fn published(&mut self, number: u64, result: Result<String, Trouble>) {
        let Some(Operation::Publishing { publication, notes, asker }) = self
            .background
            .take_if(|operation| matches!(operation, Operation::Publishing { publication, .. } if publication.number == number))
        else {
            return;
        };
        match result {
            Ok(directory) => {
                self.last_number = self.last_number.max(number);
                self.listed.insert(number);
                self.note_published(&publication);
                self.taken(&publication);
                self.answer(asker, Outcome::Checkpoint { publication: publication.clone(), directory, notes });
                self.replicate(&publication);
            }
            Err(trouble) => {
                self.blame(Code::Publish);
                self.checkpoint_failed(number, asker, Failure::Storage(trouble));
            }
        }
    }

    /// There is no checkpoint; nothing is left of it.
    fn checkpoint_failed(&mut self, number: u64, asker: Asker, failure: Failure) {
        if self.keeps(Safeguard::UnfinishedGoes) {
            self.drop_checkpoint(number);
        }
        self.note_checkpoint_failed(number, asker, &failure);
        self.answer(asker, Outcome::Failed(failure));
    }

    fn do_migration(&mut self, actions: Vec<migration::Action>) {
        self.note_phase();
        let mut step = Vec::new();
        for action in actions {
            let Some(Operation::Migration { machine, target, address, begun, .. }) = &mut self.operation else { break };
            let (rank, target) = (machine.rank(), *target);
            match action {
                migration::Action::Ask { rank, request } => step.push((rank, request)),
                migration::Action::Freeze => {
                    self.pmi.freeze();
                    self.effect(Effect::Stdin(StdinEffect::Freeze));
                }
                migration::Action::Stream => {
                    *begun = true;
                    self.ranks[rank as usize].open = false;
                    let token = self.tokens.draw();
                    let stdin = self.stdin && rank == 0;
                    let address = self.nodes[target as usize].setup.address;
                    let order = ToDaemon::Restore { rank, source: RestoreSource::Transfer { token }, image: None, stdin };
                    self.send(target, order);
                    let seq = self.new_seq(rank, MAX_STREAM_US);
                    self.send_to_rank(rank, ToDaemon::SaveTo { seq, rank, address, token });
                }
                migration::Action::Commit => {
                    let address = address.take();
                    self.note_moving(rank, target);
                    let source = self.ranks[rank as usize].node;
                    if self.keeps(Safeguard::SourceGoes) {
                        self.send(source, ToDaemon::Discard { rank });
                    }
                    let state = &mut self.ranks[rank as usize];
                    (state.node, state.address) = (target, address);
                    self.reopen(rank);
                }
                migration::Action::Undo => {
                    if *begun && self.keeps(Safeguard::TargetGoes) {
                        self.send(target, ToDaemon::Discard { rank });
                    }
                    let before = self.ranks[rank as usize].generation;
                    self.reopen(rank);
                    self.losses.stayed(rank, before, before + 1);
                }
                migration::Action::Thaw => {
                    let effects = self.pmi.thaw();
                    self.apply(effects);
                    self.effect(Effect::Stdin(StdinEffect::Release));
                }
                migration::Action::Finish(result) => {
                    self.finish_migration(result);
                    self.next_operation();
                }
            }
        }
        if !step.is_empty() {
            self.ask_agents(vec![step]);
        }
    }

    fn reopen(&mut self, rank: Rank) {
        let state = &mut self.ranks[rank as usize];
        state.open = true;
        state.generation += 1;
        self.publish_map();
    }

    fn finish_migration(&mut self, result: Result<migration::Outcome, Failure>) {
        let Some(Operation::Migration { machine, from, target, asker, .. }) = self.operation.take() else { return };
        self.note_migrated(machine.rank(), Some(from), result.as_ref());
        let name = |node: NodeIndex| self.nodes[node as usize].setup.name.clone();
        let outcome = match result {
            Ok(outcome) => Outcome::Migrated(MigrationDone {
                rank: machine.rank(),
                from: name(from),
                to: name(target),
                bytes: outcome.bytes,
                phases: outcome.phases,
                stopped_us: outcome.stopped_us,
            }),
            Err(failure) => Outcome::Failed(failure),
        };
        self.answer(asker, outcome);
    }

    /// The migration's target, if `node` is it and `rank` the one that moves there.
    fn moving_to(&mut self, node: NodeIndex, rank: Rank) -> Option<&mut Migration> {
        match &mut self.operation {
            Some(Operation::Migration { machine, target, .. }) if *target == node && machine.rank() == rank => Some(machine),
            _ => None,
        }
    }

    pub(crate) fn target_restored(&mut self, node: NodeIndex, rank: Rank, restart_us: u64) {
        let now_us = self.now_us;
        let actions = self.moving_to(node, rank).map(|machine| machine.restored(now_us, restart_us));
        self.do_migration(actions.unwrap_or_default());
    }

    pub(crate) fn target_fabric_up(&mut self, node: NodeIndex, rank: Rank, listener: FabricAddress) {
        let now_us = self.now_us;
        let actions = match &mut self.operation {
            Some(Operation::Migration { machine, target, address, .. }) if *target == node && machine.rank() == rank => {
                *address = Some(listener);
                machine.fabric_up(now_us)
            }
            _ => Vec::new(),
        };
        self.do_migration(actions);
    }

    pub(crate) fn target_refused(&mut self, node: NodeIndex, rank: Rank, trouble: Trouble) {
        self.target_failed(node, rank, TargetTrouble::Told(trouble));
    }

    pub(crate) fn target_ended(&mut self, node: NodeIndex, rank: Rank) {
        self.target_failed(node, rank, TargetTrouble::Ended);
    }

    fn target_failed(&mut self, node: NodeIndex, rank: Rank, why: TargetTrouble) {
        let now_us = self.now_us;
        let failure = Failure::NotRebuilt { rank, node, why };
        self.blame(Code::Target);
        let actions = self.moving_to(node, rank).map(|machine| machine.target_failed(now_us, failure));
        self.do_migration(actions.unwrap_or_default());
    }

    pub(crate) fn target_lost(&mut self, node: NodeIndex) {
        let Some(Operation::Migration { machine, target, .. }) = &self.operation else { return };
        if *target == node {
            self.target_failed(node, machine.rank(), TargetTrouble::NodeLost);
        }
    }
}
