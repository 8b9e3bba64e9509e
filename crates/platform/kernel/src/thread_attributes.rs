//! What a thread may have asked of the kernel for itself: `prctl(2)`, `arch_prctl(2)`, `set_mempolicy(2)`, `capabilities(7)`.
//!
//! Read and set by the thread itself, in a signal handler: raw calls, no memory but the stack.

use mend_freestanding::{check, syscall};

/// Words of a set of memory nodes, as many as a kernel may be built for.
const NODE_WORDS: usize = 16;
/// `PR_SPEC_STORE_BYPASS`, `PR_SPEC_INDIRECT_BRANCH`, `PR_SPEC_L1D_FLUSH`.
const SPECULATION_KINDS: usize = 3;

const PR_GET_PDEATHSIG: i32 = 2;
const PR_SET_PDEATHSIG: i32 = 1;
const PR_GET_TSC: i32 = 25;
const PR_SET_TSC: i32 = 26;
const PR_GET_SECUREBITS: i32 = 27;
const PR_SET_SECUREBITS: i32 = 28;
const PR_SET_KEEPCAPS: i32 = 8;
/// `SECBIT_KEEP_CAPS`.
const KEEP_CAPS: usize = 1 << 4;
const PR_CAPBSET_READ: i32 = 23;
const PR_CAPBSET_DROP: i32 = 24;
const PR_MCE_KILL: i32 = 33;
const PR_MCE_KILL_GET: i32 = 34;
const PR_SET_NO_NEW_PRIVS: i32 = 38;
const PR_GET_NO_NEW_PRIVS: i32 = 39;
const PR_CAP_AMBIENT: i32 = 47;
const PR_GET_SPECULATION_CTRL: i32 = 52;
const PR_SET_SPECULATION_CTRL: i32 = 53;
const PR_SET_IO_FLUSHER: i32 = 57;
const PR_GET_IO_FLUSHER: i32 = 58;
const ARCH_GET_CPUID: usize = 0x1011;
const ARCH_SET_CPUID: usize = 0x1012;

/// A thread's own settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadAttributes {
    death_signal: i32,
    /// `PR_TSC_ENABLE` or `PR_TSC_SIGSEGV`.
    time_stamp_counter: i32,
    /// 1: the instruction may be used; `None` where the processor cannot forbid it.
    cpuid: Option<usize>,
    machine_check: Option<usize>,
    io_flusher: Option<usize>,
    speculation: [Option<usize>; SPECULATION_KINDS],
    memory_policy: Option<MemoryPolicy>,
    secure_bits: usize,
    bounding: u64,
    ambient: u64,
    /// Effective, permitted, inheritable.
    capabilities: [u64; 3],
    no_new_privileges: bool,
    personality: usize,
}

impl ThreadAttributes {
    /// Of the calling thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let number = |option: i32| -> i32 {
            let mut value = 0i32;
            // SAFETY: the options that this is called with write one int.
            let _ = unsafe { control(option, [(&raw mut value) as usize, 0, 0]) };
            value
        };
        // SAFETY: these options take and return plain numbers.
        let plain = |option: i32, argument: usize| unsafe { control(option, [argument, 0, 0]) };
        // SAFETY: takes and returns plain numbers.
        let cpuid = check(unsafe { syscall(libc::SYS_arch_prctl, [ARCH_GET_CPUID, 0, 0, 0, 0, 0]) }).ok();
        Self {
            death_signal: number(PR_GET_PDEATHSIG),
            time_stamp_counter: number(PR_GET_TSC),
            cpuid,
            machine_check: plain(PR_MCE_KILL_GET, 0).ok(),
            io_flusher: plain(PR_GET_IO_FLUSHER, 0).ok(),
            speculation: core::array::from_fn(|kind| plain(PR_GET_SPECULATION_CTRL, kind).ok()),
            memory_policy: MemoryPolicy::of_this_thread(),
            secure_bits: plain(PR_GET_SECUREBITS, 0).unwrap_or(0),
            bounding: bits(|capability| plain(PR_CAPBSET_READ, capability)),
            // PR_CAP_AMBIENT_IS_SET
            // SAFETY: takes and returns plain numbers.
            ambient: bits(|capability| unsafe { control(PR_CAP_AMBIENT, [1, capability, 0]) }),
            capabilities: capabilities().unwrap_or_default(),
            no_new_privileges: plain(PR_GET_NO_NEW_PRIVS, 0) == Ok(1),
            personality: personality(ASK).unwrap_or(0),
        }
    }

    /// `no_new_privs` is set.
    #[must_use]
    pub fn gains_no_privileges(&self) -> bool {
        self.no_new_privileges
    }

    /// The capabilities that it may have, a bit each.
    #[must_use]
    pub fn permitted(&self) -> u64 {
        self.capabilities[1]
    }

    /// The kernel would let the thread confine itself (Landlock, seccomp): it gains no privileges, or may administrate.
    #[must_use]
    pub fn may_be_confined(&self) -> bool {
        const CAP_SYS_ADMIN: u64 = 1 << 21;
        self.no_new_privileges || self.capabilities[1] & CAP_SYS_ADMIN != 0
    }

    /// Makes the calling thread's what they were. Capabilities that it has not got stay away.
    ///
    /// # Errors
    /// The first setting that could not be brought back, for people.
    pub fn restore(&self) -> Result<(), &'static str> {
        let now = Self::of_this_thread();
        // SAFETY: these options take plain numbers.
        let set = |option: i32, arguments: [usize; 3]| unsafe { control(option, arguments) }.is_ok();
        let mut lost = None;
        let mut note = |done: bool, what: &'static str| {
            if !done {
                lost.get_or_insert(what);
            }
        };
        for (index, (wanted, has)) in self.speculation.iter().zip(now.speculation).enumerate() {
            if let Some(wanted) = wanted.filter(|wanted| Some(*wanted) != has && *wanted & 1 != 0) {
                note(set(PR_SET_SPECULATION_CTRL, [index, wanted & !1, 0]), "its control of speculation (PR_SET_SPECULATION_CTRL)");
            }
        }
        if let Some(wanted) = self.machine_check.filter(|wanted| Some(*wanted) != now.machine_check) {
            // PR_MCE_KILL_SET
            note(set(PR_MCE_KILL, [1, wanted, 0]), "its policy for memory errors (PR_MCE_KILL)");
        }
        if let Some(wanted) = self.io_flusher.filter(|wanted| Some(*wanted) != now.io_flusher) {
            note(set(PR_SET_IO_FLUSHER, [wanted, 0, 0]), "its part as an I/O flusher (PR_SET_IO_FLUSHER)");
        }
        if let Some(policy) = self.memory_policy.filter(|policy| Some(*policy) != now.memory_policy) {
            note(policy.set_for_this_thread().is_ok(), "its memory policy (set_mempolicy)");
        }
        if self.personality != now.personality {
            note(personality(self.personality).is_ok(), "its personality(2)");
        }
        // What takes privileges comes before they are given up.
        let keeps = self.secure_bits & KEEP_CAPS;
        if keeps != now.secure_bits & KEEP_CAPS {
            // By itself it takes no privileges.
            let _ = set(PR_SET_KEEPCAPS, [usize::from(keeps != 0), 0, 0]);
        }
        if self.secure_bits & !KEEP_CAPS != now.secure_bits & !KEEP_CAPS {
            note(set(PR_SET_SECUREBITS, [self.secure_bits, 0, 0]), "its secure bits (PR_SET_SECUREBITS)");
        }
        self.restore_capabilities(&now);
        if self.no_new_privileges && !now.no_new_privileges {
            note(set(PR_SET_NO_NEW_PRIVS, [1, 0, 0]), "that it gains no new privileges (PR_SET_NO_NEW_PRIVS)");
        }
        // New credentials may have cleared it.
        if self.death_signal != now.death_signal || self.death_signal != 0 {
            note(set(PR_SET_PDEATHSIG, [self.death_signal as usize, 0, 0]), "the signal at its parent's death (PR_SET_PDEATHSIG)");
        }
        if self.time_stamp_counter != now.time_stamp_counter && self.time_stamp_counter != 0 {
            note(set(PR_SET_TSC, [self.time_stamp_counter as usize, 0, 0]), "that it may not read the time stamp counter (PR_SET_TSC)");
        }
        if let Some(wanted) = self.cpuid.filter(|wanted| Some(*wanted) != now.cpuid) {
            // SAFETY: takes and returns plain numbers.
            let done = check(unsafe { syscall(libc::SYS_arch_prctl, [ARCH_SET_CPUID, wanted, 0, 0, 0, 0]) }).is_ok();
            note(done, "that it may not use cpuid (ARCH_SET_CPUID)");
        }
        lost.map_or(Ok(()), Err)
    }

    /// Credentials are left alone where nothing differs: some devices want those with which they were opened.
    fn restore_capabilities(&self, now: &Self) {
        // SAFETY: these options take plain numbers.
        let set = |option: i32, arguments: [usize; 3]| unsafe { control(option, arguments) };
        for capability in each(now.bounding & !self.bounding) {
            let _ = set(PR_CAPBSET_DROP, [capability, 0, 0]);
        }
        let [effective, permitted, inheritable] = self.capabilities;
        let wanted = [effective & now.capabilities[1], permitted & now.capabilities[1], inheritable];
        if wanted != now.capabilities {
            // What it may hand on takes what it has now.
            let _ = set_capabilities([now.capabilities[0], now.capabilities[1], inheritable]);
        }
        for capability in each(now.ambient & !self.ambient) {
            let _ = set(PR_CAP_AMBIENT, [3, capability, 0]); // PR_CAP_AMBIENT_LOWER
        }
        for capability in each(self.ambient & !now.ambient) {
            let _ = set(PR_CAP_AMBIENT, [2, capability, 0]); // PR_CAP_AMBIENT_RAISE
        }
        if wanted != now.capabilities {
            let _ = set_capabilities(wanted);
        }
    }
}

/// Where memory comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPolicy {
    mode: i32,
    nodes: [u64; NODE_WORDS],
}

impl MemoryPolicy {
    fn of_this_thread() -> Option<Self> {
        Self::ask(0, 0)
    }

    /// Of the mapping at an address; `None`: none of its own, or a kernel without policies.
    #[must_use]
    pub fn of_mapping(address: u64) -> Option<Self> {
        const MPOL_F_ADDR: usize = 2;
        Self::ask(address as usize, MPOL_F_ADDR).filter(|policy| policy.mode != 0)
    }

    fn ask(address: usize, flags: usize) -> Option<Self> {
        let mut policy = Self::default();
        let arguments = [(&raw mut policy.mode) as usize, policy.nodes.as_mut_ptr() as usize, NODE_WORDS * 64, address, flags, 0];
        // SAFETY: get_mempolicy writes one int and at most as many bits as it is told.
        check(unsafe { syscall(libc::SYS_get_mempolicy, arguments) }).ok().map(|_| policy)
    }

    /// Gives it to the calling thread, as [`Self::set_for`] gives it to memory.
    fn set_for_this_thread(&self) -> Result<(), i32> {
        let (nodes, bits) = self.argument();
        // SAFETY: set_mempolicy reads so many bits.
        as_far_as_possible(unsafe { syscall(libc::SYS_set_mempolicy, [self.mode as usize, nodes, bits, 0, 0, 0]) })
    }

    /// Gives it to memory. Pages that are there stay where they are. Nothing happens where it names memory nodes that the machine lacks, or
    /// that the process may not use: it was meant for another machine.
    ///
    /// # Errors
    /// The errno.
    pub fn set_for(&self, start: u64, end: u64) -> Result<(), i32> {
        let (nodes, bits) = self.argument();
        let arguments = [start as usize, (end - start) as usize, self.mode as usize, nodes, bits, 0];
        // SAFETY: mbind reads so many bits; it changes no content.
        as_far_as_possible(unsafe { syscall(libc::SYS_mbind, arguments) })
    }

    /// `MPOL_DEFAULT`, and `MPOL_LOCAL`, come without nodes. The kernel takes one bit less than it is told.
    fn argument(&self) -> (usize, usize) {
        if self.nodes == [0; NODE_WORDS] { (0, 0) } else { (self.nodes.as_ptr() as usize, NODE_WORDS * 64) }
    }
}

/// The result of a call that gives `EINVAL` for memory nodes that are not there.
fn as_far_as_possible(result: isize) -> Result<(), i32> {
    match check(result) {
        Err(libc::EINVAL) => Ok(()),
        result => result.map(drop),
    }
}

/// Changes nothing.
const ASK: usize = 0xffff_ffff;

/// Sets the calling thread's, unless it only asks.
fn personality(wanted: usize) -> Result<usize, i32> {
    // SAFETY: takes a number.
    check(unsafe { syscall(libc::SYS_personality, [wanted, 0, 0, 0, 0, 0]) })
}

/// # Safety
/// As the option wants it.
unsafe fn control(option: i32, [a, b, c]: [usize; 3]) -> Result<usize, i32> {
    // SAFETY: the caller's.
    check(unsafe { syscall(libc::SYS_prctl, [option as usize, a, b, c, 0, 0]) })
}

/// A bit for each capability for which `set` says 1, up to the last that the kernel knows.
fn bits(set: impl Fn(usize) -> Result<usize, i32>) -> u64 {
    (0..64).map_while(|capability| set(capability).ok().map(|is| (is as u64 & 1) << capability)).fold(0, |all, bit| all | bit)
}

fn each(set: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |capability| set >> capability & 1 != 0)
}

const CAPABILITY_VERSION: u32 = 0x2008_0522; // _LINUX_CAPABILITY_VERSION_3

/// Effective, permitted and inheritable capabilities of the calling thread.
#[must_use]
pub fn capabilities() -> Option<[u64; 3]> {
    let (header, mut data) = ([CAPABILITY_VERSION, 0], [0u32; 6]);
    // SAFETY: version 3 writes two structs of three words.
    check(unsafe { syscall(libc::SYS_capget, [header.as_ptr() as usize, data.as_mut_ptr() as usize, 0, 0, 0, 0]) }).ok()?;
    Some([0, 1, 2].map(|kind| u64::from(data[kind]) | u64::from(data[kind + 3]) << 32))
}

pub(crate) fn set_capabilities(wanted: [u64; 3]) -> Result<(), i32> {
    let (header, mut data) = ([CAPABILITY_VERSION, 0], [0u32; 6]);
    for (kind, set) in wanted.into_iter().enumerate() {
        (data[kind], data[kind + 3]) = (set as u32, (set >> 32) as u32);
    }
    // SAFETY: capset reads two structs of three words.
    check(unsafe { syscall(libc::SYS_capset, [header.as_ptr() as usize, data.as_ptr() as usize, 0, 0, 0, 0]) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_back_what_another_had() {
        let changed = std::thread::spawn(|| {
            // SAFETY: these options take plain numbers, and change this thread alone.
            unsafe {
                control(PR_SET_PDEATHSIG, [libc::SIGUSR1 as usize, 0, 0]).unwrap();
                control(PR_MCE_KILL, [1, 1, 0]).unwrap();
                control(PR_SET_NO_NEW_PRIVS, [1, 0, 0]).unwrap();
            }
            ThreadAttributes::of_this_thread()
        });
        let changed = changed.join().unwrap();
        let (before, after) = std::thread::spawn(move || {
            let before = ThreadAttributes::of_this_thread();
            changed.restore().unwrap();
            (before, ThreadAttributes::of_this_thread())
        })
        .join()
        .unwrap();
        assert_ne!(before, changed);
        assert_eq!(after, changed);
    }

    /// As on a node that has fewer.
    #[test]
    fn memory_nodes_that_are_not_there_are_done_without() {
        const MPOL_BIND: i32 = 2;
        let mut absent = MemoryPolicy { mode: MPOL_BIND, ..MemoryPolicy::default() };
        absent.nodes[NODE_WORDS - 1] = 1 << 62;
        let (restored, after) = std::thread::spawn(move || {
            let wanted = ThreadAttributes { memory_policy: Some(absent), ..ThreadAttributes::of_this_thread() };
            (wanted.restore(), MemoryPolicy::of_this_thread())
        })
        .join()
        .unwrap();
        assert_eq!(restored, Ok(()));
        assert_ne!(after, Some(absent));
        let page = vec![0u8; 8192];
        let start = (page.as_ptr() as u64).next_multiple_of(4096);
        assert_eq!(absent.set_for(start, start + 4096), Ok(()));
    }
}
