//! Who asks, and how it all ends: verbs come in, signals, the end.

use super::{AGENTS_US, Job, OBEY_US};
use crate::event::{Asker, Effect, End, JobPhase, Notice, Outcome, Status};
use crate::operation::Operation;
use crate::phase::RankPhase;
use crate::safeguard::Safeguard;
use mend_coordination::failure::Failure;
use mend_journal::event::Code;
use mend_messages::control::Ask;
use mend_messages::daemon::ToDaemon;

impl Job {
    /// Begins the end: no rank is left on any node when it is over.
    pub(crate) fn end(&mut self, end: End) {
        if self.ending.is_some() {
            return;
        }
        let well = end == End::Code(0);
        let farewell = self.farewell(&end);
        self.ending = Some((end, self.now_us));
        self.stood = self.roster.living_hosts();
        self.searching = None;
        if self.keeps(Safeguard::NobodyIsLeftWaiting) {
            self.abandon_operations();
        }
        if well {
            self.close_tiers();
        }
        if self.keeps(Safeguard::NodesAreEnded) {
            self.send_to_all(&farewell);
        }
    }

    /// Whether ranks stand still for the next life instead of being killed, and whether there will be one.
    fn farewell(&self, end: &End) -> ToDaemon {
        let (newest, interrupted) = (self.newest_listed(), self.interrupted.is_some());
        match &self.healing {
            Some(healing) if healing.pauses(end, interrupted, newest) || !self.keeps(Safeguard::PausesAreForALife) => ToDaemon::Pause,
            Some(healing) => ToDaemon::End { goes_on: healing.goes_on(end, interrupted, newest) },
            None => ToDaemon::End { goes_on: false },
        }
    }

    /// The job ends: nobody is left waiting, nothing unfinished is left behind. What is just being published or removed is seen through.
    fn abandon_operations(&mut self) {
        let ended = || Outcome::Failed(Failure::JobEnded);
        self.blame(Code::JobEnded);
        let operation = self.operation.take();
        let background = self.background.take_if(|operation| !matches!(operation, Operation::Publishing { .. }));
        for operation in [operation, background].into_iter().flatten() {
            match &operation {
                Operation::Preparing { number, mode, base, asker, .. } => {
                    self.discarding.insert(*number);
                    self.note_checkpoint(*number, *mode, *base, *asker);
                    self.blame(Code::JobEnded);
                    self.note_checkpoint_failed(*number, *asker, &Failure::JobEnded);
                }
                Operation::Checkpoint { number, asker, .. } => {
                    self.drop_checkpoint(*number);
                    self.note_checkpoint_failed(*number, *asker, &Failure::JobEnded);
                }
                Operation::Migration { moves } => {
                    for one in moves {
                        self.note_migrated(one.clone(), Err(&Failure::JobEnded));
                    }
                }
                _ => {}
            }
            for asker in operation.askers() {
                self.answer(asker, ended());
            }
        }
        for (_, asker, _) in std::mem::take(&mut self.waiting) {
            self.answer(asker, ended());
        }
        for asker in std::mem::take(&mut self.asking_status) {
            self.answer(asker, ended());
        }
        self.questions.clear();
    }

    /// A life ends, and another one would follow.
    fn would_go_on(&self) -> bool {
        let (Some((end, _)), Some(healing)) = (&self.ending, &self.healing) else { return false };
        healing.goes_on(end, self.interrupted.is_some(), self.newest_listed())
    }

    /// If a life ends, and another one would follow: none does, for this reason.
    pub(crate) fn end_for_good(&mut self, why: End) -> bool {
        if !self.would_go_on() {
            return false;
        }
        self.ending = self.ending.take().map(|(_, since_us)| (why, since_us));
        true
    }

    pub(crate) fn interrupt(&mut self, signal: i32) {
        if self.end_for_good(End::Interrupted(signal)) {
            return self.note_interrupt(signal);
        }
        if self.ending.is_none() && (self.searching.is_some() || !self.putting.is_empty()) {
            return self.end(End::Interrupted(signal));
        }
        if self.interrupted.is_some() {
            return self.end(End::Code(128 + signal));
        }
        self.note_interrupt(signal);
        self.interrupted = Some((signal, self.now_us));
        self.tell(Notice::Interrupted { signal, obey_s: OBEY_US / 1_000_000, newest: self.newest_left() });
        self.send_to_all(&ToDaemon::Signal(signal));
    }

    pub(crate) fn asked(&mut self, ask: Ask, asker: Asker) {
        let ends = self.ending.is_some();
        if ends && !(ask == Ask::Kill && self.end_for_good(End::Code(137))) {
            return self.answer(asker, Outcome::Failed(Failure::JobEnded));
        }
        match ask {
            Ask::Status => {
                self.asking_status.push(asker);
                self.list();
            }
            Ask::Kill => {
                // Else the job of a successor that does not know of it goes on.
                if self.keeps(Safeguard::KillsAreDurable) {
                    self.effect(Effect::MakeDurable);
                }
                self.answer(asker, Outcome::Killed);
                self.tell(Notice::Killed);
                self.note_kill();
                self.end(End::Code(137));
            }
            Ask::Hurry { rank } => self.hurry_move(rank, asker),
            Ask::CancelMove { rank } => self.cancel_move(rank, asker),
            Ask::NotePortable(note) => {
                self.note_portable(note);
                self.answer(asker, Outcome::Noted);
            }
            mut ask => {
                let place = self.place_of_leaver(&mut ask, asker).unwrap_or(self.waiting.len());
                self.waiting.insert(place, (ask, asker, self.now_us));
                self.next_operation();
                // A migration may have joined those that are under way.
                let waits = self.waiting.iter().any(|(_, waiting, _)| *waiting == asker);
                if let (true, Some(_), Asker::Verb(verb)) = (waits, &self.operation, asker) {
                    self.effect(Effect::Answer { verb, outcome: Outcome::Progress });
                }
            }
        }
    }

    /// Has it looked up which checkpoints there are.
    pub(crate) fn list(&mut self) {
        self.lists += 1;
        self.effect(Effect::List);
    }

    /// `None`: they could not be listed. What is not seen is not gone.
    pub(crate) fn relisted(&mut self, numbers: Option<Vec<u64>>) {
        self.lists = self.lists.saturating_sub(1);
        let numbers = numbers.or_else(|| (!self.keeps(Safeguard::UnseenIsNotGone)).then(Vec::new));
        let seen = numbers.is_some();
        if let Some(numbers) = numbers {
            self.listed = numbers.into_iter().collect();
            self.listed.extend(&self.newer_than_lists);
        }
        if self.lists == 0 {
            self.newer_than_lists.clear();
        }
        if seen {
            self.tidy_tiers();
        }
        for asker in std::mem::take(&mut self.asking_status) {
            let status = self.status();
            self.answer(asker, Outcome::Status(Box::new(status)));
        }
    }

    /// All agents spoke, or will not.
    pub(crate) fn agents_spoke(&self) -> bool {
        self.roster.ranks.iter().all(|rank| rank.agent || rank.has_ended())
    }

    /// True if operations may begin, or if waiting for more agents is no use.
    pub(crate) fn agents_ready(&self, since_us: u64) -> bool {
        let restoring = self.roster.ranks.iter().any(|rank| matches!(rank.phase, RankPhase::Restoring(_)));
        !restoring && (self.agents_spoke() || self.now_us.saturating_sub(since_us) >= AGENTS_US)
    }

    fn status(&self) -> Status {
        let phase = match (&self.ending, &self.operation) {
            (Some(_), _) => JobPhase::Ending,
            (None, Some(operation)) => operation.phase(),
            (None, None) if self.roster.ranks.iter().any(|rank| rank.phase == RankPhase::Starting) => JobPhase::Starting,
            (None, None) => JobPhase::Running,
        };
        Status {
            phase,
            uptime_us: self.now_us.saturating_sub(self.begun_us),
            ranks: self.roster.ranks.iter().map(|rank| (rank.node, !rank.open, rank.phase)).collect(),
            coming: self.targets(),
            worlds: self.worlds.spawned().map(|world| world.first).collect(),
            last_checkpoint: self.newest_listed(),
            restart: self.restart,
            interval_s: self.periodic.interval_s(),
            incrementals: self.periodic.incrementals(),
            extra_recovery_s: self.periodic.extra_recovery_s(),
            restarts_measured: self.restarts.count(),
        }
    }
}
