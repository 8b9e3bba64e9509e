//! Taking an image: [`inspect`] tells what stands in the way, [`save`] takes it, [`gather`] collects the tables, [`writer`] decides which
//! pages go into the [`stream`], and that goes to a [`target`].
//!
//! The threads stand still for all of it, or for as long as it takes to copy the process ([`behind`], [`aside`]) or what changed ([`staged`]).

pub(crate) mod aside;
pub(crate) mod behind;
pub(crate) mod gather;
pub(crate) mod inspect;
mod outlet;
pub(crate) mod room;
pub(crate) mod save;
pub(crate) mod scratch;
mod sender;
pub(crate) mod staged;
mod stream;
pub(crate) mod target;
pub(crate) mod writer;
