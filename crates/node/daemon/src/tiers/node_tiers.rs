//! What the tiers of all jobs on this node share.

use super::room::Promises;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Images that are fetched for restarts at a time, of all jobs. More would share the network and the disk until some of them stood still for so long
/// that their nodes were taken for lost.
const FETCHED: usize = 32;

/// See the module's head.
#[derive(Clone, Debug)]
pub struct NodeTiers {
    /// Room for images that are on their way.
    pub(super) promises: Promises,
    /// Turns to fetch one.
    pub(super) fetches: Arc<Semaphore>,
}

impl Default for NodeTiers {
    fn default() -> Self {
        Self { promises: Promises::default(), fetches: Arc::new(Semaphore::new(FETCHED)) }
    }
}
