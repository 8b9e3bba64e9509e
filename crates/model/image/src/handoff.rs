//! What agent and restorer leave for each other in the process's own memory.
//!
//! Both are compiled from this file, but perhaps not in the same release: an image may be older than its restorer. The
//! layouts are therefore part of the format ([`crate::FORMAT`]) and asserted below.

/// Registers that a function call preserves, where the call returns to, and the floating-point controls.
///
/// A restored thread loads them and returns 1 from the call in which they were captured.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    /// rbx
    pub rbx: u64,
    /// rbp
    pub rbp: u64,
    /// r12
    pub r12: u64,
    /// r13
    pub r13: u64,
    /// r14
    pub r14: u64,
    /// r15
    pub r15: u64,
    /// rsp after the call returned
    pub rsp: u64,
    /// where the call returns to
    pub rip: u64,
    /// SSE control
    pub mxcsr: u32,
    /// x87 control, in the low 16 bits
    pub fcw: u32,
}

/// Most memory objects that a process can hold descriptors of.
pub const MAX_KEPT: usize = 1000;

/// Set by the restorer, checked by the restored agent.
pub const HANDOFF_MAGIC: u64 = 0x6866_6f64_6e65_4d01;

/// A memory object and its descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept {
    /// Index of the [`crate::record::Object`].
    pub object: u32,
    /// The number of the descriptor.
    pub fd: i32,
}

/// What the restorer tells the restored agent. Lives in the agent's scratch memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Handoff {
    /// [`HANDOFF_MAGIC`]
    pub magic: u64,
    /// Range of the restorer's own memory, to be unmapped when all threads have left it.
    pub restorer_start: u64,
    /// First address after it.
    pub restorer_end: u64,
    /// Bytes read from the stream.
    pub bytes: u64,
    /// Microseconds the restorer took.
    pub us: u64,
    /// [`crate::launch::Mode`] as a number: 0 restart, 1 migrate.
    pub mode: u32,
    /// Connection to the daemon.
    pub agent_fd: i32,
    /// By role; -1 if absent.
    pub attach: [i32; 4],
    /// Entries used in `kept`.
    pub kept_count: u32,
    /// 1: the process went back to the image in place ([`Rollback`]); 0: it is a new one.
    pub in_place: u32,
    /// Memory objects with [`crate::record::object::KEEP`].
    pub kept: [Kept; MAX_KEPT],
}

/// Most threads of a process that goes back to an image in place.
pub const MAX_ROLLBACK_THREADS: usize = 4096;

/// Set by the agent, checked by the restorer.
pub const ROLLBACK_MAGIC: u64 = 0x6b63_6162_6c6c_6f72;

/// What the agent of a living process tells a restorer that it has mapped into that process, to take it back to an image.
///
/// The process's first thread begins at the restorer's entry with a stack as execve(2) makes it, and every other one with an argument count
/// of zero, as a thread that waits. Lives in the restorer's zone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rollback {
    /// [`ROLLBACK_MAGIC`]
    pub magic: u64,
    /// Entries used in `threads`.
    pub count: u32,
    /// 1: since the image was taken, the process's own userfaultfd has noticed writes where it observes memory (`PAGE_IS_WRITTEN` of
    /// PAGEMAP_SCAN), and no device wrote. 0: what changed is not known.
    pub observed: u32,
    /// Ids of the threads that wait: all but the first, the agent's among them.
    pub threads: [u32; MAX_ROLLBACK_THREADS],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Context>() == 72);
    assert!(offset_of!(Context, rsp) == 48 && offset_of!(Context, rip) == 56 && offset_of!(Context, mxcsr) == 64);
    assert!(offset_of!(Handoff, mode) == 40 && offset_of!(Handoff, attach) == 48 && offset_of!(Handoff, kept) == 72);
    assert!(size_of::<Handoff>() == 72 + 8 * MAX_KEPT);
};
