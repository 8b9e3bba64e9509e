//! The handler of the parking signal, in which a thread waits while it is parked. It allocates nothing, takes no lock and leaves `errno` alone.

use super::context::{RESTORED, capture, leave};
use super::pending::is_ignored;
use super::processor_handover::hand_over;
use super::{ARRIVED, EPOCH, LEFT, PARKED, PREVIOUS_HANDLER, SLOTS, Slot, continuation, deadlines};
use core::sync::atomic::Ordering;
use mend_freestanding::syscall;
use mend_kernel::threads::{Registration, disposition, segment_base, wait, wake};
use mend_kernel::tiles;
use std::ffi::c_void;

/// Length of the instruction that makes a system call.
const SYSCALL_BYTES: u64 = 2;

/// Returns from a signal handler, as the C library's restorer does.
#[unsafe(naked)]
pub(super) extern "C" fn return_from_signal() {
    core::arch::naked_asm!("mov eax, 15", "syscall")
}

pub(super) extern "C" fn on_park(signal: i32, info: *mut libc::siginfo_t, frame: *mut c_void) {
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
        (*slot).mask = *(&raw const (*frame.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        (*slot).registration = Registration::of_this_thread(crate::process::rseq::area((*slot).segments.0));
        hand_over();
        if capture(&raw mut (*slot).context, 0, wait_in_handler, slot.cast()) == RESTORED {
            if tiles::used(frame.cast()) {
                tiles::make_used();
            }
            without_alternate_stack(frame.cast());
            (*slot).lost = (*slot).registration.restore().err();
            (*slot).state.store(ARRIVED, Ordering::Release);
            wake(&(*slot).state);
            wait_for_epoch(&*slot);
        }
        call_again(&*slot, frame.cast());
        (*slot).state.store(LEFT, Ordering::Release);
        // The slot may be freed from here on; waking its address is harmless.
        wake(&(*slot).state);
    }
}

/// Takes an alternate stack away that the thread has got since, if it had none. With one in the frame the kernel sets it at the return
/// from the handler; without, it leaves the one that there is.
///
/// # Safety
/// `frame` is this handler's own signal frame.
unsafe fn without_alternate_stack(frame: *const libc::ucontext_t) {
    // SAFETY: per contract; sigaltstack(2) reads the struct.
    unsafe {
        if (*frame).uc_stack.ss_size == 0 {
            let none = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            syscall(libc::SYS_sigaltstack, [(&raw const none) as usize, 0, 0, 0, 0, 0]);
        }
    }
}

/// Runs inside the capture: everything up to here is in the image.
unsafe extern "C" fn wait_in_handler(slot: *mut c_void) -> usize {
    // SAFETY: `on_park` passes its slot.
    let slot = unsafe { &*slot.cast::<Slot>() };
    slot.state.store(PARKED, Ordering::Release);
    wake(&slot.state);
    wait_for_epoch(slot);
    0
}

fn wait_for_epoch(slot: &Slot) {
    while EPOCH.load(Ordering::Acquire) == slot.epoch {
        let entry = slot.exit.0.load(Ordering::Acquire);
        if entry != 0 {
            let stack = slot.exit.1.load(Ordering::Relaxed);
            // SAFETY: whoever asked for it vouches for entry and stack; this thread comes back out of an image, or never.
            unsafe {
                slot.registration.withdraw();
                slot.state.store(LEFT, Ordering::Release);
                wake(&slot.state);
                leave(entry, stack);
            }
        }
        slot.request.run(slot.tid);
        wait(&EPOCH, slot.epoch, None);
    }
}

/// Makes the interrupted call again if the program would otherwise see an `EINTR` that no handler of its own explains, or has it go on if it had moved a part of
/// its bytes. Ends one that the kernel would make again although a handler of the program's that runs next does not want that.
///
/// # Safety
/// `frame` is this handler's own signal frame.
unsafe fn call_again(slot: &Slot, frame: *mut libc::ucontext_t) {
    // SAFETY: per contract.
    let (registers, mask) = unsafe { (&mut (*frame).uc_mcontext.gregs, *(&raw const (*frame).uc_sigmask).cast::<u64>()) };
    let register = |index: i32| registers[index as usize] as u64;
    let result = register(libc::REG_RAX) as i64;
    let next = register(libc::REG_RIP);
    let as_seen = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9, libc::REG_RSP];
    let in_call = slot.blocked.filter(|call| as_seen.iter().zip(&call[1..]).all(|(index, value)| register(*index) == *value));
    if let Some(call) = in_call.filter(|call| next + SYSCALL_BYTES == call[8] && result == call[0] as i64) {
        // The kernel makes it again, as this handler has SA_RESTART. A handler without it that runs next would have ended it.
        if ends_by_handler(&call) && due(mask).is_some_and(|signal| !makes_calls_again(signal)) {
            registers[libc::REG_RAX as usize] = -i64::from(libc::EINTR);
            registers[libc::REG_RIP as usize] = call[8] as i64;
        }
        return;
    }
    let blocked = in_call.filter(|call| next == call[8]);
    if result > 0 {
        // A signal that is due now would have ended the call so, too.
        if let Some(call) = blocked.filter(|_| due(mask).is_none()) {
            // SAFETY: the frame holds the registers of the call that was interrupted.
            unsafe { continuation::take_up(call[0] as i64, registers) };
        }
        return;
    }
    if result != -i64::from(libc::EINTR) {
        return;
    }
    let number = match blocked {
        Some(call) => call[0] as i64,
        // SAFETY: the thread was about to execute at `next`; code right before it is mapped, as no function starts a page with 7 bytes cut.
        None => match unsafe { number_before(next) } {
            Some(number) => number,
            None => return,
        },
    };
    // A signal that is due now would have ended the call with EINTR anyway: its handler runs next.
    if !restartable(number) || due(mask).is_some() {
        return;
    }
    let began = if blocked.is_some() { slot.began.load(Ordering::Relaxed) } else { 0 };
    // SAFETY: the frame holds the registers of the call that was interrupted.
    unsafe {
        deadlines::shorten(number, registers, began, slot.interrupted.load(Ordering::Relaxed));
        if let (Some(requested), Some(_)) = (slot.requested, blocked) {
            requested.put_back();
        }
    }
    registers[libc::REG_RAX as usize] = number;
    registers[libc::REG_RIP as usize] = (next - SYSCALL_BYTES) as i64;
}

/// The lowest signal that does something to the calling thread, with this mask, as soon as it leaves its handler: the kernel delivers that one first. Those for the
/// process as a whole that its first thread takes wait for that one alone ([`super::pending::hand_to_first`]).
fn due(mask: u64) -> Option<i32> {
    let mut pending = 0u64;
    // SAFETY: the kernel writes 8 bytes into `pending`.
    unsafe { syscall(libc::SYS_rt_sigpending, [(&raw mut pending) as usize, 8, 0, 0, 0, 0]) };
    // All of them are kept while they are blocked, also those that nobody would notice.
    let mut rest = pending & !mask;
    while rest != 0 {
        let signal = rest.trailing_zeros() as i32 + 1;
        if !is_ignored(signal) {
            return Some(signal);
        }
        rest &= rest - 1;
    }
    None
}

/// Whether calls that a signal interrupts are made again after it. Without a handler it ends the process, or stops it and nothing else.
fn makes_calls_again(signal: i32) -> bool {
    disposition(signal).is_ok_and(|now| now.handler == libc::SIG_DFL || now.flags & libc::SA_RESTART as u64 != 0)
}

/// Calls that the kernel makes again after a handler only if that has `SA_RESTART` (`ERESTARTSYS`; signal(7)). Others it always makes again.
fn ends_by_handler(call: &[u64; 9]) -> bool {
    const FUTEX_WAIT: i64 = 455;
    match call[0] as i64 {
        libc::SYS_futex => matches!(call[2] as i32 & libc::FUTEX_CMD_MASK, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET),
        libc::SYS_fcntl => matches!(call[2] as i32, libc::F_SETLKW | libc::F_OFD_SETLKW),
        number => matches!(
            number,
            FUTEX_WAIT
                | libc::SYS_futex_waitv
                | libc::SYS_read
                | libc::SYS_pread64
                | libc::SYS_readv
                | libc::SYS_preadv
                | libc::SYS_preadv2
                | libc::SYS_write
                | libc::SYS_pwrite64
                | libc::SYS_writev
                | libc::SYS_pwritev
                | libc::SYS_pwritev2
                | libc::SYS_sendto
                | libc::SYS_sendmsg
                | libc::SYS_sendmmsg
                | libc::SYS_sendfile
                | libc::SYS_recvfrom
                | libc::SYS_recvmsg
                | libc::SYS_recvmmsg
                | libc::SYS_accept
                | libc::SYS_accept4
                | libc::SYS_connect
                | libc::SYS_splice
                | libc::SYS_tee
                | libc::SYS_vmsplice
                | libc::SYS_wait4
                | libc::SYS_waitid
                | libc::SYS_flock
                | libc::SYS_open
                | libc::SYS_openat
                | libc::SYS_ioctl
                | libc::SYS_mq_timedsend
                | libc::SYS_mq_timedreceive
                | libc::SYS_getrandom
        ),
    }
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

/// Calls that end with `EINTR` after any handler, whatever `SA_RESTART` says (signal(7)), those of sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`) among them,
/// and can simply be made again.
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
            | libc::SYS_readv
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_accept
            | libc::SYS_accept4
    )
}
