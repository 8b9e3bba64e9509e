//! A space as a file system, through FUSE: read-only, the same on every node.
//!
//! `files` answers the kernel, `serve` is the process that does so, for one mount or for all ranks of a node.

mod files;
mod serve;

pub use serve::{mounted, ranks};
