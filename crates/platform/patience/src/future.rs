//! Waiting for a future.

use crate::{Activity, Patience};
use std::pin::pin;
use std::time::Duration;
use tokio::time::timeout;

/// Nothing came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfPatience;

/// Waits for `future`, at most `limit` of the time in which this process could run: what is ready is taken, however late it is
/// looked for.
///
/// # Errors
/// [`OutOfPatience`].
pub async fn patiently<F: Future>(limit: Duration, future: F) -> Result<F::Output, OutOfPatience> {
    waited(Patience::new(limit), future, || false).await
}

/// The same by fewer looks, one every `pause`: for a wait that goes on all the time, so that its looks cost less. Of an own delay, as much as a pause counts.
///
/// # Errors
/// [`OutOfPatience`].
pub async fn patiently_paced<F: Future>(limit: Duration, pause: Duration, future: F) -> Result<F::Output, OutOfPatience> {
    waited(Patience::with_pause(limit, pause), future, || false).await
}

/// The same for what another process of this machine does: as long as that has a processor now and then, or waits for one, or for a
/// disk, it is waited for.
///
/// # Errors
/// [`OutOfPatience`].
pub async fn while_active<F: Future>(limit: Duration, pid: u32, future: F) -> Result<F::Output, OutOfPatience> {
    let mut activity = Activity::of(pid);
    waited(Patience::new(limit), future, || activity.seen()).await
}

async fn waited<F: Future>(mut patience: Patience, future: F, mut progress: impl FnMut() -> bool) -> Result<F::Output, OutOfPatience> {
    let mut future = pin!(future);
    loop {
        match timeout(patience.pause(), &mut future).await {
            Ok(output) => return Ok(output),
            Err(_) if progress() => patience.renew(),
            Err(_) if patience.is_over() => return Err(OutOfPatience),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_never_comes_is_given_up_and_what_comes_is_taken() {
        assert_eq!(patiently(Duration::from_millis(50), std::future::pending::<()>()).await, Err(OutOfPatience));
        let late = async {
            // The only thread of this runtime: nobody runs meanwhile.
            std::thread::sleep(Duration::from_millis(200));
            tokio::time::sleep(Duration::from_millis(1)).await;
            7
        };
        assert_eq!(patiently(Duration::from_millis(100), late).await, Ok(7));
    }

    #[tokio::test]
    async fn who_works_is_waited_for_and_who_is_gone_is_not() {
        let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let done = tokio::time::sleep(Duration::from_millis(500));
        assert_eq!(while_active(Duration::from_millis(50), busy.id(), done).await, Ok(()));
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert_eq!(while_active(Duration::from_millis(50), busy.id(), std::future::pending::<()>()).await, Err(OutOfPatience));
    }
}
