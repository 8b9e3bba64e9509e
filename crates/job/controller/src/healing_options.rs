//! What the user may say about failures.

use mend_job::healing::{Healing, HealingRules};
use mend_settings::SettingError;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What follows the loss of a node, or of a rank to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// The job goes on from its last checkpoint: ranks whose processes live go back to it in place, the others are restarted.
    Pause,
    /// The job goes on from its last checkpoint, with new processes.
    Restart,
    /// The job ends.
    Stop,
}

impl OnFailure {
    /// By its name on the command line and in the setting; anything else stops.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "pause" => Self::Pause,
            "restart" => Self::Restart,
            _ => Self::Stop,
        }
    }
}

/// What the user wrote for this run or restart; `None`: what the settings say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealingOptions {
    /// `--on-failure`
    pub on_failure: Option<OnFailure>,
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
        let on_failure = match self.on_failure {
            Some(on_failure) => on_failure,
            None => OnFailure::named(mend_settings::ON_FAILURE.choice()?),
        };
        let (goes_on, in_place) = (on_failure != OnFailure::Stop, on_failure == OnFailure::Pause);
        let retries = match self.retries {
            Some(retries) => retries,
            None => mend_settings::RETRIES.number()? as u32,
        };
        let waits = !self.patience()?.is_zero();
        Ok(HealingRules { goes_on, in_place, retries, waits })
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
