//! How a job leaves a node: its processes end, or stand still for its next life, and what they wrote is sent.

use super::{Incoming, Job};
use crate::node::Node;
use crate::successor;
use crate::supervisor::namespace::SharedNamespace;
use mend_messages::daemon::{FromDaemon, JobIntroduction};
use mend_node_job::event::End;
use mend_node_job::hold::LinkState;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Instrument;

/// How long a successor may take to ask for what a controller has not confirmed that was lost at the job's end.
const SUCCESSION_TIME: Duration = Duration::from_secs(60);

async fn renew(namespace: Arc<SharedNamespace>, lease: Duration) {
    loop {
        namespace.renew(Duration::ZERO);
        tokio::time::sleep(lease / 4).await;
    }
}

/// Waits until the controller has confirmed all that was said: it is printed then. However long that takes, if it is not lost and nobody comes in its place.
async fn see_confirmed(
    carrying: &mut JoinHandle<()>,
    (mut states, superseded): (mpsc::UnboundedReceiver<LinkState>, Arc<Notify>),
    node: &Node,
    job: &JobIntroduction,
) -> bool {
    let mut until = None;
    loop {
        tokio::select! {
            biased;
            _ = &mut *carrying => return true,
            Some(state) = states.recv() => {
                if state != LinkState::Closed {
                    until = None;
                    continue;
                }
                if !begin_successor(node, job).await {
                    return false;
                }
                until = Some(Instant::now() + SUCCESSION_TIME);
            }
            () = superseded.notified() => return false,
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return false,
        }
    }
}

/// Starts a successor of the controller, if one can be.
async fn begin_successor(node: &Node, job: &JobIntroduction) -> bool {
    let Some(command) = job.successor.clone() else { return false };
    if successor::can_start(&command).await == Some(false) {
        return false;
    }
    tracing::info!("a successor of the controller is started: the job has ended, and not all it printed is confirmed");
    tokio::spawn(successor::start(node.stay.clone(), command, job.node, false).in_current_span());
    true
}

/// Ends the job's processes, and the connection when the last output is sent.
pub(super) async fn leave(mut job: Job, end: End, incoming: Incoming, mut carrying: JoinHandle<()>) {
    // It takes no orders any more: with nobody to take them, what comes behind them, and makes room for output, is taken in.
    drop(incoming.commands);
    let mut paused = Vec::new();
    if end == End::Paused {
        paused = job.put_aside(Instant::now() + job.patience).await;
    }
    let (node, introduction, patience, progress) = (job.node.clone(), job.introduction.clone(), job.patience, job.progress.clone());
    let drained = end.is_orderly() && timeout(patience, job.release()).await.is_ok();
    if !drained {
        // Nobody takes the output any more; without the queue's receiver no rank's task waits for it.
        carrying.abort();
        job.release().await;
    }
    // From here on only ranks that stand still are in it: the lease is not about them. What is removed below may take longer than one.
    let renewing = (!paused.is_empty()).then(|| tokio::spawn(renew(job.namespace.clone(), job.lease)));
    if paused.is_empty() {
        let unused = job.shared_memory.take();
        job.tiers.discard(unused);
    }
    job.tiers.leave().await;
    let ranks = paused.iter().map(|(rank, _)| *rank).collect();
    // Behind the last output.
    if end == End::Paused {
        let _ = timeout(patience, job.ordered.send(FromDaemon::Paused { ranks })).await;
    }
    let ordered = job.ordered.clone();
    // It waits for room, for as long as there may be some.
    tokio::spawn(async move { ordered.send(FromDaemon::Left).await });
    // With the last sender the queue ends, and with the queue the connection.
    job.leave_standing(paused, incoming.agents);
    renewing.inspect(JoinHandle::abort);
    if drained && !see_confirmed(&mut carrying, (incoming.states, incoming.superseded), &node, &introduction).await {
        carrying.abort();
        tracing::warn!(job = introduction.id, "the controller did not take the last output");
    }
    let (read, given) = (progress.bytes_read(), progress.bytes_given());
    tracing::info!(
        job = introduction.id,
        ?end,
        read,
        given,
        "a job has left; bytes of images and files that mendd itself read and gave on for it"
    );
}
