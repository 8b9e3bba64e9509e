//! Checkpoints that nobody has to ask for, and what becomes of them: asks for one when it is due, says what it builds on,
//! starts the upkeep of the directory after it.
//!
//! ```text
//! time: due, all ranks run, nothing else under way or waiting ──► Ask::Checkpoint, like a verb's
//! begin_checkpoint ──► choose_bases, one in each rank's order ──► published or failed
//! published (whoever asked) ──► Schedule::taken ──► a round of upkeep ──► Event::Upkeep
//! ```
//! Invariants: a periodic checkpoint waits for everything else and makes nothing else wait that came before it; a base is
//! named only if this machine had it published and it can still be restarted; one round of upkeep at a time; the user is told
//! of a failure once, until a success follows, and not if the end of a rank or of the job is all there is to it.

use crate::event::{Asker, Effect, FreeSpace, Notice, Outcome, Publication, UpkeepDone};
use crate::job::{Job, RankPhase};
use crate::safeguard::Safeguard;
use crate::setup::CheckpointPlan;
use crate::space::{CheckpointSpace, SpaceVerdict};
use mend_coordination::failure::{Failure, Trouble};
use mend_journal::Event as Happened;
use mend_journal::event::Asker as By;
use mend_messages::agent::ImageId;
use mend_messages::control::Ask;
use mend_messages::job::Rank;
use mend_policy::restarts::Restarts;
use mend_policy::retention::Weighed;
use mend_policy::schedule::{CheckpointKind, Interval, Schedule, Taken};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A failure is told so much later: a rank that ends takes its images' writers with it, and its own end is heard of after that.
const FAILURE_NOTICE_DELAY_US: u64 = 2_000_000;

/// While there is too little room, that is looked for so often.
const SPACE_CHECK_INTERVAL_US: u64 = 1_000_000;

/// The checkpoint that the next one may build on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    number: u64,
    ids: Vec<ImageId>,
    /// For each rank, how many images its image builds on.
    chains: Vec<u32>,
}

/// A job's periodic checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Periodic {
    schedule: Schedule,
    /// One is due and was asked for.
    asked: bool,
    /// What went wrong with the last one, and when it is to be told.
    failed: Option<(Failure, u64)>,
    /// What was told since the last that succeeded.
    told: Vec<Failure>,
    /// The same of upkeep.
    told_of_upkeep: BTreeSet<String>,
    last: Option<Last>,
    /// A round of upkeep is under way; true: it is to end soon.
    upkeep: Option<bool>,
    upkeep_again: bool,
    weighed: Option<Weighed>,
    space: CheckpointSpace,
    reserve: u64,
    /// Somebody looks how much room there is.
    looking: bool,
    /// There was too little room: not before then, again.
    look_again_us: u64,
}

impl Periodic {
    /// The state of a job that begins now on `nodes` nodes; `merged`: upkeep merges its chains; `restarts`: what those before
    /// took; `reserve`: bytes that they leave free.
    #[must_use]
    pub fn new(plan: &CheckpointPlan, nodes: u32, merged: bool, restarts: &Restarts, reserve: u64, now_us: u64) -> Self {
        let mut schedule = Schedule::new(plan.rules(nodes, merged), now_us);
        schedule.restarted(restarts);
        Self {
            schedule,
            asked: false,
            failed: None,
            told: Vec::new(),
            told_of_upkeep: BTreeSet::new(),
            last: None,
            upkeep: None,
            upkeep_again: false,
            weighed: None,
            space: CheckpointSpace::default(),
            reserve,
            looking: false,
            look_again_us: 0,
        }
    }

    /// Number of the checkpoint that holds a rank's image, if it is the one that was named to build on.
    pub(crate) fn holder(&self, rank: Rank, base: Option<ImageId>) -> Option<u64> {
        let last = self.last.as_ref()?;
        (last.ids.get(rank as usize).copied() == base).then_some(last.number)
    }

    /// True if a later checkpoint may build on the next one.
    pub(crate) fn tracks(&self) -> bool {
        self.schedule.incrementals() > 0
    }

    /// True if costs decide how often.
    pub(crate) fn is_auto(&self, plan: &CheckpointPlan) -> bool {
        plan.interval == Interval::Auto
    }

    /// Seconds from one checkpoint to the next, as it stands; `None`: when somebody asks.
    pub(crate) fn interval_s(&self) -> Option<f64> {
        self.schedule.interval_s()
    }

    /// Incremental checkpoints between two full ones, as it stands.
    pub(crate) fn incrementals(&self) -> u32 {
        self.schedule.incrementals()
    }

    /// How much longer each of them is taken to make a restart, seconds.
    pub(crate) fn extra_recovery_s(&self) -> Option<f64> {
        self.schedule.extra_recovery_s()
    }

    /// What restarts took is known better.
    pub(crate) fn restarted(&mut self, restarts: &Restarts) {
        self.schedule.restarted(restarts);
    }
}

impl Publication {
    /// Length of all images.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.images.iter().map(|image| image.bytes).fold(0, u64::saturating_add)
    }

    /// How much of it is incremental.
    #[must_use]
    pub fn kind(&self) -> CheckpointKind {
        match self.images.iter().filter(|image| image.base.is_none()).count() {
            0 => CheckpointKind::Incremental,
            full if full == self.images.len() => CheckpointKind::Full,
            _ => CheckpointKind::Mixed,
        }
    }
}

impl Job {
    /// When something is to be done for periodic checkpoints.
    pub(crate) fn periodic_due(&self) -> Option<u64> {
        if let Some((_, due)) = self.periodic.failed {
            return Some(due);
        }
        let waits = self.periodic.asked || self.periodic.looking;
        if waits { None } else { self.periodic.schedule.next_us().map(|due| due.max(self.periodic.look_again_us)) }
    }

    /// Asks for a checkpoint if one is due and nothing else goes on; tells what became of the last one.
    pub(crate) fn periodic_tick(&mut self) {
        if let Some((failure, _)) = self.periodic.failed.take_if(|(_, due)| *due <= self.now_us) {
            self.tell_failure(failure);
        }
        if !self.checkpoint_is_due() || self.periodic.looking || self.now_us < self.periodic.look_again_us {
            return;
        }
        // With tiers nobody knows how much of it comes here.
        if self.tiers.is_some() {
            self.ask_periodic();
        } else {
            self.periodic.looking = true;
            self.effect(Effect::MeasureFreeSpace);
        }
    }

    fn checkpoint_is_due(&self) -> bool {
        !self.periodic.asked
            && self.is_idle()
            && self.periodic.schedule.due(self.now_us)
            && self.ranks.iter().all(|rank| rank.phase == RankPhase::Running)
    }

    fn ask_periodic(&mut self) {
        self.periodic.asked = true;
        self.waiting.push_back((Ask::Checkpoint { mode: None }, Asker::Schedule, self.now_us));
    }

    /// Asks for the checkpoint that is due if there is enough space. What changes is told.
    pub(crate) fn judge_free_space(&mut self, free: Option<FreeSpace>) {
        if !std::mem::take(&mut self.periodic.looking) || !self.checkpoint_is_due() {
            return;
        }
        let incremental = self.periodic.schedule.builds();
        let reserve = self.periodic.reserve;
        // A file system that does not say fails the checkpoint, if it is full.
        let verdict = free.map_or(SpaceVerdict::Enough, |free| self.periodic.space.weigh(free.left, free.all, incremental, reserve));
        match verdict {
            SpaceVerdict::Enough => return self.ask_periodic(),
            SpaceVerdict::Again => {
                self.tell(Notice::RoomAgain);
                return self.ask_periodic();
            }
            SpaceVerdict::Short => {}
            SpaceVerdict::NewlyShort(expected, reserve) => {
                let left = free.map_or(0, |free| free.left);
                self.tell(Notice::NoRoom { left, expected, reserve });
            }
        }
        self.periodic.look_again_us = self.now_us.saturating_add(SPACE_CHECK_INTERVAL_US);
    }

    /// What became of the checkpoint that the schedule asked for.
    pub(crate) fn schedule_answered(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Progress => {}
            Outcome::Failed(failure) => {
                self.periodic.asked = false;
                self.periodic.schedule.failed(self.now_us);
                self.periodic.failed = Some((failure, self.now_us.saturating_add(FAILURE_NOTICE_DELAY_US)));
            }
            _ => self.periodic.asked = false,
        }
    }

    fn tell_failure(&mut self, failure: Failure) {
        // At the end of a job nobody waits for one more.
        let ends = self.ending.is_some() || failure.is_an_end() || self.ranks.iter().any(|rank| matches!(rank.phase, RankPhase::Exited(_)));
        if ends && self.keeps(Safeguard::EndsAreNoFailures) || self.periodic.told.contains(&failure) {
            return;
        }
        self.periodic.told.push(failure.clone());
        let next_s = self.periodic.schedule.next_us().map_or(0, |due| due.saturating_sub(self.now_us).div_ceil(1_000_000));
        self.tell(Notice::PeriodicFailed { failure, next_s });
    }

    /// A checkpoint begins: the checkpoint it is to build on, and its images, one per rank.
    pub(crate) fn choose_bases(&self) -> (Option<u64>, Vec<ImageId>) {
        match self.periodic.last.as_ref().filter(|_| self.periodic.schedule.builds()) {
            Some(last) => (Some(last.number), last.ids.clone()),
            None => (None, Vec::new()),
        }
    }

    /// A checkpoint is published, whoever asked for it.
    pub(crate) fn taken(&mut self, publication: &Publication) {
        let now_us = self.now_us;
        let before = self.periodic.last.as_ref();
        let chain = |image: &crate::event::PublishedImage| {
            let below = before.filter(|last| Some(last.number) == image.base).and_then(|last| last.chains.get(image.rank as usize));
            image.base.map_or(0, |_| below.map_or(1, |below| below + 1))
        };
        let chains: Vec<u32> = publication.images.iter().map(chain).collect();
        self.periodic.schedule.taken(&Taken {
            begun_us: now_us.saturating_sub(publication.durable_us.max(publication.stopped_us)),
            ended_us: now_us,
            stopped_us: publication.stopped_us,
            write_us: publication.phases.write_us,
            bytes: publication.bytes(),
            kind: publication.kind(),
            chain: chains.iter().copied().max().unwrap_or(0),
        });
        self.periodic.space.taken(publication.kind(), publication.bytes());
        let ids = publication.images.iter().map(|image| image.id).collect();
        self.periodic.last = Some(Last { number: publication.number, ids, chains });
        if publication.periodic {
            self.periodic.failed = None;
            let told = !self.periodic.told.is_empty() || !self.periodic.told_of_upkeep.is_empty();
            self.periodic.told.clear();
            self.periodic.told_of_upkeep.clear();
            if told {
                self.tell(Notice::PeriodicGoesOn { number: publication.number });
            }
            self.start_upkeep(true);
        }
    }

    /// Starts a round of upkeep, or has one follow that which is under way. Without `retention` only leftovers are removed.
    pub(crate) fn start_upkeep(&mut self, retention: bool) {
        if self.periodic.upkeep.is_some() {
            self.periodic.upkeep_again |= retention;
            return;
        }
        // With tiers, each keeps what it was told to, and images may not be here to be merged.
        let bounds = (retention && self.tiers.is_none()).then(|| self.plan.bounds());
        self.periodic.upkeep = Some(false);
        self.effect(Effect::StartUpkeep { bounds, weighed: self.periodic.weighed });
    }

    /// A round of upkeep is over.
    pub(crate) fn upkeep_done(&mut self, done: UpkeepDone) {
        self.periodic.upkeep = None;
        self.periodic.weighed = done.weighed;
        self.note_removed(&done.removed, By::Schedule);
        done.merged.into_iter().for_each(|checkpoint| self.record(Happened::CheckpointMerged { checkpoint }));
        if let Some(failure) = done.failure
            && self.ending.is_none()
            && self.periodic.told_of_upkeep.insert(failure.clone())
        {
            self.tell(Notice::Upkeep(failure.clone()));
            self.record(Happened::UpkeepFailed { error: failure });
        }
        if done.damaged {
            self.periodic.last = None;
        }
        if let (Some((number, chains)), Some(last)) = (done.newest, &mut self.periodic.last)
            && last.number == number
        {
            self.periodic.schedule.merged(chains.iter().copied().max().unwrap_or(0));
            last.chains = chains;
        }
        self.effect(Effect::List);
        let verb_removes = matches!(self.waiting.front(), Some((Ask::Remove { .. }, ..)));
        if self.ending.is_none() && !verb_removes && std::mem::take(&mut self.periodic.upkeep_again) {
            self.start_upkeep(true);
        }
        self.next_operation();
    }

    /// True while checkpoints are being removed or merged; from now on that ends soon.
    pub(crate) fn upkeep_in_the_way(&mut self) -> bool {
        if !self.keeps(Safeguard::RemovalWaits) {
            return false;
        }
        let Some(told) = &mut self.periodic.upkeep else { return false };
        if !std::mem::replace(told, true) {
            self.effect(Effect::CancelUpkeep);
        }
        self.periodic.upkeep_again = true;
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
                if self.periodic.last.as_ref().is_some_and(|last| gone.contains(&last.number)) {
                    self.periodic.last = None;
                }
                Outcome::Removed
            }
            Err(trouble) => Outcome::Failed(Failure::Storage(trouble)),
        };
        self.answer(asker, outcome);
        if self.ending.is_none() && self.periodic.upkeep.is_none() && std::mem::take(&mut self.periodic.upkeep_again) {
            self.start_upkeep(true);
        }
        self.next_operation();
    }
}
