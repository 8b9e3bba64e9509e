//! The agent inside a rank: parks threads, writes the image, rebuilds the process after a restore.
//!
//! One thread, started by the preloaded object's constructor, that talks with the node's daemon, and another that helps it in the
//! program's descriptor table ([`agent_loop::table_thread`]).
//!
//! | folder | holds |
//! | --- | --- |
//! | [`agent_loop`] | what the daemon asks for, and how the agent's thread answers |
//! | [`park`] | stopping the program's threads and letting them go on |
//! | [`capture`] | taking an image |
//! | [`track`] | which pages changed since the last image |
//! | [`memory`] | the program's address space |
//! | [`descriptors`] | the program's descriptors: each kind is saved and opened again in one file |
//! | [`process`] | what else the kernel keeps for the process |
//! | [`rollback`] | going back to an image in place |
//! | [`restore`] | the first steps of the agent in a restored process |
//!
//! Rules: whatever fails here, the program runs on. While threads are parked nothing here calls the C library's malloc or
//! anything that takes one of its locks.

mod agent_loop;
mod allocator;
mod capture;
mod descriptors;
mod memory;
mod network;
mod park;
mod process;
mod restore;
mod rollback;
mod start;
mod track;

pub use agent_loop::progress::step;
pub use allocator::RankAllocator;
pub use descriptors::data_calls;
pub use network::{Counters, Frozen, Network, Undrained};
pub use start::start;
