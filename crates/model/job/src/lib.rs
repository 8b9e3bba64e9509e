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
//! Reading order: [`event`] (all that goes in and out), [`setup`] (what a job begins with), [`job`] (a job's life; in its folder what is
//! done about checkpoints, migrations, tiers, restarts, losses). The state's parts are plain structs that know nothing of the job:
//! [`roster`] (nodes and ranks), [`operation`] (what is under way), `questions` (what agents were asked), [`periodic`] (checkpoints
//! nobody asks for), `tiering` and `search` (copies), `losses` (connections that break), `data_losses` (what nodes tell of data spaces). Before there is a job: [`choice`] (which checkpoint a
//! restart begins from) and [`gathering`] (which hosts). After it: [`healing`] (whether it goes on by itself). Beside it:
//! [`replay`] (how a controller comes to stand where a lost one stood) and [`durable`] (what of that a loss of power leaves).

pub mod choice;
mod course;
mod data_losses;
pub mod durable;
pub mod end;
pub mod event;
pub mod gathering;
pub mod healing;
pub mod input;
pub mod job;
mod leaving;
mod losses;
mod noted;
mod notice;
pub mod operation;
pub mod periodic;
pub mod phase;
mod questions;
pub mod replay;
pub mod roster;
pub mod safeguard;
mod search;
pub mod setup;
mod space;
mod tiering;
mod tokens;

pub use job::Job;
