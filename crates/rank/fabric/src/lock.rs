//! The one lock of the fabric: a futex mutex that the agent can reserve.
//!
//! Application threads poll, so they would take the lock again before a woken agent runs. The agent therefore
//! reserves the lock first: while a reservation stands, application threads wait, and the agent gets the lock
//! as soon as the current holder leaves. Nobody sleeps in the kernel while holding the lock.
//!
//! All waits are on words of this process's own memory and re-check them, so a thread that is saved in the middle
//! of one goes on correctly in a restored process.

use rustix::io::Errno;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutex with a gate.
#[derive(Debug)]
pub struct Gate<T> {
    state: AtomicU32,
    reservations: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, and one guard exists at a time.
unsafe impl<T: Send> Sync for Gate<T> {}

/// Access to the value.
#[derive(Debug)]
pub struct Guard<'a, T> {
    gate: &'a Gate<T>,
    reserved: bool,
}

fn wait(word: &AtomicU32, value: u32) {
    match futex::wait(word, futex::Flags::PRIVATE, value, None) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
        // A futex that cannot be waited on would spin; give the holder the processor at least.
        Err(_) => rustix::thread::sched_yield(),
    }
}

fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}

impl<T> Gate<T> {
    /// An open gate.
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), reservations: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// For application threads.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        loop {
            let reservations = self.reservations.load(Ordering::Relaxed);
            if reservations == 0 {
                break;
            }
            wait(&self.reservations, reservations);
        }
        self.acquire();
        Guard { gate: self, reserved: false }
    }

    /// For the agent: gets in before all application threads that come later.
    pub fn lock_first(&self) -> Guard<'_, T> {
        self.reservations.fetch_add(1, Ordering::Relaxed);
        self.acquire();
        Guard { gate: self, reserved: true }
    }

    /// True if somebody waits for the lock, as far as one look tells.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CONTENDED || self.reservations.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn acquire(&self) {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
                wait(&self.state, CONTENDED);
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably.
        unsafe { &mut *self.gate.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.gate.state.swap(FREE, Ordering::Release) == CONTENDED {
            wake(&self.gate.state, 1);
        }
        if self.reserved && self.gate.reservations.fetch_sub(1, Ordering::Relaxed) == 1 {
            wake(&self.gate.reservations, u32::MAX >> 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_door_gets_in_while_others_poll() {
        let gate = Gate::new(0u64);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        *gate.lock() += 1;
                    }
                });
            }
            while *gate.lock() == 0 {
                std::thread::yield_now();
            }
            for _ in 0..200 {
                let first = gate.lock_first();
                let before = *first;
                std::thread::yield_now();
                assert_eq!(*first, before);
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
