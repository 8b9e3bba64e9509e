//! What all threads of a program share: descriptors, working directory and umask. A thread may have left them (unshare(2)). An image has those
//! of the first thread alone.

use crate::process::tasks::Task;
use mend_freestanding::{check, syscall};

/// What threads may share.
struct Shared {
    /// As kcmp(2) calls it.
    kind: usize,
    what: &'static str,
    /// The flag by which a thread leaves it.
    how: &'static str,
    /// Whether a thread with this `status` has it: one that ends has given it up.
    is_there: fn(&str) -> bool,
}

const SHARED: [Shared; 2] = [
    Shared { kind: 2, what: "descriptors", how: "CLONE_FILES", is_there: |status| !status.contains("\nFDSize:\t0\n") },
    Shared { kind: 3, what: "a working directory and a umask", how: "CLONE_FS", is_there: |status| status.contains("\nUmask:") },
];

/// What a thread with this `status` in `/proc` has of its own. The agent's own thread has a descriptor table of its own, and is not asked about.
pub(crate) fn obstacle(task: &Task, status: &str) -> Option<(String, &'static str)> {
    let first = rustix::process::getpid().as_raw_nonzero().get();
    let thread = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()?;
    if thread == first || thread == rustix::thread::gettid().as_raw_nonzero().get() {
        return None;
    }
    let Shared { what, how, .. } = SHARED
        .iter()
        .find(|shared| differs(first, thread, shared.kind) && task.status().is_some_and(|status| (shared.is_there)(&status)))?;
    let what = format!("thread {thread} ({}) has {what} of its own (unshare, {how})", task.name());
    Some((what, "let the threads of the program share descriptors, working directory and umask"))
}

/// False where the kernel does not tell.
fn differs(one: i32, other: i32, kind: usize) -> bool {
    // SAFETY: kcmp takes numbers.
    let order = check(unsafe { syscall(libc::SYS_kcmp, [one as usize, other as usize, kind, 0, 0, 0]) });
    order.is_ok_and(|order| order != 0)
}
