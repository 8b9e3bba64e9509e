//! Which of its older checkpoints a restarted job may go on from.
//!
//! ```text
//! checkpoints 3 4 5 6, restarted from 4     5 and 6 were given up for it:  they stay, and do not count
//!                                           they could not be restarted:   they do not count
//! ```

use mend_policy::retention::is_given_up;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What is known of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lineage {
    /// The one that the job was restarted from.
    origin: Option<u64>,
    /// For each pair those after the first number, up to the second, are given up.
    abandoned: Vec<(u64, u64)>,
    given_up: BTreeSet<u64>,
    /// Newer than the origin, and not given up: the restart could not use them.
    passed_over: BTreeSet<u64>,
}

impl Lineage {
    pub(super) fn new(origin: Option<u64>, abandoned: &[(u64, u64)]) -> Self {
        Self { origin, abandoned: abandoned.to_vec(), ..Self::default() }
    }

    /// A checkpoint was there before.
    pub(super) fn adopt(&mut self, number: u64) {
        if is_given_up(&self.abandoned, number) {
            self.given_up.insert(number);
        } else if self.origin.is_some_and(|origin| number > origin) {
            self.passed_over.insert(number);
        }
    }

    /// Whether the job may go on from this one.
    pub(super) fn counts(&self, number: u64) -> bool {
        !self.given_up.contains(&number) && !self.passed_over.contains(&number)
    }

    pub(super) fn origin(&self) -> Option<u64> {
        self.origin
    }

    /// Those that were given up.
    pub(super) fn given_up(&self) -> &BTreeSet<u64> {
        &self.given_up
    }

    /// A checkpoint is no more.
    pub(super) fn forget(&mut self, number: u64) {
        self.given_up.remove(&number);
        self.passed_over.remove(&number);
        self.origin.take_if(|origin| *origin == number);
    }
}
