//! The agent inside a rank: parks threads, writes the image, rebuilds the process after a restore.
//!
//! One thread, started by the preloaded object's constructor, that talks with the node's daemon, and another that helps it in the
//! program's descriptor table ([`hand`]). Reading order:
//! [`conversation`] (what is asked), [`save`] (how an image is taken), `park`, `layout`, `writer`, `stream`, `sender`, `behind`,
//! `staged`; for the way back `rebuild`, `reopen`, `state`.
//!
//! Rules: whatever fails here, the program runs on. While threads are parked nothing here calls the C library's malloc or
//! anything that takes one of its locks.

mod allocator;
mod aside;
mod attached;
mod attributes;
mod behind;
mod bell;
mod chain;
mod context;
mod conversation;
mod deadlines;
mod deleted;
mod descriptors;
mod dirty;
mod file_attributes;
mod gather;
mod guards;
mod hand;
mod inspect;
mod kept_files;
mod layout;
mod link;
mod locks;
mod mapping_attributes;
mod maps;
mod network;
mod node_files;
mod origin;
mod outlet;
mod park;
mod passing;
mod pending;
mod place;
mod process;
mod rebuild;
mod reopen;
mod room;
mod rseq;
mod samples;
mod save;
mod scheduling;
mod scratch;
mod sender;
mod socket_options;
mod sockets;
mod staged;
mod start;
mod state;
mod stream;
mod succession;
mod table;
mod target;
mod tasks;
mod timers;
mod unopenable;
mod unreachable;
mod watches;
mod writer;

pub use allocator::RankAllocator;
pub use network::{Frozen, Network};
pub use start::start;
