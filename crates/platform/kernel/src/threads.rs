//! What the kernel knows about a thread beside its registers, and how to stop one.
//!
//! Sources: rt_tgsigqueueinfo(2), sigaction(2), get_robust_list(2), arch_prctl(2), include/uapi/linux/rseq.h.
//! All calls are raw: no `errno`, no locks, usable from a signal handler.

use crate::ports;
use crate::thread_attributes::ThreadAttributes;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use mend_freestanding::{check, syscall};

/// The signal number that glibc keeps for itself (`SIGSETXID`): programs cannot block it through the C library.
pub const PARK_SIGNAL: i32 = 33;

/// `struct sigaction` as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disposition {
    /// Handler, or 0 (default), 1 (ignore).
    pub handler: usize,
    /// `SA_` flags.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: usize,
    /// Signals blocked while it runs.
    pub mask: u64,
}

/// `SA_RESTORER`, which the C library's headers hide.
pub const SA_RESTORER: u64 = 0x0400_0000;

/// Reads a signal's disposition.
///
/// # Errors
/// The errno; `EINVAL` for numbers outside 1..=64.
pub fn disposition(signal: i32) -> Result<Disposition, i32> {
    let mut old = Disposition::default();
    // SAFETY: the kernel writes one `struct sigaction` of 32 bytes (8-byte mask) into `old`.
    check(unsafe { syscall(libc::SYS_rt_sigaction, [signal as usize, 0, (&raw mut old) as usize, 8, 0, 0]) })?;
    Ok(old)
}

/// Sets a signal's disposition.
///
/// # Safety
/// `new.handler` must be a handler that is safe wherever the signal may arrive, and `new.restorer` its return path.
///
/// # Errors
/// The errno; `EINVAL` for `SIGKILL`, `SIGSTOP` and numbers outside 1..=64.
pub unsafe fn set_disposition(signal: i32, new: &Disposition) -> Result<(), i32> {
    // SAFETY: the kernel reads one `struct sigaction` from `new`; the caller answers for the handler.
    check(unsafe { syscall(libc::SYS_rt_sigaction, [signal as usize, core::ptr::from_ref(new) as usize, 0, 8, 0, 0]) }).map(drop)
}

/// Blocks these signals of the calling thread (bit per number - 1), and no others. Returns what was blocked before.
pub fn block_signals(blocked: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = ((&raw const blocked) as usize, (&raw mut before) as usize);
    // SAFETY: reads and writes one 8-byte mask each.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, old, 8, 0, 0]) };
    before
}

/// What threads of Mend's block: all signals but one. The program's are for the program's threads. By [`PARK_SIGNAL`] the C library has each
/// thread change its user or group, and waits until all have (nptl(7)).
pub const BLOCKED_BY_OWN_THREADS: u64 = !(1 << (PARK_SIGNAL - 1));

/// Sends a signal with a value to one thread of this process (ids as the process itself sees them).
///
/// # Errors
/// The errno; `ESRCH` if the thread is gone.
pub fn queue(process: i32, thread: i32, signal: i32, value: usize) -> Result<(), i32> {
    // siginfo_t: signo, errno, code, padding, pid, uid, value.
    let mut info = [0u32; 32];
    info[0] = signal as u32;
    info[2] = -1i32 as u32; // SI_QUEUE
    info[4] = process as u32;
    info[6] = value as u32;
    info[7] = (value >> 32) as u32;
    // SAFETY: the kernel reads 128 bytes of siginfo.
    let result =
        unsafe { syscall(libc::SYS_rt_tgsigqueueinfo, [process as usize, thread as usize, signal as usize, info.as_ptr() as usize, 0, 0]) };
    check(result).map(drop)
}

/// A set of processors, as many as a kernel may be built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors([u64; 128]);

impl Processors {
    /// Just this one. `None`: more than there can be.
    #[must_use]
    pub fn only(number: u32) -> Option<Self> {
        let mut words = [0; 128];
        *words.get_mut(number as usize / 64)? = 1 << (number % 64);
        Some(Self(words))
    }
}

/// The processor that the calling thread runs on.
#[must_use]
pub fn processor() -> Option<u32> {
    let mut number = 0u32;
    // SAFETY: the kernel writes one int into `number`.
    check(unsafe { syscall(libc::SYS_getcpu, [(&raw mut number) as usize, 0, 0, 0, 0, 0]) }).ok().map(|_| number)
}

/// The processors that a thread may run on.
///
/// # Errors
/// The errno; `ESRCH` if the thread is gone.
pub fn processors(thread: i32) -> Result<Processors, i32> {
    let mut set = Processors([0; 128]);
    // SAFETY: the kernel writes at most the size of the set into it.
    let result =
        unsafe { syscall(libc::SYS_sched_getaffinity, [thread as usize, size_of::<Processors>(), (&raw mut set) as usize, 0, 0, 0]) };
    check(result).map(|_| set)
}

/// Lets a thread run on these alone. It is on one of them when this returns.
///
/// # Errors
/// The errno; `EINVAL` if it may have none of them, `ESRCH` if the thread is gone.
pub fn set_processors(thread: i32, set: &Processors) -> Result<(), i32> {
    let address = core::ptr::from_ref(set) as usize;
    // SAFETY: the kernel reads the set.
    check(unsafe { syscall(libc::SYS_sched_setaffinity, [thread as usize, size_of::<Processors>(), address, 0, 0, 0]) }).map(drop)
}

/// Base of the calling thread's fs segment (`gs == false`) or gs segment.
#[must_use]
pub fn segment_base(gs: bool) -> u64 {
    let mut base = 0u64;
    let code = if gs { 0x1004 } else { 0x1003 }; // ARCH_GET_GS, ARCH_GET_FS
    // SAFETY: the kernel writes 8 bytes into `base`.
    unsafe { syscall(libc::SYS_arch_prctl, [code, (&raw mut base) as usize, 0, 0, 0, 0]) };
    base
}

/// The calling thread's robust futex list: head and length.
#[must_use]
pub fn robust_list() -> (u64, u64) {
    let (mut head, mut length) = (0u64, 0u64);
    // SAFETY: the kernel writes 8 bytes into each.
    unsafe { syscall(libc::SYS_get_robust_list, [0, (&raw mut head) as usize, (&raw mut length) as usize, 0, 0, 0]) };
    (head, length)
}

/// Where the kernel clears the calling thread's id when it ends (0 if unknown: kernel without checkpoint support).
#[must_use]
pub fn clear_child_tid() -> u64 {
    let mut address = 0u64;
    // SAFETY: PR_GET_TID_ADDRESS (40) writes 8 bytes into `address`.
    unsafe { syscall(libc::SYS_prctl, [40, (&raw mut address) as usize, 0, 0, 0, 0]) };
    address
}

/// Name of the calling thread, NUL-padded.
#[must_use]
pub fn name() -> [u8; 16] {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME (16) writes 16 bytes into `name`.
    unsafe { syscall(libc::SYS_prctl, [16, name.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    name
}

/// The calling thread's keyrings: of its session, its process, its own. None is made.
#[must_use]
pub fn keyrings() -> [Option<usize>; 3] {
    const KEYCTL_GET_KEYRING_ID: usize = 0;
    // SAFETY: takes numbers.
    [-3isize, -2, -1].map(|which| check(unsafe { syscall(libc::SYS_keyctl, [KEYCTL_GET_KEYRING_ID, which as usize, 0, 0, 0, 0]) }).ok())
}

/// Kernel-side state of a thread that a new kernel thread has to be told again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registration {
    /// Head of the robust list, its length.
    pub robust: (u64, u64),
    /// See [`clear_child_tid`].
    pub clear_child_tid: u64,
    /// Address and length of the rseq area, 0 if none is registered.
    pub rseq: u64,
    rseq_length: usize,
    /// An rseq area is registered that isn't the C library's. The kernel does not tell which.
    pub foreign_rseq: bool,
    /// See [`name`].
    pub name: [u8; 16],
    /// Nanoseconds by which its timers may be late (`PR_GET_TIMERSLACK`).
    pub timer_slack: u64,
    /// Keyrings (keyrings(7)): of its session, its process, its own; `None` where there is none.
    pub keyrings: [Option<usize>; 3],
    /// See [`ports::all_allowed`].
    pub all_ports: bool,
    /// What else the thread has asked for.
    pub attributes: ThreadAttributes,
}

/// What rseq(2) is to be called with beside the area, as glibc does.
const RSEQ_SIGNATURE: usize = 0x5305_3053;

/// Length of the registered area at `area`; `Ok(None)`: none is registered; `Err`: another one is.
fn registered_rseq(area: u64) -> Result<Option<usize>, ()> {
    /// As kernels before 6.3 have it; a place for an area that is registered for a moment.
    #[repr(align(64))]
    struct Area([u8; 256]);
    const ORIGINAL: usize = 32;
    const UNREGISTER: usize = 1;
    const AT_RSEQ_FEATURE_SIZE: u64 = 27;
    let mut place = Area([0; 256]);
    let address = if area == 0 { place.0.as_mut_ptr() as usize } else { area as usize };
    // SAFETY: reads the auxiliary vector.
    let feature_size = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } as usize;
    for length in [ORIGINAL, feature_size.next_multiple_of(ORIGINAL).clamp(ORIGINAL, 256)] {
        // SAFETY: the C library's own area of this thread, or one on this stack, which is taken back before it ends.
        match check(unsafe { syscall(libc::SYS_rseq, [address, length, 0, RSEQ_SIGNATURE, 0, 0]) }) {
            Err(libc::EBUSY) => return Ok(Some(length)),
            Ok(_) => {
                // SAFETY: as above.
                unsafe { syscall(libc::SYS_rseq, [address, length, UNREGISTER, RSEQ_SIGNATURE, 0, 0]) };
                return Ok(None);
            }
            Err(libc::EINVAL | libc::EPERM) => {}
            // A kernel without it.
            Err(_) => return Ok(None),
        }
    }
    Err(())
}

impl Registration {
    /// Of the calling thread. `rseq` is the address of its area as its C library keeps it, 0 if it has none.
    #[must_use]
    pub fn of_this_thread(rseq: u64) -> Self {
        // SAFETY: takes and returns plain numbers.
        let timer_slack = unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_TIMERSLACK as usize, 0, 0, 0, 0, 0]) }.max(0) as u64;
        let (rseq_length, foreign_rseq) = match registered_rseq(rseq) {
            Ok(length) => (length.unwrap_or(0), false),
            Err(()) => (0, true),
        };
        Self {
            robust: robust_list(),
            clear_child_tid: clear_child_tid(),
            rseq: if rseq_length == 0 { 0 } else { rseq },
            rseq_length,
            foreign_rseq,
            name: name(),
            timer_slack,
            keyrings: keyrings(),
            all_ports: ports::all_allowed(),
            attributes: ThreadAttributes::of_this_thread(),
        }
    }

    /// Makes the kernel forget, for the calling thread, the memory that it writes to by itself: when the thread is scheduled, and when it ends.
    ///
    /// # Safety
    /// The thread must not rely on it any more: restartable sequences, robust futexes, and whoever waits for its end.
    pub unsafe fn withdraw(&self) {
        const UNREGISTER: usize = 1;
        const ROBUST_LIST_BYTES: usize = 24;
        // SAFETY: of addresses only those are used that the kernel has of this thread.
        unsafe {
            if self.rseq != 0 {
                syscall(libc::SYS_rseq, [self.rseq as usize, self.rseq_length, UNREGISTER, RSEQ_SIGNATURE, 0, 0]);
            }
            syscall(libc::SYS_set_robust_list, [0, ROBUST_LIST_BYTES, 0, 0, 0, 0]);
            syscall(libc::SYS_set_tid_address, [0; 6]);
        }
    }

    /// Tells the kernel again, for the calling thread. Best effort, but for what the thread has asked for: what of that cannot be
    /// brought back is told, for people.
    ///
    /// # Errors
    /// See [`ThreadAttributes::restore`].
    ///
    /// # Safety
    /// The addresses must belong to the calling thread, as they did when they were read.
    pub unsafe fn restore(&self) -> Result<(), &'static str> {
        // SAFETY: per contract the addresses are this thread's own; the kernel checks the rest.
        unsafe {
            syscall(libc::SYS_set_tid_address, [self.clear_child_tid as usize, 0, 0, 0, 0, 0]);
            if self.robust.0 != 0 {
                syscall(libc::SYS_set_robust_list, [self.robust.0 as usize, self.robust.1 as usize, 0, 0, 0, 0]);
            }
            if self.rseq != 0 {
                syscall(libc::SYS_rseq, [self.rseq as usize, self.rseq_length, 0, RSEQ_SIGNATURE, 0, 0]);
            }
            syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, self.name.as_ptr() as usize, 0, 0, 0, 0]);
            if self.timer_slack != 0 {
                syscall(libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, self.timer_slack as usize, 0, 0, 0, 0]);
            }
        }
        self.attributes.restore()
    }
}

/// Waits until `word` differs from `value`, or spuriously less; at most `timeout` (None: without end).
pub fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    futex_wait(word, value, timeout, libc::FUTEX_PRIVATE_FLAG);
}

/// Wakes all that [`wait`] on `word`.
pub fn wake(word: &AtomicU32) {
    futex_wake(word, libc::FUTEX_PRIVATE_FLAG);
}

/// [`wait`], for a word in memory that several processes share.
pub fn wait_across(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    futex_wait(word, value, timeout, 0);
}

/// Wakes all that [`wait_across`] processes on `word`.
pub fn wake_across(word: &AtomicU32) {
    futex_wake(word, 0);
}

fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Duration>, scope: i32) {
    let timespec = timeout.map(|timeout| [timeout.as_secs(), u64::from(timeout.subsec_nanos())]);
    let pointer = timespec.as_ref().map_or(0, |timespec| timespec.as_ptr() as usize);
    let operation = (libc::FUTEX_WAIT | scope) as usize;
    // SAFETY: it reads the word and the timespec, both alive.
    unsafe { syscall(libc::SYS_futex, [core::ptr::from_ref(word) as usize, operation, value as usize, pointer, 0, 0]) };
}

fn futex_wake(word: &AtomicU32, scope: i32) {
    let operation = (libc::FUTEX_WAKE | scope) as usize;
    // SAFETY: it only uses the address.
    unsafe { syscall(libc::SYS_futex, [core::ptr::from_ref(word) as usize, operation, i32::MAX as usize, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_itself() {
        assert_eq!(segment_base(false) % 8, 0);
        assert_ne!(segment_base(false), 0);
        assert_eq!(robust_list().1, 24);
        assert!(disposition(0).is_err());
        assert_eq!(disposition(libc::SIGUSR2).unwrap().handler, 0);
        // SAFETY: gettid has no demands.
        let thread = unsafe { syscall(libc::SYS_gettid, [0; 6]) } as i32;
        assert!(queue(std::process::id() as i32, thread, 0, 0).is_ok());
        assert_eq!(queue(std::process::id() as i32, i32::MAX, 0, 0), Err(libc::ESRCH));
    }
}
