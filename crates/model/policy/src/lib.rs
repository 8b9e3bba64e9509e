//! When checkpoints are taken, which of them are full, which are kept and which are merged; when a rank that moves is stopped; when it goes back.
//!
//! Decisions only: events and measured times go in, answers come out. Nothing here does I/O, reads a clock or starts a
//! thread, so that the same code runs in the controller and under a seeded simulation (`tests/simulation.rs`).
//! Reading order: [`interval`] and [`chain`] (the formulas), [`restarts`] (what restarts took), [`schedule`] (the state that a
//! job keeps), [`retention`] (what may go, what is to be merged). On their own: [`precopy`],
//! [`back`].
//!
//! Units: the formulas take seconds as `f64`, the state machine microseconds as `u64` on the caller's clock.

pub mod back;
pub mod chain;
pub mod health;
pub mod interval;
pub mod precopy;
pub mod restarts;
pub mod retention;
pub mod schedule;
