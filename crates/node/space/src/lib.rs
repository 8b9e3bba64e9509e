//! Data spaces: files of a job, striped over directories of its nodes.
//!
//! ```text
//! mend data ls, stage NAME:… ──► mend-data ─┐
//! a rank reads ──► kernel ──► mend-space ranks ─┤ client ──encrypted TCP──► mend-space target ──► objects, database
//!                              (one per node)   └──────────────────────────► mend-space target ──► …
//! ```
//! `server` is a target: it keeps objects and entries in a directory. `client` finds targets, knows their names together, reads with a cache, and writes new files. `mount` shows
//! a space as a file system. `link` is the connection between the two, `descriptor` the file that describes a space, `holes` is what zeros do not take.

pub mod client;
pub mod descriptor;
mod holes;
mod link;
pub mod mount;
pub mod server;

pub use holes::are_zeros;
pub use link::Fault;
