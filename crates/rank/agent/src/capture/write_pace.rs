//! Keeps a process that writes in the background to a rate, and has it say that it lives.

use crate::capture::report::Report;
use crate::capture::writer::Progress;
use rustix::event::Timespec;
use rustix::thread::nanosleep;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Passes by itself, and while somebody sleeps.
pub(crate) trait Time {
    fn now(&self) -> Duration;
    /// About so long; less if a signal comes.
    fn sleep(&self, nap: Duration);
}

/// The kernel's.
pub(crate) struct Monotonic;

impl Time for Monotonic {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn sleep(&self, nap: Duration) {
        let _ = nanosleep(&Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: i64::from(nap.subsec_nanos()) });
    }
}

/// Says that it lives and keeps to a rate: whenever more has been written since the beginning than the rate allows, it waits. What a
/// slow target has held up may be made good.
pub(crate) struct Pace<'a, T = Monotonic> {
    report: &'a Report,
    /// Bytes per second.
    rate: Option<u64>,
    time: T,
    pub began: Duration,
    bytes: u64,
}

impl<'a, T: Time> Pace<'a, T> {
    pub fn new(report: &'a Report, rate: Option<u64>, time: T) -> Self {
        Self { report, rate, began: time.now(), time, bytes: 0 }
    }
}

impl<T: Time> Progress for Pace<'_, T> {
    fn wrote(&mut self, bytes: u64) {
        const MAX_NAP: Duration = Duration::from_millis(100);
        self.bytes += bytes;
        self.report.beat();
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
        while let Some(early) = due.checked_sub(self.time.now() - self.began).filter(|early| !early.is_zero()) {
            self.time.sleep(early.min(MAX_NAP));
            self.report.beat();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::report::ReportPage;
    use core::sync::atomic::Ordering;
    use std::cell::Cell;

    /// Passes while somebody sleeps, half as much each second time, and while something is written.
    struct Fake(Cell<Duration>, Cell<u32>);

    impl Time for &Fake {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn sleep(&self, nap: Duration) {
            self.1.set(self.1.get() + 1);
            self.0.set(self.0.get() + nap / (1 + self.1.get() % 2) + Duration::from_nanos(1));
        }
    }

    #[test]
    fn a_rate_bounds_all_that_was_written_since_the_beginning() {
        const RATE: u64 = 3 << 20;
        let (report_page, fake) = (ReportPage::new().unwrap(), Fake(Cell::new(Duration::from_secs(1000)), Cell::default()));
        let mut pace = Pace::new(report_page.report(), Some(RATE), &fake);
        let mut written = 0;
        for call in 0..1000u64 {
            let (bytes, before) = (call * 7919 % (1 << 20), (fake.0.get(), report_page.report().beats.load(Ordering::Relaxed)));
            // Now and then the target takes long.
            fake.0.set(fake.0.get() + Duration::from_millis(if call % 100 == 99 { 2000 } else { 0 }));
            pace.wrote(bytes);
            written += bytes;
            let passed = fake.0.get() - Duration::from_secs(1000);
            assert!(written as f64 <= passed.as_secs_f64() * RATE as f64 + 1.0, "{written} bytes in {passed:?}");
            // It says that it lives as often as somebody may check.
            let (naps, beats) = (fake.0.get() - before.0, report_page.report().beats.load(Ordering::Relaxed) - before.1);
            assert!(naps.as_millis() < 2000 + u128::from(beats) * 101, "{beats} in {naps:?}");
        }
        // Nor does it wait without need: the target held it up for 20 s, which is made good but for the last time.
        let passed = (fake.0.get() - Duration::from_secs(1000)).as_secs_f64();
        assert!(written as f64 >= (passed - 2.5) * RATE as f64, "{written} bytes in {passed} s");
    }

    #[test]
    fn without_a_rate_nobody_waits() {
        let (report_page, fake) = (ReportPage::new().unwrap(), Fake(Cell::default(), Cell::default()));
        Pace::new(report_page.report(), None, &fake).wrote(1 << 40);
        assert_eq!((fake.0.get(), report_page.report().beats.load(Ordering::Relaxed)), (Duration::ZERO, 1));
    }
}
