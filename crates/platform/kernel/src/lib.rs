//! Linux primitives that no library offers, each behind a safe function.

pub mod background;
pub mod copy;
pub mod deadline;
pub mod landlock;
#[cfg(test)]
mod mapped;
pub mod memory;
pub mod namespaces;
pub mod pagemap;
pub mod ports;
pub mod processor;
pub mod procmap;
pub mod program;
pub mod sample;
pub mod signal_queue;
pub mod slice;
pub mod soft_dirty;
pub mod table;
pub mod thread_attributes;
pub mod threads;
pub mod tiles;
pub mod tracer;
pub mod untrusted;
pub mod userfault;
pub mod vdso;
