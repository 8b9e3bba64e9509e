//! A life of a job, one run of its machine, and what all its lives have in common.

use crate::batch::InBatch;
use crate::embedded::Embedded;
use crate::healing_options::HealingOptions;
use crate::job_lock::JobLock;
use crate::made_spaces::MadeSpaces;
use crate::offload::Offloads;
use crate::run::LifeEnd;
use crate::signals::Signals;
use mend_messages::tier::TierSpec;
use mend_sealed::Key;
use std::path::PathBuf;

/// A life of the job that is over.
pub(crate) struct Life {
    pub(crate) end: LifeEnd,
    /// The daemon that this process has started.
    pub(crate) embedded: Option<Embedded>,
    pub(crate) lock: JobLock,
    pub(crate) id: String,
    pub(crate) checkpoints: PathBuf,
    pub(crate) tiers: Vec<TierSpec>,
    pub(crate) signals: Signals,
    /// What of its files is sent away.
    pub(crate) offloads: Option<Offloads>,
    /// Data spaces that were made for it.
    pub(crate) spaces: MadeSpaces,
}

/// What all lives of a job have in common.
pub(crate) struct Constants {
    pub(crate) options: HealingOptions,
    pub(crate) encryption_key: Option<PathBuf>,
    pub(crate) key: Option<Key>,
    pub(crate) any_owner: bool,
    /// The allocation that all lives are in.
    pub(crate) batch: Option<InBatch>,
    pub(crate) quiet: bool,
}
