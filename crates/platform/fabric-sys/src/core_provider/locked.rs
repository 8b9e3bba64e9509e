//! How much memory this rank may lock.
//!
//! A provider for RDMA pins what a device reads and writes. libfabric's `verbs` under `ofi_rxm` (2.5) takes 84 MiB for buffers of its own
//! as it sends its first message, and ends the process (signals 6 and 11) if the limit does not allow it, so that is found out before.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;

/// Bytes below which a provider that locks memory is not used: what was seen, and half as much for what the program sends.
pub const MIN_LOCKABLE_BYTES: u64 = 128 << 20;
/// Providers whose devices the kernel accounts locked memory for.
const LOCKING: [&str; 1] = ["verbs"];
/// `/proc/self/uid_map` where no other user namespace lies above: there `CAP_IPC_LOCK` counts (capable(9)).
const INITIAL: [&str; 3] = ["0", "0", "4294967295"];

/// The bytes that this process may lock, if these are too few for a provider of this name, layers included. A soft limit is raised first.
pub fn too_few(provider: &str) -> Option<u64> {
    judge(provider, privileged(), raised())
}

fn judge(provider: &str, privileged: bool, limit: Option<u64>) -> Option<u64> {
    let locks = provider.split(';').any(|layer| LOCKING.contains(&layer));
    limit.filter(|bytes| locks && !privileged && *bytes < MIN_LOCKABLE_BYTES)
}

/// The limit, as high as this process may have it; `None` if there is none.
fn raised() -> Option<u64> {
    let limit = getrlimit(Resource::Memlock);
    if limit.current == limit.maximum {
        return limit.current;
    }
    match setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// True if limits on locked memory do not hold for this process.
fn privileged() -> bool {
    let whole = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_whitespace().eq(INITIAL));
    whole && capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERED: &str = "verbs;ofi_rxm";

    #[test]
    fn a_provider_that_locks_memory_needs_a_limit_that_allows_it() {
        assert_eq!(judge(LAYERED, false, Some(MIN_LOCKABLE_BYTES - 1)), Some(MIN_LOCKABLE_BYTES - 1));
        assert_eq!(judge(LAYERED, false, Some(MIN_LOCKABLE_BYTES)), None);
        assert_eq!(judge(LAYERED, false, None), None);
        assert_eq!(judge(LAYERED, true, Some(0)), None);
        assert_eq!(judge("tcp;ofi_rxm", false, Some(0)), None);
    }

    #[test]
    fn the_soft_limit_is_raised() {
        let before = getrlimit(Resource::Memlock);
        let soft = before.maximum.map_or(4096, |bytes| bytes.min(4096));
        setrlimit(Resource::Memlock, Rlimit { current: Some(soft), ..before }).unwrap();
        assert_eq!(raised(), before.maximum);
        assert_eq!(getrlimit(Resource::Memlock).current, before.maximum);
        setrlimit(Resource::Memlock, before).unwrap();
    }
}
