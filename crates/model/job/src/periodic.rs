//! The state of checkpoints that nobody has to ask for: when the next one is due, what it builds on, what went wrong with the last one,
//! and the upkeep of the directory.
//!
//! Invariants: a base is named only if the job had it published and it can still be restarted; one round of upkeep at a time.

use crate::event::{FreeSpace, Publication, PublishedImage, UpkeepDone};
use crate::setup::CheckpointPlan;
use crate::space::{CheckpointSpace, SpaceVerdict};
use mend_coordination::failure::Failure;
use mend_messages::agent::ImageId;
use mend_messages::job::Rank;
use mend_policy::restarts::Restarts;
use mend_policy::retention::Weighed;
use mend_policy::schedule::{Choice, Interval, Schedule, Taken};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A failure is told so much later: a rank that ends takes its images' writers with it, and its own end is heard of after that.
const FAILURE_NOTICE_DELAY_US: u64 = 2_000_000;

/// While there is too little room, that is looked for so often.
const SPACE_CHECK_INTERVAL_US: u64 = 1_000_000;

/// The checkpoint that the next one may build on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    number: u64,
    ids: BTreeMap<Rank, ImageId>,
    /// For each rank, how many images its image builds on.
    chains: BTreeMap<Rank, u32>,
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
    /// What was told of how often they are taken.
    known: Option<Choice>,
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
            known: None,
        }
    }

    /// Number of the checkpoint that holds a rank's image, if it is the one that was named to build on.
    pub(crate) fn holder(&self, rank: Rank, base: Option<ImageId>) -> Option<u64> {
        let last = self.last.as_ref()?;
        (last.ids.get(&rank).copied() == base).then_some(last.number)
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

    /// How often they are taken, and why, if costs decide that.
    pub(crate) fn choice(&self) -> Option<Choice> {
        self.schedule.choice()
    }

    /// How often they are taken, and why, if that is worth telling anew.
    pub(crate) fn newly_chosen(&mut self) -> Option<Choice> {
        let choice = self.schedule.choice()?;
        let new = self.known.is_none_or(|known| choice.differs(&known) || known.cost_s.is_none() && choice.cost_s.is_some());
        new.then(|| *self.known.insert(choice))
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

    /// When something is to be done for periodic checkpoints.
    pub(crate) fn due(&self) -> Option<u64> {
        if let Some((_, due)) = self.failed {
            return Some(due);
        }
        let waits = self.asked || self.looking;
        if waits { None } else { self.schedule.next_us().map(|due| due.max(self.look_again_us)) }
    }

    /// A failure that is to be told now.
    pub(crate) fn take_failure(&mut self, now_us: u64) -> Option<Failure> {
        self.failed.take_if(|(_, due)| *due <= now_us).map(|(failure, _)| failure)
    }

    /// True if a checkpoint is due that was not asked for.
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        !self.asked && self.schedule.due(now_us)
    }

    /// True if it is time to look how much room there is.
    pub(crate) fn may_look(&self, now_us: u64) -> bool {
        !self.looking && now_us >= self.look_again_us
    }

    /// Somebody looks how much room there is.
    pub(crate) fn look(&mut self) {
        self.looking = true;
    }

    /// It is known how much room there is. False if nobody wanted to know.
    pub(crate) fn looked(&mut self) -> bool {
        std::mem::take(&mut self.looking)
    }

    /// Whether there is room for the next one. A file system that does not say fails the checkpoint, if it is full.
    pub(crate) fn weigh(&mut self, now_us: u64, room: Option<FreeSpace>) -> SpaceVerdict {
        let Some(room) = room else { return SpaceVerdict::Enough };
        // Without one to build on it is a full one.
        let builds = self.last.is_some() && self.schedule.builds();
        let verdict = self.space.weigh(room.left, room.all, builds, self.reserve);
        if matches!(verdict, SpaceVerdict::Short | SpaceVerdict::NewlyShort(..)) {
            self.look_again_us = now_us.saturating_add(SPACE_CHECK_INTERVAL_US);
        }
        verdict
    }

    /// One is asked for.
    pub(crate) fn asked(&mut self) {
        self.asked = true;
    }

    /// The one that was asked for came to this failure, or to none.
    pub(crate) fn answered(&mut self, now_us: u64, failure: Option<Failure>) {
        self.asked = false;
        if let Some(failure) = failure {
            self.schedule.failed(now_us);
            self.failed = Some((failure, now_us.saturating_add(FAILURE_NOTICE_DELAY_US)));
        }
    }

    /// Whether a failure was not told since the last one that succeeded; how long it is to the next try, seconds.
    pub(crate) fn tell_once(&mut self, now_us: u64, failure: &Failure) -> Option<u64> {
        if self.told.contains(failure) {
            return None;
        }
        self.told.push(failure.clone());
        Some(self.schedule.next_us().map_or(0, |due| due.saturating_sub(now_us).div_ceil(1_000_000)))
    }

    /// A checkpoint begins: the checkpoint it is to build on, and its images, by rank, if that one is good for it.
    pub(crate) fn choose_bases(&self, is_good: impl Fn(u64) -> bool) -> (Option<u64>, BTreeMap<Rank, ImageId>) {
        match self.last.as_ref().filter(|last| self.schedule.builds() && is_good(last.number)) {
            Some(last) => (Some(last.number), last.ids.clone()),
            None => (None, BTreeMap::new()),
        }
    }

    /// A checkpoint is published, whoever asked for it. True if failures were told that it ends.
    pub(crate) fn taken(&mut self, now_us: u64, publication: &Publication) -> bool {
        let before = self.last.as_ref();
        let chain = |image: &PublishedImage| {
            let below = before.filter(|last| Some(last.number) == image.base).and_then(|last| last.chains.get(&image.rank));
            image.base.map_or(0, |_| below.map_or(1, |below| below + 1))
        };
        let chains: BTreeMap<Rank, u32> = publication.images.iter().map(|image| (image.rank, chain(image))).collect();
        self.schedule.taken(&Taken {
            begun_us: now_us.saturating_sub(publication.durable_us.max(publication.stopped_us)),
            ended_us: now_us,
            stopped_us: publication.stopped_us,
            write_us: publication.phases.write_us,
            bytes: publication.bytes(),
            kind: publication.kind(),
            chain: chains.values().copied().max().unwrap_or(0),
        });
        self.space.taken(publication.kind(), publication.bytes());
        let ids = publication.images.iter().map(|image| (image.rank, image.id)).collect();
        self.last = Some(Last { number: publication.number, ids, chains });
        if !publication.periodic {
            return false;
        }
        self.failed = None;
        let told = !self.told.is_empty() || !self.told_of_upkeep.is_empty();
        self.told.clear();
        self.told_of_upkeep.clear();
        told
    }

    /// Whether a round of upkeep is under way.
    pub(crate) fn keeps_up(&self) -> bool {
        self.upkeep.is_some()
    }

    /// A round of upkeep begins, with what the one before it weighed; `None`: one is under way, and another follows if `retention` is
    /// wanted.
    pub(crate) fn begin_upkeep(&mut self, retention: bool) -> Option<Option<Weighed>> {
        if self.upkeep.is_some() {
            self.upkeep_again |= retention;
            return None;
        }
        self.upkeep = Some(false);
        Some(self.weighed)
    }

    /// A round of upkeep is to end soon, and to be repeated later. True if it was not told so before; `None`: there is none.
    pub(crate) fn cut_upkeep(&mut self) -> Option<bool> {
        let told = self.upkeep.as_mut()?;
        let before = std::mem::replace(told, true);
        self.upkeep_again = true;
        Some(!before)
    }

    /// Whether a round is to follow, once.
    pub(crate) fn take_upkeep_again(&mut self) -> bool {
        std::mem::take(&mut self.upkeep_again)
    }

    /// A round of upkeep is over.
    pub(crate) fn upkept(&mut self, done: &UpkeepDone) {
        self.upkeep = None;
        self.weighed = done.weighed;
        if done.damaged {
            self.last = None;
        }
        if let (Some((number, chains)), Some(last)) = (&done.newest, &mut self.last)
            && last.number == *number
        {
            self.schedule.merged(chains.iter().copied().max().unwrap_or(0));
            last.chains = last.ids.keys().copied().zip(chains.iter().copied()).collect();
        }
    }

    /// Whether this failure of upkeep was not told since the last checkpoint that succeeded.
    pub(crate) fn tell_of_upkeep_once(&mut self, failure: &str) -> bool {
        self.told_of_upkeep.insert(failure.to_owned())
    }

    /// Checkpoints are gone: none of them is built on.
    pub(crate) fn removed(&mut self, gone: &BTreeSet<u64>) {
        self.last.take_if(|last| gone.contains(&last.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_coordination::pmi::PmiServer;
    use mend_messages::control::Phases;
    use mend_policy::schedule::Incremental;

    fn publication(number: u64, bytes: u64, base: Option<u64>) -> Publication {
        let id = ImageId::default();
        let image = PublishedImage { rank: 0, node: 0, bytes, checksum: 0, id, base, sequence: 0, needs: Default::default() };
        Publication {
            number,
            images: vec![image],
            worlds: PmiServer::new(1, &[0; 16]).into(),
            files: Vec::new(),
            phases: Phases::default(),
            stopped_us: 1,
            durable_us: 1,
            periodic: true,
        }
    }

    #[test]
    fn where_the_one_to_build_on_is_gone_there_must_be_room_for_a_full_one() {
        let plan = CheckpointPlan {
            interval: Interval::Every(10),
            incremental: Incremental::Count(5),
            keep: None,
            mtbf_hours: 1,
            averted_percent: 0,
            space_percent: None,
        };
        let mut periodic = Periodic::new(&plan, 1, true, &Restarts::default(), 0, 0);
        periodic.taken(1, &publication(1, 100, None));
        periodic.taken(2, &publication(2, 10, Some(1)));
        let room = Some(FreeSpace { left: 50, all: 1000 });
        assert_eq!(periodic.weigh(3, room), SpaceVerdict::Enough);
        periodic.removed(&[2].into());
        assert_eq!(periodic.weigh(4, room), SpaceVerdict::NewlyShort(100, 0));
    }
}
