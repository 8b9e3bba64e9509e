//! Checkpoints that nobody has to ask for, and what becomes of them: asks for one when it is due, says what it builds on,
//! starts the upkeep of the directory after it.
//!
//! ```text
//! tick: due, all ranks run, nothing else under way or waiting ──► Ask::Checkpoint, like a verb's
//! begin_checkpoint ──► choose_bases, one in each rank's order ──► published or failed
//! published (whoever asked) ──► Schedule::taken ──► a round of upkeep ──► Event::Upkeep
//! ```
//! Invariants: a periodic checkpoint waits for everything else and makes nothing else wait that came before it; a base is
//! named only if this controller published it and it can still be restarted; one round of upkeep at a time; the user is told
//! of a failure once, until a success follows.

use crate::error::with_causes;
use crate::job::{Event, Job, RankPhase};
use crate::manifest::{self, Manifest};
use crate::operation::AnswerSender;
use crate::space::{Space, Verdict};
use crate::upkeep::{self, Done};
use mend_journal::Event as Happened;
use mend_journal::event::Asker;
use mend_messages::agent::ImageId;
use mend_messages::control::{Answer, Ask};
use mend_messages::job::Rank;
use mend_policy::restarts::{Restart, Restarts};
use mend_policy::retention::{Bounds, Weighed};
use mend_policy::schedule::{Incremental, Interval, Rules, Schedule, Taken};
use mend_settings::{INCREMENTAL, INTERVAL, KEEP, MTBF, SPACE_PERCENT, Setting, SettingError, WordOrNumber};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long the end of a job waits for a round of upkeep to give up.
const UPKEEP_ENDS: Duration = Duration::from_secs(5);

/// How long a rank's end may take to be heard of after a checkpoint that failed by it.
const END_TELLS: Duration = Duration::from_secs(2);

/// What the user wrote for this run or restart; `None`: what held before, else the settings.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// `--interval`
    pub interval: Option<String>,
    /// `--incremental`
    pub incremental: Option<String>,
    /// `--keep`
    pub keep: Option<String>,
}

/// What holds for a job. Part of its record, so that a restart goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// When checkpoints are taken.
    pub interval: Interval,
    /// Which are full.
    pub incremental: Incremental,
    /// Periodic ones that are kept; `None`: all.
    pub keep: Option<u32>,
    /// Hours between failures of a node.
    pub mtbf_hours: u64,
    /// Where merging begins; `None`: never.
    pub space_percent: Option<u32>,
}

impl Plan {
    /// What is wished, else set in the environment, else what held `before`, else the defaults.
    ///
    /// # Errors
    /// A wish or setting has a value that it may not have.
    pub fn new(wishes: &Wishes, before: Option<&Self>) -> Result<Self, SettingError> {
        fn take<T: Copy>(
            wish: Option<&String>,
            setting: &Setting,
            before: Option<T>,
            of: fn(WordOrNumber) -> T,
        ) -> Result<T, SettingError> {
            match before {
                Some(before) if wish.is_none() && !setting.is_set() => Ok(before),
                _ => setting.word_or_number(wish.map(String::as_str)).map(of),
            }
        }
        let number = |choice| match choice {
            WordOrNumber::Number(number) => Some(u32::try_from(number).unwrap_or(u32::MAX)),
            WordOrNumber::Word(_) => None,
        };
        Ok(Self {
            interval: take(wishes.interval.as_ref(), &INTERVAL, before.map(|plan| plan.interval), |choice| match choice {
                WordOrNumber::Number(seconds) => Interval::Every(seconds),
                WordOrNumber::Word("auto") => Interval::Auto,
                WordOrNumber::Word(_) => Interval::Off,
            })?,
            incremental: take(wishes.incremental.as_ref(), &INCREMENTAL, before.map(|plan| plan.incremental), |choice| match choice {
                WordOrNumber::Number(count) => Incremental::Count(count as u32),
                WordOrNumber::Word("auto") => Incremental::Auto,
                WordOrNumber::Word(_) => Incremental::Off,
            })?,
            keep: take(wishes.keep.as_ref(), &KEEP, before.map(|plan| plan.keep), number)?,
            mtbf_hours: match before {
                Some(before) if !MTBF.is_set() => before.mtbf_hours,
                _ => MTBF.number()?,
            },
            space_percent: take(None, &SPACE_PERCENT, before.map(|plan| plan.space_percent), number)?,
        })
    }

    fn bounds(&self) -> Bounds {
        Bounds { keep: self.keep.unwrap_or(u32::MAX), space_percent: self.space_percent.unwrap_or(u32::MAX) }
    }

    /// The rules for a job on `nodes` nodes. Where chains are not `merged`, new ones bound the space that they take.
    fn rules(&self, nodes: u32, merged: bool) -> Rules {
        Rules {
            interval: self.interval,
            incremental: self.incremental,
            node_mtbf_s: self.mtbf_hours.saturating_mul(3600),
            nodes,
            space_percent: self.space_percent.filter(|_| !merged),
        }
    }
}

/// The checkpoint that the next one may build on.
#[derive(Debug)]
struct Last {
    number: u64,
    ids: Vec<ImageId>,
    /// For each rank, how many images its image builds on.
    chains: Vec<u32>,
}

/// A job's periodic checkpoints.
#[derive(Debug)]
pub struct Periodic {
    plan: Plan,
    schedule: Schedule,
    /// The one that is due and was asked for, if any.
    asked: Option<(AnswerSender, mpsc::UnboundedReceiver<Answer>)>,
    /// What went wrong with the last one, and what a user can do, until it is told.
    failed: Option<(String, String, Instant)>,
    /// What was told since the last that succeeded.
    told: BTreeSet<String>,
    last: Option<Last>,
    upkeep: Option<Arc<AtomicBool>>,
    upkeep_again: bool,
    weighed: Option<Weighed>,
    events: mpsc::Sender<Event>,
    space: Space,
}

impl Periodic {
    /// The state of a job that begins now on `nodes` nodes; `merged`: upkeep merges its chains; `restarts`: what those before
    /// took.
    #[must_use]
    pub fn new(plan: Plan, nodes: u32, merged: bool, restarts: &Restarts, events: mpsc::Sender<Event>) -> Self {
        let mut schedule = Schedule::new(plan.rules(nodes, merged), 0);
        schedule.restarted(restarts);
        Self {
            plan,
            schedule,
            asked: None,
            failed: None,
            told: BTreeSet::new(),
            last: None,
            upkeep: None,
            upkeep_again: false,
            weighed: None,
            events,
            space: Space::default(),
        }
    }

    /// Whether there is room for the next one.
    pub(crate) fn judge_space(&mut self, place: &Path) -> Verdict {
        // Its value was looked at when the job began.
        let reserve = mend_settings::DISK_RESERVE.number().unwrap_or(0) << 20;
        self.space.judge(place, self.schedule.builds(), reserve)
    }

    /// True if the schedule asked for the checkpoint with these answers.
    pub(crate) fn asked_for(&self, answers: &AnswerSender) -> bool {
        self.asked.as_ref().is_some_and(|(ours, _)| ours.same_channel(answers))
    }

    /// Number of the checkpoint that holds a rank's image, if it is the one that was named to build on.
    pub(crate) fn holder(&self, rank: Rank, base: Option<ImageId>) -> Option<u64> {
        let last = self.last.as_ref()?;
        (last.ids.get(rank as usize).copied() == base).then_some(last.number)
    }

    /// Number of the checkpoint that the next one may build on.
    pub(crate) fn builds_on(&self) -> Option<u64> {
        self.last.as_ref().map(|last| last.number)
    }

    /// True if a later checkpoint may build on the next one.
    pub(crate) fn tracks(&self) -> bool {
        self.schedule.incrementals() > 0
    }

    /// One sentence on when checkpoints are taken; `None`: when somebody asks.
    pub(crate) fn sentence(&self) -> Option<String> {
        let interval = self.schedule.interval_s()?;
        Some(match self.plan.interval {
            Interval::Auto => format!("a checkpoint after {interval:.0} s, then as often as its cost makes it best"),
            _ => format!("a checkpoint every {interval:.0} s"),
        })
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
}

impl Job {
    /// How long nothing has to be done for periodic checkpoints.
    pub(crate) fn periodic_wait(&self) -> Duration {
        if self.periodic.asked.is_some() || self.periodic.failed.is_some() {
            return Duration::ZERO;
        }
        if self.periodic.space.is_short() {
            return Duration::MAX;
        }
        self.periodic.schedule.next_us().map_or(Duration::MAX, |due| Duration::from_micros(due.saturating_sub(self.now_us())))
    }

    /// Asks for a checkpoint if one is due and nothing else goes on; hears what became of the last one.
    pub(crate) fn periodic_tick(&mut self) {
        let now_us = self.now_us();
        // A job that ends is no failure, and its end may be heard of after what came of it.
        if self.ranks.iter().any(|rank| matches!(rank.phase, RankPhase::Exited(_))) {
            self.periodic.failed = None;
        }
        if let Some((error, hint, _)) = self.periodic.failed.take_if(|(.., since)| since.elapsed() >= END_TELLS) {
            self.tell_failure(error, &hint);
        }
        if let Some((_, answers)) = &mut self.periodic.asked {
            match answers.try_recv() {
                Err(mpsc::error::TryRecvError::Empty) | Ok(Answer::Progress(_)) => return,
                Ok(Answer::Failed { error, hint }) => {
                    self.periodic.asked = None;
                    self.periodic.schedule.failed(now_us);
                    // Not at once: if a rank's end is the cause, that is what is to be told.
                    self.periodic.failed = Some((error, hint, Instant::now()));
                }
                _ => self.periodic.asked = None,
            }
        }
        let idle = self.operation.is_none()
            && self.background.is_none()
            && self.waiting.is_empty()
            && self.ending.is_none()
            && self.interrupted.is_none();
        let due = idle && self.periodic.schedule.due(now_us) && self.ranks.iter().all(|rank| rank.phase == RankPhase::Running);
        if due && self.has_room() {
            let (answers, coming) = mpsc::unbounded_channel();
            self.periodic.asked = Some((answers.clone(), coming));
            self.waiting.push_back((Ask::Checkpoint { mode: None }, answers, Instant::now()));
        }
    }

    fn tell_failure(&mut self, error: String, hint: &str) {
        // At the end of a job nobody waits for one more.
        if self.ending.is_some() || !self.periodic.told.insert(error.clone()) {
            return;
        }
        let next = self.periodic.schedule.next_us().map_or(0, |due| due.saturating_sub(self.now_us()).div_ceil(1_000_000));
        eprintln!("mend: a periodic checkpoint failed: {error}");
        if !hint.is_empty() {
            eprintln!("mend: hint: {hint}");
        }
        eprintln!("mend: the job runs on; the next try comes in {next} s, then ever later, and is told of if it succeeds");
    }

    /// The ranks of a restart are complete: what reading their images took is known, here and to restarts that follow.
    pub(crate) fn learn_restart(&mut self) {
        let (Some(restoring), Some(phases)) = (self.restoring.take(), &self.restart) else { return };
        self.record.restarts.add(Restart { read_us: restoring.read_us.saturating_add(phases.restart_us), ..restoring });
        self.periodic.schedule.restarted(&self.record.restarts);
        if let Err(error) = self.directory.write("job.json", &self.record) {
            tracing::warn!(%error, "what the restart took is not on record");
        }
    }

    /// A checkpoint begins: the images it is to build on, one per rank, or none.
    pub(crate) fn choose_bases(&self) -> Vec<ImageId> {
        let Some(last) = self.periodic.last.as_ref().filter(|_| self.periodic.schedule.builds()) else { return Vec::new() };
        // Somebody may have damaged or removed it.
        match manifest::load(&self.record.checkpoints.join(last.number.to_string()), self.key.as_ref()) {
            Ok(found) if found.images.iter().map(|image| image.id).eq(last.ids.iter().copied()) => last.ids.clone(),
            _ => Vec::new(),
        }
    }

    /// A checkpoint is published, whoever asked for it.
    pub(crate) fn published(&mut self, manifest: &Manifest) {
        let now_us = self.now_us();
        let before = self.periodic.last.as_ref();
        let chain = |image: &manifest::ImageEntry| {
            let below = before.filter(|last| Some(last.number) == image.base).and_then(|last| last.chains.get(image.rank as usize));
            image.base.map_or(0, |_| below.map_or(1, |below| below + 1))
        };
        let chains: Vec<u32> = manifest.images.iter().map(chain).collect();
        self.periodic.schedule.taken(&Taken {
            begun_us: now_us.saturating_sub(manifest.durable_us.max(manifest.stopped_us)),
            ended_us: now_us,
            stopped_us: manifest.stopped_us,
            write_us: manifest.phases.write_us,
            bytes: manifest.bytes(),
            kind: manifest.kind(),
            chain: chains.iter().copied().max().unwrap_or(0),
        });
        self.periodic.space.taken(manifest.kind(), manifest.bytes());
        let ids = manifest.images.iter().map(|image| image.id).collect();
        self.periodic.last = Some(Last { number: manifest.number, ids, chains });
        if manifest.periodic {
            if !std::mem::take(&mut self.periodic.told).is_empty() {
                eprintln!("mend: checkpoint {} succeeded; periodic checkpoints go on", manifest.number);
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
        let events = self.periodic.events.clone();
        let report = move |done| {
            let _ = events.blocking_send(Event::Upkeep(done));
        };
        // With tiers, each keeps what it was told to, and images may not be here to be merged.
        let bounds = (retention && self.tiers.is_none()).then(|| self.periodic.plan.bounds());
        let rules = upkeep::Rules { bounds, key: self.key.clone(), weighed: self.periodic.weighed };
        self.periodic.upkeep = Some(upkeep::start(self.record.checkpoints.clone(), rules, report));
    }

    /// A round of upkeep is over.
    pub(crate) fn upkeep_done(&mut self, done: Done) {
        self.periodic.upkeep = None;
        self.periodic.weighed = done.weighed;
        self.note_removed(&done.removed, Asker::Schedule);
        done.merged.into_iter().for_each(|checkpoint| self.journal.record(Happened::CheckpointMerged { checkpoint }));
        if let Some(failure) = done.failure
            && self.ending.is_none()
            && self.periodic.told.insert(failure.clone())
        {
            eprintln!("mend: {failure}");
            self.journal.record(Happened::UpkeepFailed { error: failure });
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
        if std::mem::take(&mut self.periodic.upkeep_again) && self.ending.is_none() {
            self.start_upkeep(true);
        }
        self.next_operation();
    }

    /// True while checkpoints are being removed or merged; from now on that ends soon.
    pub(crate) fn upkeep_in_the_way(&mut self) -> bool {
        let Some(cancel) = &self.periodic.upkeep else { return false };
        cancel.store(true, Ordering::Relaxed);
        self.periodic.upkeep_again = true;
        true
    }

    /// A user wants checkpoints gone. All of them or, if one must stay, none.
    pub(crate) fn remove_checkpoints(&mut self, numbers: &[u64], answers: &AnswerSender) {
        let answer = match upkeep::remove_by_hand(&self.record.checkpoints, numbers) {
            Ok(()) => {
                let gone: BTreeSet<u64> = numbers.iter().copied().collect();
                self.note_removed(numbers, Asker::User);
                if self.periodic.last.as_ref().is_some_and(|last| gone.contains(&last.number)) {
                    self.periodic.last = None;
                }
                Answer::Removed
            }
            Err(error) => Answer::Failed { error: with_causes(&error), hint: error.hint() },
        };
        let _ = answers.send(answer);
    }

    /// The job is over: no thread of ours changes its checkpoints any more when this returns, or only after a long while.
    pub(crate) async fn end_upkeep(&mut self, events: &mut mpsc::Receiver<Event>) {
        if !self.upkeep_in_the_way() {
            return;
        }
        let over = async {
            while let Some(event) = events.recv().await {
                if matches!(event, Event::Upkeep(_)) {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(UPKEEP_ENDS, over).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(interval: &str, incremental: &str, keep: &str) -> Wishes {
        Wishes { interval: Some(interval.into()), incremental: Some(incremental.into()), keep: Some(keep.into()) }
    }

    #[test]
    fn wishes_come_before_what_held_before() {
        let first = Plan::new(&wish("60", "3", "all"), None).unwrap();
        assert_eq!((first.interval, first.incremental, first.keep), (Interval::Every(60), Incremental::Count(3), None));
        assert_eq!(Plan::new(&Wishes::default(), Some(&first)).unwrap(), first);
        let other = Wishes { interval: Some("auto".into()), ..Wishes::default() };
        assert_eq!(Plan::new(&other, Some(&first)).unwrap(), Plan { interval: Interval::Auto, ..first });
        let off = Plan::new(&wish("off", "off", "7"), Some(&first)).unwrap();
        assert_eq!((off.interval, off.incremental, off.keep), (Interval::Off, Incremental::Off, Some(7)));
        assert!(Plan::new(&wish("soon", "3", "1"), None).is_err());
    }

    #[test]
    fn the_settings_stay_within_what_the_policy_takes() {
        let mend_settings::Kind::WordOrNumber { max, .. } = INCREMENTAL.kind else { panic!() };
        assert_eq!(max, u64::from(mend_policy::schedule::MAX_INCREMENTALS));
    }
}
