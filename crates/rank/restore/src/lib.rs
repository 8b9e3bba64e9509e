//! Fills memory from an image and from those it builds on.
//!
//! ```text
//! Stream::open ─► Tables::read, check ─► Building::map ─► fill: newest image, then older ones ─► Building::finish
//!                                        (or memory that is there: rewrite)
//! ```
//! A process that still runs elsewhere is received ahead of its image ([`rounds`]).
//!
//! `mend-restorer` builds a process with it that is empty but for itself; a process that goes back to an image while it lives rewrites
//! with it what has changed since ([`fill::rewrite`]). So nothing here needs a C library, `std` or an allocator, and all threads but the
//! caller's may stand still: system calls are made directly ([`sys`]), memory for tables is the caller's ([`arena`]), and so is a second
//! thread ([`fill::Workers`]).
//!
//! Faults assumed: a stream is torn, damaged, foreign or hostile, a socket falls silent, a file is not the one that was mapped, the kernel
//! refuses memory. Lengths, addresses and order are bounded, and a checksum is compared before anything of a table is relied on. Pages are
//! checked where they lie: after an error, memory that was to be filled holds anything.

#![no_std]

mod anonymous;
pub mod arena;
pub mod error;
pub mod fill;
mod list;
mod lock;
pub mod present;
pub mod rounds;
pub mod space;
pub mod stream;
pub mod sys;
pub mod tables;

pub use error::RestoreError;
pub use list::List;
