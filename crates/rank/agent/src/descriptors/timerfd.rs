//! Timers by descriptor: timerfd_create(2).

use super::calls::new_descriptor;
use super::{What, fdinfo};
use mend_freestanding::{check, syscall};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;

/// What `fdinfo` tells of one.
pub(super) fn parse(info: &str) -> Option<What> {
    let clock: i32 = fdinfo::field(info, "clockid:")?.parse().ok()?;
    let mut value = pair(fdinfo::field(info, "it_value:")?)?;
    // The time of day goes on while a process rests in its image.
    let absolute = clock == libc::CLOCK_REALTIME && fdinfo::field(info, "settime flags:")?.ends_with(['1', '3']) && value != (0, 0);
    if absolute {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let nanoseconds = now.tv_nsec as u64 + value.1;
        value = (now.tv_sec as u64 + value.0 + nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    }
    let (interval, ticks) = (pair(fdinfo::field(info, "it_interval:")?)?, fdinfo::field(info, "ticks:")?.parse().ok()?);
    Some(What::Timer { clock, value, interval, ticks, absolute })
}

/// "(1, 500)"
fn pair(text: &str) -> Option<(u64, u64)> {
    let (seconds, nanoseconds) = text.trim_matches(['(', ')']).split_once(", ")?;
    Some((seconds.parse().ok()?, nanoseconds.parse().ok()?))
}

/// Makes one that goes on where it was.
pub(super) fn make(clock: i32, value: (u64, u64), interval: (u64, u64), ticks: u64, absolute: bool) -> Result<OwnedFd, Errno> {
    let timer = new_descriptor(libc::SYS_timerfd_create, [clock as usize, 0, 0, 0])?;
    // An expiration that was not read yet is made to happen at once; the interval goes on from there.
    let value = if ticks > 0 && value == (0, 0) { (0, 1) } else { value };
    let setting = [interval.0, interval.1, value.0, value.1];
    let flags = if absolute { libc::TFD_TIMER_ABSTIME as usize } else { 0 };
    // SAFETY: timerfd_settime reads four words from `setting`.
    check(unsafe { syscall(libc::SYS_timerfd_settime, [timer.as_raw_fd() as usize, flags, setting.as_ptr() as usize, 0, 0, 0]) })
        .map_err(Errno::from_raw_os_error)?;
    if ticks > 0 {
        // TFD_IOC_SET_TICKS, where the kernel was built for checkpointing.
        // SAFETY: the ioctl reads 8 bytes from `ticks`.
        unsafe { syscall(libc::SYS_ioctl, [timer.as_raw_fd() as usize, 0x4008_5400, (&raw const ticks) as usize, 0, 0, 0]) };
    }
    Ok(timer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_pairs() {
        assert_eq!(pair("(3, 999)"), Some((3, 999)));
        assert_eq!(pair("3"), None);
    }
}
