//! The job's own `/dev/shm` on this node: a directory in the node's, bound over it in the ranks' mount namespaces.
//!
//! MPI libraries leave named segments behind when their processes are killed, and find those of other jobs and users;
//! here they vanish with the job. What a daemon left that was killed itself is removed by the next one.
//! Invariant: a directory whose lock (flock on itself) is held is in use. Faults assumed: no `/dev/shm`, or a full one:
//! then the ranks share the node's.

use crate::stay::Held;
use mend_messages::agent::SHARED_MEMORY_PREFIX;
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, Permissions, read_dir, remove_dir_all, remove_file, rename, set_permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::task::JoinHandle;

const SHARED_MEMORY_PATH: &str = "/dev/shm";

/// The directory; removed with everything in it when this is dropped.
#[derive(Debug)]
pub struct SharedMemory {
    path: PathBuf,
    _lock: File,
}

impl SharedMemory {
    /// Makes one. `None` if there can be none, for a reason that is logged.
    pub fn make() -> Option<Self> {
        let name = format!("{SHARED_MEMORY_PREFIX}{}", mend_wire::secret::to_hex(&mend_wire::random_bytes::<8>()));
        let path = Path::new(SHARED_MEMORY_PATH).join(&name);
        // It gets the name that a sweep looks for when its lock is held.
        let partial = Path::new(SHARED_MEMORY_PATH).join(format!(".{name}"));
        let made = DirBuilder::new().mode(0o700).create(&partial).and_then(|()| File::open(&partial)).and_then(|lock| {
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            rename(&partial, &path)?;
            Ok(lock)
        });
        match made {
            Ok(lock) => Some(Self { path, _lock: lock }),
            Err(error) => {
                tracing::info!(%error, "ranks share the node's /dev/shm");
                None
            }
        }
    }

    /// Empties it. What is in it is put aside, and removed in a thread of its own: much of it takes longer than a lease.
    pub fn clear(&self) {
        let Some(aside) = Self::make() else { return empty(&self.path) };
        for entry in read_dir(&self.path).into_iter().flatten().flatten() {
            let _ = rename(entry.path(), aside.path.join(entry.file_name()));
        }
        // What a program has closed to its owner stays where it is.
        empty(&self.path);
        std::thread::spawn(move || drop(aside));
    }

    /// Removes it in a thread of its own, as much takes its time. The daemon is needed for that.
    pub fn discard(self, work: Held) -> JoinHandle<()> {
        tokio::task::spawn_blocking(move || {
            drop(self);
            drop(work);
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether ranks would not find this file where it is: its directory lies in the node's `/dev/shm`. Looks at the disk.
pub fn hides(file: &Path) -> bool {
    file.starts_with(SHARED_MEMORY_PATH)
        || file
            .parent()
            .and_then(|directory| directory.canonicalize().ok())
            .is_some_and(|directory| directory.starts_with(SHARED_MEMORY_PATH))
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes what is in a directory.
fn empty(directory: &Path) {
    for entry in read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|about| about.is_dir()) {
            remove(&entry.path());
        } else if let Err(error) = remove_file(entry.path()) {
            tracing::info!(%error, "a file stays in a job's /dev/shm");
        }
    }
}

/// Removes a directory with everything in it, also where programs have closed it to its owner. What cannot be removed is left to the
/// next daemon.
fn remove(directory: &Path) {
    if remove_dir_all(directory).is_err() {
        open_up(directory);
        let _ = remove_dir_all(directory);
    }
}

/// Lets the owner change this directory and those in it.
fn open_up(directory: &Path) {
    let _ = set_permissions(directory, Permissions::from_mode(0o700));
    for entry in read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|about| about.is_dir()) {
            open_up(&entry.path());
        }
    }
}

/// Whether a daemon could have made a directory of this name.
fn is_name(name: &str) -> bool {
    name.strip_prefix(SHARED_MEMORY_PREFIX).is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Removes what killed daemons of this user left.
pub fn sweep() {
    let own = rustix::process::geteuid().as_raw();
    for entry in read_dir(SHARED_MEMORY_PATH).into_iter().flatten().flatten() {
        let ours = is_name(&entry.file_name().to_string_lossy()) && entry.metadata().is_ok_and(|found| found.uid() == own);
        let Some(directory) = ours.then(|| File::open(entry.path()).ok()).flatten() else { continue };
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_daemons_are_swept() {
        assert!(is_name("mend-68356e9c52049609"));
        assert!(!is_name("mend-results") && !is_name("mend-68356e9c5204960") && !is_name("amend-68356e9c52049609"));
    }

    #[test]
    fn what_is_cleared_is_empty_at_once_and_can_be_used_again() {
        let used = SharedMemory::make().unwrap();
        std::fs::write(used.path().join("segment"), "x").unwrap();
        std::fs::create_dir_all(used.path().join("closed/below")).unwrap();
        set_permissions(used.path().join("closed"), Permissions::from_mode(0o500)).unwrap();
        used.clear();
        assert_eq!(read_dir(used.path()).unwrap().count(), 0);
        std::fs::write(used.path().join("segment"), "y").unwrap();
    }

    #[tokio::test]
    async fn a_daemon_is_not_done_before_it_is_removed() {
        let (used, stay) = (SharedMemory::make().unwrap(), std::sync::Arc::new(crate::stay::Stay::default()));
        let path = used.path().to_owned();
        std::fs::write(path.join("segment"), "x").unwrap();
        let removing = used.discard(stay.work());
        stay.done().await;
        assert!(!path.exists());
        removing.await.unwrap();
    }

    #[test]
    fn a_used_directory_survives_a_sweep_and_a_left_one_does_not() {
        let used = SharedMemory::make().unwrap();
        let left = SharedMemory::make().unwrap();
        let stale = left.path().to_owned();
        std::fs::write(stale.join("segment"), "x").unwrap();
        // Of a program that closed it: not to root, who runs some of these tests.
        std::fs::create_dir_all(stale.join("closed/below")).unwrap();
        for closed in ["closed/below", "closed"] {
            set_permissions(stale.join(closed), Permissions::from_mode(0o500)).unwrap();
        }
        // As if its daemon had been killed: the lock goes, the directory stays.
        let SharedMemory { path: _, _lock } = &*std::mem::ManuallyDrop::new(left);
        flock(_lock, FlockOperation::Unlock).unwrap();
        sweep();
        assert!(used.path().exists() && !stale.exists());
        let path = used.path().to_owned();
        drop(used);
        assert!(!path.exists());
    }
}
