//! A call that returns twice: once here, once in a restored process.

use mend_image::handoff::Context;
use std::ffi::c_void;

/// What [`capture`] returns in a restored process. The captured function returns something else.
pub(crate) const RESTORED: usize = 1;

/// Fills `context`, then calls `function(argument)` on the stack that ends at `stack_top` (0: on this one) and returns
/// what it returns. Whoever loads `context` later, with memory as it was during the call, returns [`RESTORED`] from here.
///
/// # Safety
/// `context` must be writable, `stack_top` 0 or the end of enough unused stack, and `function` must not unwind. Locals of the
/// callers must not be changed by `function`, or must be meant to be seen changed by the restored process.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn capture(
    context: *mut Context,
    stack_top: usize,
    function: unsafe extern "C" fn(*mut c_void) -> usize,
    argument: *mut c_void,
) -> usize {
    // Offsets are asserted beside `Context`.
    core::arch::naked_asm!(
        "mov [rdi], rbx",
        "mov [rdi + 8], rbp",
        "mov [rdi + 16], r12",
        "mov [rdi + 24], r13",
        "mov [rdi + 32], r14",
        "mov [rdi + 40], r15",
        "lea rax, [rsp + 8]",
        "mov [rdi + 48], rax",
        "mov rax, [rsp]",
        "mov [rdi + 56], rax",
        "stmxcsr [rdi + 64]",
        "fnstcw [rdi + 68]",
        "push rbp",
        "mov rbp, rsp",
        "test rsi, rsi",
        "jz 2f",
        "mov rsp, rsi",
        "2:",
        "and rsp, -16",
        "mov rdi, rcx",
        "call rdx",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
    )
}

/// Goes to `entry` with this stack pointer, for good.
///
/// # Safety
/// Code there must need nothing else, and nothing of the caller's may be needed any more.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn leave(entry: u64, stack: u64) -> ! {
    core::arch::naked_asm!("mov rsp, rsi", "xor ebp, ebp", "jmp rdi")
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn on_other_stack(argument: *mut c_void) -> usize {
        let local = 0u8;
        // SAFETY: the test passes a pointer to a `usize`.
        unsafe { *argument.cast::<usize>() = (&raw const local) as usize };
        7
    }

    #[test]
    fn the_function_runs_on_the_given_stack() {
        let mut stack = vec![0u8; 64 << 10];
        let range = stack.as_mut_ptr_range();
        let (mut context, mut place) = (Context::default(), 0usize);
        // SAFETY: `stack` is unused, the function does not unwind.
        let result = unsafe { capture(&mut context, range.end as usize, on_other_stack, (&raw mut place).cast()) };
        assert_eq!(result, 7);
        assert!((range.start as usize..range.end as usize).contains(&place));
        assert_ne!(context.rip, 0);
        assert_eq!(context.mxcsr & 0x1f80, 0x1f80);
    }
}
