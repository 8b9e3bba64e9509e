//! The most memory that a machine has in use while something goes on: of both nodes of a lab, which are one machine.
//!
//! In use are the memory of processes, files in memory, and the kernel's own with its buffers for connections; not what it keeps of files on disks. What other programs
//! take or give back meanwhile is in it, too.

use mend_kernel::memory::number;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(2);
/// For how long it is waited until processes that have ended have given back what they had.
const SETTLING: Duration = Duration::from_millis(400);

/// What is in use, by its names in `/proc/meminfo`, KiB. Not all that is not free: what was given back is kept aside for a while, and counts as neither.
const IN_USE: [&str; 4] = ["AnonPages:", "Shmem:", "SUnreclaim:", "PageTables:"];

/// Bytes of memory that are in use; `None`: nobody can tell.
fn in_use() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = IN_USE.iter().map(|name| number(&table, name)).sum::<Option<u64>>()?;
    Some((kib << 10) + connections())
}

/// Bytes that wait in TCP connections, of all network namespaces (`mem` in `/proc/net/sockstat`, pages).
fn connections() -> u64 {
    let table = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let pages = table.lines().find(|line| line.starts_with("TCP:")).and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Does something, and tells by how many bytes more memory was in use meanwhile than afterwards.
pub(super) fn of<T>(work: impl FnOnce() -> T) -> (T, Option<u64>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let most = scope.spawn(|| {
            let mut most = in_use()?;
            while !over.load(Ordering::Acquire) {
                std::thread::sleep(PAUSE);
                most = most.max(in_use()?);
            }
            Some(most)
        });
        let done = work();
        over.store(true, Ordering::Release);
        let most = most.join().ok().flatten();
        let (begun, mut least) = (Instant::now(), in_use());
        while begun.elapsed() < SETTLING {
            std::thread::sleep(PAUSE);
            least = least.min(in_use());
        }
        (done, most.zip(least).map(|(most, least)| most.saturating_sub(least)))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn what_was_taken_for_a_moment_is_told() {
        let (length, most) = super::of(|| {
            let taken = std::hint::black_box(vec![1u8; 256 << 20]);
            // Long enough that who looks gets a processor meanwhile on a busy machine.
            std::thread::sleep(Duration::from_millis(500));
            taken.len()
        });
        assert_eq!(length, 256 << 20);
        // Other tests take memory, too, and what they take afterwards is counted against it.
        assert!(most.is_some_and(|most| most > 16 << 20), "{most:?}");
    }
}
