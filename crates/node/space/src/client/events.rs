//! What happens to a space while ranks use it, on its way to the daemon, and from there into the journals of the jobs: targets that are lost and come back, bytes that came from a source, what is
//! healed.
//!
//! ```text
//! reader, healer, writer ──► Events: a bounded queue, sums of each file and target ──once a second──► standard output: frames of SpaceEvents
//! ```
//! Nobody who reads or heals waits for it. Each target and each file is told of later and later, as long as it goes on. Invariant: bounded; what is left out is counted. Faults assumed: nobody takes what is written (then only the thread that writes stands still), or the daemon
//! is gone (then nothing is kept any more).

use mend_messages::space_report::{MAX_EVENTS, SpaceEvent, SpaceEvents, TargetFault};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long what comes and goes all the time must stay so until it is told, at most; and for how long it must have been calm to be told at once again, milliseconds.
const LONGEST_HOLD_MS: u64 = 60_000;
const CALM_MS: u64 = 600_000;
/// From one word of a file that comes from its source to the next, at first and at most, milliseconds.
const PAUSES_MS: [u64; 2] = [10_000, 600_000];
/// Files and targets of which reads from sources are summed up. Reads beyond are counted as left out.
const MAX_SUMS: usize = 512;
/// Such sums that are told at once, and how long it is until one more may be, milliseconds. The others wait, and grow: a journal is for more than that.
const MAX_TOLD_SUMS: u64 = 16;
const SUM_PAUSE_MS: u64 = 20_000;
/// How often it is told that something was left out, at most, milliseconds.
const LEFT_OUT_PAUSE_MS: u64 = 60_000;

/// What waits to be passed on; nothing if nobody wants it.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<Option<Waiting>>);

#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: VecDeque<SpaceEvent>,
    left_out: u64,
    reads: BTreeMap<(String, u16), Reads>,
    /// Up to when the sums that were told are paid for.
    sums_until_ms: u64,
    /// When it was told last that something was left out, and whether it may be now.
    left_out_ms: Option<u64>,
    tells_left_out: bool,
}

/// Bytes of a file that came from its source in the place of a target.
#[derive(Debug)]
struct Reads {
    bytes: u64,
    count: u64,
    why: TargetFault,
    due_ms: u64,
    pause_ms: u64,
}

impl Waiting {
    pub(super) fn tell(&mut self, event: SpaceEvent) {
        self.queue.push_back(event);
        if self.queue.len() > MAX_EVENTS {
            let oldest = self.queue.iter().position(|event| !event.is_said_once()).unwrap_or_default();
            self.queue.remove(oldest);
            self.left_out += 1;
        }
    }

    fn read(&mut self, file: &str, target: u16, bytes: u64, why: TargetFault) {
        let key = (file.to_owned(), target);
        if self.reads.len() >= MAX_SUMS && !self.reads.contains_key(&key) {
            self.left_out += 1;
            return;
        }
        let new = || Reads { bytes: 0, count: 0, why: TargetFault::Absent, due_ms: 0, pause_ms: PAUSES_MS[0] };
        let reads = self.reads.entry(key).or_insert_with(new);
        reads.bytes = reads.bytes.saturating_add(bytes);
        (reads.count, reads.why) = (reads.count + 1, why);
    }

    /// What is due goes into the queue.
    pub(super) fn sum_up(&mut self, now_ms: u64, name: impl Fn(u16) -> String) {
        let mut due = Vec::new();
        self.sums_until_ms = self.sums_until_ms.max(now_ms);
        let mut until_ms = self.sums_until_ms;
        self.reads.retain(|(file, target), reads| {
            if now_ms < reads.due_ms {
                return true;
            }
            if reads.count == 0 {
                // It is over.
                return false;
            }
            if until_ms - now_ms >= MAX_TOLD_SUMS * SUM_PAUSE_MS {
                return true;
            }
            until_ms += SUM_PAUSE_MS;
            let (why, bytes, count) = (reads.why.clone(), reads.bytes, reads.count);
            due.push(SpaceEvent::ReadFromSource { file: file.clone(), target: name(*target), why, bytes, reads: count });
            (reads.bytes, reads.count, reads.due_ms) = (0, 0, now_ms.saturating_add(reads.pause_ms));
            reads.pause_ms = (reads.pause_ms * 2).min(PAUSES_MS[1]);
            true
        });
        self.sums_until_ms = until_ms;
        due.into_iter().for_each(|event| self.tell(event));
        self.tells_left_out =
            self.left_out > 0 && self.left_out_ms.is_none_or(|told_ms| now_ms.saturating_sub(told_ms) >= LEFT_OUT_PAUSE_MS);
        if self.tells_left_out {
            self.left_out_ms = Some(now_ms);
        }
    }

    pub(super) fn take(&mut self) -> SpaceEvents {
        let left_out = if std::mem::take(&mut self.tells_left_out) { std::mem::take(&mut self.left_out) } else { 0 };
        SpaceEvents { events: std::mem::take(&mut self.queue).into(), left_out }
    }
}

/// Whether a target is lost, as it was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// Since when it is told to be lost.
    lost_ms: Option<u64>,
    /// Since when it is otherwise.
    differs_ms: Option<u64>,
    /// How often that was told lately, and when last.
    changes: u32,
    changed_ms: u64,
}

/// What is to be told of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Lost,
    Back { lost_ms: u64 },
}

impl Standing {
    pub(super) fn look(&mut self, is_lost: bool, now_ms: u64) -> Option<Change> {
        if is_lost == self.lost_ms.is_some() {
            self.differs_ms = None;
            return None;
        }
        if now_ms.saturating_sub(self.changed_ms) >= CALM_MS {
            self.changes = 0;
        }
        let hold = if self.changes < 2 { 0 } else { (500_u64 << self.changes.min(8)).min(LONGEST_HOLD_MS) };
        if now_ms.saturating_sub(*self.differs_ms.get_or_insert(now_ms)) < hold {
            return None;
        }
        (self.differs_ms, self.changed_ms, self.changes) = (None, now_ms, self.changes.saturating_add(1));
        match self.lost_ms.take() {
            Some(since) => Some(Change::Back { lost_ms: now_ms.saturating_sub(since) }),
            None => {
                self.lost_ms = Some(now_ms);
                Some(Change::Lost)
            }
        }
    }
}

impl Events {
    pub(super) fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        // Every change of it is a whole one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has happened.
    pub(super) fn tell(&self, event: SpaceEvent) {
        if let Some(waiting) = &mut *self.waiting() {
            waiting.tell(event);
        }
    }

    /// Bytes of a file came from its source in the place of a target.
    pub(super) fn came_from_source(&self, file: &str, target: u16, bytes: u64, why: TargetFault) {
        if let Some(waiting) = &mut *self.waiting() {
            waiting.read(file, target, bytes, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_at_once_and_what_comes_and_goes_later_and_later() {
        let mut standing = Standing::default();
        assert_eq!(standing.look(false, 0), None);
        assert_eq!(standing.look(true, 1000), Some(Change::Lost));
        assert_eq!(standing.look(true, 2000), None);
        assert_eq!(standing.look(false, 3000), Some(Change::Back { lost_ms: 2000 }));
        // For an hour it is there in one second and not in the next.
        let told = (4..3600).filter(|second| standing.look(second % 2 == 0, second * 1000).is_some()).count();
        assert!(told <= 12, "{told}: what does not last is told after a calm alone");
        let mut slow = Standing::default();
        let told = (0..3600).filter(|second| slow.look(second / 10 % 2 == 0, second * 1000).is_some()).count();
        assert!(told < 60, "{told}");
    }

    #[test]
    fn after_a_calm_a_loss_is_told_at_once_again() {
        let mut standing = Standing::default();
        for second in 0..100 {
            standing.look(second % 2 == 0, second * 1000);
        }
        let lost = standing.lost_ms.is_some();
        assert!(standing.look(!lost, 100_000 + CALM_MS).is_some());
    }

    #[test]
    fn reads_from_a_source_are_summed_up_by_file_and_target_and_told_ever_less_often() {
        let mut waiting = Waiting::default();
        let name = |at: u16| format!("target{at}");
        let mut told = 0;
        for second in 0..3600_u64 {
            waiting.read("in.dat", 1, 65536, TargetFault::Silent { ms: 250 });
            waiting.sum_up(second * 1000, name);
            told += waiting.take().events.len();
        }
        assert_eq!(told, 11);
        waiting.read("in.dat", 1, 7, TargetFault::Damaged);
        waiting.read("in.dat", 2, 9, TargetFault::Absent);
        waiting.sum_up(9_000_000, name);
        let SpaceEvents { events, left_out: 0 } = waiting.take() else { panic!("something is left out") };
        let of = |event: &SpaceEvent| match event {
            SpaceEvent::ReadFromSource { target, why, reads, .. } => (target.clone(), why.clone(), *reads),
            other => panic!("{other:?}"),
        };
        assert_eq!((of(&events[0]).0, of(&events[0]).1), ("target1".to_owned(), TargetFault::Damaged));
        assert_eq!(of(&events[1]), ("target2".to_owned(), TargetFault::Absent, 1));
        waiting.sum_up(90_000_000, name);
        assert!(waiting.reads.is_empty() && waiting.take() == SpaceEvents::default());
    }

    #[test]
    fn what_nobody_takes_is_bounded_the_oldest_goes_and_is_counted() {
        let mut waiting = Waiting::default();
        for number in 0..MAX_EVENTS as u64 + 7 {
            waiting.tell(SpaceEvent::TargetBack { target: "a".into(), lost_ms: number });
        }
        for number in 0..MAX_SUMS + 3 {
            waiting.read(&number.to_string(), 0, 1, TargetFault::Absent);
        }
        waiting.sum_up(0, |_| String::new());
        let taken = waiting.take();
        // Sums go before what nobody says again.
        assert_eq!((taken.events.len(), taken.left_out), (MAX_EVENTS, 10 + MAX_TOLD_SUMS));
        assert_eq!(taken.events[0], SpaceEvent::TargetBack { target: "a".into(), lost_ms: 7 });
        for second in 1..59 {
            waiting.read("one more", 0, 1, TargetFault::Absent);
            waiting.sum_up(second * 1000, |_| String::new());
            assert_eq!(waiting.take().left_out, 0, "that is told once a minute");
        }
    }

    #[test]
    fn many_files_that_come_from_their_sources_do_not_fill_a_journal() {
        let (mut waiting, mut told) = (Waiting::default(), 0);
        for second in 0..600_u64 {
            (0..100).for_each(|file| waiting.read(&format!("{second}/{file}"), 0, 1, TargetFault::Absent));
            waiting.sum_up(second * 1000, |_| String::new());
            told += waiting.take().events.len() as u64;
        }
        assert!((MAX_TOLD_SUMS..=MAX_TOLD_SUMS + 600 / 20).contains(&told), "{told}");
    }
}
