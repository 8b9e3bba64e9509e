//! The job's decisions as pure code: PMI server, checkpoint, migration, placement, copies of images.
//!
//! Nothing here does I/O, reads a clock or starts a thread: events go in, commands come out, so that the same code
//! runs in the controller and under a seeded simulation.

pub mod batch;
pub mod checkpoint;
pub mod failure;
pub mod lease;
pub mod migration;
pub mod placement;
pub mod pmi;
pub mod portable;
pub mod recovery;
pub mod renewal;
pub mod replication;
mod safeguards;
pub mod spawn_request;
pub mod worlds;
