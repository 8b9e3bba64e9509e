//! Tile registers (AMX): state that the kernel keeps only of threads that have used it.
//!
//! A signal frame of such a thread is longer than others'. To a thread that has not used tiles, `rt_sigreturn` gives of a longer
//! frame nothing but what the oldest processors had: vector registers would be lost with the tiles, and no error told
//! (`check_xstate_in_sigframe` in arch/x86/kernel/fpu/signal.c). So whoever returns through a frame that another thread
//! left must have used tiles before.
//!
//! Sources: Documentation/arch/x86/xstate.rst, arch/x86/include/uapi/asm/sigcontext.h.

use core::arch::asm;

/// Number of the state component that programs ask for with `ARCH_REQ_XCOMP_PERM`: the content of tiles.
pub const TILE_DATA: u32 = 18;

/// Where the kernel describes a frame, in what the legacy area leaves to software: a magic number, 4 bytes of size, the components.
const DESCRIPTION: usize = 464;
const MAGIC: u32 = 0x4650_5853;

/// What LDTILECFG takes: palette, columns of each tile in bytes, rows of each.
#[repr(C, align(64))]
struct Shape([u8; 64]);

/// Whether the thread that a signal frame belongs to had used tiles when the signal came.
///
/// # Safety
/// `frame` is a signal frame that the kernel wrote.
#[must_use]
pub unsafe fn used(frame: *const libc::ucontext_t) -> bool {
    // SAFETY: per contract; the pointer is null or leads to 512 bytes at least, in the same frame.
    unsafe {
        let registers = (*frame).uc_mcontext.fpregs.cast::<u8>();
        if registers.is_null() {
            return false;
        }
        let magic = registers.add(DESCRIPTION).cast::<u32>().read_unaligned();
        let components = registers.add(DESCRIPTION + 8).cast::<u64>().read_unaligned();
        magic == MAGIC && components & 1 << TILE_DATA != 0
    }
}

/// Uses a tile, so that the kernel keeps tiles of the calling thread from now on. They are empty afterwards.
///
/// # Safety
/// The processor has tiles, the process may use them, and the calling thread holds nothing in them.
pub unsafe fn make_used() {
    let mut shape = Shape([0; 64]);
    (shape.0[0], shape.0[16], shape.0[48]) = (1, 64, 1);
    // One row of tile 0.
    // SAFETY: reads 64 bytes of `shape`, and changes no register but the tiles.
    unsafe { asm!("ldtilecfg [{0}]", "tilezero tmm0", "tilerelease", in(reg) &raw const shape, options(nostack)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{Disposition, SA_RESTORER, disposition, queue, set_disposition};
    use core::sync::atomic::{AtomicU32, Ordering};
    use mend_freestanding::syscall;
    use std::ffi::c_void;

    static SEEN: AtomicU32 = AtomicU32::new(0);

    #[unsafe(naked)]
    extern "C" fn return_from_signal() {
        core::arch::naked_asm!("mov eax, 15", "syscall")
    }

    extern "C" fn look(_: i32, _: *mut libc::siginfo_t, frame: *mut c_void) {
        // SAFETY: the kernel's own frame.
        SEEN.store(1 + u32::from(unsafe { used(frame.cast()) }), Ordering::Relaxed);
    }

    #[test]
    fn a_frame_says_whether_its_thread_has_used_tiles() {
        let flags = libc::SA_SIGINFO as u64 | SA_RESTORER;
        let ours = Disposition { handler: look as *const () as usize, flags, restorer: return_from_signal as *const () as usize, mask: 0 };
        let before = disposition(libc::SIGUSR1).unwrap();
        // SAFETY: the handler stores a number.
        unsafe { set_disposition(libc::SIGUSR1, &ours) }.unwrap();
        // SAFETY: takes no arguments.
        let (process, thread) = unsafe { (syscall(libc::SYS_getpid, [0; 6]) as i32, syscall(libc::SYS_gettid, [0; 6]) as i32) };
        let seen = || {
            queue(process, thread, libc::SIGUSR1, 0).unwrap();
            SEEN.load(Ordering::Relaxed)
        };
        assert_eq!(seen(), 1);
        // SAFETY: ARCH_REQ_XCOMP_PERM takes a number.
        if unsafe { syscall(libc::SYS_arch_prctl, [0x1023, TILE_DATA as usize, 0, 0, 0, 0]) } == 0 {
            assert_eq!(seen(), 1);
            // SAFETY: the permission was given, and nothing here uses tiles.
            unsafe { make_used() };
            assert_eq!(seen(), 2);
        }
        // SAFETY: as it was.
        unsafe { set_disposition(libc::SIGUSR1, &before) }.unwrap();
    }
}
