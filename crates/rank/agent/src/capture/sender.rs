//! Sending and filling at the same time: a process beside the program makes the calls that send, while the writer reads memory,
//! computes checksums and fills the next batch.
//!
//! ```text
//! writer  │ fill 0 │ fill 1 │ fill 2 │ fill 3 │ …       up to three batches wait or are being sent while one is filled
//! sender           │ send 0 │ send 1 │ send 2 │ …
//! ```
//! A process and not a thread: the threads of an image are those of the program.
//!
//! Invariants: the outlet is the sender's while batches are handed over that it has not sent, else the writer's. The sender has
//! ended when [`Sender`] is dropped; until then all threads of the program stand still.
//! Faults assumed: the sender is killed at any moment; nothing more is sent then, and the image is given up.

use crate::capture::outlet::{Outlet, Piece};
use crate::capture::write_error::WriteError;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use mend_freestanding::syscall;
use mend_kernel::copy::{self, Copy, end_with, leave};
use mend_kernel::threads::{wait_across, wake_across};
use std::time::Duration;

/// Batches, one of which is filled while the others wait or are sent.
pub(crate) const BATCH_COUNT: usize = 4;

/// How often the writer checks whether the sender is still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Memory that both use. The counters wrap.
struct Exchange<'a> {
    handed: Counter,
    sent: Counter,
    /// Batch `n` at `n % BATCH_COUNT`.
    batches: [UnsafeCell<*const [Piece]>; BATCH_COUNT],
    outlet: UnsafeCell<Outlet<'a>>,
    failed: AtomicBool,
    original: i32,
}

/// A number that one side raises and the other waits for. On a cache line of its own.
#[repr(align(64))]
struct Counter {
    value: AtomicU32,
    /// Somebody sleeps until it is raised.
    asleep: AtomicBool,
}

/// The sender, as the writer sees it.
pub(crate) struct Sender<'a> {
    exchange: *const Exchange<'a>,
    handed: u32,
    copy: Copy,
    ended: bool,
}

/// Handed over last.
const END_OF_BATCHES: *const [Piece] = core::ptr::slice_from_raw_parts(core::ptr::null(), 0);

/// Whether this thread may use so many processors: two processes on one are no faster.
pub(crate) fn may_use(processors: u64) -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|set| u64::from(set.count()) >= processors)
}

impl<'a> Sender<'a> {
    /// Starts it on the stack that ends at `stack`. `None`: there can be no such process.
    ///
    /// # Safety
    /// Nobody else uses that stack until this is dropped.
    pub unsafe fn start(outlet: &Outlet<'a>, stack: usize) -> Option<Self> {
        let place = (stack - size_of::<Exchange>()) & !63;
        let exchange = place as *mut Exchange<'a>;
        // SAFETY: no arguments.
        let original = unsafe { syscall(libc::SYS_getpid, [0; 6]) } as i32;
        let batches = [const { UnsafeCell::new(END_OF_BATCHES) }; BATCH_COUNT];
        let new =
            Exchange { handed: Counter::new(), sent: Counter::new(), batches, outlet: (*outlet).into(), failed: false.into(), original };
        // SAFETY: the caller's word.
        unsafe { exchange.write(new) };
        // SAFETY: `send` uses that stack, the exchange, what is handed over and system calls alone, and ends by `leave`.
        let copy = unsafe { copy::beside(place, send, exchange.cast()) }.ok()?;
        Some(Self { exchange, handed: 0, copy, ended: false })
    }

    /// Has a batch sent after those before, and waits until the memory of the oldest of [`BATCH_COUNT`] is free. False: something has
    /// failed, [`Sender::finish`] tells.
    ///
    /// # Safety
    /// The pieces, and the memory that they name, stay as they are until then, or until [`Sender::finish`] returns.
    pub unsafe fn hand_over(&mut self, batch: &[Piece]) -> bool {
        self.push(batch);
        self.await_waiting(BATCH_COUNT as u32).is_ok() && !self.exchange().failed.load(Ordering::Relaxed)
    }

    fn push(&mut self, batch: *const [Piece]) {
        let exchange = self.exchange();
        // SAFETY: fewer than `BATCH_COUNT` wait, so this place is the writer's until the counter says otherwise.
        unsafe { *exchange.batches[self.handed as usize % BATCH_COUNT].get() = batch };
        self.handed = self.handed.wrapping_add(1);
        exchange.handed.raise(self.handed);
    }

    /// Waits until fewer batches than that wait or are being sent.
    fn await_waiting(&mut self, fewer: u32) -> Result<(), WriteError> {
        let sent = &self.exchange().sent;
        loop {
            let now = sent.value.load(Ordering::Acquire);
            if self.handed.wrapping_sub(now) < fewer {
                return Ok(());
            }
            if self.ended {
                return Err(WriteError::Sender);
            }
            sent.await_other_than(now, Some(CHECK_INTERVAL), || self.ended = self.copy.reap().is_some());
        }
    }

    /// Waits until everything that was handed over is sent. `outlet` is as it is then.
    pub fn finish(&mut self, outlet: &mut Outlet<'a>) -> Result<(), WriteError> {
        let finished = self.await_waiting(1);
        // SAFETY: the sender has sent everything, or is gone.
        unsafe { *outlet = *self.exchange().outlet.get() };
        finished.inspect_err(|error| outlet.fail(*error))?;
        outlet.failed()
    }

    fn exchange(&self) -> &'a Exchange<'a> {
        // SAFETY: written by `start`, on a stack that outlives the stream.
        unsafe { &*self.exchange }
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        // Whatever it is sending is sent first: it uses memory that would be used again.
        if self.await_waiting(BATCH_COUNT as u32).is_ok() {
            self.push(END_OF_BATCHES);
        }
        if !self.ended {
            let _ = self.copy.await_end();
        }
    }
}

impl Counter {
    fn new() -> Self {
        Self { value: AtomicU32::new(0), asleep: AtomicBool::new(false) }
    }

    fn raise(&self, value: u32) {
        self.value.store(value, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            wake_across(&self.value);
        }
    }

    /// Waits until it is another one, or calls `on_timeout` after `timeout`.
    fn await_other_than(&self, value: u32, timeout: Option<Duration>, mut on_timeout: impl FnMut()) {
        // A batch takes some ten microseconds; to be woken takes as long.
        const MAX_SPINS: u32 = 400;
        const MAX_YIELDS: u32 = 200;
        for turn in 0..MAX_SPINS + MAX_YIELDS {
            if self.value.load(Ordering::Acquire) != value {
                return;
            }
            if turn < MAX_SPINS {
                core::hint::spin_loop();
            } else {
                rustix::thread::sched_yield();
            }
        }
        self.asleep.store(true, Ordering::SeqCst);
        if self.value.load(Ordering::SeqCst) == value {
            wait_across(&self.value, value, timeout);
            on_timeout();
        }
    }
}

/// The sender's life.
unsafe extern "C" fn send(exchange: *mut c_void) -> ! {
    // SAFETY: `Sender::start` put it there, and keeps it until this process has ended.
    let exchange = unsafe { &*exchange.cast::<Exchange>() };
    if !end_with(exchange.original) {
        leave(1);
    }
    let send_all = || {
        for number in 0u32.. {
            while exchange.handed.value.load(Ordering::Acquire) == number {
                exchange.handed.await_other_than(number, None, || ());
            }
            // SAFETY: handed over: it is this process's until it says that it is sent, as is the outlet.
            let (batch, outlet) = unsafe { (&**exchange.batches[number as usize % BATCH_COUNT].get(), &mut *exchange.outlet.get()) };
            if batch.is_empty() {
                return;
            }
            // SAFETY: so is the memory that it names. The outlet remembers what failed.
            if unsafe { outlet.send_pieces(batch) }.is_err() {
                exchange.failed.store(true, Ordering::Relaxed);
            }
            exchange.sent.raise(number.wrapping_add(1));
        }
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(send_all));
    leave(i32::from(result.is_err()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    use std::io::{Read, Seek};

    /// The end of a stack, for good.
    fn stack() -> usize {
        const SIZE: usize = 256 << 10;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        base.unwrap() as usize + SIZE
    }

    fn start<'a>(outlet: &Outlet<'a>) -> Sender<'a> {
        // SAFETY: its own stack.
        unsafe { Sender::start(outlet, stack()) }.unwrap()
    }

    /// Hands over bytes that stay as they are. False once something has failed.
    fn hand_over(sender: &mut Sender, bytes: &'static [u8]) -> bool {
        let batch: &'static [Piece] = Box::leak(Box::new([(bytes.as_ptr() as usize, bytes.len())]));
        // SAFETY: both are leaked.
        unsafe { sender.hand_over(batch) }
    }

    /// A pipe that takes nothing once it is full: its reader reads nothing.
    fn full_pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        (reader, writer)
    }

    #[test]
    fn batches_arrive_in_order_and_the_outlet_comes_back() {
        let mut file = tempfile::tempfile().unwrap();
        let again = file.try_clone().unwrap();
        let mut outlet = Outlet::new(again.as_fd());
        let mut sender = start(&outlet);
        let mut expected = Vec::new();
        for number in 0..1000u32 {
            let bytes: &'static [u8] = number.to_le_bytes().repeat(1 + number as usize % 7).leak();
            expected.extend_from_slice(bytes);
            assert!(hand_over(&mut sender, bytes));
            if number % 100 == 0 {
                sender.finish(&mut outlet).unwrap();
                assert_eq!(outlet.sent(), expected.len() as u64);
            }
        }
        sender.finish(&mut outlet).unwrap();
        assert_eq!(outlet.sent(), expected.len() as u64);
        drop(sender);
        let mut found = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut found).unwrap();
        assert!(found == expected);
    }

    #[test]
    fn what_is_handed_over_is_sent_before_the_sender_ends() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let outlet = Outlet::new(writer.as_fd());
        let mut sender = start(&outlet);
        assert!(hand_over(&mut sender, b"one") && hand_over(&mut sender, b"two"));
        drop(sender);
        drop(writer);
        let mut found = String::new();
        std::fs::File::from(reader).read_to_string(&mut found).unwrap();
        assert_eq!(found, "onetwo");
    }

    #[test]
    fn what_fails_is_told_and_nothing_follows_it() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut outlet = Outlet::new(full.as_fd());
        let mut sender = start(&outlet);
        let tried = (0..2 * BATCH_COUNT).take_while(|_| hand_over(&mut sender, b"x")).count();
        assert!(tried <= BATCH_COUNT);
        assert_eq!(sender.finish(&mut outlet), Err(WriteError::Out(Errno::NOSPC)));
        drop(sender);
        assert_eq!(outlet.sent(), 0);
        assert_eq!(outlet.send(&mut [std::io::IoSlice::new(b"x")]), Err(WriteError::Out(Errno::NOSPC)));
    }

    #[test]
    fn a_sender_that_is_killed_is_noticed() {
        let (_reader, writer) = full_pipe();
        let mut outlet = Outlet::new(writer.as_fd());
        let mut sender = start(&outlet);
        let much: &'static [u8] = vec![1; 1 << 16].leak();
        assert!(hand_over(&mut sender, much));
        sender.copy.kill();
        assert_eq!(sender.finish(&mut outlet), Err(WriteError::Sender));
        drop(sender);
        assert_eq!(outlet.failed(), Err(WriteError::Sender));
    }
}
