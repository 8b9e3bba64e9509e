//! The settings of `mend data`, read once.

use crate::failure::Failure;
use mend_settings::SettingError;
use std::time::Duration;

/// How fetching is done.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Requests under way at once.
    pub streams: usize,
    /// Most bytes of one request; whole blocks.
    pub request_bytes: u64,
    /// How long a source may be silent.
    pub silence: Duration,
    /// Faults in a row before a source is given up.
    pub attempts: u32,
    /// Threads that read files.
    pub readers: usize,
}

impl Settings {
    /// For tests: small requests, several at once.
    #[cfg(test)]
    pub fn small() -> Self {
        Self { streams: 8, request_bytes: 1 << 20, silence: Duration::from_secs(10), attempts: 4, readers: 1 }
    }

    /// From the environment.
    pub fn read() -> Result<Self, Failure> {
        let read = || -> Result<Self, SettingError> {
            Ok(Self {
                streams: mend_settings::DATA_STREAMS.number()? as usize,
                request_bytes: mend_settings::DATA_REQUEST.number()? << 20,
                silence: mend_settings::DATA_TIMEOUT.milliseconds()?,
                attempts: mend_settings::DATA_ATTEMPTS.number()? as u32,
                readers: mend_settings::DATA_READERS.number()? as usize,
            })
        };
        read().map_err(|error| Failure::bad_value(error.to_string(), "see `mend settings`"))
    }
}
