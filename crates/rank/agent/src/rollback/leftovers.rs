//! What a process that went back in place still has of what it got since: a new process would not have it.

use crate::park::Parked;
use crate::park::pending;
use crate::process::{scheduling, tasks, timers};

/// Takes away what can be taken away: POSIX timers, pending signals, scheduling of the threads' own. What is, by name, for good.
///
/// # Errors
/// What the program has made its own since that the kernel does not take back.
pub(crate) fn clear(parked: &Parked) -> Result<(), String> {
    timers::delete_all();
    pending::discard(parked);
    scheduling::reset(parked.threads().map(|slot| slot.tid));
    for slot in parked.threads() {
        let (no_new_privileges, permitted) =
            tasks::of_thread(slot.tid).and_then(|task| task.privileges()).ok_or("a thread cannot be examined")?;
        let saved = &slot.registration.attributes;
        if (no_new_privileges && !saved.gains_no_privileges()) || permitted & saved.permitted() != saved.permitted() {
            return Err(format!("thread {} has given up privileges since", slot.tid));
        }
    }
    Ok(())
}
