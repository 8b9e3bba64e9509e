//! File systems that may hang, as those of a job's directory, of a user's key and of installed programs: what is looked at there is looked at in threads of their own,
//! so that neither this daemon's thread nor, with a bound, a job waits for it.

use std::panic::resume_unwind;
use std::time::Duration;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;

/// How long what a job cannot go on without is waited for; then it goes on without.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// What comes of it, if that is so in time. What comes later is dropped.
pub async fn within<T: Send + 'static>(patience: Duration, todo: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    timeout(patience, spawn_blocking(todo)).await.ok()?.ok()
}

/// What comes of it, however long that takes: nobody else waits for it.
pub async fn apart<T: Send + 'static>(todo: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(todo).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        // The daemon ends, and with it whoever waits here.
        Err(Err(_)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn what_hangs_is_waited_for_no_longer_than_the_bound_and_keeps_nobody_else_waiting() {
        let (release, hung) = mpsc::channel::<()>();
        let (looked, mut done) = tokio::sync::mpsc::unbounded_channel();
        let hangs = within(Duration::from_millis(50), move || {
            let _ = hung.recv();
            let _ = looked.send(());
        });
        let (found, other) = tokio::join!(hangs, within(PATIENCE, || 7));
        assert_eq!((found, other), (None, Some(7)));
        assert!(done.try_recv().is_err(), "it hangs still");
        drop(release);
        assert_eq!(done.recv().await, Some(()));
    }
}
