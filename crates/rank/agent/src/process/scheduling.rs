//! How the kernel schedules each thread: processors it may run on, policy, nice value and time slice, bounds of its utilisation, I/O priority.
//!
//! Only what differs from the rank's parent, its reaper, is the program's own; the rest is the node's business, and
//! another node may do it in another way. Bringing it back is best effort: processors may be absent, privileges too.

use mend_freestanding::{check, syscall};
use std::ops::Range;

/// Words of a set of processors.
const CPU_SET_WORDS: usize = 128;
/// Bytes of `struct sched_attr`: size, policy, flags, nice, priority, runtime, …
const ATTRIBUTE_BYTES: usize = 56;
/// Its runtime: of an ordinary thread the length of a time slice, which is the thread's own where it differs from the parent's.
const RUNTIME: Range<usize> = 24..32;
/// Bounds of its utilisation, the last of it.
const CLAMPS: Range<usize> = 48..56;
/// Up to and with the runtime.
const COMPARED_BYTES: usize = 32;
const SCHED_DEADLINE: u8 = 6;
/// What sets both bounds and leaves the rest: SCHED_FLAG_KEEP_POLICY, _KEEP_PARAMS, _UTIL_CLAMP_MIN, _UTIL_CLAMP_MAX.
const CLAMPS_ALONE: u8 = 0x08 | 0x10 | 0x20 | 0x40;
const PR_SCHED_CORE: usize = 62;

/// One thread's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scheduling {
    thread: i32,
    processors: Option<Box<[u64; CPU_SET_WORDS]>>,
    attributes: Option<[u8; ATTRIBUTE_BYTES]>,
    io_priority: Option<i32>,
    clamps: Option<[u8; 8]>,
}

/// What each thread has of its own.
pub(crate) fn read(threads: impl Iterator<Item = i32>) -> Vec<Scheduling> {
    let parent = rustix::process::getppid().map_or(1, |parent| parent.as_raw_nonzero().get());
    let given = look(parent);
    let own = |thread| {
        let mut found = look(thread);
        if found.processors == given.processors {
            found.processors = None;
        }
        if found.attributes.map(compared) == given.attributes.map(compared) {
            found.attributes = None;
        }
        if let (Some(own), Some(given)) = (&mut found.attributes, &given.attributes)
            && own[4] != SCHED_DEADLINE
            && own[RUNTIME] == given[RUNTIME]
        {
            // It is the kernel's to choose.
            own[RUNTIME].fill(0);
        }
        if found.io_priority == given.io_priority {
            found.io_priority = None;
        }
        if found.clamps == given.clamps {
            found.clamps = None;
        }
        found
    };
    let differs = |found: &Scheduling| {
        found.processors.is_some() || found.attributes.is_some() || found.io_priority.is_some() || found.clamps.is_some()
    };
    threads.map(own).filter(differs).collect()
}

fn compared(attributes: [u8; ATTRIBUTE_BYTES]) -> [u8; COMPARED_BYTES] {
    let mut part = [0; COMPARED_BYTES];
    part.copy_from_slice(&attributes[..COMPARED_BYTES]);
    part
}

fn look(thread: i32) -> Scheduling {
    let (mut processors, mut attributes) = (Box::new([0u64; CPU_SET_WORDS]), [0u8; ATTRIBUTE_BYTES]);
    let id = thread as usize;
    // SAFETY: each call writes at most as many bytes as it is told.
    let (set, attribute, priority) = unsafe {
        (
            check(syscall(libc::SYS_sched_getaffinity, [id, CPU_SET_WORDS * 8, processors.as_mut_ptr() as usize, 0, 0, 0])),
            check(syscall(libc::SYS_sched_getattr, [id, attributes.as_mut_ptr() as usize, ATTRIBUTE_BYTES, 0, 0, 0])),
            // IOPRIO_WHO_PROCESS
            check(syscall(libc::SYS_ioprio_get, [1, id, 0, 0, 0, 0])),
        )
    };
    let mut clamps = [0; 8];
    clamps.copy_from_slice(&attributes[CLAMPS]);
    attributes[CLAMPS].fill(0);
    Scheduling {
        thread,
        processors: set.is_ok().then_some(processors),
        attributes: attribute.is_ok().then_some(attributes),
        io_priority: priority.ok().map(|priority| priority as i32),
        clamps: attribute.is_ok().then_some(clamps),
    }
}

/// Gives threads back what the rank's parent has, as far as this user's rights allow.
pub(crate) fn reset(threads: impl Iterator<Item = i32>) {
    let parent = rustix::process::getppid().map_or(1, |parent| parent.as_raw_nonzero().get());
    let mut given = look(parent);
    if let Some(attributes) = given.attributes.as_mut().filter(|attributes| attributes[4] != SCHED_DEADLINE) {
        attributes[RUNTIME].fill(0);
    }
    let own: Vec<Scheduling> = read(threads);
    let as_given = |own: Scheduling| Scheduling {
        thread: own.thread,
        processors: own.processors.and(given.processors.clone()),
        attributes: own.attributes.and(given.attributes),
        io_priority: own.io_priority.and(given.io_priority),
        clamps: own.clamps.and(given.clamps),
    };
    restore(&own.into_iter().map(as_given).collect::<Vec<_>>());
}

/// A cookie that a thread shares its core by (core scheduling), if it is not one from outside: nobody can make the same again.
pub(crate) fn own_cookie(thread: i32) -> Option<(String, &'static str)> {
    let cookie = |of: i32| {
        let mut cookie = 0u64;
        // SAFETY: PR_SCHED_CORE_GET, 0, of one thread, 0, writes 8 bytes.
        let found = check(unsafe { syscall(libc::SYS_prctl, [PR_SCHED_CORE, 0, of as usize, 0, (&raw mut cookie) as usize, 0]) });
        found.ok().map(|_| cookie)
    };
    let parent = rustix::process::getppid().map_or(1, |parent| parent.as_raw_nonzero().get());
    let own = cookie(thread).filter(|own| *own != 0 && Some(*own) != cookie(parent));
    let hint = "let the program do without core scheduling (PR_SCHED_CORE), or have it from outside, as by coresched(1)";
    own.map(|_| (format!("thread {thread} shares its core with others of its choice alone (PR_SCHED_CORE)"), hint))
}

/// Brings it back as far as this node and this user's rights allow.
pub(crate) fn restore(all: &[Scheduling]) {
    for Scheduling { thread, processors, attributes, io_priority, clamps } in all {
        let id = *thread as usize;
        // SAFETY: the calls read as many bytes as they are told.
        unsafe {
            if let Some(processors) = processors {
                syscall(libc::SYS_sched_setaffinity, [id, CPU_SET_WORDS * 8, processors.as_ptr() as usize, 0, 0, 0]);
            }
            if let Some(attributes) = attributes {
                syscall(libc::SYS_sched_setattr, [id, attributes.as_ptr() as usize, 0, 0, 0, 0]);
                // Not every policy takes the nice value with it. PRIO_PROCESS is 0.
                let nice = i32::from_le_bytes([attributes[16], attributes[17], attributes[18], attributes[19]]);
                syscall(libc::SYS_setpriority, [0, id, nice as usize, 0, 0, 0]);
            }
            if let Some(clamps) = clamps {
                let mut attributes = [0u8; ATTRIBUTE_BYTES];
                (attributes[0], attributes[8]) = (ATTRIBUTE_BYTES as u8, CLAMPS_ALONE);
                attributes[CLAMPS].copy_from_slice(clamps);
                syscall(libc::SYS_sched_setattr, [id, attributes.as_ptr() as usize, 0, 0, 0, 0]);
            }
            if let Some(priority) = io_priority {
                syscall(libc::SYS_ioprio_set, [1, id, *priority as usize, 0, 0, 0]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nice_thread_stays_nice_and_others_are_left_alone() {
        std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            let given = look(thread);
            // SAFETY: changes only this thread; PRIO_PROCESS is 0.
            unsafe { syscall(libc::SYS_setpriority, [0, thread as usize, 7, 0, 0, 0]) };
            let found = read([thread].into_iter());
            assert_eq!(found.len(), 1);
            let attributes = found[0].attributes.unwrap();
            assert_eq!(attributes[16], 7);
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let other = rustix::thread::gettid().as_raw_nonzero().get();
                let (processors, attributes) = (given.processors, Some(attributes));
                restore(&[Scheduling { thread: other, processors, attributes, io_priority: None, clamps: None }]);
                sender.send(look(other).attributes.unwrap()[16]).unwrap();
            });
            assert_eq!((receiver.recv().unwrap(), own_cookie(thread)), (7, None));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_slice_of_its_own_comes_back_and_goes_again() {
        std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            let own = || read([thread].into_iter());
            assert_eq!(own(), []);
            mend_kernel::slice::shorten().unwrap();
            if own().is_empty() {
                // Before Linux 6.12 there are none.
                return;
            }
            let short = own();
            mend_kernel::slice::restore().unwrap();
            assert_eq!(own(), []);
            restore(&short);
            assert_eq!(own(), short);
            reset([thread].into_iter());
            assert_eq!(own(), []);
        })
        .join()
        .unwrap();
    }
}
