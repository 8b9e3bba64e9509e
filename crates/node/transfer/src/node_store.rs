//! Directories of one job's images on this node: `BASE/mend.UID/NODE/JOB/N/rank-R.image`, with `BASE` the node's
//! `/dev/shm` or a directory that the user named.
//!
//! Invariants: everything from `mend.UID` on is this user's alone (0700, 0600), or the store is refused; an image has
//! its name only when it is whole; the job's directory is locked (flock, shared) while the job is here, so that what a
//! killed daemon left can be told from what is in use. Faults assumed: another user made `mend.UID` first; the file
//! system is full, or goes away.

use crate::atomic_file::{self, AtomicFile};
use mend_coordination::checkpoint::image_name;
use mend_messages::job::Rank;
use mend_messages::tier::{Holding, NodeStore};
use mend_wire::secret::to_hex;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const SHARED_MEMORY_PATH: &str = "/dev/shm";
/// How often a directory is made that others remove at the same time.
const MAX_ATTEMPTS: u32 = 50;
/// Time between two of these where somebody else has the lock: half a second in all.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Part of the node's memory that a store leaves to programs.
const MEMORY_SHARE_DIVISOR: u64 = 8;

/// One store of one job.
#[derive(Debug)]
pub struct OpenNodeStore {
    /// The store that this is about.
    pub store: NodeStore,
    directory: PathBuf,
    lock: File,
}

/// What has to be there.
fn ground(store: &NodeStore) -> &Path {
    match store {
        NodeStore::Memory => Path::new(SHARED_MEMORY_PATH),
        NodeStore::Directory(path) => path,
    }
}

/// Base directory of this user's stores.
fn base(store: &NodeStore) -> PathBuf {
    ground(store).join(format!("mend.{}", rustix::process::geteuid().as_raw()))
}

/// A directory that nobody else can use; made if it is not there.
fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "{} is not a directory of this user's alone; remove it, or make it so (chmod 700)",
            path.display()
        )));
    }
    Ok(())
}

/// Makes a directory of a store with the two above it, or finds it; and its lock: while that is held, no sweep removes it.
fn lock_private(directory: &Path) -> io::Result<File> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let locked = directory.ancestors().take(3).collect::<Vec<_>>().into_iter().rev().try_for_each(make_private).and_then(|()| {
            let lock = File::open(directory)?;
            flock(&lock, FlockOperation::NonBlockingLockShared)?;
            // Another job's end, or a sweep, may have removed it before it was locked.
            fs::metadata(directory).map(|_| lock)
        });
        match locked {
            Err(error) if attempts < MAX_ATTEMPTS && error.kind() == io::ErrorKind::NotFound => {}
            // Whoever looks what can go has it for a moment, and may wait for a processor.
            Err(error) if attempts < MAX_ATTEMPTS && error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
}

/// The same of a store that may not be there, in plain words then.
fn lock_below(store: &NodeStore, directory: &Path) -> io::Result<File> {
    lock_private(directory).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound && !ground(store).exists() {
            return io::Error::new(error.kind(), "there is no such directory on this node");
        }
        error
    })
}

impl OpenNodeStore {
    /// Makes the job's directory in the store, or finds it.
    pub fn open(store: NodeStore, node: &str, job: &[u8; 16]) -> io::Result<Self> {
        let directory = base(&store).join(node.replace('/', "_")).join(to_hex(job));
        let open = lock_below(&store, &directory).map(|lock| Self { store, directory, lock })?;
        open.touch();
        Ok(open)
    }

    /// Notes that the job is here now: [`sweep`] counts from the last time.
    pub fn touch(&self) {
        let _ = self.lock.set_modified(SystemTime::now());
    }

    /// Takes a directory of the job's out of the way at once. What is to be deleted; it may take its time.
    fn set_aside(&self, directory: &Path) -> Option<PathBuf> {
        let aside = self.directory.join(format!(".{}.gone", to_hex(&mend_wire::random_bytes::<8>())));
        fs::rename(directory, &aside).is_ok().then_some(aside)
    }

    /// Takes away what is of other checkpoints than `keep`, and what was never finished. What is to be deleted.
    pub fn tidy(&self, keep: &[u64]) -> Vec<PathBuf> {
        let mut going = Vec::new();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            if number.is_some_and(|number| keep.contains(&number)) {
                atomic_file::sweep(&entry.path());
                // Only if nothing is left in it.
                let _ = fs::remove_dir(entry.path());
            } else {
                going.extend(self.set_aside(&entry.path()));
            }
        }
        going
    }

    fn checkpoint(&self, number: u64) -> PathBuf {
        self.directory.join(number.to_string())
    }

    /// Where a rank's image is, or will be.
    pub fn image(&self, number: u64, rank: Rank) -> PathBuf {
        self.checkpoint(number).join(image_name(rank))
    }

    /// Makes the directory of a checkpoint.
    pub fn prepare(&self, number: u64) -> io::Result<()> {
        make_private(&self.checkpoint(number))
    }

    /// Stores a checkpoint's manifest.
    pub fn manifest(&self, number: u64, text: &[u8]) -> io::Result<()> {
        self.prepare(number)?;
        let place = self.checkpoint(number).join("manifest.json");
        let mut partial = AtomicFile::new(place)?;
        partial.file.write_all(text)?;
        partial.publish().map(drop)
    }

    /// Takes a whole checkpoint away; the number may be used again. What is to be deleted.
    pub fn drop_checkpoint(&self, number: u64) -> Option<PathBuf> {
        self.set_aside(&self.checkpoint(number))
    }

    /// Removes these ranks' images of a checkpoint, and with the last of them all of it.
    pub fn remove(&self, number: u64, ranks: &[Rank]) {
        let checkpoint = self.checkpoint(number);
        for &rank in ranks {
            let _ = fs::remove_file(self.image(number, rank));
        }
        let is_image = |entry: fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".image");
        let left = fs::read_dir(&checkpoint).is_ok_and(|entries| entries.flatten().any(is_image));
        if !left {
            let _ = fs::remove_dir_all(checkpoint);
        }
    }

    /// Removes everything of the job.
    pub fn clear(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }

    /// What is here.
    pub fn holdings(&self) -> Vec<Holding> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let image = |entry: fs::DirEntry| {
                let name = entry.file_name();
                let rank: Rank = name.to_str()?.strip_prefix("rank-")?.strip_suffix(".image")?.parse().ok()?;
                Some((rank, entry.metadata().ok().filter(fs::Metadata::is_file)?.len()))
            };
            let images = fs::read_dir(entry.path()).into_iter().flatten().flatten().filter_map(image).collect();
            found.push(Holding { store: self.store.clone(), number, images });
        }
        found
    }

    /// Bytes that can be written here without hurting programs.
    pub fn room(&self) -> io::Result<u64> {
        room(&self.store, &self.directory)
    }
}

/// Bytes that can be written in a directory of a store without hurting programs.
///
/// # Errors
/// Those of the file system.
pub fn room(store: &NodeStore, directory: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(directory)?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    Ok(match store {
        NodeStore::Memory => free.min(spare_memory()),
        NodeStore::Directory(_) => free,
    })
}

impl Drop for OpenNodeStore {
    fn drop(&mut self) {
        self.touch();
        // What is empty goes; the rest stays for a restart.
        for directory in self.directory.ancestors().take(3) {
            if fs::remove_dir(directory).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                return;
            }
        }
    }
}

/// Memory that may be filled: what is free, less a part that programs can count on. File system pages count against the
/// control groups of the one who writes them.
fn spare_memory() -> u64 {
    mend_kernel::memory::pools().iter().map(|pool| pool.free.saturating_sub(pool.whole / MEMORY_SHARE_DIVISOR)).min().unwrap_or(0)
}

/// The directory of portable checkpoints' files in a store, which outlives jobs, and its lock: while it is held, no sweep removes it.
///
/// # Errors
/// Those of the file system; it is not this user's alone.
pub fn portable(store: &NodeStore, node: &str) -> io::Result<(PathBuf, File)> {
    let directory = base(store).join(node.replace('/', "_")).join("portable");
    lock_below(store, &directory).map(|lock| (directory, lock))
}

/// Takes that directory away if nobody else has its lock and no file of a checkpoint is in it.
pub fn leave_portable(directory: &Path, lock: &File) {
    if flock(lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let mut empty = true;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        // Only where nothing is in them: `own` and `copies`, and their keys.
        for key in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            for marker in fs::read_dir(key.path()).into_iter().flatten().flatten() {
                if marker.file_type().is_ok_and(|kind| kind.is_file()) {
                    let _ = fs::remove_file(marker.path());
                }
            }
            let _ = fs::remove_dir(key.path());
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            empty &= fs::remove_dir(entry.path()).is_ok();
        }
    }
    if !empty {
        let _ = flock(lock, FlockOperation::NonBlockingLockShared);
        return;
    }
    let _ = fs::remove_dir_all(directory);
    for above in directory.ancestors().skip(1).take(2) {
        if fs::remove_dir(above).is_err() {
            return;
        }
    }
}

/// Removes what jobs left in this store that are not here any more: what they had not finished, and everything once it
/// is older than `age`.
pub fn sweep(store: &NodeStore, node: &str, age: Duration) {
    let home = base(store).join(node.replace('/', "_"));
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let Ok(lock) = File::open(entry.path()) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let modified = entry.metadata().and_then(|found| found.modified()).unwrap_or_else(|_| SystemTime::now());
        if modified.elapsed().is_ok_and(|since| since > age) {
            let _ = fs::remove_dir_all(entry.path());
            continue;
        }
        for checkpoint in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            atomic_file::sweep(&checkpoint.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn store(directory: &Path, job: u8) -> OpenNodeStore {
        OpenNodeStore::open(NodeStore::Directory(directory.to_owned()), "n", &[job; 16]).unwrap()
    }

    fn partial(store: &OpenNodeStore, number: u64, rank: Rank) -> AtomicFile {
        store.prepare(number).unwrap();
        AtomicFile::new(store.image(number, rank)).unwrap()
    }

    fn put(store: &OpenNodeStore, number: u64, rank: Rank) {
        let mut partial = partial(store, number, rank);
        partial.file.write_all(b"image").unwrap();
        partial.publish().unwrap();
    }

    #[test]
    fn an_image_appears_when_it_is_whole_and_only_for_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let one = store(directory.path(), 1);
        let waiting = partial(&one, 3, 0);
        assert!(one.holdings().iter().all(|holding| holding.images.is_empty()));
        drop(waiting);
        put(&one, 3, 0);
        one.manifest(3, b"{}").unwrap();
        assert_eq!(one.holdings(), [Holding { store: one.store.clone(), number: 3, images: vec![(0, 5)] }]);
        let mut at = one.image(3, 0);
        assert_eq!(fs::metadata(&at).unwrap().mode() & 0o777, 0o600);
        while at.pop() && at != directory.path() {
            assert_eq!(fs::metadata(&at).unwrap().mode() & 0o777, 0o700);
        }
        one.remove(3, &[0]);
        assert!(one.holdings().is_empty());
    }

    #[test]
    fn what_is_not_to_be_kept_goes_and_so_do_drafts() {
        let directory = tempfile::tempdir().unwrap();
        let one = store(directory.path(), 1);
        for number in [1, 2, 3] {
            put(&one, number, 0);
        }
        // As if its daemon had been killed.
        std::mem::forget(partial(&one, 2, 1));
        assert_eq!(one.tidy(&[2, 9]).into_iter().map(fs::remove_dir_all).filter(Result::is_ok).count(), 2);
        put(&one, 4, 0);
        let gone = one.drop_checkpoint(4).unwrap();
        assert!(gone.join(image_name(0)).exists() && one.drop_checkpoint(4).is_none());
        fs::remove_dir_all(gone).unwrap();
        assert_eq!(one.holdings().iter().map(|holding| holding.number).collect::<Vec<_>>(), [2]);
        assert_eq!(fs::read_dir(one.checkpoint(2)).unwrap().count(), 1);
        one.clear();
        assert!(!one.directory.exists());
    }

    #[test]
    fn a_job_without_images_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        drop(store(directory.path(), 1));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let _held = store(directory.path(), 1);
        let base = base(&NodeStore::Directory(directory.path().to_owned()));
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        let refused = OpenNodeStore::open(NodeStore::Directory(directory.path().to_owned()), "n", &[1; 16]).unwrap_err();
        assert!(refused.to_string().contains("not a directory of this user's alone"), "{refused}");
        fs::remove_dir_all(&base).unwrap();
        std::os::unix::fs::symlink("/tmp", &base).unwrap();
        assert!(OpenNodeStore::open(NodeStore::Directory(directory.path().to_owned()), "n", &[1; 16]).is_err());
    }

    #[test]
    fn a_sweep_spares_jobs_that_are_here_and_young_images() {
        let directory = tempfile::tempdir().unwrap();
        let (used, left) = (store(directory.path(), 1), store(directory.path(), 2));
        for one in [&used, &left] {
            put(one, 1, 0);
            std::mem::forget(partial(one, 1, 1));
        }
        let gone = left.directory.clone();
        drop(left);
        sweep(&used.store, "n", Duration::from_secs(3600));
        assert!(gone.join("1").join(image_name(0)).exists());
        assert_eq!((fs::read_dir(gone.join("1")).unwrap().count(), fs::read_dir(used.checkpoint(1)).unwrap().count()), (1, 2));
        sweep(&used.store, "n", Duration::ZERO);
        assert!(!gone.exists() && used.directory.exists());
    }
}
