//! Checkpoints that nobody has to ask for, and what becomes of them: asks for one when it is due, and starts the upkeep of the directory
//! after it.
//!
//! ```text
//! time: due, all ranks run, nothing else under way or waiting ──► Ask::Checkpoint, like a verb's
//! begin_checkpoint ──► choose_bases, one in each rank's order ──► published or failed
//! published (whoever asked) ──► Periodic::taken ──► a round of upkeep ──► Event::Upkeep
//! ```
//! Invariants: a periodic checkpoint waits for everything else and makes nothing else wait that came before it; the user is told
//! of a failure once, until a success follows, and not if the end of a rank or of the job is all there is to it.

use super::Job;
use crate::event::{Asker, Effect, FreeSpace, Notice, Outcome, Publication, UpkeepDone};
use crate::phase::RankPhase;
use crate::safeguard::Safeguard;
use crate::space::SpaceVerdict;
use mend_coordination::failure::{Failure, Trouble};
use mend_journal::Event as Happened;
use mend_journal::event::Asker as By;
use mend_messages::control::Ask;
use mend_policy::schedule::Choice;
use std::collections::BTreeSet;

impl Job {
    /// Asks for a checkpoint if one is due and nothing else goes on; tells what became of the last one.
    pub(crate) fn periodic_tick(&mut self) {
        if let Some(failure) = self.periodic.take_failure(self.now_us) {
            self.tell_failure(failure);
        }
        if !self.checkpoint_is_due() || !self.periodic.may_look(self.now_us) {
            return;
        }
        // With tiers nobody knows how much of it comes here.
        if self.tiers.is_some() {
            self.ask_periodic();
        } else {
            self.periodic.look();
            self.effect(Effect::MeasureFreeSpace);
        }
    }

    fn checkpoint_is_due(&self) -> bool {
        self.periodic.is_due(self.now_us)
            && self.is_idle()
            && self.roster.ranks.iter().all(|rank| rank.phase == RankPhase::Running || rank.has_ended())
            && self.first_ended().is_none()
    }

    fn ask_periodic(&mut self) {
        self.periodic.asked();
        self.waiting.push_back((Ask::Checkpoint { mode: None }, Asker::Schedule, self.now_us));
    }

    /// Asks for the checkpoint that is due if there is room. What changes is told.
    pub(crate) fn judge_free_space(&mut self, room: Option<FreeSpace>) {
        if !self.periodic.looked() || !self.checkpoint_is_due() {
            return;
        }
        match self.periodic.weigh(self.now_us, room) {
            SpaceVerdict::Enough => self.ask_periodic(),
            SpaceVerdict::Again => {
                self.tell(Notice::RoomAgain);
                self.ask_periodic();
            }
            SpaceVerdict::Short => {}
            SpaceVerdict::NewlyShort(expected, reserve) => {
                let left = room.map_or(0, |room| room.left);
                self.tell(Notice::NoRoom { left, expected, reserve });
            }
        }
    }

    /// What became of the checkpoint that the schedule asked for.
    pub(crate) fn schedule_answered(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Progress => {}
            Outcome::Failed(failure) => self.periodic.answered(self.now_us, Some(failure)),
            _ => self.periodic.answered(self.now_us, None),
        }
    }

    fn tell_failure(&mut self, failure: Failure) {
        // At the end of a job nobody waits for one more.
        let ends = self.ending.is_some() || failure.is_an_end() || self.first_ended().is_some();
        if ends && self.keeps(Safeguard::EndsAreNoFailures) {
            return;
        }
        if let Some(next_s) = self.periodic.tell_once(self.now_us, &failure) {
            self.tell(Notice::PeriodicFailed { failure, next_s });
        }
    }

    /// A checkpoint is published, whoever asked for it.
    pub(crate) fn taken(&mut self, publication: &Publication) {
        if self.periodic.taken(self.now_us, publication) {
            self.tell(Notice::PeriodicGoesOn { number: publication.number });
        }
        self.note_choice();
        if publication.periodic {
            self.start_upkeep(true);
        }
    }

    /// Puts into the journal how often checkpoints are taken, and why, where that has changed.
    pub(crate) fn note_choice(&mut self) {
        if let Some(choice) = self.periodic.newly_chosen() {
            let Choice { interval_s, incrementals, cost_s, incremental_cost_s, mtbf_s, averted_percent } = choice;
            self.record(Happened::IntervalChosen { interval_s, incrementals, cost_s, incremental_cost_s, mtbf_s, averted_percent });
        }
    }

    /// Starts a round of upkeep, or has one follow that which is under way. Without `retention` only leftovers are removed.
    pub(crate) fn start_upkeep(&mut self, retention: bool) {
        // With tiers, each keeps what it was told to, and images may not be here to be merged.
        let bounds = (retention && self.tiers.is_none()).then(|| self.plan.bounds());
        if let Some(weighed) = self.periodic.begin_upkeep(retention) {
            self.effect(Effect::StartUpkeep { bounds, weighed });
        }
    }

    /// A round of upkeep is over.
    pub(crate) fn upkeep_done(&mut self, done: UpkeepDone) {
        self.periodic.upkept(&done);
        self.newer_than_lists.retain(|number| !done.removed.contains(number));
        self.note_removed(&done.removed, By::Schedule);
        done.merged.into_iter().for_each(|checkpoint| self.record(Happened::CheckpointMerged { checkpoint }));
        if let Some(failure) = done.failure
            && self.ending.is_none()
            && self.periodic.tell_of_upkeep_once(&failure)
        {
            self.tell(Notice::Upkeep(failure.clone()));
            self.record(Happened::UpkeepFailed { error: failure });
        }
        self.list();
        let verb_removes = matches!(self.waiting.front(), Some((Ask::Remove { .. }, ..)));
        if self.ending.is_none() && !verb_removes && self.periodic.take_upkeep_again() {
            self.start_upkeep(true);
        }
        self.next_operation();
    }

    /// True while checkpoints are being removed or merged; from now on that ends soon.
    pub(crate) fn upkeep_in_the_way(&mut self) -> bool {
        if !self.keeps(Safeguard::RemovalWaits) {
            return false;
        }
        let Some(first) = self.periodic.cut_upkeep() else { return false };
        if first {
            self.effect(Effect::CancelUpkeep);
        }
        true
    }

    /// Checkpoints that a user wanted gone are, all or none.
    pub(crate) fn removed(&mut self, asker: Asker, result: Result<(), Trouble>) {
        let Some((_, numbers)) = self.removing.take_if(|(its, _)| *its == asker) else { return };
        let outcome = match result {
            Ok(()) => {
                self.note_removed(&numbers, By::User);
                let gone: BTreeSet<u64> = numbers.into_iter().collect();
                self.listed.retain(|number| !gone.contains(number));
                self.newer_than_lists.retain(|number| !gone.contains(number));
                self.periodic.removed(&gone);
                self.tidy_tiers();
                Outcome::Removed
            }
            Err(trouble) => Outcome::Failed(Failure::Storage(trouble)),
        };
        self.answer(asker, outcome);
        if self.ending.is_none() && !self.periodic.keeps_up() && self.periodic.take_upkeep_again() {
            self.start_upkeep(true);
        }
        self.next_operation();
    }
}
