//! Linux without a C library, std or an allocator: the system call instruction, and lines of `/proc/PID/maps`.
//!
//! The restorer is a freestanding program, and a rank's agent runs where the program may be interrupted anywhere. Both use this.

#![no_std]

pub mod maps;
mod syscall;

pub use syscall::{check, syscall};
