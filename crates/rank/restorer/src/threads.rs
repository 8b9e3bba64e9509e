//! Threads with the ids they had, waiting in the restorer's code until all are told to go.
//!
//! They inherit their credentials from the first one, which gives up what the saved process had not ([`credentials`]) before it makes them.
//! If it cannot choose their ids then, a [`Companion`] that has kept its privileges turns the kernel's counter of ids for it, or makes
//! the thread itself where that does not help: this thread has credentials of its own, then.

use crate::clone::{self, CLONE_SETTLS, CloneArguments, clone_thread};
use crate::companion::Companion;
use crate::counter::{Counter, Unturned};
use crate::credentials;
use crate::report::fail;
use crate::zone;
use core::cell::Cell;
use core::format_args as text;
use core::sync::atomic::{AtomicU32, Ordering};
use mend_image::launch::Failure;
use mend_image::record::{Thread, thread};
use mend_restore::sys;

const STACK: usize = 4096;
/// Attempts to be given an id by the counter: whoever else makes a process or thread in between gets it.
const ATTEMPTS: usize = 8;
/// A thread of another restorer in this namespace may have an id for as long as it helps there: it is asked for again so many times,
/// after a pause each.
const MORE_ATTEMPTS: usize = 500;
/// 10 ms, as a timespec.
static PAUSE: [u64; 2] = [0, 10_000_000];
const EEXIST: isize = 17;
/// Instead of the id of a thread that may have any.
const ANY_ID: u32 = 0;

const ARCH_SET_FS: usize = 0x1002;
const ARCH_SET_GS: usize = 0x1001;

static GO: AtomicU32 = AtomicU32::new(0);

/// What a new thread needs.
#[repr(C)]
#[derive(Clone, Copy)]
struct Start {
    context: u64,
    gs: u64,
    tid: u32,
    /// What it has to give up by itself.
    capabilities: Option<[u64; 3]>,
}

/// A thread to be made: all but its id is settled.
struct Making {
    thread: Thread,
    stack: &'static mut [u8],
}

impl Making {
    fn new(thread: Thread) -> Self {
        Self { thread, stack: zone::take(STACK) }
    }

    /// Makes it with its id, or with the next that the kernel counts up to. Its id, or a negative error number.
    fn make(&mut self, choose: bool, capabilities: Option<[u64; 3]>) -> isize {
        let Thread { context, gs, tid, fs, .. } = self.thread;
        let start = Start { context, gs, tid, capabilities };
        // SAFETY: the start record fits at the lower end of the stack, far from its used end, and nobody runs on it.
        unsafe { self.stack.as_mut_ptr().cast::<Start>().write(start) };
        let wanted = tid as i32;
        let arguments = CloneArguments {
            flags: clone::THREAD | CLONE_SETTLS,
            stack: self.stack.as_mut_ptr() as u64,
            stack_size: STACK as u64,
            tls: fs,
            set_tid: if choose { (&raw const wanted) as u64 } else { 0 },
            set_tid_size: u64::from(choose),
            ..CloneArguments::default()
        };
        // SAFETY: the new thread runs `enter` on its own stack and never returns here.
        unsafe { clone_thread(&arguments, size_of::<CloneArguments>(), self.stack.as_mut_ptr() as usize, enter as *const () as usize) }
    }

    /// Ends the restore if it was not made.
    fn check(&self, result: isize) {
        if result < 0 {
            let tid = self.thread.tid;
            fail(
                Failure::Kernel,
                -result as i32,
                text!("thread {tid} cannot be made with its id (is the id taken, or are privileges missing?)"),
            );
        }
    }
}

/// Makes all threads but the first, which is this one, and keeps only those capabilities that the saved process had.
pub fn make(threads: impl Iterator<Item = Thread> + Clone, capabilities: [u64; 3]) {
    credentials::join_session_keyring();
    let others = threads.clone().skip(1);
    if others.clone().next().is_none() || credentials::enough(capabilities) {
        credentials::give_up(capabilities);
        for thread in others {
            let mut making = Making::new(thread);
            let result = insist(|| making.make(true, None));
            making.check(result);
        }
        return;
    }
    let desk = Desk::default();
    let serve = || desk.serve(capabilities);
    let companion = Companion::new(&serve);
    let Some(tid) = companion.start(threads) else {
        for thread in others {
            let mut making = Making::new(thread);
            let result = insist(|| making.make(true, Some(capabilities)));
            making.check(result);
        }
        return credentials::give_up(capabilities);
    };
    credentials::give_up(capabilities);
    for thread in others {
        let mut making = Making::new(thread);
        let counted = (0..ATTEMPTS).any(|_| {
            if desk.ask(Step::Count, &mut making) < 0 {
                return false;
            }
            let made = making.make(false, None);
            if made > 0 && made as u32 != thread.tid {
                // It has noticed, and ends.
                clone::await_end(made as usize);
            }
            made as i64 == i64::from(thread.tid)
        });
        if !counted {
            let result = insist(|| desk.ask(Step::Make, &mut making));
            making.check(result);
        }
    }
    desk.end();
    companion.finish(tid);
}

/// Makes a thread; again after a while, if its id is taken.
fn insist(mut make: impl FnMut() -> isize) -> isize {
    let never = AtomicU32::new(0);
    let mut result = make();
    for _ in 0..MORE_ATTEMPTS {
        if result != -EEXIST {
            break;
        }
        // SAFETY: FUTEX_WAIT_PRIVATE reads the word, which nobody changes, and the time: a pause.
        let _ = unsafe { sys::call(sys::FUTEX, [(&raw const never) as usize, 128, 0, PAUSE.as_ptr() as usize, 0, 0]) };
        result = make();
    }
    result
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Answered,
    Count,
    Make,
    End,
}

/// Where the first thread asks its companion for what takes privileges.
struct Desk {
    step: AtomicU32,
    making: Cell<*mut Making>,
    answer: Cell<isize>,
}

// SAFETY: what is asked and answered belongs to one of the two threads at a time: the companion's from a request to its answer.
unsafe impl Sync for Desk {}

impl Default for Desk {
    fn default() -> Self {
        Self { step: AtomicU32::new(Step::Answered as u32), making: Cell::new(core::ptr::null_mut()), answer: Cell::new(0) }
    }
}

impl Desk {
    /// The companion's answer: negative if it could not.
    fn ask(&self, step: Step, making: &mut Making) -> isize {
        self.making.set(making);
        self.say(step);
        while self.step.load(Ordering::Acquire) != Step::Answered as u32 {
            self.wait(step);
        }
        self.answer.get()
    }

    fn end(&self) {
        self.say(Step::End);
    }

    fn say(&self, step: Step) {
        self.step.store(step as u32, Ordering::Release);
        wake(&self.step);
    }

    fn wait(&self, step: Step) {
        wait(&self.step, step as u32);
    }

    /// The companion's part.
    fn serve(&self, capabilities: [u64; 3]) {
        let counter = Counter::open();
        loop {
            self.wait(Step::Answered);
            let step = self.step.load(Ordering::Acquire);
            if step == Step::Answered as u32 {
                continue;
            }
            if step == Step::End as u32 {
                break;
            }
            // SAFETY: the asker's until it is answered, which waits.
            let making = unsafe { &mut *self.making.get() };
            self.answer.set(match &counter {
                Some(counter) if step == Step::Count as u32 => isize::from(counter.set(making.thread.tid - 1)) - 1,
                _ if step == Step::Count as u32 => -1,
                _ => making.make(true, Some(capabilities)),
            });
            self.say(Step::Answered);
        }
        if let Some(counter) = &counter {
            counter.put_back();
        }
    }
}

unsafe extern "C" fn enter(start: *const Start) -> ! {
    // SAFETY: `Making::make` wrote it to this thread's stack.
    let start = unsafe { *start };
    // SAFETY: takes nothing.
    if start.tid != ANY_ID && unsafe { sys::call(sys::GETTID, [0; 6]) } != Ok(start.tid as usize) {
        clone::end();
    }
    if start.gs != 0 {
        set_base(ARCH_SET_GS, start.gs);
    }
    if let Some(capabilities) = start.capabilities {
        credentials::give_up(capabilities);
    }
    while GO.load(Ordering::Acquire) == 0 {
        wait(&GO, 0);
    }
    // SAFETY: the context was captured by this thread's former self, and memory is as it was then.
    unsafe { jump(start.context) }
}

/// In a process that goes back to an image in place: makes the agent's thread, with an id of the kernel's choice. All others are there.
pub fn make_agent(threads: impl Iterator<Item = Thread>) {
    let _unturned = Unturned::wait();
    for thread in threads.filter(|thread| thread.flags & thread::AGENT != 0) {
        let mut making = Making::new(Thread { tid: ANY_ID, ..thread });
        let result = making.make(false, None);
        if result < 0 {
            fail(Failure::Kernel, -result as i32, text!("the agent's thread cannot be made"));
        }
    }
}

/// Waits for the word to go, and becomes this thread, which it was before.
pub fn follow(thread: &Thread) -> ! {
    while GO.load(Ordering::Acquire) == 0 {
        wait(&GO, 0);
    }
    set_base(ARCH_SET_FS, thread.fs);
    set_base(ARCH_SET_GS, thread.gs);
    // SAFETY: as in `enter`.
    unsafe { jump(thread.context) }
}

/// Lets all threads go, and becomes the first one.
pub fn go(first: &Thread) -> ! {
    set_base(ARCH_SET_FS, first.fs);
    if first.gs != 0 {
        set_base(ARCH_SET_GS, first.gs);
    }
    GO.store(1, Ordering::Release);
    wake(&GO);
    // SAFETY: as in `enter`.
    unsafe { jump(first.context) }
}

/// Waits until a word may have another value.
pub fn wait(word: &AtomicU32, value: u32) {
    // SAFETY: FUTEX_WAIT_PRIVATE reads the word.
    let _ = unsafe { sys::call(sys::FUTEX, [core::ptr::from_ref(word) as usize, 128, value as usize, 0, 0, 0]) };
}

/// Wakes all that [`wait`] for a word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE_PRIVATE uses only the address.
    let _ = unsafe { sys::call(sys::FUTEX, [core::ptr::from_ref(word) as usize, 129, i32::MAX as usize, 0, 0, 0]) };
}

fn set_base(which: usize, base: u64) {
    // SAFETY: this code uses neither segment.
    let _ = unsafe { sys::call(sys::ARCH_PRCTL, [which, base as usize, 0, 0, 0, 0]) };
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
