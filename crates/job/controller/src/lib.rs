//! The controller of one job: decides when and where, keeps the checkpoints, prints the output.
//!
//! It lives inside `mend run` and `mend restart`, one per job, and ends with the job. Reading order: [`hosts`] and
//! [`record`] (what is asked, where it is kept), [`nodes`] (connections to the daemons), [`job`] (the event loop),
//! [`operation`] (a checkpoint or migration under way), [`journal_file`] (what happened), [`periodic`] and [`upkeep`] (when they are taken, what becomes of
//! them), [`tiers`] and `recover` (where copies are), [`serve`] and [`client`] (the verbs' side door).
//!
//! Faults assumed: daemons and nodes die or fall silent at any moment; agents do not answer; disks are full. The
//! controller's own death ends the job (its connections are the job's lease on the nodes) and leaves every published
//! checkpoint usable.

pub mod candidates;
pub mod client;
mod embedded;
mod error;
pub mod hosts;
pub mod image_file;
pub mod images;
pub mod input;
mod job;
pub mod journal_file;
mod journaling;
mod losses;
pub mod manifest;
mod nodes;
mod operation;
mod output;
pub mod periodic;
mod put_files;
mod reach;
pub mod record;
mod recover;
pub mod removal;
mod serve;
mod shown;
mod space;
mod start;
mod status;
pub mod tiers;
mod told;
mod trail;
mod turns;
pub mod upkeep;

pub use error::{RunError, with_causes as error_with_causes};
pub use start::{RestartSpec, RunSpec, restart, run};
