//! Settings that a job has from the environment of its program, which is in its checkpoints.

use crate::{
    ALL, CHANNELS, DATA_ATTEMPTS, DATA_PLUGINS, DATA_READERS, DATA_REQUEST, DATA_STREAMS, DATA_TIMEOUT, FOLLOW_DATA, HIDE_CPU_FEATURES,
    HOME, LIBDIR, LOG, OFFLOAD, OFFLOAD_CREDENTIALS, OFFLOAD_SETTLE, OFI_LIBFABRIC, OFI_PROVIDER, PID_NAMESPACE, SPACE_CACHE,
    SPACE_COPY_DELAY, SPACE_HEDGE, SPACE_PROBE, SPACE_THREADS, SPACE_TIMEOUT, SPACE_VERIFY, SPACES, Setting, TRACKING, UNEXPECTED,
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

/// Whether this is the name of a setting that `mend run` alone decides: none of a rank's, nor of a command that a rank may start.
#[must_use]
pub fn is_of_run(name: &str) -> bool {
    const OF_OTHERS: [&str; 5] = ["MEND_PIPE_", "MEND_SPACE", "MEND_DATA", "MEND_HEALTH", "MEND_BMC"];
    let of_all = [HOME.name, LOG.name, LIBDIR.name, HIDE_CPU_FEATURES.name];
    let others = OF_PROGRAM.iter().chain(&OF_MOUNTS).any(|setting| setting.name == name) || of_all.contains(&name);
    ALL.iter().any(|setting| setting.name == name) && !others && !OF_OTHERS.iter().any(|prefix| name.starts_with(prefix))
}

impl Setting {
    /// What an environment has for it; `None` if that has nothing, or an empty text, which is the same.
    #[must_use]
    pub fn of<'a>(&self, env: &'a [(String, String)]) -> Option<&'a str> {
        env.iter().find(|(name, value)| name == self.name && !value.is_empty()).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mend_run_decides_is_in_vain_in_the_environment_of_ranks() {
        assert!(is_of_run("MEND_INTERVAL") && is_of_run("MEND_TIERS") && is_of_run("MEND_LEASE_MS"));
        for name in ["MEND_CHANNELS", "MEND_FOLLOW_DATA", "MEND_SPACE_CACHE_MB", "MEND_PIPE_PORT", "MEND_HOME", "MEND_OF_THE_PROGRAM_S_OWN"]
        {
            assert!(!is_of_run(name), "{name}");
        }
    }
}
