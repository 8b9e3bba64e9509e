//! Signals that have been sent and not been taken yet, each with everything that was sent with it.
//!
//! The kernel shows only which signals are pending. What came with them, and how many wait of a real-time signal, is seen by
//! taking them; then they are sent anew, in the same order. Only a thread itself may do this so that a handler sees no
//! difference (rt_sigqueueinfo(2)), so parked threads do it when the agent asks.
//!
//! The parking signal is one of them: it is also the one by which the C library has each thread change its user or group, and for which it
//! waits. Mend's own have been taken by all threads that are parked.

use crate::park::{Parked, Slot};
use crate::process::tasks::Task;
use mend_freestanding::syscall;
use mend_kernel::threads::disposition;
use std::collections::HashMap;

/// `siginfo_t`.
pub(crate) type Info = [u32; 32];

/// More than this, and something else is wrong.
const MAX_SIGNALS: usize = 4096;

/// All pending signals of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    /// For the process as a whole.
    shared: Vec<Info>,
    /// For single threads.
    private: Vec<(i32, Info)>,
}

impl Pending {
    /// Looks. The signals are pending again afterwards. `None` if they are too many.
    pub fn read(parked: &Parked) -> Option<Self> {
        let mut pending = Self::default();
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let mut complete = true;
        for slot in parked.threads() {
            // The kernel hands out those of the thread first.
            while let Some(info) = next(parked, slot, |(own, _)| own) {
                pending.private.push((slot.tid, info));
                complete &= pending.private.len() < MAX_SIGNALS;
                if !complete {
                    break;
                }
            }
        }
        if let Some(first) = parked.threads().find(|slot| slot.tid == process) {
            while let Some(info) = next(parked, first, |(_, shared)| shared).filter(|_| complete) {
                pending.shared.push(info);
                complete &= pending.shared.len() < MAX_SIGNALS;
            }
        }
        pending.send(parked);
        complete.then_some(pending)
    }

    /// Whether this signal is among those for the process as a whole.
    pub fn has(&self, signal: i32) -> bool {
        self.shared.iter().any(|info| info[0] == signal as u32)
    }

    /// Whether one of a POSIX timer's is.
    pub fn has_of_timer(&self, number: i32) -> bool {
        // si_code and si_tid of siginfo_t.
        let mut all = self.shared.iter().chain(self.private.iter().map(|(_, info)| info));
        all.any(|info| (info[2], info[4]) == (libc::SI_TIMER as u32, number as u32))
    }

    /// Sends all of them.
    pub fn send(&self, parked: &Parked) {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        for slot in parked.threads() {
            for (_, info) in self.private.iter().filter(|(thread, _)| *thread == slot.tid) {
                parked.send_own(slot, info, false);
            }
            for info in self.shared.iter().filter(|_| slot.tid == process) {
                parked.send_own(slot, info, true);
            }
        }
    }
}

/// Has the first thread take, as its own, what waits for the process as a whole and is not blocked there. So the kernel would have done when it came, had the threads not
/// blocked everything (complete_signal() in kernel/signal.c); and only the thread whose handler runs may see that its call was interrupted.
pub(crate) fn hand_to_first(parked: &Parked) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let Some(first) = parked.threads().find(|slot| slot.tid == process && slot.answers()) else { return };
    let mut waiting = 0u64;
    // SAFETY: the kernel writes 8 bytes into `waiting`. This thread blocks all signals, and none is sent to it alone.
    unsafe { syscall(libc::SYS_rt_sigpending, [(&raw mut waiting) as usize, 8, 0, 0, 0, 0]) };
    let bit = |signal: i32| 1u64 << (signal - 1);
    let noticed = (1..=64).filter(|signal| waiting & !first.mask & bit(*signal) != 0 && !is_ignored(*signal));
    let wanted = noticed.fold(0, |all, signal| all | bit(signal));
    if wanted == 0 {
        return;
    }
    let mut taken = Vec::new();
    // One that is the thread's own already is due anyway: the kernel keeps a second one of its number only while that waits for the process.
    while taken.len() < MAX_SIGNALS
        && let Some(info) = next(parked, first, |(own, shared)| shared & wanted & !own)
    {
        taken.push(info);
    }
    taken.iter().for_each(|info| parked.send_own(first, info, false));
}

/// Whether nobody would notice a signal of this number. Async-signal-safe.
pub(super) fn is_ignored(signal: i32) -> bool {
    const UNNOTICED: [i32; 4] = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
    disposition(signal).is_ok_and(|now| now.handler == libc::SIG_IGN || (now.handler == libc::SIG_DFL && UNNOTICED.contains(&signal)))
}

/// Takes all pending signals, for good. `tasks`: the threads, by their ids.
pub(crate) fn discard(parked: &Parked, tasks: &HashMap<i32, Task>) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    for slot in parked.threads() {
        let mine = |(own, shared)| if slot.tid == process { own | shared } else { own };
        let Some(task) = tasks.get(&slot.tid) else { continue };
        for _ in 0..MAX_SIGNALS {
            if next_of(parked, slot, *task, mine).is_none() {
                break;
            }
        }
    }
}

/// Takes the lowest of the signals that `which` selects from those pending.
fn next(parked: &Parked, slot: &Slot, which: impl Fn((u64, u64)) -> u64) -> Option<Info> {
    next_of(parked, slot, Task { outer: slot.outer }, which)
}

fn next_of(parked: &Parked, slot: &Slot, task: Task, which: impl Fn((u64, u64)) -> u64) -> Option<Info> {
    let never = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    let mask = which(task.pending()) & !never;
    (mask != 0).then(|| parked.take_own(slot, mask.trailing_zeros() + 1)).flatten()
}
