//! The allocator of agent and fabric: dlmalloc on its own memory, with a lock that the agent can hold.
//!
//! The preloaded object must not use the program's malloc: a thread may be parked while it holds that one's lock.
//! Before the agent parks threads it takes this allocator's lock, so no parked thread is inside; from then on it
//! allocates alone (the lock is reentrant for its owner). While pages are written nobody allocates, so that the image
//! holds the heap of one moment.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use dlmalloc::{Allocator, Dlmalloc};
use mend_kernel::threads::{wait, wake};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

struct Heap(UnsafeCell<Dlmalloc<Memory>>);
// SAFETY: only touched by the holder of LOCK.
unsafe impl Sync for Heap {}

static HEAP: Heap = Heap(UnsafeCell::new(Dlmalloc::new_with_allocator(Memory)));
/// 0 free, 1 held, 2 held and somebody waits.
static LOCK: AtomicU32 = AtomicU32::new(0);
/// Thread pointer of the holder while the allocator is frozen, else 0.
static FROZEN_BY: AtomicU64 = AtomicU64::new(0);

/// How often the heap's mappings were changed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// The `#[global_allocator]` of the preloaded object.
pub struct RankAllocator;

/// The heap's mappings, counted: who reads the list of all mappings and then allocates wants to know whether it is out of date.
///
/// By system calls of our own. A library may be changing the C library's functions for them just when its thread is parked, as UCX does when MPI is loaded: for that moment `mmap`
/// jumps to itself.
struct Memory;

// SAFETY: the kernel gives mappings that nobody else has.
unsafe impl Allocator for Memory {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        CHANGES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a new mapping at an address of the kernel's choice.
        match unsafe { mmap_anonymous(core::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) } {
            Ok(base) => (base.cast(), size, 0),
            Err(_) => (core::ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, base: *mut u8, size: usize, wanted: usize, can_move: bool) -> *mut u8 {
        CHANGES.fetch_add(1, Ordering::Relaxed);
        let flags = if can_move { MremapFlags::MAYMOVE } else { MremapFlags::empty() };
        // SAFETY: the heap's own mapping, which it uses at its new place alone.
        unsafe { mremap(base.cast(), size, wanted, flags) }.map_or(core::ptr::null_mut(), |base| base.cast())
    }

    fn free_part(&self, base: *mut u8, size: usize, kept: usize) -> bool {
        self.free(base.wrapping_add(kept), size - kept)
    }

    fn free(&self, base: *mut u8, size: usize) -> bool {
        CHANGES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the heap's own mapping or its end, no longer used.
        unsafe { munmap(base.cast(), size) }.is_ok()
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// How often allocating has changed mappings; `None` if this is not the process's allocator.
pub(crate) fn changes() -> Option<u64> {
    Some(CHANGES.load(Ordering::Relaxed)).filter(|changes| *changes != 0)
}

/// Unique per thread, the same after a restore, and cheap: the thread pointer that the x86-64 ABI keeps at fs:0.
fn this_thread() -> u64 {
    let pointer: u64;
    // SAFETY: the ABI's TLS layout puts the thread pointer's own value at fs:0.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

fn lock() {
    if LOCK.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        while LOCK.swap(2, Ordering::Acquire) != 0 {
            wait(&LOCK, 2, None);
        }
    }
}

fn unlock() {
    if LOCK.swap(0, Ordering::Release) == 2 {
        wake(&LOCK);
    }
}

fn with_heap<T>(action: impl FnOnce(&mut Dlmalloc<Memory>) -> T) -> T {
    let frozen_here = FROZEN_BY.load(Ordering::Relaxed) == this_thread();
    if !frozen_here {
        lock();
    }
    // SAFETY: the lock is held, by this call or by this thread's `freeze`.
    let result = action(unsafe { &mut *HEAP.0.get() });
    if !frozen_here {
        unlock();
    }
    result
}

/// Keeps all other threads out of the allocator until [`thaw`]. Called by the agent's thread alone, not nested.
pub(crate) fn freeze() {
    lock();
    FROZEN_BY.store(this_thread(), Ordering::Relaxed);
}

/// Ends [`freeze`].
pub(crate) fn thaw() {
    FROZEN_BY.store(0, Ordering::Relaxed);
    unlock();
}

// SAFETY: dlmalloc hands out disjoint blocks of the demanded size and alignment; the lock serializes it.
unsafe impl GlobalAlloc for RankAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: size and alignment come from a valid layout.
        with_heap(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: size and alignment come from a valid layout.
        with_heap(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this allocator with its layout.
        with_heap(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a block of this allocator with its layout.
        with_heap(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), size) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_freezing_thread_allocates_and_others_wait() {
        let layout = Layout::from_size_align(100, 8).unwrap();
        freeze();
        // SAFETY: a valid layout; freed with the same one.
        unsafe {
            let block = RankAllocator.alloc(layout);
            assert!(!block.is_null());
            RankAllocator.dealloc(block, layout);
        }
        let other = std::thread::spawn(move || {
            // SAFETY: as above.
            unsafe {
                let block = RankAllocator.alloc(layout);
                RankAllocator.dealloc(block, layout);
            }
        });
        assert!(!other.is_finished());
        thaw();
        other.join().unwrap();
    }
}
