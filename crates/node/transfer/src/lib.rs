//! Bytes that a node moves: images that agents save, copies between tiers, migrations, files that are put back.
//!
//! ```text
//! source                       stages, in this order                              target
//! ──────                       ─────────────────────                              ──────
//! agent's stream     ┐         length, pace       (what is refused, and when)   ┌ atomic file (in a node store)
//! file, sealed file  ├─ piece ─► check, checksum  (what is seen to be good)    ─┼ object
//! object             │         seal               (what is stored otherwise)    ├ another node
//! another node       ┘                                                          └ restorer's stream
//! ```
//! [`pipeline::run`] moves one piece at a time: nothing is read while the target has not taken what was read before, so a pipeline's
//! memory is a piece and what its stages hold back, and whoever is slow slows down the source. A target counts only when it is
//! committed: then all has come, and every stage has seen its end. [`progress::Progress`] counts what is read and what is given.
//!
//! What moves without a check on its way is checked where it arrives: a migration's image by the restorer. Its connection
//! ([`peer`]) is handed to agent and restorer themselves, unless something has to be done to the bytes: then a pipeline stands between
//! the process's stream ([`process_stream`]) and the connection, on either side; or it goes in chunks of registered memory ([`chunks`]). To compare with,
//! an image can be [`stored`] in a file on its way.

pub mod atomic_file;
pub mod chunks;
mod error;
pub mod image;
pub mod node_store;
pub mod object;
pub mod pace;
pub mod peer;
pub mod peer_image;
pub mod pipeline;
pub mod process_stream;
pub mod progress;
pub mod stage;
pub mod stored;

pub use error::TransferError;
