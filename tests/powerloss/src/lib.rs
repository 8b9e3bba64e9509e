//! A file system for tests: what was not made durable is lost when its power fails.
//!
//! [`disk`] is the model of a disk with volatile caches and decides what survives; [`faults`] says which operation
//! meets a failure; [`mount`] shows the disk to the kernel. The program (`main.rs`) takes orders line by line.

pub mod disk;
pub mod faults;
pub mod mount;
pub mod survival;
