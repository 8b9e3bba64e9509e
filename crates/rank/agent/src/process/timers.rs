//! POSIX timers (timer_create(2)), as `/proc/self/timers` shows them. A program knows each by its number, so each comes
//! back with that.

use crate::park::Parked;
use mend_freestanding::{check, syscall};
use std::sync::atomic::{AtomicBool, Ordering};

/// Kernels that cannot be told a number count up from 0; beyond this that would take too long.
const HIGHEST_COUNTED: i32 = 1_000_000;

/// One timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    number: i32,
    signal: i32,
    value: u64,
    /// `SIGEV_`
    notify: i32,
    /// Thread that is told, as `/proc` calls it at first, then as the process does. 0: the process.
    thread: i32,
    clock: i32,
    /// Interval and time left: seconds, nanoseconds.
    setting: [u64; 4],
}

/// Gives a timer (interval and time left) the time left that it had before, if it has run out since, unless that was told by a signal.
pub(crate) fn undo_unless(now: &mut [u64; 4], before: [u64; 4], told: impl FnOnce() -> bool) {
    let has_run_out = before[2..] != [0, 0] && (now[2..] == [0, 0] || now[2..] > before[2..]);
    if has_run_out && !told() {
        *now = before;
    }
}

impl Timer {
    /// Its clock was the processor time of a thread that has ended: it is as one that is off, and no such clock can be had any more.
    fn rest(&mut self) {
        (self.clock, self.notify, self.thread, self.setting) = (libc::CLOCK_MONOTONIC, libc::SIGEV_NONE, 0, [0; 4]);
    }

    /// See [`undo_unless`]; `told`: whether there is a signal of the timer with this number.
    pub fn undo_unless(&mut self, before: &Timer, told: impl FnOnce(i32) -> bool) {
        if self.notify & !libc::SIGEV_THREAD_ID != libc::SIGEV_NONE {
            undo_unless(&mut self.setting, before.setting, || told(self.number));
        }
    }
}

/// Why there are timers that cannot be saved.
pub(crate) fn obstacle() -> Option<String> {
    let timers = parse(&std::fs::read_to_string("/proc/self/timers").unwrap_or_default());
    let Some(timers) = timers else { return Some("POSIX timers of an unknown form".to_string()) };
    let hard = timers.iter().find(|timer| own_thread_clock(timer.clock) || timer.number > HIGHEST_COUNTED && !numbers_can_be_told());
    hard.map(|timer| format!("POSIX timer {} on the processor time of a thread (timer_create)", timer.number))
}

/// The clock is the processor time of whichever thread made the timer; nobody tells which that was.
fn own_thread_clock(clock: i32) -> bool {
    thread_of_clock(clock) == Some(0)
}

/// The thread whose processor time the clock is, as the process calls it (`pthread_getcpuclockid`); 0: the one that made the timer.
fn thread_of_clock(clock: i32) -> Option<i32> {
    (clock < 0 && clock & 4 != 0).then_some(!(clock >> 3))
}

/// Set for good once an image had timers: their numbers are used up, also where the program has deleted them.
static HAD_TIMERS: AtomicBool = AtomicBool::new(false);

/// All timers of the process, whose threads are parked.
pub(crate) fn read(parked: &Parked) -> Option<Vec<Timer>> {
    let mut timers = parse(&std::fs::read_to_string("/proc/self/timers").unwrap_or_default())?;
    HAD_TIMERS.fetch_or(!timers.is_empty(), Ordering::Relaxed);
    for timer in &mut timers {
        // SAFETY: timer_gettime writes four words.
        check(unsafe { syscall(libc::SYS_timer_gettime, [timer.number as usize, timer.setting.as_mut_ptr() as usize, 0, 0, 0, 0]) })
            .ok()?;
        if timer.thread != 0 {
            match parked.threads().find(|slot| slot.outer == timer.thread) {
                Some(slot) => timer.thread = slot.tid,
                // The thread has ended, and nobody is told any more.
                None => (timer.notify, timer.thread) = (libc::SIGEV_NONE, 0),
            }
        }
        if let Some(thread) = thread_of_clock(timer.clock)
            && !parked.threads().any(|slot| slot.tid == thread)
        {
            timer.rest();
        }
    }
    Some(timers)
}

fn parse(text: &str) -> Option<Vec<Timer>> {
    let mut timers: Vec<Timer> = Vec::new();
    for line in text.lines() {
        let (name, rest) = line.split_once(": ")?;
        if name == "ID" {
            let number = rest.trim().parse().ok()?;
            timers.push(Timer { number, signal: 0, value: 0, notify: 0, thread: 0, clock: 0, setting: [0; 4] });
            continue;
        }
        let timer = timers.last_mut()?;
        match name {
            "signal" => {
                let (signal, value) = rest.split_once('/')?;
                timer.signal = signal.trim().parse().ok()?;
                timer.value = u64::from_str_radix(value.trim().trim_start_matches("0x"), 16).ok()?;
            }
            "notify" => {
                let (how, whom) = rest.split_once('/')?;
                let (kind, id) = whom.split_once('.')?;
                timer.notify = match how {
                    "signal" => libc::SIGEV_SIGNAL,
                    "none" => libc::SIGEV_NONE,
                    _ => libc::SIGEV_THREAD,
                };
                if kind == "tid" {
                    timer.notify |= libc::SIGEV_THREAD_ID;
                    timer.thread = id.trim().parse().ok()?;
                }
            }
            "ClockID" => timer.clock = rest.trim().parse().ok()?,
            _ => {}
        }
    }
    Some(timers)
}

/// Deletes all timers of the process.
pub(crate) fn delete_all() {
    for timer in parse(&std::fs::read_to_string("/proc/self/timers").unwrap_or_default()).unwrap_or_default() {
        // SAFETY: takes a number.
        unsafe { syscall(libc::SYS_timer_delete, [timer.number as usize, 0, 0, 0, 0, 0]) };
    }
}

const PR_TIMER_CREATE_RESTORE_IDS: usize = 77;

fn restore_numbers(how: usize) -> bool {
    // SAFETY: prctl with plain numbers.
    check(unsafe { syscall(libc::SYS_prctl, [PR_TIMER_CREATE_RESTORE_IDS, how, 0, 0, 0, 0]) }).is_ok()
}

/// Linux 6.15 and later.
fn numbers_can_be_told() -> bool {
    restore_numbers(2)
}

/// Whether timers can be made again in a process that has had some: before Linux 6.15 no number is given twice.
pub(crate) fn can_come_back_here() -> bool {
    let has_none = std::fs::read_to_string("/proc/self/timers").map_or(true, |text| text.is_empty());
    has_none && !HAD_TIMERS.load(Ordering::Relaxed) || numbers_can_be_told()
}

/// Makes them again.
///
/// # Errors
/// Number of the timer, errno.
pub(crate) fn restore(timers: &[Timer]) -> Result<(), (i32, i32)> {
    if timers.is_empty() {
        return Ok(());
    }
    let told = restore_numbers(1);
    let result = restore_in_order(timers, told);
    if told {
        restore_numbers(0);
    }
    result
}

/// From the least number on: a kernel that cannot be told one counts up, and `/proc` lists the newest timer first.
fn restore_in_order(timers: &[Timer], told: bool) -> Result<(), (i32, i32)> {
    let mut timers: Vec<&Timer> = timers.iter().collect();
    timers.sort_by_key(|timer| timer.number);
    timers.into_iter().try_for_each(|timer| make(timer, told).map_err(|errno| (timer.number, errno)))
}

fn make(timer: &Timer, told: bool) -> Result<(), i32> {
    // struct sigevent: value, signal, notify, thread.
    let mut event = [0u64; 8];
    event[0] = timer.value;
    event[1] = timer.signal as u32 as u64 | (timer.notify as u64) << 32;
    event[2] = timer.thread as u32 as u64;
    loop {
        let mut number = timer.number;
        let arguments = [timer.clock as isize as usize, event.as_ptr() as usize, (&raw mut number) as usize, 0, 0, 0];
        // SAFETY: timer_create reads 64 bytes of `event`, reads and writes `number`.
        check(unsafe { syscall(libc::SYS_timer_create, arguments) })?;
        if number == timer.number {
            break;
        }
        if told || number > timer.number {
            return Err(libc::EEXIST);
        }
        // SAFETY: a timer made here.
        check(unsafe { syscall(libc::SYS_timer_delete, [number as usize, 0, 0, 0, 0, 0]) })?;
    }
    let mut setting = timer.setting;
    if setting[2..] == [0, 0] {
        // Periodic and not armed: its signal is pending. To a new timer zero would mean "off".
        setting.copy_within(..2, 2);
    }
    // SAFETY: timer_settime reads four words.
    check(unsafe { syscall(libc::SYS_timer_settime, [timer.number as usize, 0, setting.as_ptr() as usize, 0, 0, 0]) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_timers() {
        let text = "ID: 3\nsignal: 60/00007fff86e452a8\nnotify: signal/tid.2634\nClockID: 1\nID: 4\nsignal: 10/0000000000000007\nnotify: none/pid.5\nClockID: -6\n";
        let timers = parse(text).unwrap();
        assert_eq!((timers[0].number, timers[0].signal, timers[0].value), (3, 60, 0x7fff_86e4_52a8));
        assert_eq!((timers[0].notify, timers[0].thread, timers[0].clock), (libc::SIGEV_THREAD_ID, 2634, 1));
        assert_eq!((timers[1].notify, timers[1].thread, timers[1].clock), (libc::SIGEV_NONE, 0, -6));
        assert!(own_thread_clock(-2) && !own_thread_clock(-6) && !own_thread_clock(1));
        let clock_of = |thread: i32| !thread << 3 | 6;
        assert_eq!((thread_of_clock(clock_of(4711)), thread_of_clock(-6), thread_of_clock(1)), (Some(4711), None, None));
    }

    /// Their clock is as that of a timer whose thread has ended.
    #[test]
    fn a_timer_of_an_ended_thread_is_made_again_and_is_off() {
        let mut timer = timer(50, 7);
        timer.clock = !libc::pid_t::MAX << 3 | 6;
        assert!(restore(std::slice::from_ref(&timer)).is_err(), "there is no such thread");
        timer.rest();
        restore(&[timer]).unwrap();
        let mut setting = [9u64; 4];
        // SAFETY: the timer made above; timer_gettime writes four words.
        unsafe {
            check(syscall(libc::SYS_timer_gettime, [50, setting.as_mut_ptr() as usize, 0, 0, 0, 0])).unwrap();
            syscall(libc::SYS_timer_delete, [50, 0, 0, 0, 0, 0]);
        }
        assert_eq!(setting, [0; 4]);
    }

    /// In a process that has had none.
    #[test]
    fn timers_come_back_in_any_order_where_no_number_can_be_told() {
        let timers = [timer(45, 2000), timer(40, 1000)];
        // SAFETY: the child makes timers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let made = restore_in_order(&timers, false);
            // SAFETY: without what other threads of the parent left undone.
            unsafe { libc::_exit(made.map_or_else(|(_, errno)| errno, |()| 0)) };
        }
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 0, "errno of the child, whose status is {status:#x}");
    }

    fn timer(number: i32, left: u64) -> Timer {
        Timer { number, signal: 0, value: 5, notify: libc::SIGEV_NONE, thread: 0, clock: libc::CLOCK_MONOTONIC, setting: [0, 0, left, 0] }
    }

    #[test]
    fn a_timer_that_ran_out_without_a_signal_is_as_it_was() {
        let undone = |before: [u64; 4], mut now: [u64; 4], told| {
            undo_unless(&mut now, before, || told);
            now
        };
        let (soon, over) = ([0, 0, 0, 900], [0; 4]);
        assert_eq!((undone(soon, over, false), undone(soon, over, true)), (soon, over));
        let (nearer, again) = ([2, 0, 0, 900], [2, 0, 1, 5]);
        assert_eq!((undone(nearer, again, false), undone(nearer, again, true)), (nearer, again));
        // It goes on, it was off.
        assert_eq!(undone([2, 0, 1, 5], nearer, false), nearer);
        assert_eq!((undone(over, over, false), undone([2, 0, 0, 0], again, false)), (over, again));
    }

    #[test]
    fn a_timer_comes_back_under_its_number() {
        restore(&[timer(40, 1000), timer(45, 2000)]).unwrap();
        let text = std::fs::read_to_string("/proc/self/timers").unwrap();
        let found = parse(&text).unwrap();
        let ours: Vec<&Timer> = found.iter().filter(|timer| timer.value == 5).collect();
        assert_eq!(ours.iter().map(|timer| timer.number).collect::<Vec<_>>().len(), 2);
        assert!([40, 45].iter().all(|number| ours.iter().any(|timer| timer.number == *number)), "{text}");
        for number in [40usize, 45] {
            // SAFETY: timers made above.
            unsafe { syscall(libc::SYS_timer_delete, [number, 0, 0, 0, 0, 0]) };
        }
    }
}
