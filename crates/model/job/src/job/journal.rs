//! What of a job's life goes into its journal: each hook is one call where something happens.
//!
//! Invariant: nothing here decides anything.

use super::Job;
use crate::course::phase_of;
use crate::event::{Asker, Effect, NodeLoss, Publication, Record};
use crate::noted;
use crate::operation::{Move, Operation};
use crate::questions::Purpose;
use mend_coordination::failure::Failure;
use mend_coordination::migration;
use mend_journal::Event;
use mend_journal::event::{Asker as By, Cause, Code, ImageFacts, cut};
use mend_journal::ranks::Ranks;
use mend_messages::agent::{ImageId, Reply, Round, SaveMode, Saved, Unasked, Unwritten, Written};
use mend_messages::chunks::TransportWord;
use mend_messages::control::{MoveMode, PortableNote};
use mend_messages::daemon::{ExitStatus, FromDaemon, RestoreBlame};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::space_report::{SpaceReport, SpaceReports};
use std::collections::BTreeMap;

fn by(asker: Asker) -> By {
    match asker {
        Asker::Schedule => By::Schedule,
        Asker::Verb(_) => By::User,
        Asker::Leaving(_, reason) => reason.into(),
        Asker::TimeUp => By::TimeUp,
        Asker::Back(_) => By::BackMigration,
        Asker::Data(_) => By::Data,
    }
}

impl Job {
    fn put(&mut self, node: Option<NodeIndex>, rank: Option<Rank>, durable: bool, event: Event) {
        self.effect(Effect::Record(Box::new(Record::Happened { node, rank, durable, event })));
    }

    /// Records what happened to the job.
    pub(crate) fn record(&mut self, event: Event) {
        self.put(None, None, false, event);
    }

    /// Records what happened to a rank, where it is.
    pub(crate) fn record_rank(&mut self, rank: Rank, event: Event) {
        self.put(self.node_of(rank), Some(rank), false, event);
    }

    /// Records what happened to a node.
    pub(crate) fn record_node(&mut self, node: NodeIndex, event: Event) {
        self.put(Some(node), None, false, event);
    }

    /// What is found to be why the job ends; the first counts.
    pub(crate) fn cause(&mut self, cause: Cause) {
        self.effect(Effect::Record(Box::new(Record::Cause(cause))));
    }

    /// What is to blame if what is under way fails; the first counts.
    pub(crate) fn blame(&mut self, code: Code) {
        let moves = match &mut self.operation {
            Some(Operation::Migration { moves }) => moves.as_mut_slice(),
            _ => &mut [],
        };
        let courses = moves.iter_mut().map(|one| &mut one.course);
        courses.chain([&mut self.noted.course]).for_each(|course| course.blamed = course.blamed.or(Some(code)));
    }

    /// The same, where it is the migration of one rank that may fail for it.
    pub(crate) fn blame_for_move(&mut self, mover: Rank, code: Code) {
        if let Some(one) = self.move_of(mover) {
            one.course.blamed.get_or_insert(code);
        }
    }

    fn node_name(&self, node: Option<NodeIndex>) -> String {
        node.map(|node| self.roster.node_name(node).to_owned()).unwrap_or_default()
    }

    fn node_of(&self, rank: Rank) -> Option<NodeIndex> {
        self.roster.node_of(rank)
    }

    /// Which ranks are where; durable before any of them is asked to start.
    pub(crate) fn note_places(&mut self) {
        let mut found: BTreeMap<String, Vec<(u32, u32)>> = BTreeMap::new();
        for (rank, state) in (0..).zip(&self.roster.ranks) {
            found.entry(self.node_name(Some(state.node))).or_default().push((rank, rank));
        }
        let places = found.into_iter().map(|(node, ranks)| (node, Ranks::from(ranks))).collect();
        self.put(None, None, true, Event::Placed { places });
    }

    /// A daemon says something.
    pub(crate) fn note_message(&mut self, node: NodeIndex, message: &FromDaemon) {
        let (rank, event) = match message {
            FromDaemon::Started { rank } => (*rank, Event::RankStarted),
            FromDaemon::StartFailed { rank, error, hint, code, .. } => {
                (*rank, Event::StartFailed { error: cut(error.clone()), hint: cut(hint.clone()), status: *code })
            }
            FromDaemon::AgentUp { rank, main_process, executable } => {
                (*rank, Event::AgentUp { executable: cut(executable.clone()), main_process: *main_process })
            }
            FromDaemon::Agentless { rank } => (*rank, Event::Agentless),
            FromDaemon::MessagesLost { rank, peer, why } => (*rank, Event::MessagesLost { peer: *peer, why: cut(why.clone()) }),
            FromDaemon::Restored { rank, restart_us, bytes, .. } => (*rank, Event::RankRestored { us: *restart_us, bytes: *bytes }),
            FromDaemon::RestoreFailed { rank, error, hint, blame, .. } => {
                (*rank, Event::RestoreFailed { error: cut(error.clone()), hint: cut(hint.clone()), image: *blame == RestoreBlame::Image })
            }
            FromDaemon::Exited { rank, status, .. } => match status {
                ExitStatus::Code(status) => (*rank, Event::RankExited { status: *status }),
                ExitStatus::Signal(signal) => (*rank, Event::RankSignal { signal: *signal }),
            },
            FromDaemon::Paused { ranks } if ranks.is_empty() => return,
            FromDaemon::Paused { ranks } => {
                let ranks = ranks.iter().copied().collect();
                return self.put(Some(node), None, false, Event::RanksPaused { ranks });
            }
            FromDaemon::Report { rank, report } => (*rank, report.clone().into()),
            _ => return,
        };
        self.put(Some(node), Some(rank), false, event);
    }

    /// A node tells of data spaces: what of that is new.
    pub(crate) fn note_spaces(&mut self, node: NodeIndex, told: SpaceReports) {
        if told.left_out > 0 {
            self.record_node(node, Event::DataEventsLeftOut { count: told.left_out });
        }
        for report in told.reports {
            let new = self.data_losses.hear(node, report);
            if let Some(event) = new.and_then(|SpaceReport { space, event }| Event::of_space(space, event)) {
                self.record_node(node, event);
            }
        }
    }

    /// The job ends as this rank did, if that was not well.
    pub(crate) fn blame_exit(&mut self, rank: Rank, status: ExitStatus) {
        let node = self.node_name(self.node_of(rank));
        match status {
            ExitStatus::Code(0) => {}
            ExitStatus::Code(status) => self.cause(Cause::RankExited { rank, status, node }),
            ExitStatus::Signal(signal) => self.cause(Cause::RankSignal { rank, signal, node }),
        }
    }

    /// A node is lost, with these ranks.
    pub(crate) fn note_node_lost(&mut self, node: NodeIndex, how: &NodeLoss, ranks: &[Rank]) {
        self.effect(Effect::Record(Box::new(Record::NodeLost { node, how: how.clone(), ranks: ranks.to_vec() })));
        if let Some(Operation::Migration { moves }) = &mut self.operation {
            // An agent may have noticed first that its connection broke; this is why.
            let touched = moves.iter_mut().filter(|one| [one.from, one.target].contains(&node));
            touched.for_each(|one| one.course.blamed = Some(Code::NodeLost));
        }
        self.blame(Code::NodeLost);
    }

    /// A signal came to the job.
    pub(crate) fn note_interrupt(&mut self, signal: i32) {
        self.record(Event::Interrupted { signal });
        self.cause(Cause::Interrupted { signal });
    }

    /// `mend kill`.
    pub(crate) fn note_kill(&mut self) {
        self.record(Event::KillAsked);
        self.cause(Cause::Killed);
    }

    /// A rank called `MPI_Abort`.
    pub(crate) fn note_abort(&mut self, rank: Rank, status: i32) {
        self.record_rank(rank, Event::Abort { status });
        if self.ending.is_none() {
            self.cause(Cause::Abort { rank, status });
        }
    }

    /// All ranks of a restart go on.
    pub(crate) fn note_resumed(&mut self) {
        let us = self.now_us.saturating_sub(self.begun_us);
        self.record(Event::Resumed { us });
    }

    /// A checkpoint begins.
    pub(crate) fn note_checkpoint(&mut self, checkpoint: u64, mode: SaveMode, base: Option<u64>, asker: Asker) {
        let mode = if mode == SaveMode::Stop { "stop" } else { "copy-on-write" }.to_owned();
        self.noted.course.begin(self.now_us);
        self.record(Event::CheckpointAsked { checkpoint, by: by(asker), mode, base });
    }

    /// There will be no such checkpoint.
    pub(crate) fn note_checkpoint_failed(&mut self, checkpoint: u64, asker: Asker, failure: &Failure) {
        self.note_phase();
        let (by, code, failure) = (by(asker), self.noted.course.take_blame(), failure.clone());
        self.noted.behind.clear();
        self.effect(Effect::Record(Box::new(Record::CheckpointFailed { checkpoint, by, code, failure })));
    }

    /// All images are there: from here on the checkpoint may be.
    pub(crate) fn note_deciding(&mut self, checkpoint: u64) {
        self.note_phase();
        self.put(None, None, true, Event::CheckpointDecided { checkpoint });
    }

    /// It is published.
    pub(crate) fn note_published(&mut self, publication: &Publication) {
        self.noted.behind.clear();
        self.record(Event::CheckpointCommitted {
            checkpoint: publication.number,
            by: if publication.periodic { By::Schedule } else { By::User },
            kind: publication.kind().to_string(),
            bytes: publication.bytes(),
            stopped_us: publication.stopped_us,
            durable_us: publication.durable_us,
            phases: publication.phases.into(),
        });
    }

    /// An agent answers what a checkpoint or migration asked.
    pub(crate) fn note_reply(&mut self, rank: Rank, purpose: Purpose, reply: &Reply) {
        let number = match (purpose, &self.operation) {
            (Purpose::Checkpoint, Some(Operation::Checkpoint { number, .. })) => Some(*number),
            (Purpose::Move(_), _) => None,
            _ => return,
        };
        let blamed = match (reply, number) {
            (Reply::Unasked(Unasked::Silent), _) => Some(Code::NoAnswer),
            (Reply::Failed { .. } | Reply::Unasked(_), _) => Some(Code::Agent),
            (Reply::Inspected(found), _) if !found.obstacles.is_empty() => Some(Code::Obstacle),
            _ => None,
        };
        match (blamed, purpose) {
            (Some(code), Purpose::Move(mover)) => self.blame_for_move(mover, code),
            (Some(code), _) => self.blame(code),
            (None, _) => {}
        }
        match (reply, number) {
            (Reply::Inspected(found), _) => {
                for obstacle in &found.obstacles {
                    let (what, hint) = (cut(obstacle.what.clone()), cut(obstacle.hint.clone()));
                    self.record_rank(rank, Event::ObstacleFound { what, hint });
                }
            }
            (Reply::Saved(saved), Some(_)) if saved.behind => drop(self.noted.behind.insert((rank, saved.id), saved.clone())),
            (Reply::Saved(saved), Some(number)) => self.note_image(rank, number, saved, saved.park_us + saved.write_us),
            _ => {}
        }
    }

    /// An image that was written behind its rank is durable, or will not be.
    pub(crate) fn note_written(&mut self, rank: Rank, id: ImageId, result: &Result<Written, Unwritten>) {
        let Some(Operation::Checkpoint { number, .. }) = self.background.as_ref().or(self.operation.as_ref()) else { return };
        let number = *number;
        match (result, self.noted.behind.remove(&(rank, id))) {
            (Ok(written), Some(saved)) => {
                let saved = Saved { bytes: written.bytes, pages: written.pages, ..saved };
                self.note_image(rank, number, &saved, written.write_us);
            }
            (Err(Unwritten::Ended), _) => self.blame(Code::RankEnded),
            (Err(Unwritten::Failed(_)), _) => self.blame(Code::Image),
            (Ok(_), None) => {}
        }
    }

    fn note_image(&mut self, rank: Rank, checkpoint: u64, saved: &Saved, us: u64) {
        let image = ImageFacts { bytes: saved.bytes, pages: saved.pages, us, full: saved.base.is_none() };
        self.record_rank(rank, Event::ImageWritten { checkpoint, image, note: saved.note.clone().map(cut) });
    }

    /// What is under way may have come to its next phase.
    pub(crate) fn note_phase(&mut self) {
        let (phase, checkpoint) = noted::phase(self.operation.as_ref(), self.background.as_ref());
        if let Some((phase, us)) = self.noted.course.enter(phase, self.now_us) {
            self.record(Event::PhaseDone { phase, us, checkpoint });
        }
    }

    /// The migration of a rank may have come to its next phase.
    pub(crate) fn note_move_phase(&mut self, mover: Rank) {
        let now_us = self.now_us;
        let Some(one) = self.move_of(mover) else { return };
        let phase = one.machine.phase().and_then(phase_of);
        if let Some((phase, us)) = one.course.enter(phase, now_us) {
            self.record_rank(mover, Event::PhaseDone { phase, us, checkpoint: None });
        }
    }

    /// A migration begins.
    pub(crate) fn note_migration(&mut self, rank: Rank, to: Option<NodeIndex>, mode: MoveMode, asker: Asker) {
        let node = self.node_of(rank);
        let (from, to) = (self.node_name(node), self.node_name(to));
        self.put(node, Some(rank), false, Event::MigrationAsked { by: by(asker), from, to, storage: mode.storage().map(Into::into) });
    }

    /// A library in the job's ranks has taken a portable checkpoint, or not.
    pub(crate) fn note_portable(&mut self, note: PortableNote) {
        let PortableNote { directory, ranks, us, taken } = note;
        self.record(match taken {
            Ok((checkpoint, bytes)) => Event::PortableCheckpoint { directory, checkpoint, ranks, bytes, us },
            Err(error) => Event::PortableFailed { directory, ranks, error: cut(error) },
        });
    }

    /// From here on the rank is on its target.
    pub(crate) fn note_moving(&mut self, rank: Rank, target: NodeIndex) {
        let (from, to) = (self.node_name(self.node_of(rank)), self.node_name(Some(target)));
        self.put(Some(target), Some(rank), true, Event::MigrationDecided { from, to });
    }

    /// A round of copying a rank that runs is complete.
    pub(crate) fn note_round(&mut self, rank: Rank, round: Round) {
        let Round { number, bytes, us, left, .. } = round;
        self.record_rank(rank, Event::RoundDone { round: number, bytes, us, left });
    }

    /// There will be no such migration.
    pub(crate) fn note_not_migrated(&mut self, rank: Rank, code: Code, failure: &Failure) {
        let (node, failure) = (self.node_of(rank), failure.clone());
        self.effect(Effect::Record(Box::new(Record::MigrationUndone { node, rank, code, failure })));
    }

    /// A migration is over.
    pub(crate) fn note_migrated(&mut self, mut ended: Move, result: Result<&migration::Outcome, &Failure>) {
        let (rank, from) = (ended.machine.rank(), Some(ended.from));
        if let Some((phase, us)) = ended.course.enter(None, self.now_us) {
            self.record_rank(rank, Event::PhaseDone { phase, us, checkpoint: None });
        }
        match result {
            Ok(done) => {
                let (from, to, phases) = (self.node_name(from), self.node_name(self.node_of(rank)), done.phases.into());
                let precopied = done.precopied.map(Into::into);
                let sent_bytes = Some(done.sent_bytes).filter(|sent| *sent != done.bytes);
                let transport = Some(self.transport_of(&ended.machine)).filter(|word| *word != TransportWord::Tcp);
                let transport = transport.map(|word| word.text().to_owned());
                self.record_rank(
                    rank,
                    Event::MigrationCommitted {
                        from,
                        to,
                        bytes: done.bytes,
                        sent_bytes,
                        transport,
                        stopped_us: done.stopped_us,
                        phases,
                        precopied,
                    },
                );
            }
            Err(failure) => {
                self.note_not_migrated(rank, ended.course.take_blame(), failure);
            }
        }
    }

    /// Checkpoints are gone.
    pub(crate) fn note_removed(&mut self, checkpoints: &[u64], by: By) {
        if !checkpoints.is_empty() {
            self.record(Event::CheckpointRemoved { checkpoints: checkpoints.to_vec(), by });
        }
    }
}
