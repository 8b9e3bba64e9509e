//! A life of a job, one run of its machine, and what all its lives have in common.

use crate::record::JobLock;
use crate::run::LifeEnd;
use crate::signals::Signals;
use mend_job::healing::{Healing, HealingRules};
use mend_messages::tier::TierSpec;
use mend_sealed::Key;
use mend_settings::SettingError;
use std::path::PathBuf;
use std::time::Duration;

/// What the user wrote for this run or restart; `None`: what the settings say.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealingOptions {
    /// `--on-failure`: the job goes on by itself.
    pub goes_on: Option<bool>,
    /// `--retries`
    pub retries: Option<u32>,
    /// `--wait-for-nodes`, seconds.
    pub wait_for_nodes: Option<u32>,
}

impl HealingOptions {
    /// A job to which nothing has happened yet.
    ///
    /// # Errors
    /// As of [`HealingOptions::rules`].
    pub(crate) fn begin(self) -> Result<Healing, SettingError> {
        self.patience()?;
        Ok(Healing::new(self.rules()?))
    }

    /// What is decided by.
    ///
    /// # Errors
    /// A setting has a value that it may not have.
    fn rules(self) -> Result<HealingRules, SettingError> {
        let goes_on = match self.goes_on {
            Some(goes_on) => goes_on,
            None => mend_settings::ON_FAILURE.choice()? == "restart",
        };
        let retries = match self.retries {
            Some(retries) => retries,
            None => mend_settings::RETRIES.number()? as u32,
        };
        Ok(HealingRules { goes_on, retries })
    }

    /// How long nodes are waited for.
    ///
    /// # Errors
    /// As of [`HealingOptions::rules`].
    pub(crate) fn patience(self) -> Result<Duration, SettingError> {
        let seconds = match self.wait_for_nodes {
            Some(seconds) => u64::from(seconds),
            None => mend_settings::WAIT_FOR_NODES.number()?,
        };
        Ok(Duration::from_secs(seconds))
    }
}

/// A life of the job that is over.
pub(crate) struct Life {
    pub(crate) end: LifeEnd,
    pub(crate) lock: JobLock,
    pub(crate) id: String,
    pub(crate) checkpoints: PathBuf,
    pub(crate) tiers: Vec<TierSpec>,
    pub(crate) signals: Signals,
}

/// What all lives of a job have in common.
pub(crate) struct Constants {
    pub(crate) options: HealingOptions,
    pub(crate) encryption_key: Option<PathBuf>,
    pub(crate) key: Option<Key>,
    pub(crate) any_owner: bool,
    pub(crate) quiet: bool,
}
