//! A cluster on one machine: nodes made of namespaces, joined by a bridge.
//!
//! Every node has its own network, host name, mounts, processes and System V IPC, its own address on a bridge, a
//! private `/dev/shm` and scratch directory, and one directory shared with all other nodes. Reading order:
//! `plan` (what a lab looks like, pure), `protocol` (what is said to a running lab), `launch` and `holder` (how it
//! comes up and lives), `node` (pid 1 of a node), `network`, `mounts`, `daemons`, `exec`, `client`, `command`.
//!
//! Invariants:
//! - a lab is a tree of namespaces below one process, the *holder*, pid 1 of the lab's PID namespace. However
//!   the holder ends, the kernel ends every process of the lab, and with the last of them networks and mounts;
//! - nothing is written to the machine's own file systems: the lab's files are a tmpfs in its own mount namespace;
//! - a lab is found by an abstract unix socket whose name holds the user's id, so there is no file to go stale;
//! - only the user who started a lab may command it.
//!
//! Faults assumed: SIGKILL of the holder, of `mend lab up` at any moment, of a node's pid 1, of a client in the
//! middle of a request; a kernel that refuses user namespaces, bridges or shaping; missing tools; other users who
//! occupy the socket's name.

mod client;
mod command;
mod daemons;
mod error;
mod exec;
mod holder;
mod launch;
mod mounts;
mod network;
mod node;
mod plan;
mod protocol;

pub use client::Lab;
pub use command::{LabCommand, run};
pub use error::LabError;
pub use launch::{UpOptions, up};
pub use plan::{Bandwidth, LabName};
pub use protocol::{LabStatus, NodeState, NodeStatus};
