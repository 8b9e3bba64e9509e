//! `mend-chunks`: a process beside `mendd` that moves images of ranks between nodes in chunks of registered memory.
//!
//! ```text
//! agent ══ stream ══► chunk of the source's pool ══ fi_read or fi_write ══► chunk of the target's pool ══ stream ══► restorer
//!                        mend-chunks ◄── words about each chunk, over the TCP connection of the transfer ──► mend-chunks
//! ```
//! A node has one pool for all ranks that move, whichever job they are of. It is a process of its own because a provider may end the process that it
//! runs in, and `mendd` has ranks to look after: what is lost with it is a move, and the rank goes on where it was.
//!
//! Invariants: memory is bounded by the pool; a chunk is free when its checksum has held at the target, which passes chunks on in order; a
//! quarter of the chunks is left to what comes, which needs nothing but its process to be free again. So nodes that send to each other at once
//! cannot wait for each other for ever. Faults assumed: the other node, the provider, the process at the stream's end, and `mendd` each go away
//! at any moment; what comes over the connection is anybody's.

pub mod carrier;
mod link;
mod receiving;
mod sending;
mod store;
mod wire;

pub use store::Store;

/// Why a stream ended early.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// The connection to the other node.
    #[error("the connection to the other node failed: {0}")]
    Connection(std::io::Error),
    /// It was closed early.
    #[error("the other node closed the transfer")]
    Closed,
    /// The process at the end of the stream.
    #[error("the process on this node does not take what came: {0}")]
    Process(std::io::Error),
    /// What came does not make sense.
    #[error("the other node said what makes no sense: {0}")]
    Nonsense(&'static str),
    /// A chunk is not what was sent.
    #[error("a chunk at byte {offset} is not what was sent")]
    Altered {
        /// Its place in the stream.
        offset: u64,
    },
    /// The provider ended an operation with an error.
    #[error("the provider failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Failed(i32),
    /// The pool.
    #[error(transparent)]
    Pool(#[from] mend_fabric_sys::core_provider::PoolError),
    /// The provider takes too long.
    #[error("the provider did not move a chunk within {} s", .0.as_secs_f32())]
    Stalled(std::time::Duration),
}
