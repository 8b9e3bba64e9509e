//! Timeouts that go on where they were: a call with a relative timeout, interrupted by parking, ends when it would have
//! ended without.
//!
//! Some calls report the time left when they are interrupted. For the others it must be known when the thread fell asleep:
//! the scheduler tells (`se.exec_start` in `/proc/self/task/TID/sched`), on the clock of the processor where that happened.
//! The agent compares that clock with `CLOCK_MONOTONIC` by running on the same processor for a moment. Where the kernel does
//! not tell, such a timeout starts anew. `CLOCK_MONOTONIC` goes on in a restored process, so one deadline serves both lives. In a process that
//! goes back in place it has run on, and deadlines are moved by that ([`crate::park::Parked::postpone`]).

use crate::process::tasks::Task;
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use mend_freestanding::{check, syscall};

const WORDS: usize = 128;

/// When and where a thread fell asleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asleep {
    processor: usize,
    /// Nanoseconds on that processor's clock.
    since: i64,
    /// How often it had given up a processor by itself.
    switches: u64,
}

/// What a request that the kernel overwrites was, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requested {
    place: u64,
    time: [i64; 2],
}

/// Registers of a signal frame.
type Registers = [libc::greg_t; 23];

/// How a call is told its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Milliseconds in this argument.
    Milliseconds(usize),
    /// A `struct timespec` that this argument points to.
    Timespec(usize),
    /// The same, and the kernel writes the time left into what this other argument points to.
    TimeLeft(usize, usize),
    /// A `struct timespec` which the kernel itself changes to the time left.
    Updated(usize),
    /// A `struct timeval` of that kind.
    UpdatedTimeval(usize),
}

/// `arguments` are the call's own.
fn form(number: i64, arguments: [u64; 6]) -> Option<Form> {
    let present = |argument: usize, form| (arguments[argument] != 0).then_some(form);
    match number {
        libc::SYS_poll => (arguments[2] as i32 > 0).then_some(Form::Milliseconds(2)),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => (arguments[3] as i32 > 0).then_some(Form::Milliseconds(3)),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => present(3, Form::Timespec(3)),
        libc::SYS_futex if arguments[1] as i32 & 127 == libc::FUTEX_WAIT => present(3, Form::Timespec(3)),
        libc::SYS_rt_sigtimedwait => present(2, Form::Timespec(2)),
        libc::SYS_io_getevents => present(4, Form::Timespec(4)),
        libc::SYS_nanosleep if arguments[1] == 0 => Some(Form::Timespec(0)),
        libc::SYS_nanosleep => Some(Form::TimeLeft(0, 1)),
        libc::SYS_clock_nanosleep if arguments[1] as i32 & libc::TIMER_ABSTIME != 0 => None,
        libc::SYS_clock_nanosleep if arguments[3] == 0 => Some(Form::Timespec(2)),
        libc::SYS_clock_nanosleep => Some(Form::TimeLeft(2, 3)),
        libc::SYS_ppoll => present(2, Form::Updated(2)),
        libc::SYS_pselect6 => present(4, Form::Updated(4)),
        libc::SYS_select => present(4, Form::UpdatedTimeval(4)),
        _ => None,
    }
}

/// When the thread fell asleep, if it is blocked in a call whose timeout only that tells.
pub(crate) fn asleep(task: &Task, call: &[u64; 9]) -> Option<Asleep> {
    let arguments = [call[1], call[2], call[3], call[4], call[5], call[6]];
    match form(call[0] as i64, arguments)? {
        Form::Milliseconds(_) | Form::Timespec(_) => task.sched().map(|(processor, since, switches)| Asleep { processor, since, switches }),
        _ => None,
    }
}

/// The request of a sleep, if the kernel is to write the time left in its place: `nanosleep(&t, &t)`.
pub(crate) fn requested(call: &[u64; 9]) -> Option<Requested> {
    let arguments = [call[1], call[2], call[3], call[4], call[5], call[6]];
    let Form::TimeLeft(at, report) = form(call[0] as i64, arguments)? else { return None };
    // A call that was made again has its request here. That it was one with its report is not known then, and putting that back changes nothing of use otherwise.
    let again = LEFT.as_ptr_range().contains(&(arguments[at] as *const [AtomicI64; 2]));
    let (place, mut time) = (arguments[report], [0; 2]);
    let (local, remote) = ([time.as_mut_ptr() as usize, 16], [place as usize, 16]);
    let own = rustix::process::getpid().as_raw_nonzero().get() as usize;
    let arguments_of_read = [own, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0];
    // SAFETY: writes 16 bytes into `time`; what the program has there need not be mapped any more.
    let read = || check(unsafe { syscall(libc::SYS_process_vm_readv, arguments_of_read) });
    ((again || place == arguments[at]) && read() == Ok(16)).then_some(Requested { place, time })
}

impl Requested {
    /// Undoes what the kernel wrote. Async-signal-safe.
    ///
    /// # Safety
    /// The calling thread has just made the call, so that the kernel has used this place.
    pub unsafe fn put_back(&self) {
        // SAFETY: per contract.
        unsafe { (self.place as *mut [i64; 2]).write_unaligned(self.time) };
    }
}

/// Clocks of processors against `CLOCK_MONOTONIC`, and the agent's own place among them.
pub(crate) struct Clocks {
    known: Vec<(usize, Option<i64>)>,
    own: [u64; WORDS],
}

impl Clocks {
    pub fn new() -> Self {
        let mut own = [0; WORDS];
        // SAFETY: writes at most so many bytes.
        unsafe { syscall(libc::SYS_sched_getaffinity, [0, WORDS * 8, own.as_mut_ptr() as usize, 0, 0, 0]) };
        Self { known: Vec::new(), own }
    }

    /// The time at which a parked thread had fallen asleep, nanoseconds of `CLOCK_MONOTONIC`. `None` if it slept in another
    /// call when it was parked: it has been awake since.
    pub fn began(&mut self, task: &Task, asleep: &Asleep) -> Option<u64> {
        let (_, _, switches) = task.sched()?;
        // One more: into its parking place.
        if switches > asleep.switches + 1 {
            return None;
        }
        u64::try_from(asleep.since + self.ahead(asleep.processor)?).ok().filter(|began| *began <= monotonic())
    }

    fn ahead(&mut self, processor: usize) -> Option<i64> {
        if let Some((_, ahead)) = self.known.iter().find(|(known, _)| *known == processor) {
            return *ahead;
        }
        let ahead = measure(processor);
        self.known.push((processor, ahead));
        ahead
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        if !self.known.is_empty() {
            // SAFETY: reads so many bytes.
            unsafe { syscall(libc::SYS_sched_setaffinity, [0, WORDS * 8, self.own.as_ptr() as usize, 0, 0, 0]) };
        }
    }
}

/// How often a processor's clock is looked at, at most, and how long a look takes that nothing came between, nanoseconds.
const LOOKS: usize = 10;
const SHORT_LOOK_NS: u64 = 1_000_000;

/// How far `CLOCK_MONOTONIC` is ahead of a processor's own clock.
fn measure(processor: usize) -> Option<i64> {
    let mut only = [0u64; WORDS];
    *only.get_mut(processor / 64)? |= 1 << (processor % 64);
    // SAFETY: reads so many bytes.
    check(unsafe { syscall(libc::SYS_sched_setaffinity, [0, WORDS * 8, only.as_ptr() as usize, 0, 0, 0]) }).ok()?;
    // The kernel notes the time whenever it looks for another thread; others may run then. Of a few looks the shortest one is the closest.
    let mut shortest: Option<(u64, i64)> = None;
    for _ in 0..LOOKS {
        let now = monotonic();
        // SAFETY: no arguments.
        unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
        let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let took = monotonic().saturating_sub(now);
        let here = crate::process::tasks::sched_field(&text, "se.exec_start").and_then(crate::process::tasks::milliseconds)?;
        if shortest.is_none_or(|(known, _)| took < known) {
            shortest = Some((took, now as i64 - here));
        }
        if took < SHORT_LOOK_NS {
            break;
        }
    }
    shortest.map(|(_, ahead)| ahead)
}

/// Nanoseconds of `CLOCK_MONOTONIC`. Async-signal-safe.
pub(crate) fn monotonic() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: clock_gettime writes two words.
    unsafe { syscall(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, time.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    time[0] * 1_000_000_000 + time[1]
}

/// Where threads find the time left when they make a call again. A place is used for a moment, until the kernel has
/// read it; there are more than threads that can be so far at once.
static LEFT: [[AtomicI64; 2]; 4096] = [const { [const { AtomicI64::new(0) }; 2] }; 4096];
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn place(nanoseconds: u64) -> u64 {
    let place = &LEFT[NEXT.fetch_add(1, Ordering::Relaxed) % LEFT.len()];
    place[0].store((nanoseconds / 1_000_000_000) as i64, Ordering::Relaxed);
    place[1].store((nanoseconds % 1_000_000_000) as i64, Ordering::Relaxed);
    place.as_ptr() as u64
}

/// Shortens the timeout in the registers of a call that is about to be made again. `began`: when it was made, 0 if unknown.
/// `interrupted`: when parking ended it. Async-signal-safe.
///
/// # Safety
/// The registers are those with which the calling thread made the call, so that the kernel has just used the same pointers.
pub(crate) unsafe fn shorten(number: i64, registers: &mut Registers, began: u64, interrupted: u64) {
    const ARGUMENTS: [i32; 6] = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
    let arguments = ARGUMENTS.map(|register| registers[register as usize] as u64);
    let Some(form) = form(number, arguments) else { return };
    // SAFETY: per contract; both structures are two words.
    let read = |argument: usize| unsafe { (arguments[argument] as *const [i64; 2]).read_unaligned() };
    let in_time = |[seconds, fraction]: [i64; 2], unit: u64| {
        (seconds.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(fraction.max(0) as u64 * unit)
    };
    let now = monotonic();
    let left = |start: u64, timeout: u64| start.saturating_add(timeout).saturating_sub(now);
    let mut set = |argument: usize, value: u64| registers[ARGUMENTS[argument] as usize] = value as i64;
    match form {
        Form::Milliseconds(at) if began != 0 => {
            let milliseconds = u64::from(arguments[at] as u32);
            set(at, left(began, milliseconds * 1_000_000).div_ceil(1_000_000).min(milliseconds));
        }
        Form::Timespec(at) if began != 0 => set(at, place(left(began, in_time(read(at), 1)))),
        Form::TimeLeft(at, report) => set(at, place(left(interrupted, in_time(read(report), 1)))),
        Form::Updated(at) => {
            let left = left(interrupted, in_time(read(at), 1));
            // SAFETY: the call's own timeout.
            unsafe { update(arguments[at], [(left / 1_000_000_000) as i64, (left % 1_000_000_000) as i64]) };
        }
        Form::UpdatedTimeval(at) => {
            let left = left(interrupted, in_time(read(at), 1000)).div_ceil(1000);
            // SAFETY: the call's own timeout.
            unsafe { update(arguments[at], [(left / 1_000_000) as i64, (left % 1_000_000) as i64]) };
        }
        Form::Milliseconds(_) | Form::Timespec(_) => {}
    }
}

/// Puts the time left where a call has its timeout. It may be a constant, in memory that cannot be written: then the kernel has told nothing either
/// (`poll_select_finish` in fs/select.c), and the timeout starts anew.
///
/// # Safety
/// Nobody else uses those 16 bytes now.
unsafe fn update(place: u64, time: [i64; 2]) {
    // SAFETY: the kernel writes 16 bytes, or says that it cannot.
    if check(unsafe { syscall(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, place as usize, 0, 0, 0, 0]) }).is_ok() {
        // SAFETY: it can be written, as the kernel has just shown.
        unsafe { (place as *mut [i64; 2]).write_unaligned(time) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_timeout_that_is_a_constant_stays() {
        let now = monotonic();
        let mut registers: Registers = [0; 23];
        for (changeable, expected) in [(libc::PROT_READ, 7), (libc::PROT_READ | libc::PROT_WRITE, 3)] {
            // SAFETY: fresh memory of this test.
            let page = unsafe {
                libc::mmap(core::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
            };
            let time = page.cast::<[i64; 2]>();
            // SAFETY: as above; its first bytes are a timespec.
            unsafe {
                time.write([7, 0]);
                assert_eq!(libc::mprotect(page, 4096, changeable), 0);
                registers[libc::REG_RDX as usize] = time as i64;
                shorten(libc::SYS_ppoll, &mut registers, 0, now.saturating_sub(3_500_000_000));
                assert_eq!(time.read()[0], expected);
                assert_eq!(libc::munmap(page, 4096), 0);
            }
        }
    }

    #[test]
    fn calls_with_relative_timeouts_are_known() {
        assert_eq!(form(libc::SYS_poll, [1, 1, 100, 0, 0, 0]), Some(Form::Milliseconds(2)));
        assert_eq!(form(libc::SYS_poll, [1, 1, u32::MAX.into(), 0, 0, 0]), None);
        assert_eq!(form(libc::SYS_futex, [1, 128, 0, 77, 0, 0]), Some(Form::Timespec(3)));
        assert_eq!(form(libc::SYS_futex, [1, 128 | 9, 0, 77, 0, 0]), None);
        assert_eq!(form(libc::SYS_clock_nanosleep, [0, 1, 77, 0, 0, 0]), None);
    }

    #[test]
    fn timeouts_are_shortened_by_what_has_passed_and_never_below_zero() {
        let mut registers: Registers = [0; 23];
        let now = monotonic();
        registers[libc::REG_RDX as usize] = 10_000;
        // SAFETY: poll's timeout is not a pointer.
        unsafe { shorten(libc::SYS_poll, &mut registers, now - 4_000_000_000, now) };
        assert!((1..=6000).contains(&registers[libc::REG_RDX as usize]));
        registers[libc::REG_RDX as usize] = 10;
        // SAFETY: as above.
        unsafe { shorten(libc::SYS_poll, &mut registers, now - 4_000_000_000, now) };
        assert_eq!(registers[libc::REG_RDX as usize], 0);
        let request = [5i64, 0];
        registers[libc::REG_RDI as usize] = request.as_ptr() as i64;
        registers[libc::REG_RSI as usize] = 0;
        // SAFETY: points to a timespec.
        unsafe { shorten(libc::SYS_nanosleep, &mut registers, now - 4_000_000_000, now) };
        let place = registers[libc::REG_RDI as usize] as *const [i64; 2];
        assert_ne!(place, &raw const request);
        // SAFETY: a place of this module.
        assert_eq!(unsafe { (*place)[0] }, 0);
        assert_eq!(request, [5, 0]);
    }

    #[test]
    fn a_request_is_remembered_where_the_kernel_overwrites_it() {
        let mut time = [5i64, 7];
        let at = time.as_mut_ptr() as u64;
        let call = |number: i64, arguments: [u64; 4]| [number as u64, arguments[0], arguments[1], arguments[2], arguments[3], 0, 0, 0, 0];
        assert!(requested(&call(libc::SYS_nanosleep, [at, 0, 0, 0])).is_none());
        assert!(requested(&call(libc::SYS_nanosleep, [at, at + 16, 0, 0])).is_none());
        assert!(requested(&call(libc::SYS_nanosleep, [8, 8, 0, 0])).is_none(), "not mapped");
        for call in [call(libc::SYS_nanosleep, [at, at, 0, 0]), call(libc::SYS_clock_nanosleep, [0, 0, at, at])] {
            let known = requested(&call).unwrap();
            // SAFETY: as the kernel writes, and this test's own memory.
            unsafe {
                (at as *mut [i64; 2]).write_volatile([1, 1]);
                known.put_back();
                assert_eq!((at as *const [i64; 2]).read_volatile(), [5, 7]);
            }
        }
    }

    #[test]
    fn a_sleeping_thread_tells_when_it_fell_asleep() {
        let (sender, receiver) = std::sync::mpsc::channel::<(i32, u64)>();
        // It sleeps until this end is closed, however long the search for it takes.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut closed = libc::pollfd { fd: theirs.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            sender.send((rustix::thread::gettid().as_raw_nonzero().get(), monotonic())).unwrap();
            // SAFETY: waits for one descriptor, which is open.
            unsafe { libc::poll(&raw mut closed, 1, 600_000) };
        });
        let (tid, before) = receiver.recv().unwrap();
        let task =
            crate::process::tasks::list().unwrap().into_iter().find(|task| task.identify().is_some_and(|(inner, _)| inner == tid)).unwrap();
        let call = loop {
            match task.blocked_call() {
                Some(call) if call[0] == libc::SYS_poll as u64 => break call,
                _ => std::thread::yield_now(),
            }
        };
        let after = monotonic();
        // A kernel that does not tell is not wrong.
        if let Some(asleep) = asleep(&task, &call) {
            let began = Clocks::new().began(&task, &asleep).unwrap();
            let slack = 50_000_000;
            assert!(began + slack >= before && began <= after + slack, "{before} {began} {after}");
        }
        drop(ours);
        thread.join().unwrap();
    }
}
