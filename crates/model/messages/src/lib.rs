//! Messages between controller, daemons, agents and the CLI, and the keyed handshake that admits a peer.
//!
//! Every frame is a little-endian `u32` length followed by that many bytes of postcard. Both ends of a
//! connection are of the same [`PROTOCOL`], which is exchanged in the clear before anything else so that
//! another version gets an error that says so. Lengths from a peer are untrusted: [`frame`] bounds them.
//!
//! Pure: no I/O, no clock, no threads.

pub mod agent;
pub mod auth;
pub mod chunks;
pub mod control;
pub mod daemon;
pub mod delivery;
pub mod files;
pub mod frame;
pub mod health;
pub mod job;
mod kinds;
pub mod needs;
pub mod portable;
pub mod progress;
pub mod report;
pub mod space_report;
pub mod tier;
pub mod transfer;
pub mod world;

/// Version of all messages in this crate, one more with every change of any of them: frames do not describe themselves. A peer
/// with another number is refused by the handshake.
pub const PROTOCOL: u32 = 25;

/// The program's release, shown to people; compatibility is decided by [`PROTOCOL`] alone.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
