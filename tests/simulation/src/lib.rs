//! A world around one job's machine and those of its nodes, drawn from a seed: the same machines as in the controller and the daemons, in a world where nodes die, connections
//! break, agents fall silent, disks are full, users do what they like, and the controller itself dies, and begins anew or is succeeded,
//! by a successor that nodes start. After a failure ranks go back in place, or cannot.
//!
//! What is asserted, whatever happens: never two copies of a rank run; the newest complete checkpoint stays restorable, and is of one
//! moment; every verb is answered, once; what is recorded of a checkpoint or migration begins, is decided durably and ends, once; nothing waits for ever; a job ends for a reason, and then nothing of it is left; what nobody
//! disturbs succeeds. The machine is written down and read back now and then, and goes on identically.
//!
//! A seed is the whole report of a defect: [`run`] with it does the same again.

pub mod agent;
mod coming;
mod disk;
mod feeder;
mod node;
mod stores;
mod story;
mod world;

pub use world::{Options, Summary, run};

/// A defect of agents or users of old, to be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// After a checkpoint a marker is left behind in the channels, and a migration's drain waits for it in vain.
    StaleMarker,
}

/// The first seed below `seeds` in which something is found, and what.
#[must_use]
pub fn first_find(options: Options, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| run(seed, options).err().map(|found| (seed, found)))
}
