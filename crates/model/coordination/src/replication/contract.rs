//! What goes into the replication of checkpoints, and what it wants done.

use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::ImageRef;

/// Where a copy is: index of the tier (or [`Replication::beside`](super::Replication::beside)), and the node if the tier is of one.
pub type Site = (usize, Option<NodeIndex>);

/// One image of a checkpoint that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The image that this is about.
    pub image: ImageRef,
    /// The checkpoint whose image of the same rank it builds on.
    pub base: Option<u64>,
    /// Where it is.
    pub sites: Vec<Site>,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Have `node` copy the image, which is in the tier `from`, to the tier `to` (on `target`, if that is another
    /// node's).
    Copy {
        /// To be named in [`Replication::finished`](super::Replication::finished).
        task: u64,
        /// The image that this is about.
        image: ImageRef,
        /// Who does it.
        node: NodeIndex,
        /// Index of the tier it is read from.
        from: usize,
        /// Index of the tier.
        to: usize,
        /// The partner, for a partner's memory.
        target: Option<NodeIndex>,
    },
    /// Store the checkpoint's manifest in the tier (on the node, if the tier is of one).
    Manifest {
        /// To be named in [`Replication::finished`](super::Replication::finished).
        task: u64,
        /// Number of the checkpoint.
        number: u64,
        /// Index of the tier.
        tier: usize,
        /// Which node does it: where the tier is, or any.
        node: NodeIndex,
    },
    /// The tier holds the whole checkpoint: for the record.
    Complete {
        /// Number of the checkpoint.
        number: u64,
        /// Index of the tier.
        tier: usize,
    },
    /// The tier will not hold the whole checkpoint.
    GaveUp {
        /// Number of the checkpoint.
        number: u64,
        /// Index of the tier.
        tier: usize,
        /// What went wrong.
        why: String,
    },
    /// Remove these ranks' images of a checkpoint.
    Remove {
        /// Number of the checkpoint.
        number: u64,
        /// Index of the tier, or [`Replication::beside`](super::Replication::beside).
        tier: usize,
        /// On which node, or any.
        node: NodeIndex,
        /// The ranks whose images go.
        ranks: Vec<Rank>,
    },
}
