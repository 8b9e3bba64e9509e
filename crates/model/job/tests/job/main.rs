//! The job's machine as its daemons see it.

mod anew;
mod exits;
mod spawning;
mod world;
