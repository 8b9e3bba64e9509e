//! What the program may have asked of the kernel for the process as a whole: `prctl(2)`, `membarrier(2)`, `mlockall(2)`, `setsid(2)`,
//! and what is written to files in `/proc/self` (proc(5)).

use crate::park::Parked;
use crate::process::{origin, scheduling};
use mend_freestanding::{check, syscall};
use mend_kernel::thread_attributes::ThreadAttributes;
use mend_kernel::tracer::{self, Traced};
use std::io;

const PR_SET_MDWE: i32 = 65;
const PR_GET_MDWE: i32 = 66;
const PR_SET_MEMORY_MERGE: i32 = 67;
const PR_GET_MEMORY_MERGE: i32 = 68;
const PR_GET_CHILD_SUBREAPER: i32 = 37;
const PR_SET_CHILD_SUBREAPER: i32 = 36;
const MEMBARRIER_GET_REGISTRATIONS: usize = 1 << 9;
/// All kinds that belong to a process: private, of caches, of restartable sequences. Costs nothing to those who don't ask for one.
const MEMBARRIER_PRIVATE: usize = 1 << 4 | 1 << 6 | 1 << 8;
const COREDUMP_FILTER: &str = "/proc/self/coredump_filter";

/// As they were when the threads were parked.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    dumpable: usize,
    /// 1, or 3 but for memory that was advised.
    no_huge_pages: usize,
    subreaper: bool,
    no_exec_gain: Option<usize>,
    merges_memory: Option<usize>,
    /// Bit per command that registers; `None` on kernels before 6.3.
    membarrier: Option<usize>,
    /// If the program has set it.
    oom_score: Option<String>,
    coredump_filter: Option<u32>,
    leads_session: bool,
    leads_group: bool,
    /// Flags of mlockall(2) for mappings to come.
    locks_future: usize,
}

impl Attributes {
    /// Reads them. Allocates, but not with the C library.
    pub fn read() -> Self {
        let plain = |option: i32| control(option, [0; 2]).ok();
        let mut subreaper = 0i32;
        let _ = control(PR_GET_CHILD_SUBREAPER, [(&raw mut subreaper) as usize, 0]);
        let (session, group) = leads();
        Self {
            dumpable: plain(libc::PR_GET_DUMPABLE).unwrap_or(1),
            no_huge_pages: plain(libc::PR_GET_THP_DISABLE).unwrap_or(0),
            subreaper: subreaper != 0,
            no_exec_gain: plain(PR_GET_MDWE),
            merges_memory: plain(PR_GET_MEMORY_MERGE),
            membarrier: membarrier(MEMBARRIER_GET_REGISTRATIONS).ok(),
            oom_score: origin::own_oom_score(),
            coredump_filter: std::fs::read_to_string(COREDUMP_FILTER).ok().and_then(|text| u32::from_str_radix(text.trim(), 16).ok()),
            leads_session: session,
            leads_group: group,
            locks_future: future_locks(),
        }
    }

    /// Brings them back, last of all that is done to the process.
    pub fn restore(&self) -> Result<(), &'static str> {
        let mut lost = None;
        let mut note = |done: bool, what: &'static str| {
            if !done {
                lost.get_or_insert(what);
            }
        };
        // The program may have used up its descriptors; some of this takes one.
        let _lifted = mend_kernel::table::LiftedLimit::new();
        let now = Self::read();
        let set = |option: i32, values: [usize; 2]| control(option, values).is_ok();
        if self.no_huge_pages != now.no_huge_pages {
            let values = [self.no_huge_pages & 1, self.no_huge_pages & !1];
            note(set(libc::PR_SET_THP_DISABLE, values), "that it has no huge pages (PR_SET_THP_DISABLE)");
        }
        if self.subreaper != now.subreaper {
            note(set(PR_SET_CHILD_SUBREAPER, [usize::from(self.subreaper), 0]), "that it reaps its descendants (PR_SET_CHILD_SUBREAPER)");
        }
        if let Some(wanted) = self.merges_memory.filter(|wanted| Some(*wanted) != now.merges_memory) {
            note(set(PR_SET_MEMORY_MERGE, [wanted, 0]), "that its memory is merged (PR_SET_MEMORY_MERGE)");
        }
        if let Some(score) = self.oom_score.as_ref().filter(|score| Some(*score) != now.oom_score.as_ref()) {
            note(std::fs::write("/proc/self/oom_score_adj", score).is_ok(), "its oom_score_adj");
        }
        if let Some(filter) = self.coredump_filter.filter(|filter| Some(*filter) != now.coredump_filter) {
            note(std::fs::write(COREDUMP_FILTER, format!("{filter:#x}")).is_ok(), "its coredump_filter");
        }
        if self.leads_session && !now.leads_session {
            // SAFETY: takes nothing.
            note(check(unsafe { syscall(libc::SYS_setsid, [0; 6]) }).is_ok(), "that it leads a session (setsid)");
        } else if self.leads_group && !now.leads_group {
            // SAFETY: takes numbers.
            note(check(unsafe { syscall(libc::SYS_setpgid, [0; 6]) }).is_ok(), "that it leads a process group (setpgid)");
        }
        let registered = self.membarrier.unwrap_or(MEMBARRIER_PRIVATE);
        for command in (0..32).map(|bit| 1 << bit).filter(|bit| registered & bit != 0 && now.membarrier.unwrap_or(0) & bit == 0) {
            note(membarrier(command).is_ok() || self.membarrier.is_none(), "its registration for membarrier(2)");
        }
        if self.locks_future != now.locks_future {
            // SAFETY: takes a number. Without MCL_CURRENT nothing that is mapped now is touched.
            let locked = check(unsafe { syscall(libc::SYS_mlockall, [self.locks_future, 0, 0, 0, 0, 0]) });
            note(locked.is_ok(), "that it pins memory to come (mlockall)");
        }
        // From here on its files in /proc are root's. 2 (readable by root alone) is the kernel's own to set; 0 keeps others out as well.
        let dumpable = if self.dumpable == 2 { 0 } else { self.dumpable };
        if self.dumpable != now.dumpable {
            note(set(libc::PR_SET_DUMPABLE, [dumpable, 0]), "whether it may be dumped (PR_SET_DUMPABLE)");
        }
        // From here on no memory can be made executable.
        if let Some(wanted) = self.no_exec_gain.filter(|wanted| Some(*wanted) != now.no_exec_gain) {
            note(set(PR_SET_MDWE, [wanted, 0]), "that no memory becomes executable (PR_SET_MDWE)");
        }
        lost.map_or(Ok(()), Err)
    }
}

/// What only parked threads could be asked about.
pub(crate) fn obstacle(parked: &Parked) -> Option<(String, &'static str)> {
    let foreign = parked.threads().find(|slot| slot.registration.foreign_rseq);
    let what = foreign.map(|slot| format!("thread {} has an rseq area that isn't the C library's", slot.tid));
    let hint = "let the C library register it: leave glibc.pthread.rseq of GLIBC_TUNABLES as it is";
    let keyring = || parked.threads().find_map(|slot| origin::own_keyring(slot.tid, slot.registration.keyrings));
    let landlock = || confined(parked);
    let ports = || parked.threads().find(|slot| slot.registration.all_ports).map(|slot| uses_ports(slot.tid));
    what.map(|what| (what, hint))
        .or_else(keyring)
        .or_else(protection_key)
        .or_else(tagged_addresses)
        .or_else(landlock)
        .or_else(ports)
        .or_else(|| parked.threads().find_map(|slot| scheduling::own_cookie(slot.tid)))
        .or_else(|| seen_by_tracer(parked))
}

/// A thread in a Landlock domain of its own. Only those are asked that could have entered one: the kernel demands no_new_privs of it, or a
/// capability, with which the agent's thread was born if any thread was.
fn confined(parked: &Parked) -> Option<(String, &'static str)> {
    let administrates = ThreadAttributes::of_this_thread().may_be_confined();
    let mut asked = parked.threads().filter(|slot| administrates || slot.registration.attributes.may_be_confined());
    asked.find_map(|slot| origin::own_landlock(slot.tid, parked.landlock_layers(slot)))
}

/// Addresses have tags that the processor leaves out of account (`ARCH_ENABLE_TAGGED_ADDR`).
fn tagged_addresses() -> Option<(String, &'static str)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    is_tagging(&status)
        .then(|| ("the program has tags in addresses (ARCH_ENABLE_TAGGED_ADDR)".to_owned(), "let the program do without tags in addresses"))
}

fn is_tagging(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("untag_mask:"));
    mask.is_some_and(|mask| mask.trim() != "0xffffffffffffffff")
}

fn uses_ports(thread: i32) -> (String, &'static str) {
    (
        format!("thread {thread} may use I/O ports (iopl, ioperm)"),
        "let the program leave I/O ports alone, or give them up before a checkpoint",
    )
}

/// What only a tracer is told.
fn seen_by_tracer(parked: &Parked) -> Option<(String, &'static str)> {
    let mut threads: Vec<Traced> = parked.threads().map(|slot| Traced { thread: slot.tid, ..Traced::default() }).collect();
    // The program's threads are there and back before the image is written: `Parked::await_asleep` follows.
    tracer::trace(&mut threads);
    let found = threads.iter().find(|traced| traced.dispatches || traced.ports)?;
    if found.ports {
        return Some(uses_ports(found.thread));
    }
    let what = format!("thread {} has its system calls dispatched to a handler (PR_SET_SYSCALL_USER_DISPATCH)", found.thread);
    Some((what, "let the program do without the interception of its system calls"))
}

/// A protection key that is allocated, on processors that have them. The kernel gives the lowest that is free.
fn protection_key() -> Option<(String, &'static str)> {
    // SAFETY: takes numbers; of registers it changes only the agent's own.
    let key = check(unsafe { syscall(libc::SYS_pkey_alloc, [0; 6]) });
    if let Ok(key) = key {
        // SAFETY: the key that was just given.
        unsafe { syscall(libc::SYS_pkey_free, [key, 0, 0, 0, 0, 0]) };
    }
    let taken = matches!(key, Ok(2..));
    taken.then(|| ("the program has a protection key (pkey_alloc)".to_string(), "let the program do without protection keys, or free them"))
}

/// Whether the process leads its session, and its group.
fn leads() -> (bool, bool) {
    let own = rustix::process::getpid();
    (rustix::process::getsid(None) == Ok(own), rustix::process::getpgrp() == own)
}

fn membarrier(command: usize) -> Result<usize, i32> {
    // SAFETY: takes numbers; memory is not changed.
    check(unsafe { syscall(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) })
}

/// What of mlockall(2) is set for mappings to come, which nothing but a new mapping tells.
fn future_locks() -> usize {
    let locked = || locked_memory().unwrap_or_default();
    // Reading takes memory of its own, which may be made while it is read.
    let _ = locked();
    let before = locked();
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = check(unsafe { syscall(libc::SYS_mmap, [0, 4096, libc::PROT_READ as usize, flags, usize::MAX, 0]) });
    let Ok(page) = page else {
        // No more memory can be pinned.
        return if page == Err(libc::EAGAIN) { libc::MCL_FUTURE as usize } else { 0 };
    };
    let pinned = locked() != before;
    let mut resident = 0u8;
    // SAFETY: the page mapped above, of which nobody else knows; mincore writes one byte.
    unsafe {
        syscall(libc::SYS_mincore, [page, 4096, (&raw mut resident) as usize, 0, 0, 0]);
        syscall(libc::SYS_munmap, [page, 4096, 0, 0, 0, 0]);
    }
    match (pinned, resident & 1 != 0) {
        (false, _) => 0,
        (true, true) => libc::MCL_FUTURE as usize,
        (true, false) => (libc::MCL_FUTURE | libc::MCL_ONFAULT) as usize,
    }
}

/// Pins no memory any more, neither what there is nor what is to come.
pub(crate) fn unpin_memory() {
    // SAFETY: takes nothing; memory keeps what it holds.
    unsafe { syscall(libc::SYS_munlockall, [0; 6]) };
}

fn locked_memory() -> io::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap_or_default().to_string())
}

fn control(option: i32, [a, b]: [usize; 2]) -> Result<usize, i32> {
    // SAFETY: the options of this file take plain numbers, or the address of a live int.
    check(unsafe { syscall(libc::SYS_prctl, [option as usize, a, b, 0, 0, 0]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_in_addresses_are_seen() {
        assert!(!is_tagging("Threads:\t1\nuntag_mask:\t0xffffffffffffffff\n") && !is_tagging("Threads:\t1\n"));
        assert!(is_tagging("untag_mask:\t0x81ffffffffffffff\n"));
        assert_eq!(tagged_addresses(), None);
    }
}
