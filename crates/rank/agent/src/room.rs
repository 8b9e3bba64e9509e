//! Whether there is memory for a copy of this process, of which each page may have to be copied in the end.
//!
//! Asked before anything is stopped. The answer is an estimate: what other processes take meanwhile is not known. The copy
//! is the first to die if it was wrong.

use std::path::{Path, PathBuf};

/// What is left to everybody else.
const RESERVE: u64 = 64 << 20;

/// Why a process with `private` bytes of private memory, one of `ranks` on this node that are copied at once, is not to be
/// copied. `None`: it may be.
pub(crate) fn too_little(private: u64, ranks: u64) -> Option<String> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let free = [available(&meminfo), limits(&groups, Path::new("/sys/fs/cgroup"))];
    judge(private, ranks, free.into_iter().flatten().min())
}

fn judge(private: u64, ranks: u64, free: Option<u64>) -> Option<String> {
    let free = free?;
    let share = free.saturating_sub(RESERVE) / ranks.max(1);
    let mebibytes = |bytes: u64| bytes >> 20;
    (private > share).then(|| {
        let others = if ranks > 1 { format!(" for the {ranks} ranks here") } else { String::new() };
        format!("a snapshot of {} MiB may need as much again, and {} MiB are free{others}", mebibytes(private), mebibytes(free))
    })
}

/// Bytes that programs can still get, by `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Bytes that the control groups of this process still allow; `None` where nothing limits it or nobody can tell.
fn limits(groups: &str, root: &Path) -> Option<u64> {
    let left = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = path.trim_start_matches('/');
        match controllers {
            "" => Some(least(root, path, &["memory.max", "memory.current"])),
            controllers if controllers.split(',').any(|name| name == "memory") => {
                Some(least(&root.join("memory"), path, &["memory.limit_in_bytes", "memory.usage_in_bytes"]))
            }
            _ => None,
        }
    });
    left.flatten().min()
}

/// The least that a group or one of those around it still allows.
fn least(mount: &Path, path: &str, files: &[&str; 2]) -> Option<u64> {
    let place: PathBuf = mount.join(path);
    let groups = place.ancestors().take_while(|group| group.starts_with(mount));
    groups.filter_map(|group| left(group, files)).min()
}

fn left(group: &Path, [limit, used]: &[&str; 2]) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max", and v1's largest number, are no limits.
    let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // Cached files give way.
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(number(used)?.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_needs_as_much_as_the_process_has() {
        assert_eq!(judge(1 << 30, 1, None), None);
        assert_eq!(judge(1 << 30, 1, Some((1 << 30) + RESERVE)), None);
        assert!(judge(1 << 30, 2, Some((1 << 30) + RESERVE)).unwrap().contains("1024 MiB may need as much again"));
        assert!(judge(1, 1, Some(0)).is_some());
        assert_eq!(available("MemTotal: 5 kB\nMemAvailable:  2048 kB\n"), Some(2 << 20));
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("job/memory.max", "1000\n");
        put("job/memory.current", "900\n");
        put("job/memory.stat", "anon 5\ninactive_file 50\n");
        put("job/step/memory.max", "max\n");
        put("job/step/memory.current", "10\n");
        assert_eq!(limits("0::/job/step\n", root.path()), Some(150));
        assert_eq!(limits("0::/\n", root.path()), None);
        put("memory/slurm/memory.limit_in_bytes", "500");
        put("memory/slurm/memory.usage_in_bytes", "600");
        assert_eq!(limits("5:cpu,cpuacct:/x\n4:memory:/slurm\n0::/job\n", root.path()), Some(0));
    }
}
