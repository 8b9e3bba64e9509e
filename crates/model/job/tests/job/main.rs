//! The job's machine as its daemons see it.

mod anew;
mod back;
mod branch;
mod exits;
mod last_checkpoint;
mod moves;
mod questions;
mod spawning;
mod tiers;
mod world;
