//! When checkpoints are taken, which of them are full, which are kept and which are merged; when a rank that moves is stopped, where it goes, when it
//! goes back; when ranks are to leave a node; how a job goes on after a failure. What is decided about a job by weighing one thing against another is decided here.
//!
//! Decisions only: events and measured times go in, answers come out. Nothing here does I/O, reads a clock or starts a
//! thread, so that the same code runs in the controller and under a seeded simulation (`tests/simulation.rs`).
//! Reading order: [`interval`] and [`chain`] (the formulas), [`restarts`] (what restarts took), [`schedule`] (the state that a
//! job keeps), [`retention`] (what may go, what is to be merged), [`stagger`] (which of them go to which tier). On their own: [`precopy`] (live or
//! frozen), [`spares`], [`back`], [`health`] (when a node is left, and how), [`recovery`] (pause, restart or stop), [`placement`] (ranks near
//! their data), [`exchanges`] (what they send each other), [`follow`] (whether they go there).
//!
//! Units: the formulas take seconds as `f64`, the state machine microseconds as `u64` on the caller's clock.

pub mod back;
pub mod chain;
pub mod exchanges;
pub mod follow;
pub mod health;
pub mod interval;
pub mod placement;
pub mod precopy;
pub mod recovery;
pub mod restarts;
pub mod retention;
pub mod schedule;
pub mod spares;
pub mod stagger;
