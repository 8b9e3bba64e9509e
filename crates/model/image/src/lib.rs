//! The format of a rank's image: a checksummed stream of fixed records and pages.
//!
//! ```text
//! Header │ record │ record │ … │ End
//! record = RecordHead (32 bytes) │ payload │ zero bytes up to a multiple of 8
//! ```
//! One sequential stream, the same in a file and on a socket; nothing seeks. The records that describe the process
//! precede the pages, so that the restorer can map before it fills. Each head
//! carries the xxh3-64 of its payload and of itself; the end record carries totals and the xxh3-64 over the header and all heads, so
//! that a stream cannot lose, gain or swap records unnoticed.
//!
//! Everything here parses without allocation and never panics on any bytes. Who reads what:
//! [`read_header`] the first [`HEADER_SIZE`] bytes (version, who, where it can run); the verifier a whole stream;
//! [`launch`] how the restorer is started and answers; `chain` (with `std`) an image together with those it builds on.
//!
//! An image is full, or names the image it builds on and leaves pages to that one ([`kept`]): see [`ranges`] and [`link`].

#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
pub mod chain;
pub mod cpu;
#[cfg(feature = "std")]
pub mod diff;
mod error;
pub mod fixed;
pub mod handoff;
mod header;
pub mod kept;
pub mod launch;
pub mod link;
#[cfg(feature = "std")]
pub mod merge;
pub mod ranges;
pub mod record;
pub mod verify;
#[cfg(feature = "std")]
pub mod write;

pub use error::ImageError;
pub use header::{FORMAT, HEADER_SIZE, Header, put_text, read_header};

/// Addresses that the restorer keeps for itself while it builds a process. No image may map anything here: executables,
/// libraries, heaps and stacks of Linux on x86-64 lie far from it.
pub const ZONE: (u64, u64) = (0x1f00_0000_0000, 0x2000_0000_0000);
