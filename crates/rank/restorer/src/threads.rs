//! Threads with the ids they had, waiting in the restorer's code until all are told to go.

use crate::arena;
use crate::report::fail;
use crate::sys;
use core::format_args as text;
use core::sync::atomic::{AtomicU32, Ordering};
use mend_image::launch::Failure;
use mend_image::record::Thread;

const STACK: usize = 4096;
const HELPER_STACK: usize = 128 << 10;

const CLONE_VM: u64 = 0x100;
const CLONE_FS: u64 = 0x200;
const CLONE_FILES: u64 = 0x400;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_THREAD: u64 = 0x1_0000;
const CLONE_SYSVSEM: u64 = 0x4_0000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_SETTLS: u64 = 0x8_0000;

const ARCH_SET_FS: usize = 0x1002;
const ARCH_SET_GS: usize = 0x1001;

static GO: AtomicU32 = AtomicU32::new(0);

/// `struct clone_args`, version 2.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// What a new thread needs.
#[repr(C)]
#[derive(Clone, Copy)]
struct Start {
    context: u64,
    gs: u64,
    capabilities: [u64; 3],
}

/// Makes all threads but the first, which is this one.
pub fn make(threads: impl Iterator<Item = Thread>, capabilities: [u64; 3]) {
    for thread in threads.skip(1) {
        let stack = arena::take(STACK);
        let start = Start { context: thread.context, gs: thread.gs, capabilities };
        // SAFETY: the start record fits at the lower end of the stack, far from its used end.
        unsafe { stack.as_mut_ptr().cast::<Start>().write(start) };
        let tid = thread.tid as i32;
        let arguments = CloneArguments {
            flags: CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS,
            stack: stack.as_mut_ptr() as u64,
            stack_size: STACK as u64,
            tls: thread.fs,
            set_tid: (&raw const tid) as u64,
            set_tid_size: 1,
            ..CloneArguments::default()
        };
        // SAFETY: the new thread runs `enter` on its own stack and never returns here.
        let result =
            unsafe { clone_thread(&arguments, size_of::<CloneArguments>(), stack.as_mut_ptr() as usize, enter as *const () as usize) };
        if (-4095..0).contains(&result) {
            fail(
                Failure::Kernel,
                -result as i32,
                text!("thread {tid} cannot be made with its id (is the id taken, or are privileges missing?)"),
            );
        }
    }
}

/// clone3(2); the child calls `enter(start)`, which never returns.
///
/// # Safety
/// `arguments` must describe a thread on a stack of its own, and `enter` be a function of this ABI that takes `start`.
#[unsafe(naked)]
unsafe extern "C" fn clone_thread(arguments: *const CloneArguments, size: usize, start: usize, enter: usize) -> isize {
    core::arch::naked_asm!(
        "mov r8, rdx",
        "mov r9, rcx",
        "mov eax, 435",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "xor ebp, ebp",
        "mov rdi, r8",
        "call r9",
        "ud2",
    )
}

unsafe extern "C" fn enter(start: *const Start) -> ! {
    // SAFETY: `make` wrote it to this thread's stack.
    let start = unsafe { *start };
    if start.gs != 0 {
        set_base(ARCH_SET_GS, start.gs);
    }
    drop_capabilities(start.capabilities);
    while GO.load(Ordering::Acquire) == 0 {
        // SAFETY: FUTEX_WAIT_PRIVATE reads the word.
        let _ = unsafe { sys::call(sys::FUTEX, [(&raw const GO) as usize, 128, 0, 0, 0, 0]) };
    }
    // SAFETY: the context was captured by this thread's former self, and memory is as it was then.
    unsafe { jump(start.context) }
}

/// Lets all threads go, and becomes the first one.
pub fn go(first: &Thread, capabilities: [u64; 3]) -> ! {
    set_base(ARCH_SET_FS, first.fs);
    if first.gs != 0 {
        set_base(ARCH_SET_GS, first.gs);
    }
    drop_capabilities(capabilities);
    GO.store(1, Ordering::Release);
    // SAFETY: FUTEX_WAKE_PRIVATE uses only the address.
    let _ = unsafe { sys::call(sys::FUTEX, [(&raw const GO) as usize, 129, i32::MAX as usize, 0, 0, 0]) };
    // SAFETY: as in `enter`.
    unsafe { jump(first.context) }
}

/// Does `work` on two threads, as number 0 and 1, if this process may use two processors. The second has an id that no thread of the image
/// needs, and is gone when this returns.
pub fn share(threads: impl Iterator<Item = Thread> + Clone, work: &(dyn Fn(usize) + Sync)) {
    let stack = arena::take(HELPER_STACK);
    let helper = Helper { work, alive: AtomicU32::new(1) };
    let process = sys::process_id();
    let mut tid = process as i32;
    let mut made = 0;
    for _ in 0..if processors() > 1 { 16 } else { 0 } {
        tid = tid.wrapping_add(1);
        if threads.clone().any(|thread| thread.tid == tid as u32) {
            continue;
        }
        let arguments = CloneArguments {
            flags: CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID,
            child_tid: (&raw const helper.alive) as u64,
            stack: stack.as_mut_ptr() as u64,
            stack_size: HELPER_STACK as u64,
            set_tid: (&raw const tid) as u64,
            set_tid_size: 1,
            ..CloneArguments::default()
        };
        // SAFETY: the new thread runs `help` on its own stack; `helper` outlives it, as this waits for its end.
        made = unsafe { clone_thread(&arguments, size_of::<CloneArguments>(), (&raw const helper) as usize, help as *const () as usize) };
        if made > 0 {
            break;
        }
    }
    work(0);
    if made <= 0 {
        // Nobody helps: it only takes longer.
        return;
    }
    while helper.alive.load(Ordering::Acquire) != 0 {
        // SAFETY: FUTEX_WAIT reads the word; the kernel clears it and wakes us when the thread is done.
        let _ = unsafe { sys::call(sys::FUTEX, [(&raw const helper.alive) as usize, 0, 1, 0, 0, 0]) };
    }
    // Its id is free a moment later.
    // SAFETY: signal 0 only looks.
    while unsafe { sys::call(sys::TGKILL, [process, tid as usize, 0, 0, 0, 0]) }.is_ok() {
        // SAFETY: takes nothing.
        let _ = unsafe { sys::call(sys::SCHED_YIELD, [0; 6]) };
    }
}

struct Helper<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    /// 0 when the kernel has ended it.
    alive: AtomicU32,
}

unsafe extern "C" fn help(helper: *const Helper) -> ! {
    // SAFETY: `share` waits for the end of this thread.
    unsafe { ((*helper).work)(1) };
    loop {
        // SAFETY: ends this thread alone.
        let _ = unsafe { sys::call(sys::EXIT, [0; 6]) };
    }
}

/// Processors that this process may use.
fn processors() -> u32 {
    let mut mask = [0u64; 128];
    // SAFETY: sched_getaffinity writes at most the size of `mask`.
    match unsafe { sys::call(sys::SCHED_GETAFFINITY, [0, size_of_val(&mask), mask.as_mut_ptr() as usize, 0, 0, 0]) } {
        Ok(bytes) => mask.iter().take(bytes / 8).map(|word| word.count_ones()).sum(),
        Err(_) => 1,
    }
}

fn set_base(which: usize, base: u64) {
    // SAFETY: this code uses neither segment.
    let _ = unsafe { sys::call(sys::ARCH_PRCTL, [which, base as usize, 0, 0, 0, 0]) };
}

/// Keeps only capabilities that the saved process had.
fn drop_capabilities(saved: [u64; 3]) {
    let header = [0x2008_0522u32, 0]; // _LINUX_CAPABILITY_VERSION_3, this thread
    let mut data = [0u32; 6];
    // SAFETY: PR_CAP_AMBIENT_CLEAR_ALL; capget writes two structs of three words, capset reads them.
    unsafe {
        let _ = sys::call(sys::PRCTL, [47, 4, 0, 0, 0, 0]);
        if sys::call(sys::CAPGET, [header.as_ptr() as usize, data.as_mut_ptr() as usize, 0, 0, 0, 0]).is_err() {
            return;
        }
        for (kind, saved) in saved.into_iter().enumerate() {
            data[kind] &= saved as u32;
            data[kind + 3] &= (saved >> 32) as u32;
        }
        let _ = sys::call(sys::CAPSET, [header.as_ptr() as usize, data.as_ptr() as usize, 0, 0, 0, 0]);
    }
}

/// Loads a [`mend_image::handoff::Context`] and returns 1 from the call in which it was captured.
///
/// # Safety
/// The context must be valid in the memory that is there now.
#[unsafe(naked)]
unsafe extern "C" fn jump(context: u64) -> ! {
    // Offsets are asserted beside `Context`.
    core::arch::naked_asm!(
        "mov rbx, [rdi]",
        "mov rbp, [rdi + 8]",
        "mov r12, [rdi + 16]",
        "mov r13, [rdi + 24]",
        "mov r14, [rdi + 32]",
        "mov r15, [rdi + 40]",
        "ldmxcsr [rdi + 64]",
        "fldcw [rdi + 68]",
        "mov rsp, [rdi + 48]",
        "mov eax, 1",
        "jmp qword ptr [rdi + 56]",
    )
}
