//! Connections that break between two ranks that both live: what was under way is lost, and they wait for each other for ever. So the
//! job is stopped, to go on from its last checkpoint.
//!
//! A connection breaks, too, when a rank has ended or its node is lost, of which the job hears in another way: that has its time first.
//! Faults assumed: a rank tells of a loss late, or of one that has mended itself since.

use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};

/// Beyond the time after which a silent node counts as lost, microseconds.
const REPORT_DELAY_US: u64 = 1_000_000;

/// What a rank told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loss {
    pub(crate) since_us: u64,
    pub(crate) ranks: (Rank, Rank),
    pub(crate) generations: (u64, u64),
    pub(crate) why: String,
}

/// Those that were not judged yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Losses {
    patience_us: u64,
    told: Vec<Loss>,
}

impl Losses {
    /// `node_timeout_us`: a node that is silent for so long is lost.
    pub(crate) fn new(node_timeout_us: u64) -> Self {
        Self { patience_us: node_timeout_us.saturating_add(REPORT_DELAY_US), told: Vec::new() }
    }

    /// A rank tells of one.
    pub(crate) fn add(&mut self, loss: Loss) {
        self.told.push(loss);
    }

    /// When the next one is to be judged.
    pub(crate) fn due(&self) -> Option<u64> {
        let first = self.told.iter().map(|loss| loss.since_us).min()?;
        Some(first.saturating_add(self.patience_us))
    }

    /// Only losses between ranks that are still what they were count. `living`: a rank's generation, if it has not ended.
    pub(crate) fn forget_mended(&mut self, living: impl Fn(Rank) -> Option<u64>) {
        self.told.retain(|loss| (living(loss.ranks.0), living(loss.ranks.1)) == (Some(loss.generations.0), Some(loss.generations.1)));
    }

    /// One that has had its time: the job ends for it, and the others do not matter any more.
    pub(crate) fn take_due(&mut self, now_us: u64) -> Option<Loss> {
        let due = self.told.iter().position(|loss| now_us.saturating_sub(loss.since_us) >= self.patience_us)?;
        std::mem::take(&mut self.told).into_iter().nth(due)
    }
}
