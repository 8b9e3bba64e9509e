//! The job's machine as its daemons see it.

mod anew;
mod spawning;
mod world;
