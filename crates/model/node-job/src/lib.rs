//! One job on one node as one pure machine: what its daemon decides, and when.
//!
//! ```text
//! the controller's orders, agents' words, ends of ranks, ──► NodeJob::handle(now, event) ──► effects: messages to the controller and agents,
//! the connection's state, time, answers to effects             │        ▲                    ranks to begin, tell and release, the end
//!                                                              └ state ─┘
//! ```
//! Nothing here does I/O, reads a clock or starts a thread. The time is microseconds since the job came to the node. The whole state is plain and can
//! be written down at any moment and read back. The same code runs in `mendd`, which carries the effects out, and in a seeded simulator, where
//! processes and agents are contracts.
//!
//! Reading order: [`event`] (all that goes in and out), [`job`] (a job's life on the node; in its folder who is here, who speaks, what is asked),
//! [`hold`] (the lease), [`local_rank`]; [`table`] is of all jobs on a node.

pub mod event;
pub mod hold;
pub mod job;
pub mod local_rank;
pub mod safeguard;
pub mod table;

pub use job::NodeJob;
pub use table::JobTable;
