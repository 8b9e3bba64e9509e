//! The journal of a job: its events, their frames in a file, what they add up to, how they read in English.
//!
//! Reading order: [`event`] (what can happen), [`data`] (what of it is about data spaces), [`frame`] (how it stands in a file), [`state`] (what all events add up to) and [`sum`] (how they do),
//! [`compact`] (how the file stays small), [`text`] (how events read), [`timeline`] (when what happened).
//!
//! Invariants: events that this release does not know are kept and passed over, never a reason to refuse the journal; what
//! [`compact::compact`] leaves adds up to the same state as what it was given; whatever bytes a file holds, reading it ends.
//! Faults assumed: the writer dies in the middle of a frame; a disk returns other bytes than were written.
//!
//! Pure: no I/O, no clock, no threads.

pub mod compact;
pub mod data;
pub mod event;
pub mod facts;
pub mod frame;
pub mod ranks;
pub mod state;
pub mod sum;
pub mod text;
pub mod timeline;

pub use event::{Entry, Event};
pub use state::State;
pub use timeline::Timeline;
