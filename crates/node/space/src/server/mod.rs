//! A target: what keeps objects of a space and its entries. One process serves one of them.
//!
//! `store` is what a directory of a node has, `serve` who may ask for it, `clients` what is known of these, `leases` what they are promised, `links` which connections they have given up, `turns` what one client does at a time, `under_way` what takes long. Whatever else keeps objects is [`Served`] in the same way.

mod clients;
mod leases;
mod links;
mod serve;
mod store;
mod turns;
mod under_way;

pub use clients::{Clients, bytes, encoded};
pub use serve::{run, serve};

use mend_data::space::target::{Answer, Failed, Request};
use std::io;

/// The answer to a request, with the bytes that belong to it.
pub type Answered = Result<(Answer, Vec<u8>), Failure>;

/// What answers the requests of clients.
pub trait Served: Send + Sync + 'static {
    /// Carries out a request that [makes sense](Request::is_sound). Bytes that belong to the answer are in the second part.
    ///
    /// # Errors
    /// What the client is told.
    fn carry_out(&self, request: Request, payload: &[u8]) -> Answered;

    /// Called once, in a thread of its own, when clients can come.
    fn begun(&self) {}

    /// True if no other process serves the same objects: only then can be promised that nothing changes.
    fn is_alone(&self) -> bool {
        false
    }
}

/// Why a request fails.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind it is.
    pub kind: Failed,
    /// For people.
    pub why: String,
}

impl Failure {
    /// Of this kind.
    pub fn new(kind: Failed, why: impl Into<String>) -> Self {
        Self { kind, why: why.into() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Failed::Absent,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Failed::Full,
            io::ErrorKind::FileTooLarge => Failed::TooLong,
            _ => Failed::Medium,
        };
        Self::new(kind, error.to_string())
    }
}
