//! How far the program has come: the time steps that it tells by `mend_step`, and what the fabric counts. The daemon is told once a second at most.
//!
//! A thread of the program writes three words, without a lock: what another thread reads may mix two steps, which is off by one of them.

use super::wakeup;
use crate::network::Counters;
use mend_messages::progress::{Progress, Step};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// From one reading to the next.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

static DONE: AtomicU64 = AtomicU64::new(0);
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// When the program told its last step, microseconds; 0: not in this process.
static AT_US: AtomicU64 = AtomicU64::new(0);
/// The program tells its steps.
static TELLS: AtomicBool = AtomicBool::new(false);

fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000).saturating_add(now.tv_nsec as u64 / 1000)
}

/// The program has done this many of so many steps (0: it does not know how many). Takes some tens of nanoseconds. What is negative in the program
/// counts as 0: a total of -1 often says that there is none.
pub fn step(done: u64, total: u64) {
    let counted = |steps: u64| if i64::try_from(steps).is_ok() { steps } else { 0 };
    DONE.store(counted(done), Ordering::Relaxed);
    TOTAL.store(counted(total), Ordering::Relaxed);
    AT_US.store(now_us().max(1), Ordering::Release);
    if !TELLS.load(Ordering::Relaxed) && !TELLS.swap(true, Ordering::AcqRel) {
        wakeup::announce_steps();
    }
}

/// True once the program has told a step, in this process or in one whose image it comes from.
pub(crate) fn tells() -> bool {
    TELLS.load(Ordering::Acquire)
}

/// In a restored process: the time of the last step is another node's.
pub(crate) fn forget() {
    AT_US.store(0, Ordering::Release);
}

/// What the daemon knows, and since when.
#[derive(Default)]
pub(crate) struct Reports {
    last: Option<(Instant, Progress)>,
    counters: Counters,
    waited_us: u64,
}

impl Reports {
    /// What is to be told, if it is time for that and the program has come further.
    pub fn due(&mut self, counters: impl FnOnce() -> Counters) -> Option<Progress> {
        let now = Instant::now();
        if self.last.is_some_and(|(at, _)| now.saturating_duration_since(at) < INTERVAL) {
            return None;
        }
        let at_us = AT_US.load(Ordering::Acquire);
        if at_us == 0 && tells() {
            return None;
        }
        let step = (at_us > 0).then(|| Step { done: DONE.load(Ordering::Relaxed), total: TOTAL.load(Ordering::Relaxed), at_us });
        let (read, last_us) = (counters(), self.last.map_or(0, |(_, last)| last.at_us));
        let (now_us, before) = (now_us(), std::mem::replace(&mut self.counters, read));
        let clock = read.clock.saturating_sub(before.clock);
        if clock > 0 && last_us > 0 {
            let share = read.waited.saturating_sub(before.waited) as f64 / clock as f64;
            self.waited_us += (now_us.saturating_sub(last_us) as f64 * share.min(1.0)) as u64;
        }
        let progress = Progress { step, calls: read.calls, waited_us: self.waited_us, at_us: now_us };
        let known = self.last.replace((now, progress)).map(|(_, known)| known);
        let known = known.unwrap_or_default();
        (known.step != step || known.calls != read.calls).then_some(progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_tells_and_the_fabric_counts_is_told_once_a_second() {
        let counters = |calls, waited, clock| move || Counters { calls, waited, clock };
        let mut reports = Reports::default();
        let first = reports.due(counters(3, 0, 1000)).unwrap();
        assert_eq!((first.step, first.calls, first.waited_us), (None, 3, 0));
        let told_at = |reports: &mut Reports, at: Instant| reports.last = reports.last.map(|(_, last)| (at, last));
        // This test may stand still for more than a second.
        told_at(&mut reports, Instant::now() + 100 * INTERVAL);
        assert_eq!(reports.due(counters(4, 0, 2000)), None, "a second is not over");
        let later = |reports: &mut Reports| told_at(reports, Instant::now().checked_sub(INTERVAL).unwrap());
        later(&mut reports);
        assert_eq!(reports.due(counters(3, 500, 3000)), None, "nothing has happened");
        step(7, 100);
        later(&mut reports);
        std::thread::sleep(Duration::from_millis(4));
        let told = reports.due(counters(3, 1500, 4000)).unwrap();
        assert_eq!(told.step.map(|step| (step.done, step.total)), Some((7, 100)));
        // It waited all the time since the last reading, but not longer than that.
        assert!(told.waited_us >= 4000 && told.waited_us <= told.at_us - first.at_us, "{told:?}");
        forget();
        later(&mut reports);
        assert_eq!(reports.due(counters(9, 1500, 5000)), None, "steps are told by this program, and none is in this process");
    }
}
