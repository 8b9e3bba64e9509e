//! What the kernel tells of a thread to a tracer alone (ptrace(2)).
//!
//! A thread cannot be traced by its own process. So a process beside this one does it, for a moment. The threads must stand still in a
//! system call that goes on by itself after a stop, with all signals blocked: then nothing of the program notices.
//!
//! Where tracing is not allowed (Yama, a debugger that has come first, a process that may not be dumped), nothing is told.
//!
//! Sources: ptrace(2), `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG` (Linux 6.4), `NT_386_IOPERM` (elf(5)).

use crate::copy;
use core::ffi::c_void;
use mend_freestanding::{check, syscall};

const PTRACE_DETACH: usize = 17;
const PTRACE_GETREGSET: usize = 0x4204;
const PTRACE_SEIZE: usize = 0x4206;
const PTRACE_INTERRUPT: usize = 0x4207;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: usize = 0x4211;
const NT_386_IOPERM: usize = 0x201;
/// Of the process beside this one, which calls little.
const STACK_BYTES: usize = 16 << 10;

/// A thread, and what was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// Its id, as this process sees it.
    pub thread: i32,
    /// It could be traced.
    pub seen: bool,
    /// Its system calls are dispatched to a handler (`PR_SET_SYSCALL_USER_DISPATCH`).
    pub dispatches: bool,
    /// It may use I/O ports (ioperm(2)).
    pub ports: bool,
}

/// Looks at threads of this process other than the caller. They are let go before this returns.
pub fn trace(threads: &mut [Traced]) {
    #[repr(C, align(16))]
    struct Stack([u8; STACK_BYTES]);
    let mut stack = Stack([0; STACK_BYTES]);
    let top = stack.0.as_mut_ptr_range().end as usize;
    let mut argument: &mut [Traced] = threads;
    // SAFETY: `look` uses neither thread-local memory nor locks; stack and argument stay until it has ended, which is waited for.
    if let Ok(tracer) = unsafe { copy::beside(top, look, (&raw mut argument).cast()) } {
        let _ = tracer.await_end();
    }
}

fn ptrace(request: usize, thread: i32, address: usize, data: usize) -> Result<usize, i32> {
    // SAFETY: the requests of this file write at most as much as `data` points to, and not to the thread.
    check(unsafe { syscall(libc::SYS_ptrace, [request, thread as usize, address, data, 0, 0]) })
}

unsafe extern "C" fn look(threads: *mut c_void) -> ! {
    // SAFETY: `trace` passes this, and waits.
    let threads = unsafe { &mut **threads.cast::<&mut [Traced]>() };
    for traced in threads.iter_mut() {
        // All of them stop at once, each on its own.
        traced.seen = ptrace(PTRACE_SEIZE, traced.thread, 0, 0).is_ok() && ptrace(PTRACE_INTERRUPT, traced.thread, 0, 0).is_ok();
    }
    for traced in threads.iter_mut().filter(|traced| traced.seen) {
        let mut status = 0i32;
        let wanted = [traced.thread as usize, (&raw mut status) as usize, libc::__WALL as usize, 0, 0, 0];
        // SAFETY: writes one int.
        while unsafe { syscall(libc::SYS_wait4, wanted) } == -(libc::EINTR as isize) {}
        traced.seen = status & 0xff == 0x7f;
        if traced.seen {
            let mut dispatch = [0u64; 4];
            let got =
                ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, traced.thread, size_of_val(&dispatch), dispatch.as_mut_ptr() as usize);
            traced.dispatches = got.is_ok() && dispatch[0] != 0;
            let mut ports = 0u64;
            let mut place = [(&raw mut ports) as usize, size_of_val(&ports)];
            // There is a bitmap only while it allows something.
            traced.ports = ptrace(PTRACE_GETREGSET, traced.thread, NT_386_IOPERM, place.as_mut_ptr() as usize).is_ok();
            let _ = ptrace(PTRACE_DETACH, traced.thread, 0, 0);
        }
    }
    copy::leave(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Whether the kernel tells tracers of dispatched calls.
    fn tells_of_dispatch() -> bool {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
        (numbers.next(), numbers.next()) >= (Some(6), Some(4))
    }

    #[test]
    fn a_thread_that_dispatches_its_calls_is_told_from_one_that_does_not() {
        const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
        let (tell, told) = channel();
        let threads: Vec<_> = [false, true]
            .into_iter()
            .map(|dispatches| {
                let (tell, (go, wait)) = (tell.clone(), channel::<()>());
                let thread = std::thread::spawn(move || {
                    let selector = Box::leak(Box::new(0u8)) as *const u8 as usize;
                    // SAFETY: plain numbers and a byte that stays; it lets every call pass.
                    let on = unsafe { syscall(libc::SYS_prctl, [PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, selector, 0]) } == 0;
                    if !dispatches {
                        // SAFETY: plain numbers.
                        unsafe { syscall(libc::SYS_prctl, [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0]) };
                    }
                    // SAFETY: takes nothing.
                    tell.send((unsafe { syscall(libc::SYS_gettid, [0; 6]) } as i32, on && dispatches)).unwrap();
                    let _ = wait.recv();
                });
                (thread, go)
            })
            .collect();
        let expected: Vec<_> = told.iter().take(2).collect();
        let mut traced: Vec<_> = expected.iter().map(|(thread, _)| Traced { thread: *thread, ..Traced::default() }).collect();
        // One that is no thread of anybody's.
        traced.push(Traced { thread: i32::MAX, ..Traced::default() });
        trace(&mut traced);
        assert!(!traced[2].seen && !traced[2].dispatches);
        let tells = tells_of_dispatch();
        if !tells {
            println!("skipped: dispatched system calls: the kernel tells nobody of them before Linux 6.4");
        }
        for (traced, (_, dispatches)) in traced.iter().zip(&expected).filter(|(traced, _)| traced.seen) {
            assert_eq!((traced.dispatches, traced.ports), (*dispatches && tells, false));
        }
        for (thread, go) in threads {
            drop(go);
            thread.join().unwrap();
        }
    }
}
