//! Other jobs of the same batch job, when this one has written its last checkpoint: once the batch job is queued again all of its processes are ended, so they may finish theirs first.
//!
//! Invariant: the batch job is queued again while that still works. So nobody is waited for until the batch system kills, and a signal ends the wait. Faults assumed: others
//! do not stop; a preemption brings the end forward; the batch system does not say when it is, or does not answer.

use crate::batch_question::ask;
use crate::record::{JobDirectory, now};
use crate::wish::Wish;
use mend_batch::BatchSystem;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Between two looks whether they have stopped.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long they are waited for at most.
const OTHERS_TIME: Duration = Duration::from_secs(300);
/// The same from the signal on, where the batch job's time is over or its end not known: less than batch systems leave between their last two signals.
const LAST_TIME: Duration = Duration::from_secs(20);
/// Left to have it queued again before its time is over; the batch system's answer is not waited for any longer either.
const MARGIN: Duration = Duration::from_secs(5);

/// Waits until these jobs have stopped, or it is time to go on without them. `told`: when the batch system's last signal came.
pub(crate) async fn wait(
    jobs: &[JobDirectory],
    system: Arc<dyn BatchSystem>,
    told: Option<Instant>,
    strays: &mut mpsc::UnboundedReceiver<Wish>,
) {
    if !run(jobs) {
        return;
    }
    // Of one signal several daemons tell.
    while strays.try_recv().is_ok() {}
    let stopped = async {
        let patience = patience(left(system).await, told.map_or(Duration::ZERO, |told| told.elapsed()));
        until_stopped(jobs, patience).await;
    };
    tokio::select! {
        () = stopped => {}
        Some(wish) = strays.recv() => tracing::info!(?wish, "other jobs of the batch job are not waited for any longer"),
    }
}

/// Until the batch job's time is over; `None`: that is not known.
async fn left(system: Arc<dyn BatchSystem>) -> Option<Duration> {
    match timeout(MARGIN, ask(move || system.ends_at_by_now())).await {
        Ok(Ok(end)) => end.map(|end| Duration::from_secs(end.saturating_sub(now()))),
        Ok(Err(error)) => {
            tracing::warn!(%error, "it is not known when the batch job ends");
            None
        }
        Err(_) => None,
    }
}

/// How long others are waited for, when so much time is left, and the last signal so long ago.
fn patience(left: Option<Duration>, told: Duration) -> Duration {
    match left {
        Some(left) if !left.is_zero() => left.saturating_sub(MARGIN).min(OTHERS_TIME),
        _ => LAST_TIME.saturating_sub(told),
    }
}

/// Whether one of these jobs runs.
fn run(jobs: &[JobDirectory]) -> bool {
    jobs.iter().any(JobDirectory::is_running)
}

/// Waits for that long at most.
async fn until_stopped(jobs: &[JobDirectory], patience: Duration) {
    let until = Instant::now() + patience;
    while run(jobs) && Instant::now() < until {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::tests::Allocation;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn nobody_is_waited_for_until_the_batch_system_kills() {
        // A preemption, whose grace is 30 s; a signal long before the time limit.
        for (left, patience_s) in [(30, 25), (3, 0), (7200, 300)] {
            assert_eq!(patience(Some(seconds(left)), seconds(15)), seconds(patience_s), "{left} s left");
        }
        // The time limit, or who knows.
        for left in [Some(Duration::ZERO), None] {
            for (told, patience_s) in [(0, 20), (15, 5), (60, 0)] {
                assert_eq!(patience(left, seconds(told)), seconds(patience_s), "told {told} s ago");
            }
        }
    }

    #[tokio::test]
    async fn jobs_that_write_their_last_checkpoint_are_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let jobs = ["first", "second"].map(|name| {
            std::fs::create_dir(home.path().join(name)).unwrap();
            JobDirectory::at(&home.path().join(name))
        });
        let lock = jobs[1].lock("second").unwrap();
        // One that does not stop is not waited for ever.
        until_stopped(&jobs, Duration::ZERO).await;
        let (told, mut strays) = mpsc::unbounded_channel();
        // What came before is of the signal that has stopped this job.
        told.send(Wish::TimeUp(15)).unwrap();
        let waiting = tokio::spawn(async move {
            wait(&jobs, Arc::new(Allocation(None, 0)), None, &mut strays).await;
            (jobs, strays)
        });
        tokio::time::sleep(LOOK_INTERVAL / 2).await;
        assert!(!waiting.is_finished());
        drop(lock);
        let (jobs, mut strays) = waiting.await.unwrap();
        let _lock = jobs[0].lock("first").unwrap();
        let waiting = tokio::spawn(async move { wait(&jobs, Arc::new(Allocation(None, 0)), None, &mut strays).await });
        tokio::time::sleep(LOOK_INTERVAL / 2).await;
        assert!(!waiting.is_finished());
        told.send(Wish::TimeUp(15)).unwrap();
        timeout(LAST_TIME / 2, waiting).await.unwrap().unwrap();
    }
}
