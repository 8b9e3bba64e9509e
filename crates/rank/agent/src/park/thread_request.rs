//! Requests to a parked thread: what the kernel lets only the thread itself do.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use mend_freestanding::syscall;
use mend_kernel::landlock;
use mend_kernel::threads::wake;

/// What the agent asks a parked thread to do. `info` is a signal's, or a system call's number and arguments.
#[derive(Default)]
pub(super) struct ThreadRequest {
    /// `IDLE`, or what is wanted.
    pub state: AtomicU32,
    pub signal: AtomicU32,
    pub info: [AtomicU32; 32],
    pub result: AtomicI32,
}

pub(super) const IDLE: u32 = 0;
pub(super) const TAKE: u32 = 1;
pub(super) const SEND_THREAD: u32 = 2;
pub(super) const SEND_PROCESS: u32 = 3;
pub(super) const CALL: u32 = 4;
pub(super) const COUNT_LAYERS: u32 = 5;

impl ThreadRequest {
    /// In the parked thread. Async-signal-safe.
    pub fn run(&self, tid: i32) {
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
            // SAFETY: whoever made the request vouches for it.
            unsafe { syscall(word(0) as i64, core::array::from_fn(|at| word(2 + 2 * at) as usize)) }
        } else if wanted == COUNT_LAYERS {
            landlock::layers_beyond_parent().map_or(-1, |layers| layers as isize)
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
