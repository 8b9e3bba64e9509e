//! How long a daemon goes on whose starter is gone: `mend run` on one machine, or in a batch job.
//!
//! ```text
//! standard input ends without a word, or a successor has come ──► alone ── nobody holds it, and the time is over ──► the daemon ends
//!                                          ▲ a job whose controller may have a successor, a successor that this daemon started
//! ```
//! What holds the other end of standard input may be on a node that is lost, so that nobody sees its end.
//! Whoever ends it with a word waits until what it has begun is done ([`Stay::work`]).
//! Invariant: it does not end while it is held. A job that was lost here may go on in another life, and is waited for a while ([`Stay::linger`]). Faults assumed:
//! nobody goes on with the job.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::sleep_until;

/// How long another life of a job that was lost here may take to come.
pub const LINGERING: Duration = Duration::from_secs(60);

/// Who needs this daemon.
#[derive(Debug)]
pub struct Stay {
    /// Who holds it.
    holders: Arc<watch::Sender<u32>>,
    /// What is under way.
    works: Arc<watch::Sender<u32>>,
    until: Mutex<Option<Instant>>,
    alone: watch::Sender<bool>,
}

impl Default for Stay {
    fn default() -> Self {
        Self { holders: Arc::default(), works: Arc::default(), until: Mutex::new(None), alone: watch::Sender::new(false) }
    }
}

/// Counts until it is dropped.
#[derive(Debug)]
pub struct Held(Arc<watch::Sender<u32>>);

impl Held {
    fn counted(by: &Arc<watch::Sender<u32>>) -> Self {
        by.send_modify(|all| *all += 1);
        Self(by.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.send_modify(|all| *all -= 1);
    }
}

impl Stay {
    /// The daemon does something until what is returned goes.
    pub fn work(&self) -> Held {
        Held::counted(&self.works)
    }

    /// Returns when nothing is under way.
    pub async fn done(&self) {
        // The sender lives as long as this does.
        let _ = self.works.subscribe().wait_for(|works| *works == 0).await;
    }

    /// The daemon is needed until what is returned goes.
    pub fn hold(&self) -> Held {
        Held::counted(&self.holders)
    }

    /// The daemon is needed for so long, whoever else needs it.
    pub fn linger(&self, time: Duration) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(Some(Instant::now() + time));
    }

    /// The job is over, and no other life of it is waited for.
    pub fn settle(&self) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whoever started the daemon is gone.
    pub fn alone(&self) {
        if !self.alone.send_replace(true) {
            tracing::info!("whoever started this daemon is gone");
        }
    }

    /// Whether he is.
    pub fn is_alone(&self) -> bool {
        *self.alone.borrow()
    }

    /// Returns when he is.
    pub async fn left_alone(&self) {
        // The sender lives as long as this does.
        let _ = self.alone.subscribe().wait_for(|alone| *alone).await;
    }

    /// Returns when nobody needs the daemon.
    pub async fn over(&self) {
        let mut holders = self.holders.subscribe();
        loop {
            // The sender lives as long as this does.
            let _ = holders.wait_for(|holders| *holders == 0).await;
            let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
            match until.filter(|until| *until > Instant::now()) {
                None => return,
                Some(until) => tokio::select! {
                    () = sleep_until(until.into()) => {}
                    _ = holders.changed() => {}
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn is_over(waiting: &mut std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[tokio::test]
    async fn it_is_over_when_nobody_holds_it_and_its_time_is_past() {
        let stay = Arc::new(Stay::default());
        stay.over().await;
        let (first, second) = (stay.hold(), stay.hold());
        let mut waiting = pin!(stay.over());
        assert!(!is_over(&mut waiting));
        drop(first);
        assert!(!is_over(&mut waiting));
        stay.linger(Duration::from_secs(3600));
        drop(second);
        assert!(!is_over(&mut waiting));
        let third = stay.hold();
        stay.settle();
        assert!(!is_over(&mut waiting));
        drop(third);
        assert!(is_over(&mut waiting));
    }

    #[tokio::test]
    async fn what_is_under_way_is_waited_for() {
        let stay = Arc::new(Stay::default());
        stay.done().await;
        let work = stay.work();
        let mut waiting = pin!(stay.done());
        assert!(!is_over(&mut waiting));
        drop(work);
        assert!(is_over(&mut waiting));
    }
}
