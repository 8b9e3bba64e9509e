//! Stopping all threads but the agent's, wherever they are, and letting them go on, here or in a restored process.
//!
//! Each thread is sent [`PARK_SIGNAL`] with the address of its [`Slot`]. Its handler captures what a call preserves and
//! waits; the kernel's signal frame on its own stack holds all other registers and comes back by `rt_sigreturn`.
//!
//! A call that the signal ended with `EINTR` although the program has no handler that ran (poll, nanosleep, futex with
//! timeout, …) is made again: which call it was is read from `/proc` before the signal is sent, else from the
//! instruction before it. A relative timeout goes on where it was (see [`crate::park::deadlines`]).
//!
//! A parked thread can be sent on an errand by the agent: taking and sending its own signals (see [`crate::park::pending`]), system
//! calls about the program's descriptors, which are in another table than the agent's ([`crate::descriptors::table`]).
//!
//! Invariants: the handler allocates nothing, takes no lock and leaves `errno` alone. Slots outlive all handlers: they are freed
//! only when each thread has left. A thread that does not park in time is named, and all others are let go.

pub(crate) mod context;
mod deadlines;
pub(crate) mod pending;
mod succession;

use crate::process::tasks::{self, Task};
use context::{RESTORED, capture};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use deadlines::{Asleep, Clocks};
use mend_image::handoff::Context;
use mend_kernel::raw::syscall;
use mend_kernel::threads::{
    Disposition, PARK_SIGNAL, Registration, SA_RESTORER, disposition, queue, segment_base, set_disposition, wait, wake,
};
use mend_kernel::tiles;
use mend_patience::Patience;
use pending::Info;
use std::ffi::c_void;
use std::time::Duration;
use succession::{Succession, succeed};

const SIGNALLED: u32 = 1;
const PARKED: u32 = 2;
const ARRIVED: u32 = 3;
const LEFT: u32 = 4;
const GONE: u32 = 5;

/// Longest time between two looks at a thread that is waited for.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How often the agent gives its processor to a thread that is about to sleep, before it sleeps itself.
const MAX_YIELDS: u32 = 8;

/// Threads stay in their handlers while this holds the value they were sent with.
static EPOCH: AtomicU32 = AtomicU32::new(1);
/// Address range of the slots in use.
static SLOTS: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
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
    errand: Errand,
}

/// Something that a parked thread does for the agent. `info` is a signal's, or a system call's number and arguments.
#[derive(Default)]
struct Errand {
    /// `IDLE`, or what is wanted.
    state: AtomicU32,
    signal: AtomicU32,
    info: [AtomicU32; 32],
    result: AtomicI32,
}

const IDLE: u32 = 0;
const TAKE: u32 = 1;
const SEND_THREAD: u32 = 2;
const SEND_PROCESS: u32 = 3;
const CALL: u32 = 4;

impl Errand {
    /// In the parked thread. Async-signal-safe.
    fn run(&self, tid: i32) {
        let wanted = self.state.load(Ordering::Acquire);
        if wanted == IDLE {
            return;
        }
        let signal = self.signal.load(Ordering::Relaxed) as usize;
        let mut info = [0u32; 32];
        // SAFETY: no arguments.
        let process = unsafe { syscall(libc::SYS_getpid, [0; 6]) } as usize;
        let result = if wanted == CALL {
            let word =
                |at: usize| u64::from(self.info[at].load(Ordering::Relaxed)) | u64::from(self.info[at + 1].load(Ordering::Relaxed)) << 32;
            // SAFETY: whoever gave the errand vouches for it.
            unsafe { syscall(word(0) as i64, core::array::from_fn(|at| word(2 + 2 * at) as usize)) }
        } else if wanted == TAKE {
            let (mask, now) = (1u64 << (signal - 1), [0u64; 2]);
            let arguments = [(&raw const mask) as usize, info.as_mut_ptr() as usize, now.as_ptr() as usize, 8, 0, 0];
            // SAFETY: reads a mask of 8 bytes and a timespec, writes a siginfo of 128 bytes.
            let result = unsafe { syscall(libc::SYS_rt_sigtimedwait, arguments) };
            self.info.iter().zip(info).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
            result
        } else {
            info.iter_mut().zip(&self.info).for_each(|(value, word)| *value = word.load(Ordering::Relaxed));
            let at = info.as_ptr() as usize;
            // SAFETY: both read a siginfo of 128 bytes. All signals are blocked here.
            unsafe {
                match wanted {
                    SEND_THREAD => syscall(libc::SYS_rt_tgsigqueueinfo, [process, tid as usize, signal, at, 0, 0]),
                    _ => syscall(libc::SYS_rt_sigqueueinfo, [process, signal, at, 0, 0, 0]),
                }
            }
        };
        self.result.store(result as i32, Ordering::Relaxed);
        self.state.store(IDLE, Ordering::Release);
        wake(&self.state);
    }
}

impl Slot {
    /// Address of the registers, for the image.
    pub fn context(&self) -> u64 {
        (&raw const self.context) as u64
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
    SLOTS.0.store(range.start as usize, Ordering::Relaxed);
    SLOTS.1.store(range.end as usize, Ordering::Relaxed);
    let handler = on_park as *const () as usize;
    if before.handler != handler {
        PREVIOUS_HANDLER.store(if before.handler > 1 { before.handler } else { 0 }, Ordering::Relaxed);
    }
    // On the alternate stack if there is one: a runtime with small stacks demands it. All signals wait meanwhile.
    let flags = libc::SA_SIGINFO as u64 | libc::SA_RESTART as u64 | libc::SA_ONSTACK as u64 | SA_RESTORER;
    let ours = Disposition { handler, flags, restorer: return_from_signal as *const () as usize, mask: u64::MAX };
    // SAFETY: `on_park` is async-signal-safe and returns by rt_sigreturn.
    unsafe { set_disposition(PARK_SIGNAL, &ours) }.map_err(ParkError::Signal)?;
    let succession = Succession::offer();
    parked.stop_all(limit)?;
    drop(succession);
    Ok(parked)
}

/// Whether threads are parked, or about to be.
pub(crate) fn threads_are_parked() -> bool {
    SLOTS.0.load(Ordering::Relaxed) != 0
}

impl Parked {
    /// The parked threads.
    pub fn threads(&self) -> impl Iterator<Item = &Slot> {
        self.slots[..self.used].iter().filter(|slot| slot.state.load(Ordering::Relaxed) != GONE)
    }

    /// Signals threads until a listing shows none that has not parked.
    fn stop_all(&mut self, limit: Duration) -> Result<(), ParkError> {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        loop {
            let mut new = 0;
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
                    continue;
                }
                new += 1;
                self.signal(process, tid, &task)?;
            }
            if new == 0 {
                self.date_sleeps();
                return Ok(());
            }
            self.await_parked(limit)?;
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
        slot.errand.signal.store(signal, Ordering::Relaxed);
        slot.errand.state.store(wanted, Ordering::Release);
        while slot.errand.state.load(Ordering::Acquire) == wanted {
            // It may have looked just before the order and wait only now.
            wake(&EPOCH);
            wait(&slot.errand.state, wanted, Some(Duration::from_millis(2)));
        }
        slot.errand.result.load(Ordering::Relaxed)
    }

    /// Has a parked thread take a signal that is pending for it.
    pub fn take_own(&self, slot: &Slot, signal: u32) -> Option<Info> {
        let taken = self.ask(slot, TAKE, signal);
        (taken == signal as i32).then(|| core::array::from_fn(|index| slot.errand.info[index].load(Ordering::Relaxed)))
    }

    /// Has a parked thread send a signal to itself or to the process.
    pub fn send_own(&self, slot: &Slot, info: &Info, process: bool) {
        slot.errand.info.iter().zip(info).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        self.ask(slot, if process { SEND_PROCESS } else { SEND_THREAD }, info[0]);
    }

    fn signal(&mut self, process: i32, tid: i32, task: &Task) -> Result<(), ParkError> {
        let slot = self.slots.get_mut(self.used).ok_or(ParkError::Unstable)?;
        let mut blocked = task.blocked_call();
        let asleep = blocked.as_ref().and_then(|call| deadlines::asleep(task, call));
        if asleep.is_some() && task.blocked_call() != blocked {
            // It has moved on while it was looked at.
            blocked = None;
        }
        *slot = Slot {
            state: AtomicU32::new(SIGNALLED),
            epoch: self.epoch,
            tid,
            outer: task.outer,
            asleep: asleep.filter(|_| blocked.is_some()),
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
            let mut looks = 0;
            let mut patience = Patience::with_pause(limit, CHECK_INTERVAL);
            while !asleep() && there() {
                if patience.is_over() {
                    return Err(ParkError::Stuck { tid: slot.tid, name: task.name(), seconds: limit.as_secs() });
                }
                // The processor may be what it waits for, most likely this one. A sleep takes longer than that.
                looks += 1;
                if looks < MAX_YIELDS { rustix::thread::sched_yield() } else { std::thread::sleep(Duration::from_micros(50)) }
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
        slot.errand.info.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.ask(slot, CALL, 0) as isize
    }

    /// Closes these descriptors in the program's table.
    pub fn close(&self, descriptors: &[i32]) {
        for fd in descriptors {
            // SAFETY: takes a number; the caller knows whose it is.
            unsafe { self.call(libc::SYS_close, [*fd as usize, 0, 0, 0, 0, 0]) };
        }
    }

    /// Lets them go on, and waits for none.
    pub fn release(&self) {
        EPOCH.store(self.epoch.wrapping_add(1), Ordering::Release);
        wake(&EPOCH);
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

/// Returns from a signal handler, as the C library's restorer does.
#[unsafe(naked)]
extern "C" fn return_from_signal() {
    core::arch::naked_asm!("mov eax, 15", "syscall")
}

extern "C" fn on_park(signal: i32, info: *mut libc::siginfo_t, frame: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_value().sival_ptr as usize) };
    let known = SLOTS.0.load(Ordering::Relaxed)..SLOTS.1.load(Ordering::Relaxed);
    if code != -1 || !known.contains(&address) || (address - known.start) % size_of::<Slot>() != 0 {
        let before = PREVIOUS_HANDLER.load(Ordering::Relaxed);
        if before != 0 {
            // SAFETY: the handler that was installed for this signal before ours; glibc's takes these three arguments.
            let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = unsafe { core::mem::transmute(before) };
            before(signal, info, frame);
        }
        return;
    }
    let slot = address as *mut Slot;
    // SAFETY: the slot belongs to this thread alone until its state says PARKED; the agent only reads it after that.
    unsafe {
        (*slot).interrupted.store(deadlines::monotonic(), Ordering::Relaxed);
        (*slot).segments = (segment_base(false), segment_base(true));
        (*slot).registration = Registration::of_this_thread(crate::process::rseq::area((*slot).segments.0));
        succeed();
        if capture(&raw mut (*slot).context, 0, stand, slot.cast()) == RESTORED {
            if tiles::used(frame.cast()) {
                tiles::make_used();
            }
            (*slot).lost = (*slot).registration.restore().err();
            (*slot).state.store(ARRIVED, Ordering::Release);
            wake(&(*slot).state);
            stay(&*slot);
        }
        call_again(&*slot, frame.cast());
        (*slot).state.store(LEFT, Ordering::Release);
        // The slot may be freed from here on; waking its address is harmless.
        wake(&(*slot).state);
    }
}

/// Runs inside the capture: everything up to here is in the image.
unsafe extern "C" fn stand(slot: *mut c_void) -> usize {
    // SAFETY: `on_park` passes its slot.
    let slot = unsafe { &*slot.cast::<Slot>() };
    slot.state.store(PARKED, Ordering::Release);
    wake(&slot.state);
    stay(slot);
    0
}

fn stay(slot: &Slot) {
    while EPOCH.load(Ordering::Acquire) == slot.epoch {
        slot.errand.run(slot.tid);
        wait(&EPOCH, slot.epoch, None);
    }
}

/// Makes the interrupted call again if the program would otherwise see an `EINTR` that no handler of its own explains.
///
/// # Safety
/// `frame` is this handler's own signal frame.
unsafe fn call_again(slot: &Slot, frame: *mut libc::ucontext_t) {
    // SAFETY: per contract.
    let (registers, mask) = unsafe { (&mut (*frame).uc_mcontext.gregs, *(&raw const (*frame).uc_sigmask).cast::<u64>()) };
    let register = |index: i32| registers[index as usize] as u64;
    if register(libc::REG_RAX) as i64 != -i64::from(libc::EINTR) {
        return;
    }
    let next = register(libc::REG_RIP);
    let as_seen = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9, libc::REG_RSP, libc::REG_RIP];
    let mut began = 0;
    let number = match &slot.blocked {
        Some(call) if as_seen.iter().zip(&call[1..]).all(|(index, value)| register(*index) == *value) => {
            began = slot.began.load(Ordering::Relaxed);
            call[0] as i64
        }
        // SAFETY: the thread was about to execute at `next`; code right before it is mapped, as no function starts a page with 7 bytes cut.
        _ => match unsafe { number_before(next) } {
            Some(number) => number,
            None => return,
        },
    };
    // A signal that is due now would have ended the call with EINTR anyway: its handler runs next.
    let mut pending = 0u64;
    // SAFETY: the kernel writes 8 bytes into `pending`.
    unsafe { syscall(libc::SYS_rt_sigpending, [(&raw mut pending) as usize, 8, 0, 0, 0, 0]) };
    if pending & !mask != 0 || !restartable(number) {
        return;
    }
    // SAFETY: the frame holds the registers of the call that was interrupted.
    unsafe { deadlines::shorten(number, registers, began, slot.interrupted.load(Ordering::Relaxed)) };
    registers[libc::REG_RAX as usize] = number;
    registers[libc::REG_RIP as usize] = (next - 2) as i64;
}

/// The call's number if the instructions before `next` are `mov eax, number; syscall`.
///
/// # Safety
/// The thread executed the `syscall` instruction that ends at `next`.
unsafe fn number_before(next: u64) -> Option<i64> {
    if next & 0xfff < 7 {
        return None;
    }
    // SAFETY: same page as `next - 1`, which was executed; execute-only memory is not used by C libraries on x86-64.
    let code = unsafe { (next as *const [u8; 7]).sub(1).read_unaligned() };
    match code {
        [0xb8, a, b, c, d, 0x0f, 0x05] => Some(i64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

/// Calls that end with `EINTR` after any handler, whatever `SA_RESTART` says (signal(7)), and can simply be made again.
fn restartable(number: i64) -> bool {
    const FUTEX_WAIT: i64 = 455;
    matches!(
        number,
        libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_nanosleep
            | libc::SYS_clock_nanosleep
            | libc::SYS_futex
            | libc::SYS_futex_waitv
            | FUTEX_WAIT
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_rt_sigsuspend
            | libc::SYS_pause
            | libc::SYS_semop
            | libc::SYS_semtimedop
            | libc::SYS_msgrcv
            | libc::SYS_msgsnd
            | libc::SYS_io_getevents
            | libc::SYS_read
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_accept
            | libc::SYS_accept4
    )
}
