//! The place of a job's portable checkpoints while it is being opened. Ranks see it in the job's directory, whose file system may hang: so that is done in a thread of its own. Ranks that
//! start meanwhile wait for it, but not for long; then they write to the directory, and this node keeps none.

use super::{Portable, PortableArea};
use crate::bounded;
use crate::outbox::Urgent;
use mend_messages::daemon::JobIntroduction;
use mend_messages::tier::TierSpec;
use mend_transfer::image::Mover;
use std::io;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How far it has come.
#[derive(Debug)]
enum State {
    Opening,
    Open(Portable),
    None,
}

/// A place that is being opened, is open, or could not be opened. Dropped, nothing more is begun.
#[derive(Debug)]
pub struct Opening {
    state: watch::Receiver<State>,
    task: AbortHandle,
}

impl Opening {
    /// Begins. `failed` is told why there is none.
    pub fn begin(
        (job, node, tiers): (Arc<JobIntroduction>, String, Vec<TierSpec>),
        urgent: Urgent,
        paced: Mover,
        failed: impl FnOnce(io::Error) + Send + 'static,
    ) -> Self {
        Self::of(move || PortableArea::open(&job, &node, tiers, urgent), paced, failed)
    }

    fn of(
        open: impl FnOnce() -> io::Result<Option<PortableArea>> + Send + 'static,
        paced: Mover,
        failed: impl FnOnce(io::Error) + Send + 'static,
    ) -> Self {
        let (told, state) = watch::channel(State::Opening);
        let task = tokio::spawn(async move {
            let hangs = || Err(io::Error::new(io::ErrorKind::TimedOut, "the file system of the job's directory does not answer"));
            let opened = bounded::within(bounded::PATIENCE, open).await.unwrap_or_else(hangs);
            let begun = opened.and_then(|place| place.map(|place| Portable::begin(place, paced)).transpose());
            let state = match begun {
                Ok(Some(portable)) => State::Open(portable),
                Ok(None) => State::None,
                Err(error) => {
                    failed(error);
                    State::None
                }
            };
            told.send_replace(state);
        });
        Self { state, task: task.abort_handle() }
    }

    /// What is open now.
    pub fn now(&self) -> Option<Portable> {
        match &*self.state.borrow() {
            State::Open(portable) => Some(portable.clone()),
            State::Opening | State::None => None,
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is there for a rank, or will soon be.
#[derive(Clone, Debug, Default)]
pub struct Offered(Option<watch::Receiver<State>>);

impl From<&Opening> for Offered {
    fn from(opening: &Opening) -> Self {
        Self(Some(opening.state.clone()))
    }
}

impl Offered {
    /// What is there, as soon as that is known.
    pub async fn opened(self) -> Option<Portable> {
        let mut state = self.0?;
        // Whoever opens it may be gone.
        let known = state.wait_for(|state| !matches!(state, State::Opening)).await.ok()?;
        if let State::Open(portable) = &*known { Some(portable.clone()) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_directory_that_hangs_costs_no_rank_more_than_the_bound() {
        let (release, hung) = mpsc::channel::<()>();
        let (failed, mut told) = tokio::sync::mpsc::unbounded_channel();
        let opening = Opening::of(
            move || {
                let _ = hung.recv();
                Ok(None)
            },
            Mover::new(0, Arc::default()),
            move |error| {
                let _ = failed.send(error.kind());
            },
        );
        let offered = Offered::from(&opening);
        assert!(opening.now().is_none());
        assert!(offered.clone().opened().await.is_none());
        assert_eq!(told.recv().await, Some(io::ErrorKind::TimedOut));
        drop(release);
        // Nobody is kept waiting by one that will not be opened any more.
        let (release, hung) = mpsc::channel::<()>();
        let opening = Opening::of(move || hung.recv().map(|()| None).map_err(io::Error::other), Mover::new(0, Arc::default()), drop);
        let offered = Offered::from(&opening);
        drop((opening, release));
        assert!(offered.opened().await.is_none());
    }
}
