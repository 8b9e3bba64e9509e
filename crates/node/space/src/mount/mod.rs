//! A space as a file system, through FUSE, the same on every node: read-only, or with files that ranks write.
//!
//! `view` is what a mount shows, `files` answers the kernel, `listings` keeps what it lists, `writing` what it asks of files that ranks write, `serve` is the process that does so, for one mount or for all ranks of a node,
//! `restore` puts back what ranks wrote, before they are restarted.

mod files;
mod listings;
mod restore;
mod serve;
mod view;
mod writing;

pub use restore::{Part, Was, restore};
pub use serve::{mounted, ranks};
