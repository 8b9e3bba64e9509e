//! One job as one pure machine: what is decided about it, when, and what is to be done.
//!
//! ```text
//! daemons' words, verbs, signals, time, ──► Job::handle(now, event) ──► effects: messages to daemons, answers to verbs,
//! answers to effects                          │        ▲                 files to write, notices, timers (next_deadline)
//!                                             └ state ─┘
//! ```
//! Nothing here does I/O, reads a clock or starts a thread. The whole state is plain and can be written down at any moment and read
//! back. The same code runs in the controller, which carries the effects out, and in a seeded simulator, where daemons, agents and
//! disks fail as it likes.
//!
//! Reading order: [`event`] (all that goes in and out), [`setup`] (what a job begins with), [`job`] (a job's life), [`operation`] (a
//! checkpoint, migration or inspection under way), `requests` (what agents were asked), [`periodic`] (checkpoints nobody asks for),
//! `tiers` and `recover` (copies), `losses` (connections that break).

mod ending;
pub mod event;
mod explain;
pub mod job;
mod journal;
mod losses;
mod notice;
pub mod operation;
pub mod periodic;
mod ranks;
mod recover;
mod requests;
pub mod safeguard;
pub mod setup;
mod space;
mod tiers;
mod tokens;

pub use job::Job;
