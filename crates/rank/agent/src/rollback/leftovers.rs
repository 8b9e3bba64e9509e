//! What a process that went back in place still has of what it got since: a new process would not have it.

use crate::park::Parked;
use crate::park::pending;
use crate::process::tasks::{self, Task};
use crate::process::{scheduling, state, timers};

/// Takes away what can be taken away: timers, pending signals, scheduling of the threads' own. What is, by name, for good.
///
/// # Errors
/// What the program has made its own since that the kernel does not take back.
pub(crate) fn clear(parked: &Parked) -> Result<(), String> {
    // Before the signals: each would send another one.
    state::stop_interval_timers();
    timers::delete_all();
    let tasks = tasks::by_thread().map_err(|error| format!("the list of threads cannot be read: {error}"))?;
    pending::discard(parked, &tasks);
    // The agent's thread, this one, was made by the program's first, and has what that has.
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    scheduling::reset(parked.threads().map(|slot| slot.tid).chain([own]));
    for slot in parked.threads() {
        let (no_new_privileges, permitted) = tasks.get(&slot.tid).and_then(Task::privileges).ok_or("a thread cannot be examined")?;
        let saved = &slot.registration.attributes;
        if (no_new_privileges && !saved.gains_no_privileges()) || permitted & saved.permitted() != saved.permitted() {
            return Err(format!("thread {} has given up privileges since", slot.tid));
        }
    }
    Ok(())
}
