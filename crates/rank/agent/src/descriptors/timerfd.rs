//! Timers by descriptor: timerfd_create(2).

use super::calls::new_descriptor;
use super::{What, fdinfo};
use mend_freestanding::{check, syscall};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;

/// Flags of timerfd_settime(2).
const ABSOLUTE_TIME: i32 = libc::TFD_TIMER_ABSTIME;
/// With [`ABSOLUTE_TIME`]: whoever waits is told when the time of day is set.
const CANCELLED: i32 = libc::TFD_TIMER_CANCEL_ON_SET;

/// How often a timer with a very short interval is looked at until it has not run out again.
const LOOKS: usize = 3;

/// What `fdinfo` tells of one that stands `still`: of a periodic timer that has run out it tells how often, and the time left, once the timer was
/// asked for that.
pub(super) fn look(timer: BorrowedFd, mut info: String, still: bool, again: impl Fn() -> io::Result<String>) -> io::Result<String> {
    for _ in 0..LOOKS {
        let runs_out =
            |text: &str| matches!(parse(text), Some(What::Timer { value: (0, 0), ticks: 1.., interval, .. }) if interval != (0, 0));
        if !still || !runs_out(&info) {
            break;
        }
        let mut setting = [0u64; 4];
        // SAFETY: timerfd_gettime writes four words into `setting`.
        unsafe { syscall(libc::SYS_timerfd_gettime, [timer.as_raw_fd() as usize, setting.as_mut_ptr() as usize, 0, 0, 0, 0]) };
        info = again()?;
    }
    Ok(info)
}

/// What `fdinfo` tells of one.
pub(super) fn parse(info: &str) -> Option<What> {
    let clock: i32 = fdinfo::field(info, "clockid:")?.parse().ok()?;
    let mut value = pair(fdinfo::field(info, "it_value:")?)?;
    let set = i32::from_str_radix(fdinfo::field(info, "settime flags:")?, 8).ok()?;
    // The time of day goes on while a process rests in its image.
    let absolute = clock == libc::CLOCK_REALTIME && set & ABSOLUTE_TIME != 0;
    if absolute && value != (0, 0) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let nanoseconds = now.tv_nsec as u64 + value.1;
        value = (now.tv_sec as u64 + value.0 + nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    }
    let flags = if absolute { set & (ABSOLUTE_TIME | CANCELLED) } else { 0 };
    let (interval, ticks) = (pair(fdinfo::field(info, "it_interval:")?)?, fdinfo::field(info, "ticks:")?.parse().ok()?);
    Some(What::Timer { clock, value, interval, ticks, flags })
}

/// "(1, 500)"
fn pair(text: &str) -> Option<(u64, u64)> {
    let (seconds, nanoseconds) = text.trim_matches(['(', ')']).split_once(", ")?;
    Some((seconds.parse().ok()?, nanoseconds.parse().ok()?))
}

/// Makes one that goes on where it was.
pub(super) fn make(clock: i32, value: (u64, u64), interval: (u64, u64), ticks: u64, flags: i32) -> Result<OwnedFd, Errno> {
    let timer = new_descriptor(libc::SYS_timerfd_create, [clock as usize, 0, 0, 0])?;
    let set = |flags: i32, value: (u64, u64)| {
        let setting = [interval.0, interval.1, value.0, value.1];
        let arguments = [timer.as_raw_fd() as usize, flags as usize, setting.as_ptr() as usize, 0, 0, 0];
        // SAFETY: timerfd_settime reads four words from `setting`.
        check(unsafe { syscall(libc::SYS_timerfd_settime, arguments) }).map_err(Errno::from_raw_os_error)
    };
    set(flags, value)?;
    if ticks > 0 {
        // TFD_IOC_SET_TICKS, where the kernel was built for checkpointing.
        // SAFETY: the ioctl reads 8 bytes from `ticks`.
        let told = unsafe { syscall(libc::SYS_ioctl, [timer.as_raw_fd() as usize, 0x4008_5400, (&raw const ticks) as usize, 0, 0, 0]) };
        if told != 0 || value == (0, 0) && interval != (0, 0) {
            // An expiration that was not read yet is made to happen at once; the interval goes on from there.
            set(0, (0, 1))?;
        }
    }
    Ok(timer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    fn text(timer: &OwnedFd) -> io::Result<String> {
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", timer.as_raw_fd()))
    }

    fn seen(timer: &OwnedFd) -> (i32, (u64, u64), (u64, u64), u64, i32) {
        match parse(&look(timer.as_fd(), text(timer).unwrap(), true, || text(timer)).unwrap()) {
            Some(What::Timer { clock, value, interval, ticks, flags }) => (clock, value, interval, ticks, flags),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_periodic_timer_keeps_its_expirations_and_its_phase() {
        let interval = (1000, 0);
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let began = (now.tv_sec as u64 - 2500, 0);
        for flags in [ABSOLUTE_TIME, ABSOLUTE_TIME | CANCELLED] {
            let timer = make(libc::CLOCK_REALTIME, began, interval, 0, flags).unwrap();
            while !text(&timer).unwrap().contains("ticks: 1") {
                std::thread::yield_now();
            }
            let mut last = seen(&timer);
            for _ in 0..2 {
                let (_, value, _, ticks, set) = last;
                assert_eq!((ticks, set), (3, flags));
                // Two readings of the clock lie between the time left and the time at which it is.
                let late = value.0 as f64 + value.1 as f64 / 1e9 - (began.0 + 3000) as f64;
                assert!((0.0..1.0).contains(&late), "{late}");
                last = seen(&make(libc::CLOCK_REALTIME, value, interval, ticks, set).unwrap());
            }
        }
    }

    #[test]
    fn an_expiration_that_was_not_read_is_there_once() {
        let timer = make(libc::CLOCK_MONOTONIC, (0, 0), (0, 0), 1, 0).unwrap();
        let mut ticks = [0; 8];
        assert_eq!((rustix::io::read(&timer, &mut ticks), u64::from_ne_bytes(ticks)), (Ok(8), 1));
        assert_eq!(seen(&timer).3, 0);
    }

    #[test]
    fn times_are_pairs() {
        assert_eq!(pair("(3, 999)"), Some((3, 999)));
        assert_eq!(pair("3"), None);
    }
}
