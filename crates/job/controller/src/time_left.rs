//! How long a job may still run.

use crate::batch::InBatch;
use crate::record::now;
use mend_settings::{SettingError, TIME_LIMIT, WordOrNumber};
use std::sync::LazyLock;

/// When this process began to run a job, seconds since 1970.
static BEGAN: LazyLock<u64> = LazyLock::new(now);

/// When this process began to run a job: the first time that it was asked. Seconds since 1970.
pub(crate) fn process_began() -> u64 {
    *BEGAN
}

/// Seconds for which a job may still run whose run began then, as the user or the batch system says.
pub(crate) async fn time_left_s(run_began: u64, in_batch: Option<&InBatch>) -> Result<Option<u64>, SettingError> {
    Ok(match TIME_LIMIT.word_or_number(None)? {
        WordOrNumber::Number(limit) => Some(limit.saturating_sub(now().saturating_sub(run_began))),
        WordOrNumber::Word(_) => match in_batch {
            Some((session, _)) => session.ends_at().await.map(|end| end.saturating_sub(now())),
            None => None,
        },
    })
}
