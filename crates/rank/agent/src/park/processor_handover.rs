//! Handing over a processor: the agent goes on where a thread of the program has just stopped.
//!
//! The agent sleeps while the program runs, so the processor where it ran last is somebody else's by now: the agents of two ranks
//! may wake up on the same one and share it for milliseconds, while those that the threads have left stand idle. So the first
//! thread that parks leaves its processor to the agent.
//!
//! ```text
//! NOBODY ── offer ──► the agent's id ── a thread parks ──► TAKING: the agent may run there alone ──► NOBODY
//!    ▲                      │                                                                          │
//!    └────── end ───────────┘                                 end: it may run wherever it might ───────┘
//! ```
//! Sources: sched_setaffinity(2), getcpu(2).

use core::sync::atomic::{AtomicI32, Ordering};
use mend_kernel::threads::{Processors, processor, processors, set_processors};

const NOBODY: i32 = 0;
const TAKING: i32 = -1;

/// The thread that the next processor is handed over to.
static CANDIDATE: AtomicI32 = AtomicI32::new(NOBODY);

/// An offer. Dropping it lets the agent run wherever it might before.
pub(crate) struct ProcessorHandover {
    agent: i32,
    before: Option<Processors>,
}

impl ProcessorHandover {
    /// Called by the agent, before it asks the first thread to park.
    pub fn offer() -> Self {
        let agent = rustix::thread::gettid().as_raw_nonzero().get();
        let before = processors(agent).ok();
        if before.is_some() {
            CANDIDATE.store(agent, Ordering::Release);
        }
        Self { agent, before }
    }
}

impl Drop for ProcessorHandover {
    fn drop(&mut self) {
        let Some(before) = &self.before else { return };
        if CANDIDATE.compare_exchange(self.agent, NOBODY, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
        while CANDIDATE.load(Ordering::Acquire) != NOBODY {
            rustix::thread::sched_yield();
        }
        // Refused only if none of them is there any more; then it stays where it is.
        let _ = set_processors(self.agent, before);
    }
}

/// Gives the agent the processor of the calling thread, which parks. Async-signal-safe.
pub(crate) fn hand_over() {
    let agent = CANDIDATE.load(Ordering::Acquire);
    if agent > NOBODY && CANDIDATE.compare_exchange(agent, TAKING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        // The thread may have a processor that is not the agent's to have: it stays where it is.
        let _ = processor().and_then(|here| set_processors(agent, &Processors::only(here)?).ok());
        CANDIDATE.store(NOBODY, Ordering::Release);
    }
}
