//! System V semaphores and message queues (sysvipc(7)) that the process uses: they are the node's, and no image holds them.
//!
//! The kernel remembers of each semaphore and queue who changed it last. One that the process has made and never used is not seen; there is
//! nothing in it yet.

use mend_freestanding::{check, syscall};

/// Most semaphores that are asked of one set, and of all.
const MAX_OF_SET: usize = 64;
const MAX_OF_ALL: usize = 4096;

const HINT: &str = "let the program remove them, or use semaphores of sem_open(3) and memory that is mapped";

/// Those that this process has used, by name.
pub(crate) fn obstacles() -> Vec<(String, &'static str)> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let user = rustix::process::geteuid().as_raw();
    let read = |kind: &str| std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
    let queues = rows(&read("msg")).into_iter().filter(|row| queue_is_used(row, own)).map(|row| ("message queue", row));
    let mut asked = 0;
    let sets = rows(&read("sem"));
    let sets = sets.into_iter().filter(|row| set_is_used(row, user, own, &mut asked)).map(|row| ("semaphores", row));
    queues.chain(sets).filter_map(|(what, row)| Some((format!("System V {what} {}", row.get(1)?), HINT))).collect()
}

/// The numbers in each line but for the first, which names them. Permissions are in octal.
fn rows(text: &str) -> Vec<Vec<i64>> {
    text.lines().skip(1).map(|line| line.split_whitespace().map(|word| word.parse().unwrap_or(-1)).collect()).collect()
}

/// "key msqid perms cbytes qnum lspid lrpid uid gid cuid cgid stime rtime ctime"
fn queue_is_used(row: &[i64], own: i32) -> bool {
    matches!(row, [_, _, _, _, _, sender, receiver, ..] if [*sender, *receiver].contains(&i64::from(own)))
}

/// "key semid perms nsems uid gid cuid cgid otime ctime". Of the user's own: who changed a semaphore last has to be asked of each.
fn set_is_used(row: &[i64], user: u32, own: i32, asked: &mut usize) -> bool {
    let [_, id, _, count, owner, _, creator, ..] = *row else { return false };
    if ![owner, creator].contains(&i64::from(user)) {
        return false;
    }
    let count = (count as usize).min(MAX_OF_SET).min(MAX_OF_ALL - *asked);
    *asked += count;
    // SAFETY: GETPID takes numbers.
    let last = |at: usize| check(unsafe { syscall(libc::SYS_semctl, [id as usize, at, libc::GETPID as usize, 0, 0, 0]) });
    (0..count).any(|at| last(at) == Ok(own as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_has_used_is_named_until_it_is_gone() {
        let named = |what: &str, id: i32| obstacles().iter().any(|(name, _)| *name == format!("System V {what} {id}"));
        // SAFETY: plain calls; the message is a type and one byte.
        unsafe {
            let set = libc::semget(libc::IPC_PRIVATE, 3, 0o600);
            let queue = libc::msgget(libc::IPC_PRIVATE, 0o600);
            assert!(set >= 0 && queue >= 0 && !named("semaphores", set) && !named("message queue", queue));
            assert_eq!(libc::semctl(set, 2, libc::SETVAL, 1), 0);
            let message = [1i64, 0];
            assert_eq!(libc::msgsnd(queue, message.as_ptr().cast(), 1, 0), 0);
            assert!(named("semaphores", set) && named("message queue", queue));
            assert_eq!((libc::semctl(set, 0, libc::IPC_RMID), libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut())), (0, 0));
            assert!(!named("semaphores", set) && !named("message queue", queue));
        }
    }
}
