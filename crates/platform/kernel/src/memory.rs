//! How much memory this process can still get: of the machine, and of each control group around it that limits memory
//! (version 1 and 2).
//!
//! An estimate: what other processes take next is not known.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that is shared out: the machine's, or a control group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// All of it, bytes.
    pub whole: u64,
    /// What programs can still get, bytes; cached files give way.
    pub free: u64,
}

/// All pools that limit this process; none if nobody can tell.
#[must_use]
pub fn pools() -> Vec<Pool> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let machine = machine(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    machine.into_iter().chain(limits(&groups, Path::new("/sys/fs/cgroup"))).collect()
}

/// The number in a table's line that begins with `name`, as `VmRSS:   12 kB` in `/proc/self/status` (there in KiB).
#[must_use]
pub fn number(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn machine(meminfo: &str) -> Option<Pool> {
    let bytes = |name| Some(number(meminfo, name)? << 10);
    Some(Pool { whole: bytes("MemTotal:")?, free: bytes("MemAvailable:")? })
}

fn limits(groups: &str, root: &Path) -> Vec<Pool> {
    let within = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = path.trim_start_matches('/');
        match controllers {
            "" => Some(around(root, path, ["memory.max", "memory.current"])),
            controllers if controllers.split(',').any(|name| name == "memory") => {
                Some(around(&root.join("memory"), path, ["memory.limit_in_bytes", "memory.usage_in_bytes"]))
            }
            _ => None,
        }
    };
    groups.lines().filter_map(within).flatten().collect()
}

/// A group and those around it, as far as they have a limit.
fn around(mount: &Path, path: &str, files: [&str; 2]) -> Vec<Pool> {
    let place: PathBuf = mount.join(path);
    place.ancestors().take_while(|group| group.starts_with(mount)).filter_map(|group| group_pool(group, files)).collect()
}

fn group_pool(group: &Path, [limit, used]: [&str; 2]) -> Option<Pool> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max", and v1's largest number, are no limits.
    let whole = read(limit).filter(|limit| *limit < 1 << 60)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = number(&stat, "inactive_file ").unwrap_or(0);
    Some(Pool { whole, free: whole.saturating_sub(read(used)?.saturating_sub(cached)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_by_their_words() {
        let meminfo = "MemTotal: 5 kB\nMemAvailable:  2048 kB\n";
        assert_eq!(machine(meminfo), Some(Pool { whole: 5 << 10, free: 2 << 20 }));
        assert_eq!((number(meminfo, "MemFree:"), number("VmPin:\tx kB", "VmPin:")), (None, None));
        assert!(!pools().is_empty());
    }

    #[test]
    fn every_group_with_a_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("job/memory.max", "1000\n");
        put("job/memory.current", "900\n");
        put("job/memory.stat", "anon 5\ninactive_file 50\n");
        put("job/step/memory.max", "max\n");
        put("job/step/memory.current", "10\n");
        assert_eq!(limits("0::/job/step\n", root.path()), [Pool { whole: 1000, free: 150 }]);
        assert_eq!(limits("0::/\n", root.path()), []);
        put("memory/slurm/memory.limit_in_bytes", "500");
        put("memory/slurm/memory.usage_in_bytes", "600");
        let both = [Pool { whole: 500, free: 0 }, Pool { whole: 1000, free: 150 }];
        assert_eq!(limits("5:cpu,cpuacct:/x\n4:memory:/slurm\n0::/job\n", root.path()), both);
    }
}
