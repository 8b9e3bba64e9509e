//! What looks at a job's surroundings for as long as one of its lives lasts, and tells that life: who reads what of its data spaces, files to send away, nodes that a batch system wants empty.
//!
//! A life that begins and one that goes on under another controller begin them in the same way.

use crate::arrival::Arrival;
use crate::batch::BatchSession;
use crate::batch_watch;
use crate::data_watch::{DataWatch, TrafficFeed};
use crate::error::RunError;
use crate::offload::Offloads;
use mend_job::setup::Setup;
use mend_messages::job::{NodeIndex, Program};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Those that its life speaks to.
pub(crate) struct Watchers {
    /// Takes what nodes tell of messages between ranks.
    pub traffic: TrafficFeed,
    /// Send files away.
    pub offloads: Option<Offloads>,
}

/// Begins all of them for a life of the job. `drained`: nodes of which it knows already that the batch system wants them empty.
///
/// # Errors
/// Settings that make no sense.
pub(crate) fn begin(
    program: &Program,
    setup: &Setup,
    (batch, drained): (Option<Arc<BatchSession>>, &[NodeIndex]),
    arrivals: &mpsc::Sender<Arrival>,
) -> Result<Watchers, RunError> {
    let names: Vec<String> = setup.nodes.iter().map(|node| node.name.clone()).collect();
    let looks = DataWatch::of(program, &setup.id, &names, &setup.places)?;
    let offloads = Offloads::of(program, setup.identity)?;
    if let Some(session) = batch {
        batch_watch::begin(session, names, drained, arrivals.clone())?;
    }
    if let Some(offloads) = &offloads {
        offloads.begin(arrivals);
    }
    let traffic = looks.map(|looks| looks.begin(arrivals.clone())).unwrap_or_default();
    Ok(Watchers { traffic, offloads })
}
