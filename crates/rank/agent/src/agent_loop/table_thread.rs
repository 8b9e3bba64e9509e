//! The table thread: a thread in the program's descriptor table. It does there what the agent's thread cannot, which has
//! a table of its own ([`crate::descriptors::table`]): it moves the fabric's packets while the program computes.
//!
//! ```text
//! agent: run(work) ── CALL_COUNT+1 ──► table thread: work, DONE_COUNT+1 ──► agent goes on
//! a thread of the program: cannot wake the agent ── CALL_COUNT+1 ──► table thread: reconnects the wakeup
//! ```
//! It is parked, saved and restored like a thread of the program, and is idle then. Where the
//! agent shares the program's table, as in a restored process until it goes on, the agent does all of this itself.

use crate::descriptors::table;
use crate::network::{Counters, Frozen, Network, Undrained};
use mend_kernel::threads::{wait, wake};
use mend_messages::agent::Welcome;
use mend_messages::job::{FabricAddress, JobMap, Rank};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

/// Work that waits for the table thread: on the stack of the agent, which waits for it.
struct TableWork<'a> {
    call: &'a mut dyn FnMut(),
}

static WORK: AtomicPtr<TableWork<'static>> = AtomicPtr::new(std::ptr::null_mut());
/// Calls for the table thread.
static CALL_COUNT: AtomicU32 = AtomicU32::new(0);
/// Works done.
static DONE_COUNT: AtomicU32 = AtomicU32::new(0);

/// The thread's whole life. `after_each` is what it does after each call, beside the agent's work.
pub(crate) fn serve(after_each: fn()) {
    loop {
        let calls = CALL_COUNT.load(Ordering::Acquire);
        let work = WORK.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !work.is_null() {
            // SAFETY: the agent waits until DONE says so, and its work lives as long.
            unsafe { ((*work).call)() };
            DONE_COUNT.fetch_add(1, Ordering::Release);
            wake(&DONE_COUNT);
        }
        after_each();
        wait(&CALL_COUNT, calls, None);
    }
}

/// Wakes the table thread.
pub(crate) fn call() {
    CALL_COUNT.fetch_add(1, Ordering::Release);
    wake(&CALL_COUNT);
}

/// Does something in the program's descriptor table. Called by the agent's thread alone, while no thread is parked that shares that
/// table.
pub(crate) fn run<T>(work: impl FnOnce() -> T) -> T {
    if !table::apart() {
        return work();
    }
    let (mut work, mut result) = (Some(work), None);
    let mut call_it = || {
        if let Some(work) = work.take() {
            result = Some(catch_unwind(AssertUnwindSafe(work)));
        }
    };
    let done = DONE_COUNT.load(Ordering::Acquire);
    let mut order = TableWork { call: &mut call_it };
    WORK.store((&raw mut order).cast(), Ordering::Release);
    call();
    while DONE_COUNT.load(Ordering::Acquire) == done {
        wait(&DONE_COUNT, done, None);
    }
    match result {
        Some(Ok(value)) => value,
        Some(Err(panic)) => resume_unwind(panic),
        // The table thread does what it is given before it says so.
        None => unreachable!("the table thread did nothing"),
    }
}

/// The fabric, driven by the table thread.
pub(crate) struct OnTableThread(pub &'static dyn Network);

impl Network for OnTableThread {
    fn introduce(&self, identity: &Welcome) {
        self.0.introduce(identity);
    }
    fn listen(&self, identity: &Welcome) -> Result<FabricAddress, String> {
        run(|| self.0.listen(identity))
    }
    fn set_map(&self, map: JobMap) {
        run(|| self.0.set_map(map));
    }
    fn on_use(&self, announce: fn()) {
        self.0.on_use(announce);
    }
    fn on_delay(&self, nudge: fn()) {
        self.0.on_delay(nudge);
    }
    fn on_loss(&self, announce: fn()) {
        self.0.on_loss(announce);
    }
    fn losses(&self, patience: Duration) -> (Vec<(Rank, String)>, bool) {
        self.0.losses(patience)
    }
    fn broken(&self) -> Vec<(Rank, String)> {
        self.0.broken()
    }
    fn draining(&self) -> Vec<Rank> {
        run(|| self.0.draining())
    }
    fn catch_up(&self) -> bool {
        run(|| self.0.catch_up())
    }
    fn counters(&self) -> Counters {
        self.0.counters()
    }
    fn traffic(&self, sent: &mut Vec<(u64, u64)>) {
        self.0.traffic(sent);
    }
    fn in_use(&self) -> bool {
        self.0.in_use()
    }
    fn suspend(&self, limit: Duration, time: Duration) -> Result<bool, Undrained> {
        run(|| self.0.suspend(limit, time))
    }
    fn suspend_peer(&self, rank: Rank, limit: Duration, time: Duration) -> Result<bool, Undrained> {
        run(|| self.0.suspend_peer(rank, limit, time))
    }
    fn serve(&self, timeout: Duration) {
        if self.0.in_use() { run(|| self.0.serve(timeout)) } else { std::thread::sleep(timeout) }
    }
    fn keep_up(&self, time: Duration) {
        if self.0.in_use() { run(|| self.0.keep_up(time)) } else { std::thread::sleep(time) }
    }
    fn resume(&self) {
        run(|| self.0.resume());
    }
    fn freeze(&self) -> Box<dyn Frozen> {
        // A lock, and no descriptor.
        Box::new(FrozenOnTableThread(self.0.freeze()))
    }
}

struct FrozenOnTableThread(Box<dyn Frozen>);

impl Frozen for FrozenOnTableThread {
    fn excluded_memory(&self, each: &mut dyn FnMut(usize, usize)) {
        self.0.excluded_memory(each);
    }
    fn own_descriptors(&self, each: &mut dyn FnMut(i32)) {
        self.0.own_descriptors(each);
    }
    fn provider_open(&self) -> bool {
        self.0.provider_open()
    }
    fn close_provider(&mut self) {
        run(|| self.0.close_provider());
    }
    fn reopen(&mut self) {
        // Changes memory alone, and the table thread may be parked.
        self.0.reopen();
    }
    fn rebuild(self: Box<Self>) -> Result<(), String> {
        self.0.rebuild()
    }
}
