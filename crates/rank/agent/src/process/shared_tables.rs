//! What all threads of a program share: descriptors, working directory and umask. A thread may have left them (unshare(2)). An image has those
//! of the first thread alone.

use crate::process::tasks::Task;
use mend_freestanding::{check, syscall};

/// What two threads may share: how kcmp(2) calls it, what it is, how a thread leaves it, and the line of its `status` that is another one
/// when it has given it up because it ends.
const SHARED: [(usize, &str, &str, fn(&str) -> bool); 2] = [
    (2, "descriptors", "CLONE_FILES", |status| !status.contains("\nFDSize:\t0\n")),
    (3, "a working directory and a umask", "CLONE_FS", |status| status.contains("\nUmask:")),
];

/// What a thread with this `status` in `/proc` has of its own. The agent's own thread has a descriptor table of its own, and is not asked about.
pub(crate) fn obstacle(task: &Task, status: &str) -> Option<(String, &'static str)> {
    let first = rustix::process::getpid().as_raw_nonzero().get();
    let thread = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()?;
    if thread == first || thread == rustix::thread::gettid().as_raw_nonzero().get() {
        return None;
    }
    let (_, what, how, _) = SHARED.iter().find(|(kind, _, _, has_it)| {
        // It may be about to end, and have none any more.
        differs(first, thread, *kind) && task.status().is_some_and(|status| has_it(&status))
    })?;
    let what = format!("thread {thread} ({}) has {what} of its own (unshare, {how})", task.name());
    Some((what, "let the threads of the program share descriptors, working directory and umask"))
}

/// False where the kernel does not tell.
fn differs(one: i32, other: i32, kind: usize) -> bool {
    // SAFETY: kcmp takes numbers.
    let order = check(unsafe { syscall(libc::SYS_kcmp, [one as usize, other as usize, kind, 0, 0, 0]) });
    order.is_ok_and(|order| order != 0)
}
