//! A checkpoint of a running job: carries out what the machine of `mend-coordination` wants, from the directory to the manifest.
//!
//! Invariant: what a failed checkpoint wrote is removed.

use super::Job;
use super::anew::{Attempt, Kind};
use crate::event::{Asker, Effect, Outcome, Publication, PublishedImage};
use crate::operation::Operation;
use crate::questions::Purpose;
use crate::safeguard::Safeguard;
use mend_coordination::checkpoint::{self, Checkpoint, image_name};
use mend_coordination::failure::{Failure, Trouble};
use mend_journal::event::Code;
use mend_messages::agent::{ImageId, Reply, Request, SaveMode, SaveOrder, SaveTarget, Saved, Unwritten, Written};
use mend_messages::control::Ask;
use mend_messages::files::KeepOrder;
use mend_messages::job::Rank;

impl Job {
    pub(crate) fn begin_checkpoint(&mut self, mode: Option<SaveMode>, asker: Asker) {
        let newest = self.listed.last().copied().unwrap_or(0);
        let last = if self.keeps(Safeguard::NumbersAreNew) { self.last_number } else { 0 };
        let number = newest.max(last) + 1;
        let (base, bases) = self.periodic.choose_bases(|base| self.outlives_nodes(base));
        let mode = mode.unwrap_or(self.saving.mode);
        if let Some(rank) = self.first_ended() {
            self.note_checkpoint(number, mode, base, asker);
            return self.refuse_checkpoint(number, asker, Code::RankEnded, Failure::RankEnded { rank });
        }
        let checked = base.map(|base| (base, bases.values().copied().collect()));
        self.operation = Some(Operation::Preparing { number, mode, bases, base, asker });
        self.effect(Effect::Prepare { number, base: checked });
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
        if let Some(rank) = self.first_ended() {
            self.drop_checkpoint(number);
            return self.refuse_checkpoint(number, asker, Code::RankEnded, Failure::RankEnded { rank });
        }
        let part = self.checkpoints.join(format!("{number}.part"));
        let (track, rate) = (self.periodic.tracks(), self.saving.rate);
        let order = |rank: Rank| {
            let target = SaveTarget::File(part.join(image_name(rank)));
            let base = bases.get(&rank).copied().filter(|_| good);
            SaveOrder { mode, base, track, rate, files_kept: true, ..SaveOrder::full(target) }
        };
        let orders = self.roster.all_living().into_iter().map(|rank| (rank, order(rank))).collect();
        let keep = KeepOrder { checkpoint: part.clone(), limit: self.saving.keep_files, seal: None };
        let (machine, actions) = Checkpoint::start(orders, keep, self.one_daemon());
        self.operation =
            Some(Operation::Checkpoint { machine: Box::new(machine), number, mode, begun_us: self.now_us, snapshot: None, asker });
        self.do_checkpoint(actions);
    }

    fn refuse_checkpoint(&mut self, number: u64, asker: Asker, code: Code, failure: Failure) {
        self.blame(code);
        self.note_checkpoint_failed(number, asker, &failure);
        self.answer(asker, Outcome::Failed(failure));
    }

    /// An image that was written behind its rank is durable, or is not going to be.
    pub(crate) fn image_written(&mut self, rank: Rank, id: ImageId, mut result: Result<Written, Unwritten>) {
        if !self.keeps(Safeguard::WritesAreChecked) {
            result = Ok(result.unwrap_or_default());
        }
        let now_us = self.now_us;
        self.note_written(rank, id, &result);
        if let Some(machine) = self.checkpoint_under_way() {
            let actions = machine.written(now_us, rank, id, result);
            self.do_checkpoint(actions);
        }
    }

    /// An agent answered what it was asked for the checkpoint.
    pub(crate) fn checkpoint_replied(&mut self, rank: Rank, reply: Reply) {
        let now_us = self.now_us;
        if let Some(machine) = self.checkpoint_under_way() {
            let actions = machine.reply(now_us, rank, reply);
            self.do_checkpoint(actions);
        }
    }

    fn checkpoint_under_way(&mut self) -> Option<&mut Checkpoint> {
        match (&mut self.background, &mut self.operation) {
            (Some(Operation::Checkpoint { machine, .. }), _) | (_, Some(Operation::Checkpoint { machine, .. })) => Some(machine),
            _ => None,
        }
    }

    pub(crate) fn do_checkpoint(&mut self, actions: Vec<checkpoint::Action>) {
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
                        self.questions.forget_later_steps();
                    }
                    if !matches!(&request, Request::Save(order) if self.save_in_node_store(rank, number, order)) {
                        step.push((rank, request));
                    }
                }
                checkpoint::Action::AskBatch(steps) => self.ask_agents(Purpose::Checkpoint, steps),
                // What is asked in turn is awaited from its first step on.
                checkpoint::Action::Await(0) => {}
                checkpoint::Action::Await(step) => self.await_step(step),
                checkpoint::Action::FreezePmi => self.worlds.freeze(),
                checkpoint::Action::Snapshot => {
                    if let Some(Operation::Checkpoint { snapshot, number, .. }) = &mut self.operation {
                        *snapshot = Some(self.worlds.clone());
                        let number = *number;
                        self.effect(Effect::Note { number });
                    }
                }
                checkpoint::Action::ThawPmi => {
                    let effects = self.worlds.thaw();
                    self.apply(effects);
                }
                checkpoint::Action::Finish(result) => {
                    self.finish_checkpoint(result);
                    self.next_operation();
                }
            }
        }
        if !step.is_empty() {
            self.ask_agents(Purpose::Checkpoint, vec![step]);
        }
        if matches!(&self.operation, Some(Operation::Checkpoint { machine, .. }) if machine.is_writing()) {
            self.background = self.operation.take();
            self.next_operation();
        }
    }

    fn finish_checkpoint(&mut self, result: Result<checkpoint::Outcome, Failure>) {
        let ended = if self.background.is_some() { self.background.take() } else { self.operation.take() };
        let Some(Operation::Checkpoint { number, mode, begun_us, snapshot, asker, .. }) = ended else { return };
        match (result, snapshot) {
            (Ok(outcome), Some(worlds)) => {
                let images = outcome.saved.iter().map(|(&rank, saved)| PublishedImage {
                    rank,
                    node: self.roster.ranks[rank as usize].node,
                    bytes: saved.bytes,
                    checksum: saved.checksum,
                    id: saved.id,
                    base: saved.base.and_then(|_| self.periodic.holder(rank, saved.base)),
                    sequence: saved.sequence,
                    needs: self.roster.ranks[rank as usize].needs,
                });
                let publication = Box::new(Publication {
                    number,
                    images: images.collect(),
                    worlds,
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
            (Err(failure), _) => {
                let attempt = Attempt { kind: Kind::Checkpoint(number), begun_us };
                match self.begins_anew(attempt, (Ask::Checkpoint { mode: Some(mode) }, asker), &failure) {
                    true => self.drop_checkpoint(number),
                    false => self.checkpoint_failed(number, asker, failure),
                }
            }
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
                self.anew.completed();
                self.last_number = self.last_number.max(number);
                self.listed.insert(number);
                if self.lists > 0 {
                    self.newer_than_lists.insert(number);
                }
                self.note_published(&publication);
                self.taken(&publication);
                self.answer(asker, Outcome::Checkpoint { publication: publication.clone(), directory, notes });
                // The last one is in the checkpoint directory, and stays there. One that was begun before it may lie on nodes.
                if asker != Asker::TimeUp {
                    self.replicate(&publication);
                }
            }
            Err(trouble) => {
                self.blame(Code::Publish);
                self.checkpoint_failed(number, asker, Failure::Storage(trouble));
            }
        }
    }

    /// There is no checkpoint; nothing is left of it.
    pub(crate) fn checkpoint_failed(&mut self, number: u64, asker: Asker, failure: Failure) {
        if self.keeps(Safeguard::UnfinishedGoes) {
            self.drop_checkpoint(number);
        }
        self.note_checkpoint_failed(number, asker, &failure);
        self.answer(asker, Outcome::Failed(failure));
    }
}
