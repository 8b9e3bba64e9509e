//! Whether the next pages are compressed on their way to another node, and compressing them.
//!
//! ```text
//! link: bytes that it took, time that it was full ─► gate ─┐
//! compressing: bytes per second ───────────────────────────┼─► pages ─► LZ4 block, if it is shorter
//! socket: bytes that wait in it ───────────────────────────┘
//! ```
//! The gate opens while the link is full and takes less than two thirds of what compressing gives, so that compressing is not the next
//! bottleneck. Pages are compressed while so much waits in the socket that the link does not run dry meanwhile. So a stream is never
//! slower than without. Of a rank that stands still the processor is free; of one that runs, somebody's must be idle.
//!
//! Like the writer it works for, it allocates nothing and calls nothing of the C library.

use crate::park::monotonic;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use mend_freestanding::{check, syscall};
use mend_messages::agent::Compression;
use rustix::fd::{AsRawFd, BorrowedFd};

/// Bytes that are compressed at a time, at most.
pub(crate) const PART: usize = 128 << 10;
/// Room that takes whatever becomes of a part.
pub(crate) const PART_ROOM: usize = get_maximum_output_size(PART);

/// Time after which the link is looked at again, nanoseconds: some system calls' worth of it at 200 Mbit/s.
const LINK_WINDOW: u64 = 20_000_000;
/// The same of the processors: the kernel tells of their idle time in hundredths of a second.
const IDLE_WINDOW: u64 = 200_000_000;
/// Bytes per second that compressing is taken to give until it was tried.
const PRESUMED_SPEED: u64 = 500_000_000;
/// A part has to become shorter by one of so many parts of it: unpacking costs, too.
const LEAST_SAVING_DIVISOR: usize = 8;
/// Parts that are left alone, at most, when those before got no shorter.
const MOST_SKIPPED: u32 = 64;
/// Processors that one can know of.
const PROCESSORS: usize = 1024;
const SECOND: u64 = 1_000_000_000;

/// What has gone into a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// Bytes that it took.
    pub bytes: u64,
    /// Time in which it took none because it was full, nanoseconds.
    pub full_ns: u64,
}

/// What the kernel says of a connection: time in which there was something to send, and what of it the receiver had no room. Microseconds.
#[derive(Clone, Copy, Default)]
struct Busy {
    all: u64,
    receiver_full: u64,
}

impl Busy {
    /// Counts what came between two looks, and of what was before the less the longer ago. The kernel counts in steps of some milliseconds, and not
    /// all of the time that it waits for a receiver.
    fn add(&mut self, before: Self, now: Self) {
        let fade = |sum: u64| sum - sum / 8;
        self.all = fade(self.all) + now.all.saturating_sub(before.all);
        self.receiver_full = fade(self.receiver_full) + now.receiver_full.saturating_sub(before.receiver_full);
    }

    fn waits_for_receiver(self) -> bool {
        self.receiver_full > self.all / 8
    }
}

/// See the module.
pub(crate) struct Compressor {
    table: CompressTable,
    wanted: Compression,
    /// The rank runs.
    live: bool,
    open: bool,
    since: u64,
    taken: Taken,
    busy: Busy,
    /// What of it was lately.
    lately: Busy,
    /// Bytes per second that the link takes.
    rate: u64,
    /// Bytes per second that are compressed; 0: not tried yet.
    speed: u64,
    /// Idle time of the processors when it was asked for, and what was used of it since. `None`: not asked yet.
    idle: Option<Idle>,
    has_idle: bool,
    /// Parts that are left alone still, and how many the last time.
    skips: u32,
    skipped: u32,
}

#[derive(Clone, Copy)]
struct Idle {
    at: u64,
    ns: u64,
    used: u64,
}

impl Compressor {
    /// For a new stream. `live`: of a rank that runs.
    pub const fn new(wanted: Compression, live: bool) -> Self {
        Self {
            table: CompressTable::large(),
            wanted,
            live,
            open: false,
            since: 0,
            taken: Taken { bytes: 0, full_ns: 0 },
            busy: Busy { all: 0, receiver_full: 0 },
            lately: Busy { all: 0, receiver_full: 0 },
            rate: 0,
            speed: 0,
            idle: None,
            has_idle: false,
            skips: 0,
            skipped: 0,
        }
    }

    /// Whether the next part, of so many bytes, is to be compressed. `taken`: of the stream so far.
    pub fn wants(&mut self, out: BorrowedFd, taken: Taken, length: usize) -> bool {
        match self.wanted {
            Compression::Off => return false,
            Compression::Always => return true,
            Compression::Auto => {}
        }
        self.look(out, taken);
        if !self.open {
            return false;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        // What the link takes while this is compressed, twice.
        let needed = 2 * u128::from(self.rate) * length as u128 / u128::from(self.speed_or_presumed());
        unsent(out).is_some_and(|unsent| u128::from(unsent) >= needed)
    }

    /// Whether parts are being compressed.
    pub fn compresses(&self) -> bool {
        self.wanted == Compression::Always || self.open
    }

    fn speed_or_presumed(&self) -> u64 {
        if self.speed == 0 { PRESUMED_SPEED } else { self.speed }
    }

    /// Opens or closes the gate, by what the link did lately.
    fn look(&mut self, out: BorrowedFd, taken: Taken) {
        let now = monotonic();
        if self.since == 0 {
            (self.since, self.taken, self.busy) = (now, taken, busy(out).unwrap_or_default());
            return;
        }
        let elapsed = now - self.since;
        if elapsed < LINK_WINDOW {
            return;
        }
        let (bytes, full_ns) = (taken.bytes - self.taken.bytes, taken.full_ns - self.taken.full_ns);
        let busy = busy(out).unwrap_or_default();
        self.lately.add(self.busy, busy);
        (self.since, self.taken, self.busy) = (now, taken, busy);
        self.rate = (u128::from(bytes) * u128::from(SECOND) / u128::from(elapsed)) as u64;
        // While parts are compressed, it is full for less of the time.
        let full = full_ns >= elapsed / if self.open { 8 } else { 2 };
        self.open =
            full && !self.lately.waits_for_receiver() && self.rate <= self.speed_or_presumed() / 3 * 2 && (!self.live || self.idles(now));
    }

    /// Whether half a processor at least has nothing to do, or would have nothing to do without this.
    fn idles(&mut self, now: u64) -> bool {
        if let Some(before) = self.idle {
            let elapsed = now - before.at;
            if elapsed < IDLE_WINDOW {
                return self.has_idle;
            }
            self.has_idle = idle_ns().is_some_and(|ns| ns.saturating_sub(before.ns) + before.used >= elapsed / 2);
        }
        self.idle = idle_ns().map(|ns| Idle { at: now, ns, used: 0 });
        self.has_idle
    }

    /// Compresses a part, [`PART`] at most, into a room of [`PART_ROOM`]; the length of the block. `None`: it gets hardly shorter.
    pub fn compress(&mut self, part: &[u8], room: &mut [u8]) -> Option<usize> {
        let began = monotonic();
        let length = compress_into_with_table(part, room, &mut self.table)
            .ok()
            .filter(|length| *length <= part.len() - part.len() / LEAST_SAVING_DIVISOR);
        let took = (monotonic() - began).max(1);
        let speed = (part.len() as u128 * u128::from(SECOND) / u128::from(took)) as u64;
        self.speed = if self.speed == 0 { speed } else { self.speed - self.speed / 8 + speed / 8 }.max(1);
        if let Some(idle) = &mut self.idle {
            idle.used += took;
        }
        self.skipped = if length.is_some() { 0 } else { (2 * self.skipped).clamp(1, MOST_SKIPPED) };
        self.skips = self.skipped;
        length
    }
}

/// Bytes that wait in a socket.
fn unsent(out: BorrowedFd) -> Option<u64> {
    let mut bytes = 0i32;
    let arguments = [out.as_raw_fd() as usize, libc::TIOCOUTQ as usize, (&raw mut bytes) as usize, 0, 0, 0];
    // SAFETY: SIOCOUTQ (tcp(7), unix(7)) writes one number.
    check(unsafe { syscall(libc::SYS_ioctl, arguments) }).ok()?;
    u64::try_from(bytes).ok()
}

/// `None`: it is not a TCP connection, or the kernel does not tell.
fn busy(out: BorrowedFd) -> Option<Busy> {
    // `struct tcp_info` (include/uapi/linux/tcp.h): tcpi_busy_time, tcpi_rwnd_limited.
    const BUSY_TIME_INDEX: usize = 168 / 8;
    const RECEIVER_FULL: usize = 176 / 8;
    let mut info = [0u64; 32];
    let mut length = size_of_val(&info) as u32;
    let (level, name) = (libc::IPPROTO_TCP as usize, libc::TCP_INFO as usize);
    let arguments = [out.as_raw_fd() as usize, level, name, info.as_mut_ptr() as usize, (&raw mut length) as usize, 0];
    // SAFETY: getsockopt(2) writes at most that length, and the length.
    check(unsafe { syscall(libc::SYS_getsockopt, arguments) }).ok()?;
    (length as usize >= (RECEIVER_FULL + 1) * 8).then_some(Busy { all: info[BUSY_TIME_INDEX], receiver_full: info[RECEIVER_FULL] })
}

/// Idle time of the processors that this thread may run on, nanoseconds.
fn idle_ns() -> Option<u64> {
    // As many processors as this has lines for are enough to say that one is idle.
    let mut text = [0; 32 << 10];
    let path = c"/proc/stat";
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a path with a NUL; the file is closed again, and read into `text` alone.
    let length = unsafe {
        let file = check(syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0])).ok()?;
        let length = check(syscall(libc::SYS_read, [file, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]));
        syscall(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        length.ok()?
    };
    let mut mine = [0u8; PROCESSORS / 8];
    // SAFETY: sched_getaffinity writes at most that length.
    check(unsafe { syscall(libc::SYS_sched_getaffinity, [0, mine.len(), mine.as_mut_ptr() as usize, 0, 0, 0]) }).ok()?;
    Some(
        idle_hundredths(&text[..length], |processor| mine.get(processor / 8).is_some_and(|byte| byte >> (processor % 8) & 1 != 0))
            * (SECOND / 100),
    )
}

/// The columns `idle` and `iowait` of `/proc/stat` (proc(5)), of these processors.
fn idle_hundredths(text: &[u8], counts: impl Fn(usize) -> bool) -> u64 {
    let number = |word: &[u8]| core::str::from_utf8(word).ok()?.parse::<u64>().ok();
    let lines = text.split(|byte| *byte == b'\n');
    let idle = lines.filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let processor = number(words.next()?.strip_prefix(b"cpu")?)?;
        let words = words.skip(3).take(2).filter_map(number);
        counts(processor as usize).then(|| words.sum::<u64>())
    });
    idle.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn text(length: usize) -> Vec<u8> {
        (0..).flat_map(|line| format!("step {line}: temperature 300.{}, pressure 1.0\n", line % 97).into_bytes()).take(length).collect()
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    #[test]
    fn a_part_comes_back_and_noise_is_left_alone() {
        let mut compressor = Compressor::new(Compression::Always, false);
        let (part, mut room, mut back) = (text(PART), vec![0; PART_ROOM], vec![0; PART]);
        let length = compressor.compress(&part, &mut room).unwrap();
        assert!(length < PART / 2);
        assert_eq!(lz4_flex::block::decompress_into(&room[..length], &mut back).unwrap(), PART);
        assert!(back == part);
        assert_eq!(compressor.compress(&noise(PART), &mut room), None);
    }

    #[test]
    fn a_receiver_that_is_slow_is_not_taken_for_the_link() {
        let all = |from: u64, receiver_full: u64| Busy { all: from, receiver_full };
        let mut lately = Busy::default();
        assert!(!lately.waits_for_receiver());
        // The link alone is slow.
        (0..20).for_each(|at| lately.add(all(at * 20_000, 0), all((at + 1) * 20_000, 0)));
        assert!(!lately.waits_for_receiver());
        // For a quarter of the time the receiver has no room, told now and then.
        (0..20).for_each(|at| lately.add(all(at * 20_000, at / 4 * 20_000), all((at + 1) * 20_000, (at + 1) / 4 * 20_000)));
        assert!(lately.waits_for_receiver());
        // Counters that go back count as nothing.
        lately.add(all(9, 9), all(0, 0));
        (0..20).for_each(|at| lately.add(all(at * 20_000, 0), all((at + 1) * 20_000, 0)));
        assert!(!lately.waits_for_receiver(), "that is a while ago");
    }

    #[test]
    fn the_kernel_tells_of_a_receiver_that_takes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_back, _) = listener.accept().unwrap();
        assert_eq!(busy(out.as_fd()).map(|busy| busy.receiver_full), Some(0));
        out.set_nonblocking(true).unwrap();
        while out.write(&[7; 1 << 16]).is_ok() {}
        assert!(unsent(out.as_fd()).is_some_and(|bytes| bytes > 0));
        let until = Instant::now() + Duration::from_secs(60);
        while busy(out.as_fd()).is_some_and(|busy| busy.receiver_full == 0) {
            assert!(Instant::now() < until, "it is never told");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Neither a file nor another socket tells anything.
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(busy(one.as_fd()).is_none());
    }

    #[test]
    fn idle_time_is_of_those_processors() {
        let stat = b"cpu  9 9 9 900 9 0 0 0 0 0\ncpu0 1 2 3 400 5 0 0 0 0 0\ncpu1 1 2 3 70 6 0 0 0 0 0\nintr 5 4 3\ncpuinfo\n";
        assert_eq!(idle_hundredths(stat, |processor| processor == 1), 76);
        assert_eq!(idle_hundredths(stat, |_| true), 481);
        assert_eq!(idle_hundredths(b"", |_| true), 0);
        assert!(idle_ns().is_some_and(|ns| ns > 0));
    }
}
