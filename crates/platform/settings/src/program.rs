//! Settings that a job has from the environment of its program, which is in its checkpoints.

use crate::{
    ALL, CHANNELS, DATA_ATTEMPTS, DATA_PLUGINS, DATA_READERS, DATA_REQUEST, DATA_STREAMS, DATA_TIMEOUT, FOLLOW_DATA, OFFLOAD,
    OFFLOAD_CREDENTIALS, OFFLOAD_SETTLE, OFI_LIBFABRIC, OFI_PROVIDER, PID_NAMESPACE, SPACE_CACHE, SPACE_COPY_DELAY, SPACE_HEDGE,
    SPACE_PROBE, SPACE_THREADS, SPACE_TIMEOUT, SPACE_VERIFY, SPACES, Setting, TRACKING, UNEXPECTED,
};

/// Those that act from there alone: a restart has the same, whatever its own environment says.
pub const OF_PROGRAM: [Setting; 11] = [
    CHANNELS,
    OFI_PROVIDER,
    OFI_LIBFABRIC,
    TRACKING,
    UNEXPECTED,
    PID_NAMESPACE,
    SPACES,
    OFFLOAD,
    OFFLOAD_CREDENTIALS,
    OFFLOAD_SETTLE,
    FOLLOW_DATA,
];

/// Those of the mounts by which a job's ranks see data spaces, and of what such a mount repairs. Where the program's environment has none, mendd's counts.
pub const OF_MOUNTS: [Setting; 13] = [
    SPACE_CACHE,
    SPACE_THREADS,
    SPACE_TIMEOUT,
    SPACE_HEDGE,
    SPACE_PROBE,
    SPACE_VERIFY,
    SPACE_COPY_DELAY,
    DATA_STREAMS,
    DATA_REQUEST,
    DATA_TIMEOUT,
    DATA_ATTEMPTS,
    DATA_READERS,
    DATA_PLUGINS,
];

/// Whether this is the name of a setting that no rank's environment decides.
#[must_use]
pub fn is_of_command(name: &str) -> bool {
    let named = |setting: &&Setting| setting.name == name;
    ALL.iter().any(|setting| setting.name == name) && !OF_PROGRAM.iter().chain(&OF_MOUNTS).any(|setting| named(&setting))
}

impl Setting {
    /// What an environment has for it; `None` if that has nothing, or an empty text, which is the same.
    #[must_use]
    pub fn of<'a>(&self, env: &'a [(String, String)]) -> Option<&'a str> {
        env.iter().find(|(name, value)| name == self.name && !value.is_empty()).map(|(_, value)| value.as_str())
    }
}
