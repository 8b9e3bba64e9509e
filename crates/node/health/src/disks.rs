//! How full file systems are: of the directories in `MEND_HEALTH_DISKS`. Space or inodes, whichever is scarcer; as for users who are not root.
//!
//! Low mark 95 %, high mark 99 %. One that other nodes share, too, says nothing about this node: no rank would be better off elsewhere.

use mend_messages::health::Unread;
use mend_policy::health::marks::Marks;
use mend_policy::health::watch::Sample;
use std::path::Path;

/// Reads one; `None`: its file system has no bounds.
///
/// # Errors
/// It is not there, or cannot be asked.
pub fn read(directory: &Path) -> Result<Option<Sample>, Unread> {
    let sensor = format!("disk:{}", directory.display());
    let found = rustix::fs::statvfs(directory).map_err(|error| crate::unread(&sensor, error.to_string(), true))?;
    let space = used(found.f_blocks, found.f_bfree, found.f_bavail);
    let value = match (space, used(found.f_files, found.f_ffree, found.f_favail)) {
        (Some(space), Some(inodes)) => space.max(inodes),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return Ok(None),
    };
    Ok(Some(Sample { sensor, value: Some(value), unit: "%".into(), marks: Marks::new(95.0, 99.0), ..Sample::default() }))
}

/// Whether the directory is on a file system over a network, by its magic number (statfs(2), and the headers of those that are not in the kernel).
/// One that cannot be asked is taken for a local one.
pub fn is_shared(directory: &Path) -> bool {
    const SHARED: [u64; 11] = [
        0x6969,      // NFS
        0xff53_4d42, // CIFS
        0xfe53_4d42, // SMB 2
        0x0bd0_0bd0, // Lustre
        0x4750_4653, // GPFS
        0x1980_3108, // BeeGFS
        0x00c3_6400, // Ceph
        0x5346_414f, // AFS
        0x0102_1997, // 9P
        0x7461_636f, // OCFS2
        0x0116_1970, // GFS2
    ];
    rustix::fs::statfs(directory).is_ok_and(|found| SHARED.contains(&(found.f_type as u64)))
}

/// The share that is used of what users can have, per cent.
fn used(all: u64, free: u64, available: u64) -> Option<f64> {
    let used = all.saturating_sub(free);
    let usable = used.saturating_add(available);
    (all > 0 && usable > 0).then(|| used as f64 / usable as f64 * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_root_keeps_is_not_there_for_users() {
        assert_eq!((used(100, 50, 50), used(100, 10, 0), used(0, 0, 0)), (Some(50.0), Some(100.0), None));
        let here = read(Path::new("/dev/shm")).unwrap().unwrap();
        assert!(here.sensor == "disk:/dev/shm" && here.value.is_some_and(|value| (0.0..=100.0).contains(&value)));
        assert!(read(Path::new("/nowhere")).unwrap_err().failed);
        assert_eq!(read(Path::new("/proc")), Ok(None));
        assert!(!is_shared(Path::new("/dev/shm")) && !is_shared(Path::new("/nowhere")));
    }
}
