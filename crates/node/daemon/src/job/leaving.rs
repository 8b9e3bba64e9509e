//! How a job leaves a node: its processes end, or stand still for its next life, and what they wrote is sent.

use super::{Incoming, Job};
use mend_messages::daemon::FromDaemon;
use mend_node_job::event::End;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Ends the job's processes, and the connection when the last output is sent.
pub(super) async fn leave(mut job: Job, end: End, incoming: Incoming, mut carrying: JoinHandle<()>) {
    let mut paused = Vec::new();
    if end == End::Paused {
        paused = timeout(job.patience, job.put_aside()).await.unwrap_or_default();
    }
    let (id, patience, progress) = (job.introduction.id.clone(), job.patience, job.progress.clone());
    let drained = end.is_orderly() && timeout(patience, job.release()).await.is_ok();
    if !drained {
        // Nobody takes the output any more; without the queue's receiver no rank's task waits for it.
        carrying.abort();
        job.release().await;
    }
    let ranks = paused.iter().map(|(rank, _)| *rank).collect();
    // Behind the last output.
    if end == End::Paused {
        let _ = timeout(patience, job.ordered.send(FromDaemon::Paused { ranks })).await;
    }
    let _ = timeout(patience, job.ordered.send(FromDaemon::Left)).await;
    // With the last sender the queue ends, and with the queue the connection.
    job.leave_standing(paused, incoming.agents);
    if drained && timeout(patience, &mut carrying).await.is_err() {
        carrying.abort();
        tracing::warn!(job = id, "the controller did not take the last output");
    }
    let (read, given) = (progress.bytes_read(), progress.bytes_given());
    tracing::info!(job = id, ?end, read, given, "a job has left; bytes of images and files that mendd itself read and gave on for it");
}
