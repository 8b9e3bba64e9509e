//! A lock for the few moments in which one of two threads takes the next record, on a futex.

use crate::sys;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

/// A value that one thread uses at a time.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `with` gives the value to one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Uses the value while nobody else does.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
                // SAFETY: FUTEX_WAIT_PRIVATE reads the word.
                let _ = unsafe { sys::call(sys::FUTEX, [self.word.as_ptr() as usize, 128, WAITED_FOR as usize, 0, 0, 0]) };
            }
        }
        // SAFETY: the word says that nobody else is here.
        let result = act(unsafe { &mut *self.value.get() });
        if self.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            // SAFETY: FUTEX_WAKE_PRIVATE uses only the address.
            let _ = unsafe { sys::call(sys::FUTEX, [self.word.as_ptr() as usize, 129, 1, 0, 0, 0]) };
        }
        result
    }
}
