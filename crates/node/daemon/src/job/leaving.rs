//! How a job leaves a node: its processes end, or stand still for its next life, and what they wrote is sent.

use super::{Incoming, Job};
use crate::supervisor::namespace::SharedNamespace;
use mend_messages::daemon::FromDaemon;
use mend_node_job::event::End;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// How long a next life waits for the memory that ranks had in `/dev/shm`, which has a directory of its own; shorter than a life may take to leave.
const REMOVING_TIME: Duration = Duration::from_secs(1);

async fn renew(namespace: Arc<SharedNamespace>, lease: Duration) {
    loop {
        namespace.renew(Duration::ZERO);
        tokio::time::sleep(lease / 4).await;
    }
}

/// Ends the job's processes, and the connection when the last output is sent.
pub(super) async fn leave(mut job: Job, end: End, incoming: Incoming, mut carrying: JoinHandle<()>) {
    // It takes no orders any more: with nobody to take them, what comes behind them, and makes room for output, is taken in.
    drop(incoming.commands);
    let mut paused = Vec::new();
    if end == End::Paused {
        paused = job.put_aside(Instant::now() + job.patience).await;
    }
    let (id, patience, progress) = (job.introduction.id.clone(), job.patience, job.progress.clone());
    let drained = end.is_orderly() && timeout(patience, job.release()).await.is_ok();
    if !drained {
        // Nobody takes the output any more; without the queue's receiver no rank's task waits for it.
        carrying.abort();
        job.release().await;
    }
    // From here on only ranks that stand still are in it: the lease is not about them. What is removed below may take longer than one.
    let renewing = (!paused.is_empty()).then(|| tokio::spawn(renew(job.namespace.clone(), job.lease)));
    job.tiers.leave().await;
    let ranks = paused.iter().map(|(rank, _)| *rank).collect();
    job.spaces.tell(&job.urgent);
    // Behind the last output.
    if end == End::Paused {
        let _ = timeout(patience, job.ordered.send(FromDaemon::Paused { ranks })).await;
    }
    let _ = timeout(patience, job.ordered.send(FromDaemon::Left)).await;
    // The controller does not wait for it: much of it takes longer than a job's end may.
    let unused = job.shared_memory.take_if(|_| paused.is_empty());
    let removing = unused.map(|unused| unused.discard(job.node.stay.work()));
    // With the last sender the queue ends, and with the queue the connection.
    job.leave_standing(paused, incoming.agents);
    renewing.inspect(JoinHandle::abort);
    if drained && timeout(patience, &mut carrying).await.is_err() {
        carrying.abort();
        tracing::warn!(job = id, "the controller did not take the last output");
    }
    if let Some(removing) = removing
        && timeout(REMOVING_TIME, removing).await.is_err()
    {
        tracing::info!(job = id, "what ranks had in /dev/shm is still being removed");
    }
    let (read, given) = (progress.bytes_read(), progress.bytes_given());
    tracing::info!(job = id, ?end, read, given, "a job has left; bytes of images and files that mendd itself read and gave on for it");
}
