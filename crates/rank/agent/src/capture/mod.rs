//! Taking an image: [`inspect`] tells what stands in the way, [`save`] takes it, [`image_tables`] holds what is not memory, [`writer`] decides which
//! pages go into the [`stream`], and that goes to a [`target`],
//! to another node [compressed](compression) where that helps.
//!
//! There are three [`strategy`] modules for how long the threads stand still: for all of it, or for as long as it takes to copy the
//! process or what changed ([`dirty_copies`]), and what a copy of the process would share ([`shared_copies`]). Then a
//! [`background_writer`] writes the rest.

pub(crate) mod background_writer;
mod compression;
pub(crate) mod dirty_copies;
pub(crate) mod image_tables;
pub(crate) mod inspect;
pub(crate) mod memory_headroom;
pub(crate) mod needed_files;
mod outlet;
pub(crate) mod precopy;
pub(crate) mod quiesced_process;
pub(crate) mod report;
pub(crate) mod save;
mod save_error;
pub(crate) mod save_request;
pub(crate) mod scratch;
mod sender;
pub(crate) mod shared_copies;
mod strategy;
mod stream;
pub(crate) mod target;
pub(crate) mod write_error;
mod write_job;
mod write_pace;
pub(crate) mod writer;
