//! What a save, or a copy that is begun, takes before its agent can be asked.

use crate::sink::Sink;
use mend_messages::agent::{Request, SaveOrder};
use mend_report::storage_hint;
use mend_transfer::TransferError;
use std::os::fd::OwnedFd;

/// What came of getting it ready.
pub(super) type Prepared = Result<Ready, NotReady>;

/// What a save takes, or a copy that is begun.
#[derive(Debug)]
pub(super) struct Ready {
    pub request: Request,
    /// The descriptor that goes with it.
    pub file: Option<OwnedFd>,
    /// What becomes of what is written there.
    pub sink: Option<Sink>,
}

impl Ready {
    pub fn new(order: SaveOrder, given: Option<(OwnedFd, Sink)>) -> Self {
        let (file, sink) = given.unzip();
        Self { request: Request::Save(order), file, sink }
    }
}

/// Why a save cannot begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotReady {
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("no image can be made")]
    Sink(#[source] std::io::Error),
    #[error("what this job's ranks hold is encrypted outside of them, and files on the way of a move are not")]
    InTheClear,
}

impl NotReady {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Transfer(error) => error.hint(),
            Self::Sink(error) => storage_hint(error),
            Self::InTheClear => "move it through the pipeline (without --strategy)",
        }
    }
}
