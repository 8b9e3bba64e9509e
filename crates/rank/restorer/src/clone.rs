//! clone3(2), for threads.

use mend_restore::sys;

pub const CLONE_VM: u64 = 0x100;
pub const CLONE_FS: u64 = 0x200;
pub const CLONE_FILES: u64 = 0x400;
pub const CLONE_SIGHAND: u64 = 0x800;
pub const CLONE_THREAD: u64 = 0x1_0000;
pub const CLONE_SYSVSEM: u64 = 0x4_0000;
pub const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
pub const CLONE_SETTLS: u64 = 0x8_0000;

/// What threads of one process share.
pub const THREAD: u64 = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;

/// `struct clone_args`, version 2.
#[repr(C)]
#[derive(Default)]
pub struct CloneArguments {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_size: u64,
    pub tls: u64,
    pub set_tid: u64,
    pub set_tid_size: u64,
    pub cgroup: u64,
}

/// clone3(2); the child calls `enter(start)`, which never returns.
///
/// # Safety
/// `arguments` must describe a thread on a stack of its own, and `enter` be a function of this ABI that takes `start`.
#[unsafe(naked)]
pub unsafe extern "C" fn clone_thread(arguments: *const CloneArguments, size: usize, start: usize, enter: usize) -> isize {
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

/// Returns when a thread of this process that has ended, or is about to, has left its id.
pub fn await_end(tid: usize) {
    let process = sys::process_id();
    // SAFETY: signal 0 only looks.
    while unsafe { sys::call(sys::TGKILL, [process, tid, 0, 0, 0, 0]) }.is_ok() {
        // SAFETY: takes nothing.
        let _ = unsafe { sys::call(sys::SCHED_YIELD, [0; 6]) };
    }
}

/// Ends the calling thread alone.
pub fn end() -> ! {
    loop {
        // SAFETY: takes a number.
        let _ = unsafe { sys::call(sys::EXIT, [0; 6]) };
    }
}
