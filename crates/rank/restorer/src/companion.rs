//! A thread that helps for a while: its id is none that a thread of the image needs, and it is gone in the end.

use crate::clone::{self, CloneArguments};
use crate::zone;
use core::sync::atomic::{AtomicU32, Ordering};
use mend_image::record::Thread;
use mend_restore::fill::Workers;
use mend_restore::sys;
use mend_restore::tables::Tables;

const STACK: usize = 128 << 10;
/// Ids that are tried.
const TRIES: usize = 16;

/// See the module. It must live until [`Companion::finish`].
pub struct Companion<'a> {
    work: &'a (dyn Fn() + Sync),
    /// 0 when the kernel has ended it.
    alive: AtomicU32,
}

impl<'a> Companion<'a> {
    /// One that will do this.
    pub fn new(work: &'a (dyn Fn() + Sync)) -> Self {
        Self { work, alive: AtomicU32::new(1) }
    }

    /// Lets it begin; its id. `None` if there can be none.
    pub fn start(&self, threads: impl Iterator<Item = Thread> + Clone) -> Option<usize> {
        let stack = zone::take(STACK);
        let mut tid = sys::process_id() as i32;
        for _ in 0..TRIES {
            tid = tid.wrapping_add(1);
            if threads.clone().any(|thread| thread.tid == tid as u32) {
                continue;
            }
            if let Some(tid) = self.make(stack, Some(&tid)) {
                return Some(tid);
            }
        }
        None
    }

    /// The same with an id of the kernel's choice: all threads of the image are there.
    pub fn start_anywhere(&self) -> Option<usize> {
        self.make(zone::take(STACK), None)
    }

    fn make(&self, stack: &mut [u8], tid: Option<&i32>) -> Option<usize> {
        let arguments = CloneArguments {
            flags: clone::THREAD | clone::CLONE_CHILD_CLEARTID,
            child_tid: (&raw const self.alive) as u64,
            stack: stack.as_mut_ptr() as u64,
            stack_size: STACK as u64,
            set_tid: tid.map_or(0, |tid| core::ptr::from_ref(tid) as u64),
            set_tid_size: u64::from(tid.is_some()),
            ..CloneArguments::default()
        };
        let (size, entry) = (size_of::<CloneArguments>(), help as *const () as usize);
        // SAFETY: the new thread runs `help` on its own stack; `self` outlives it, by the caller's promise.
        let made = unsafe { clone::clone_thread(&arguments, size, core::ptr::from_ref(self) as usize, entry) };
        usize::try_from(made).ok().filter(|made| *made > 0)
    }

    /// Waits for its end.
    pub fn finish(&self, tid: usize) {
        while self.alive.load(Ordering::Acquire) != 0 {
            // SAFETY: FUTEX_WAIT reads the word; the kernel clears it and wakes us when the thread is done.
            let _ = unsafe { sys::call(sys::FUTEX, [(&raw const self.alive) as usize, 0, 1, 0, 0, 0]) };
        }
        // Its id is free a moment later.
        clone::await_end(tid);
    }
}

unsafe extern "C" fn help(companion: *const Companion) -> ! {
    // SAFETY: whoever started this thread waits for its end.
    unsafe { ((*companion).work)() };
    clone::end()
}

/// A companion that fills memory beside the first thread, if this process may use two processors.
pub struct Help(pub Tables<'static>);

impl Workers for Help {
    fn share(&self, work: &(dyn Fn(usize) + Sync)) {
        share(work, |companion| companion.start(self.0.threads()));
    }
}

/// The same, with an id of the kernel's choice.
pub struct AnyHelp;

impl Workers for AnyHelp {
    fn share(&self, work: &(dyn Fn(usize) + Sync)) {
        share(work, |companion| companion.start_anywhere());
    }
}

fn share(work: &(dyn Fn(usize) + Sync), start: impl Fn(&Companion) -> Option<usize>) {
    let second = || work(1);
    let companion = Companion::new(&second);
    let started = if processors() > 1 { start(&companion) } else { None };
    // Without help it only takes longer.
    work(0);
    if let Some(tid) = started {
        companion.finish(tid);
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
