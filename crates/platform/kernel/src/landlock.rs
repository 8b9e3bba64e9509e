//! Whether a thread is in a Landlock domain, which the kernel tells nobody.
//!
//! Two things tell it all the same. A thread may look at another process (here: where its robust list is) only if that process is in its
//! domain, so one that may look at its parent has no domain that its parent has not got. That takes one system call. Where it is refused, which
//! missing capabilities can bring about too, the layers of the domain are counted: the kernel stacks 16, and a process
//! beside this one adds layers of its own until it is refused.
//!
//! Sources: landlock(7), landlock_restrict_self(2), get_robust_list(2).

use mend_freestanding::{check, syscall};

const CREATE_RULESET: i64 = 444;
const RESTRICT_SELF: i64 = 446;
/// Most layers of a domain (`LANDLOCK_MAX_NUM_LAYERS`).
const MAX_LAYERS: u32 = 16;
/// `LANDLOCK_ACCESS_FS_EXECUTE`: a ruleset must name something.
const HANDLED: u64 = 1;
/// Exit code of a counter that could not count.
const UNKNOWN: u32 = 100;

/// Layers of the calling thread's domain. `Some(0)` where there is no Landlock, `None` where no process can be started. Starts one.
#[must_use]
pub fn layers() -> Option<u32> {
    let ruleset = HANDLED;
    // SAFETY: reads 8 bytes of `ruleset`.
    let made = check(unsafe { syscall(CREATE_RULESET, [(&raw const ruleset) as usize, size_of_val(&ruleset), 0, 0, 0, 0]) });
    match made {
        // SAFETY: the descriptor that was just made.
        Ok(fd) => drop(unsafe { syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) }),
        Err(libc::ENOSYS | libc::EOPNOTSUPP) => return Some(0),
        Err(_) => {}
    }
    let pid = check(start_counter(&ruleset)).ok()?;
    let mut status = 0i32;
    // SAFETY: writes one int; the process is this thread's own child, which nobody else knows.
    while unsafe { syscall(libc::SYS_wait4, [pid, (&raw mut status) as usize, libc::__WALL as usize, 0, 0, 0]) } == -(libc::EINTR as isize)
    {
    }
    let added = (status >> 8) as u32 & 0xff;
    (status & 0x7f == 0 && added <= MAX_LAYERS).then(|| MAX_LAYERS - added)
}

/// [`layers`] if the thread may be in a domain in which its parent is not. Usable from a signal handler.
#[must_use]
pub fn layers_beyond_parent() -> Option<u32> {
    // SAFETY: takes nothing.
    let parent = unsafe { syscall(libc::SYS_getppid, [0; 6]) };
    let (mut head, mut length) = (0u64, 0u64);
    let arguments = [parent as usize, (&raw mut head) as usize, (&raw mut length) as usize, 0, 0, 0];
    // Number 0, of a parent in an outer PID namespace, would be the thread itself.
    // SAFETY: writes 8 bytes into each.
    let may_look = parent > 0 && check(unsafe { syscall(libc::SYS_get_robust_list, arguments) }).is_ok();
    if may_look { None } else { layers() }
}

/// Starts a process that ends with the number of layers it could add, while this thread stands still. It shares this thread's memory and
/// stack, of which it touches nothing, and has all signals blocked that this thread has.
fn start_counter(ruleset: &u64) -> isize {
    const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_VFORK;
    let result: isize;
    // SAFETY: the new process makes system calls that read `ruleset` and ends, within this block; it writes to no memory. Descriptors
    // and credentials that it changes are its own.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 9f",
            // It gains no privileges, as the kernel demands.
            "mov eax, {prctl}", "mov edi, {no_new_privs}", "mov esi, 1", "xor edx, edx", "xor r10d, r10d", "xor r8d, r8d", "syscall",
            "mov eax, {create}", "mov rdi, r12", "mov esi, 8", "xor edx, edx", "syscall",
            "mov r13d, {unknown}",
            "test rax, rax",
            "js 3f",
            "mov r14, rax",
            "xor r13d, r13d",
            "2:",
            "mov eax, {restrict}", "mov rdi, r14", "xor esi, esi", "syscall",
            "test rax, rax",
            "jnz 4f",
            "inc r13d",
            "cmp r13d, {most}",
            "jbe 2b",
            "4:",
            "cmp rax, -{e2big}",
            "je 3f",
            "mov r13d, {unknown}",
            "3:",
            "mov eax, {exit}", "mov edi, r13d", "syscall",
            "jmp 3b",
            "9:",
            prctl = const libc::SYS_prctl,
            no_new_privs = const libc::PR_SET_NO_NEW_PRIVS,
            create = const CREATE_RULESET,
            restrict = const RESTRICT_SELF,
            exit = const libc::SYS_exit_group,
            unknown = const UNKNOWN,
            most = const MAX_LAYERS,
            e2big = const libc::E2BIG,
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") FLAGS as usize,
            in("rsi") 0usize,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") 0usize,
            in("r12") core::ptr::from_ref(ruleset),
            out("r13") _,
            out("r14") _,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a layer to the calling thread alone.
    fn restrict() -> Result<(), i32> {
        let ruleset = HANDLED;
        // SAFETY: reads 8 bytes of `ruleset`; plain numbers. Test threads start no programs.
        unsafe {
            check(syscall(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]))?;
            let fd = check(syscall(CREATE_RULESET, [(&raw const ruleset) as usize, 8, 0, 0, 0, 0]))?;
            let done = check(syscall(RESTRICT_SELF, [fd, 0, 0, 0, 0, 0])).map(drop);
            syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
            done
        }
    }

    #[test]
    fn each_layer_counts_and_only_for_its_thread() {
        let born = layers().unwrap();
        std::thread::spawn(move || {
            if let Err(error) = restrict() {
                assert!(matches!(error, libc::ENOSYS | libc::EOPNOTSUPP), "{error}");
                return;
            }
            assert_eq!((layers(), layers_beyond_parent()), (Some(born + 1), Some(born + 1)));
            restrict().unwrap();
            restrict().unwrap();
            assert_eq!(layers(), Some(born + 3));
            while layers().unwrap() < MAX_LAYERS {
                restrict().unwrap();
            }
            assert_eq!(restrict(), Err(libc::E2BIG));
        })
        .join()
        .unwrap();
        assert_eq!(layers(), Some(born));
        assert!(layers_beyond_parent().is_none_or(|layers| layers == born));
    }
}
