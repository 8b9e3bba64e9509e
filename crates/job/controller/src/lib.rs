//! The controller of one job: decides when and where, keeps the checkpoints, prints the output.
//!
//! It lives inside `mend run` and `mend restart`, or in a process that these fork (`detached`), one per job, and ends with the job. What is decided is decided by the pure machine
//! of `mend-job`; this crate carries it out. Reading order: [`hosts`] and
//! [`record`] (what is asked, where it is kept), `nodes` (connections to the daemons), `start` and `restart` (how a job begins), `healing` (how it goes on by itself), `run` (the loop that
//! carries out effects), `texts` (what people read), [`journal_file`] (what happened), [`upkeep`] (what becomes of checkpoints), `serve` and [`client`] (the verbs' side door).
//!
//! Faults assumed: daemons and nodes die or fall silent at any moment; agents do not answer; disks are full. When the
//! controller itself is lost, another one takes its place on one of the nodes ([`failover`]); where none can, the job ends (its connections are the
//! job's lease on the nodes), and every published checkpoint is usable.

mod arrival;
pub mod batch;
mod batch_daemons;
mod batch_life;
mod batch_others;
mod batch_question;
mod batch_turn;
mod batch_watch;
pub mod being_restarted;
pub mod branch;
pub mod candidates;
pub mod checkpoint_plan;
pub mod client;
mod data_program;
mod data_watch;
mod deferred_sync;
pub mod detached;
pub mod drained;
mod embedded;
mod end_on_record;
mod error;
pub mod failover;
mod healing;
pub mod healing_options;
mod held_file;
mod host_connections;
pub mod hosts;
pub mod image_file;
pub mod images;
pub mod input;
pub mod input_file;
pub mod job_end;
mod job_link;
mod job_lock;
mod job_tiers;
pub mod journal_file;
mod journaling;
mod kill_request;
pub mod known_jobs;
mod life;
mod lock_identity;
pub mod look;
mod made_spaces;
pub mod manifest;
mod moving;
mod nodes;
mod offload;
mod offload_news;
mod output;
mod overruled;
pub mod portable;
mod programs;
pub mod record;
pub mod record_error;
pub mod removal;
mod replayed_output;
mod restart;
mod run;
mod serve;
mod shown_output;
mod signals;
pub mod spool;
pub mod spool_reader;
mod standard_input;
mod standard_streams;
mod start;
mod stream_digest;
mod teller;
mod texts;
pub mod tiers;
mod time_left;
pub mod upkeep;
mod watchers;
mod wish;

pub use arrival::STAGING;
pub use error::RunError;
pub use healing::{restart, run};
pub use made_spaces::Begins;
pub use restart::RestartSpec;
pub use start::RunSpec;
