//! Stopping all threads but the agent's, wherever they are, and letting them go on, here or in a restored process.
//!
//! Each thread is sent [`PARK_SIGNAL`] with the address of its [`Slot`]. Its handler captures what a call preserves and
//! waits; the kernel's signal frame on its own stack holds all other registers and comes back by `rt_sigreturn`.
//!
//! A call that the signal ended with `EINTR` although the program has no handler that ran (poll, nanosleep, futex with
//! timeout, …) is made again: which call it was is read from `/proc` before the signal is sent, else from the
//! instruction before it. A relative timeout goes on where it was (see [`crate::park::deadlines`]). One that had moved a part of its bytes is continued
//! (see [`crate::park::continuation`]).
//!
//! The agent can request something of a parked thread: taking and sending its own signals (see [`crate::park::pending`]), system
//! calls about the program's descriptors, which are in another table than the agent's ([`crate::descriptors::table`]).
//!
//! Invariants: the handler allocates nothing, takes no lock and leaves `errno` alone. Slots outlive all handlers: they are freed
//! only when each thread has left. A thread that does not park in time is named, and all others are let go.

pub(crate) mod context;
mod continuation;
mod deadlines;
mod handler;
pub(crate) mod pending;
mod processor_handover;
mod thread_request;

use crate::process::tasks::{self, Task};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use deadlines::monotonic;
use deadlines::{Asleep, Clocks, Requested};
use handler::{on_park, return_from_signal};
use mend_image::handoff::Context;
use mend_kernel::threads::{Disposition, PARK_SIGNAL, Registration, SA_RESTORER, disposition, queue, set_disposition, wait, wake};
use mend_patience::Patience;
use pending::Info;
use processor_handover::ProcessorHandover;
use std::time::Duration;
use thread_request::{CALL, COUNT_LAYERS, SEND_PROCESS, SEND_THREAD, TAKE, ThreadRequest};

const SIGNALLED: u32 = 1;
const PARKED: u32 = 2;
const ARRIVED: u32 = 3;
const LEFT: u32 = 4;
const GONE: u32 = 5;

/// Longest time between two checks of a thread that is waited for.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How often the agent gives its processor to a thread that is about to sleep, before it sleeps itself.
const MAX_YIELDS: u32 = 8;

/// Threads stay in their handlers while this holds the value they were sent with.
static EPOCH: AtomicU32 = AtomicU32::new(1);
/// Address range of the slots in use.
static SLOTS: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// From when threads are to park until all have gone on, or one is left that may yet come.
static THREADS_PARKED: AtomicBool = AtomicBool::new(false);
/// The handler that was installed before ours, for signals that aren't ours.
static PREVIOUS_HANDLER: AtomicUsize = AtomicUsize::new(0);

/// One thread's place.
#[derive(Default)]
pub(crate) struct Slot {
    context: Context,
    state: AtomicU32,
    epoch: u32,
    /// Id as the process itself sees it.
    pub tid: i32,
    /// Id as `/proc` shows it.
    pub outer: i32,
    /// Bases of fs and gs.
    pub segments: (u64, u64),
    /// Signals that it blocks itself.
    mask: u64,
    pub registration: Registration,
    /// What of it could not be brought back.
    pub lost: Option<&'static str>,
    /// Call number, arguments, stack pointer and address after the call, as `/proc` showed them before the signal.
    blocked: Option<[u64; 9]>,
    /// Since when, where only the scheduler tells.
    asleep: Option<Asleep>,
    /// The same as nanoseconds of `CLOCK_MONOTONIC`; 0: unknown.
    began: AtomicU64,
    /// When the parking signal arrived.
    interrupted: AtomicU64,
    /// How long it was to sleep, where the kernel writes what is left of that in its place.
    requested: Option<Requested>,
    request: ThreadRequest,
    /// Where the thread goes instead of back, and its stack pointer then; 0: nowhere.
    exit: (AtomicU64, AtomicU64),
}

impl Slot {
    /// Address of the registers, for the image.
    pub fn context(&self) -> u64 {
        (&raw const self.context) as u64
    }

    /// Whether the thread does what it is asked.
    fn answers(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), PARKED | ARRIVED)
    }
}

/// Why threads could not be parked. All threads run again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParkError {
    #[error("the list of threads cannot be read")]
    List(#[source] std::io::Error),
    #[error("thread {tid} ({name}) did not stop within {seconds} s")]
    Stuck { tid: i32, name: String, seconds: u64 },
    #[error("the program's first thread has ended while others go on")]
    FirstThreadEnded,
    #[error("threads are started faster than they can be stopped")]
    Unstable,
    #[error("the kernel refuses the parking signal (errno {0})")]
    Signal(i32),
}

/// All threads but the caller stand still. Dropping it lets them go.
pub(crate) struct Parked {
    slots: Box<[Slot]>,
    used: usize,
    epoch: u32,
    before: Disposition,
}

/// Parks all threads but the calling one.
pub(crate) fn park(limit: Duration) -> Result<Parked, ParkError> {
    let tasks = tasks::list().map_err(ParkError::List)?;
    let slots: Box<[Slot]> = (0..tasks.len() * 2 + 64).map(|_| Slot::default()).collect();
    let before = disposition(PARK_SIGNAL).map_err(ParkError::Signal)?;
    let epoch = EPOCH.load(Ordering::Relaxed);
    let mut parked = Parked { slots, used: 0, epoch, before };
    let range = parked.slots.as_ptr_range();
    THREADS_PARKED.store(true, Ordering::Relaxed);
    SLOTS.0.store(range.start as usize, Ordering::Relaxed);
    SLOTS.1.store(range.end as usize, Ordering::Relaxed);
    let handler = on_park as *const () as usize;
    if before.handler != handler {
        PREVIOUS_HANDLER.store(if before.handler > 1 { before.handler } else { 0 }, Ordering::Relaxed);
    }
    // On the alternate stack if there is one: a runtime with small stacks demands it. All signals wait meanwhile, but for the one that hands
    // a system call to a handler of the program (PR_SET_SYSCALL_USER_DISPATCH): where that must wait, the kernel ends the process.
    let flags = libc::SA_SIGINFO as u64 | libc::SA_RESTART as u64 | libc::SA_ONSTACK as u64 | SA_RESTORER;
    let ours = Disposition { handler, flags, restorer: return_from_signal as *const () as usize, mask: !(1 << (libc::SIGSYS - 1)) };
    // SAFETY: `on_park` is async-signal-safe and returns by rt_sigreturn.
    unsafe { set_disposition(PARK_SIGNAL, &ours) }.map_err(ParkError::Signal)?;
    let handover = ProcessorHandover::offer();
    parked.stop_all(limit)?;
    drop(handover);
    Ok(parked)
}

/// Whether threads are parked, or about to be.
pub(crate) fn threads_are_parked() -> bool {
    THREADS_PARKED.load(Ordering::Relaxed)
}

impl Parked {
    /// The parked threads.
    pub fn threads(&self) -> impl Iterator<Item = &Slot> {
        self.slots[..self.used].iter().filter(|slot| slot.state.load(Ordering::Relaxed) != GONE)
    }

    /// Signals threads until a listing shows none that has not parked, and there are no more than those.
    fn stop_all(&mut self, limit: Duration) -> Result<(), ParkError> {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let mut patience = Patience::with_pause(limit, CHECK_INTERVAL);
        let mut ended_before = Vec::new();
        loop {
            let (mut new, mut ended) = (0, Vec::new());
            for task in tasks::list().map_err(ParkError::List)? {
                if self.slots[..self.used].iter().any(|slot| slot.outer == task.outer && slot.state.load(Ordering::Relaxed) != GONE) {
                    continue;
                }
                let Some((tid, running)) = task.identify() else { continue };
                if tid == own {
                    continue;
                }
                if !running {
                    if tid == process {
                        return Err(ParkError::FirstThreadEnded);
                    }
                    ended.push(tid);
                    continue;
                }
                new += 1;
                self.signal(process, tid, &task)?;
            }
            if new != 0 {
                self.await_parked(limit)?;
                patience.renew();
                continue;
            }
            // Those that are parked neither end nor start others: if there are no more, the listing has left out none.
            let standing = self.threads().count() + 1;
            let complete = tasks::count().is_none_or(|all| all == standing || (all == standing + ended.len() && ended == ended_before));
            if complete {
                self.date_sleeps();
                return Ok(());
            }
            if patience.is_over() {
                return Err(ParkError::Unstable);
            }
            ended_before = ended;
            // One that has ended is gone in a moment, unless a debugger looks at it.
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Finds out since when threads had been blocked, while that can still be told.
    fn date_sleeps(&self) {
        let mut clocks = Clocks::new();
        for slot in self.threads() {
            if let Some(began) = slot.asleep.and_then(|asleep| clocks.began(&Task { outer: slot.outer }, &asleep)) {
                slot.began.store(began, Ordering::Relaxed);
            }
        }
    }

    fn ask(&self, slot: &Slot, wanted: u32, signal: u32) -> i32 {
        slot.request.signal.store(signal, Ordering::Relaxed);
        slot.request.state.store(wanted, Ordering::Release);
        while slot.request.state.load(Ordering::Acquire) == wanted {
            // It may have checked just before the request and wait only now.
            wake(&EPOCH);
            wait(&slot.request.state, wanted, Some(Duration::from_millis(2)));
        }
        slot.request.result.load(Ordering::Relaxed)
    }

    /// Has a parked thread take a signal that is pending for it.
    pub fn take_own(&self, slot: &Slot, signal: u32) -> Option<Info> {
        let taken = self.ask(slot, TAKE, signal);
        (taken == signal as i32).then(|| core::array::from_fn(|index| slot.request.info[index].load(Ordering::Relaxed)))
    }

    /// Has a parked thread send a signal to itself or to the process.
    pub fn send_own(&self, slot: &Slot, info: &Info, process: bool) {
        slot.request.info.iter().zip(info).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        self.ask(slot, if process { SEND_PROCESS } else { SEND_THREAD }, info[0]);
    }

    fn signal(&mut self, process: i32, tid: i32, task: &Task) -> Result<(), ParkError> {
        let slot = self.slots.get_mut(self.used).ok_or(ParkError::Unstable)?;
        let mut blocked = task.blocked_call();
        let asleep = blocked.as_ref().and_then(|call| deadlines::asleep(task, call));
        let requested = blocked.as_ref().and_then(deadlines::requested);
        if (asleep.is_some() || requested.is_some()) && task.blocked_call() != blocked {
            // It has moved on while it was examined.
            blocked = None;
        }
        *slot = Slot {
            state: AtomicU32::new(SIGNALLED),
            epoch: self.epoch,
            tid,
            outer: task.outer,
            asleep: asleep.filter(|_| blocked.is_some()),
            requested: requested.filter(|_| blocked.is_some()),
            blocked,
            ..Slot::default()
        };
        let address = core::ptr::from_ref(slot) as usize;
        self.used += 1;
        match queue(process, tid, PARK_SIGNAL, address) {
            Ok(()) => Ok(()),
            Err(libc::ESRCH) => {
                self.slots[self.used - 1].state.store(GONE, Ordering::Relaxed);
                Ok(())
            }
            Err(errno) => {
                self.slots[self.used - 1].state.store(GONE, Ordering::Relaxed);
                Err(ParkError::Signal(errno))
            }
        }
    }

    fn await_parked(&self, limit: Duration) -> Result<(), ParkError> {
        for slot in &self.slots[..self.used] {
            // Each thread that has parked is progress.
            let mut patience = Patience::with_pause(limit, CHECK_INTERVAL);
            while slot.state.load(Ordering::Acquire) == SIGNALLED {
                let task = Task { outer: slot.outer };
                if !task.identify().is_some_and(|(tid, running)| running && tid == slot.tid) {
                    slot.state.store(GONE, Ordering::Relaxed);
                } else if patience.is_over() {
                    return Err(ParkError::Stuck { tid: slot.tid, name: task.name(), seconds: limit.as_secs() });
                } else {
                    wait(&slot.state, SIGNALLED, Some(CHECK_INTERVAL));
                }
            }
        }
        Ok(())
    }

    /// Waits until the kernel says that every parked thread sleeps. A thread that has just said that it is parked, or done an
    /// errand, is on its way there and still writes to its stack: an image would hold something else than its checksum says.
    /// Where the kernel does not say what a thread does, it is taken on trust.
    pub fn await_asleep(&self, limit: Duration) -> Result<(), ParkError> {
        if std::fs::read("/proc/thread-self/syscall").is_err() {
            return Ok(());
        }
        let place = core::ptr::from_ref(&EPOCH) as u64;
        for slot in self.threads() {
            let task = Task { outer: slot.outer };
            let asleep = || task.blocked_call().is_some_and(|call| call[..2] == [libc::SYS_futex as u64, place]);
            let there = || task.identify().is_some_and(|(tid, running)| running && tid == slot.tid);
            let mut checks = 0;
            let mut patience = Patience::with_pause(limit, CHECK_INTERVAL);
            while !asleep() && there() {
                if patience.is_over() {
                    return Err(ParkError::Stuck { tid: slot.tid, name: task.name(), seconds: limit.as_secs() });
                }
                // The processor may be what it waits for, most likely this one. A sleep takes longer than that.
                checks += 1;
                if checks < MAX_YIELDS { rustix::thread::sched_yield() } else { std::thread::sleep(Duration::from_micros(50)) }
            }
        }
        Ok(())
    }

    /// Has a parked thread make a system call, whose result fits an int, in the program's descriptor table; the result as the kernel returns it.
    ///
    /// # Safety
    /// As the called function demands of its arguments.
    pub unsafe fn call(&self, number: i64, arguments: [usize; 6]) -> isize {
        let Some(slot) = self.threads().next() else { return -libc::ESRCH as isize };
        let words = [number as usize].into_iter().chain(arguments).flat_map(|word| [word as u32, (word >> 32) as u32]);
        slot.request.info.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.ask(slot, CALL, 0) as isize
    }

    /// What [`mend_kernel::landlock::layers_beyond_parent`] says of a parked thread. That may take a sleep of its own, after which
    /// the kernel no longer tells since when the thread had slept before: not in the handler, but later.
    pub fn landlock_layers(&self, slot: &Slot) -> Option<u32> {
        u32::try_from(self.ask(slot, COUNT_LAYERS, 0)).ok()
    }

    /// Closes these descriptors in the program's table.
    pub fn close(&self, descriptors: &[i32]) {
        for fd in descriptors {
            // SAFETY: takes a number; the caller knows whose it is.
            unsafe { self.call(libc::SYS_close, [*fd as usize, 0, 0, 0, 0, 0]) };
        }
    }

    /// Dates the calls that threads make again later by so many nanoseconds. A process that went back in place keeps its clocks, and the
    /// time since the image was taken does not count.
    pub fn postpone(&self, by: u64) {
        for slot in self.threads() {
            for time in [&slot.began, &slot.interrupted].into_iter().filter(|time| time.load(Ordering::Relaxed) != 0) {
                time.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    /// Lets them go on, and waits for none.
    pub fn release(&self) {
        if EPOCH.load(Ordering::Acquire) == self.epoch {
            pending::hand_to_first(self);
        }
        EPOCH.store(self.epoch.wrapping_add(1), Ordering::Release);
        wake(&EPOCH);
    }

    /// Sends all threads to `entry`, each with a stack of its own there, for good. Returns when none is here any more.
    pub fn leave(&self, entry: u64, stack: impl Fn(&Slot) -> u64) {
        for slot in self.threads() {
            slot.exit.1.store(stack(slot), Ordering::Relaxed);
            slot.exit.0.store(entry, Ordering::Release);
        }
        for slot in self.threads() {
            loop {
                let state = slot.state.load(Ordering::Acquire);
                if state == LEFT {
                    break;
                }
                // It may have checked just before and wait only now.
                wake(&EPOCH);
                wait(&slot.state, state, Some(Duration::from_millis(2)));
            }
        }
    }

    /// In a restored process: waits until all threads have left the restorer's code.
    pub fn await_arrival(&self, limit: Duration) -> Result<(), i32> {
        for slot in self.threads() {
            let mut patience = Patience::with_pause(limit, CHECK_INTERVAL);
            while slot.state.load(Ordering::Acquire) != ARRIVED {
                if patience.is_over() {
                    return Err(slot.tid);
                }
                let state = slot.state.load(Ordering::Acquire);
                if state != ARRIVED {
                    wait(&slot.state, state, Some(CHECK_INTERVAL));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.release();
        let mut late = false;
        for slot in &self.slots[..self.used] {
            let mut patience = 50;
            loop {
                let state = slot.state.load(Ordering::Acquire);
                let under_way = state == SIGNALLED;
                let ended = || (Task { outer: slot.outer }).identify().is_none_or(|task| task != (slot.tid, true));
                if state == LEFT || state == GONE || (under_way && ended()) {
                    break;
                }
                if under_way && patience == 0 {
                    late = true;
                    break;
                }
                patience -= i32::from(under_way);
                wake(&EPOCH);
                wait(&slot.state, state, Some(Duration::from_millis(20)));
            }
        }
        THREADS_PARKED.store(false, Ordering::Relaxed);
        if late {
            // A signal that may still arrive must find our handler (the default would end the program) and its slot.
            std::mem::forget(std::mem::take(&mut self.slots));
            return;
        }
        SLOTS.0.store(0, Ordering::Relaxed);
        SLOTS.1.store(0, Ordering::Relaxed);
        // SAFETY: what was installed before, by the C library or nobody.
        let _ = unsafe { set_disposition(PARK_SIGNAL, &self.before) };
    }
}
