//! The job's machine as its daemons see it.

mod anew;
mod branch;
mod exits;
mod spawning;
mod world;
