//! Directories of one job's images on this node: `BASE/mend.UID/NODE/JOB/N/rank-R.image`, with `BASE` the node's
//! `/dev/shm` or a directory that the user named.
//!
//! Invariants: everything from `mend.UID` on is this user's alone (0700, 0600), or the shelf is refused; an image has
//! its name only when it is whole; the job's directory is locked (flock, shared) while the job is here, so that what a
//! killed daemon left can be told from what is in use. Faults assumed: another user made `mend.UID` first; the file
//! system is full, or goes away.

use mend_coordination::checkpoint::image_name;
use mend_messages::job::Rank;
use mend_messages::tier::{Holding, Shelf};
use mend_wire::secret::to_hex;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const MEMORY: &str = "/dev/shm";
/// How often a directory is made that others remove at the same time.
const ATTEMPTS: u32 = 20;
/// Part of the node's memory that a shelf leaves to programs.
const RESERVE: u64 = 8;

/// One shelf of one job.
#[derive(Debug)]
pub struct OpenShelf {
    /// Which.
    pub shelf: Shelf,
    directory: PathBuf,
    _lock: File,
}

/// Base directory of this user's shelves.
fn base(shelf: &Shelf) -> PathBuf {
    let base = match shelf {
        Shelf::Memory => Path::new(MEMORY),
        Shelf::Directory(path) => path,
    };
    base.join(format!("mend.{}", rustix::process::geteuid().as_raw()))
}

/// A directory that nobody else can use; made if it is not there.
fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("{} is not a directory of this user's alone", path.display())));
    }
    Ok(())
}

impl OpenShelf {
    /// Makes the job's directory on the shelf, or finds it.
    pub fn open(shelf: Shelf, node: &str, job: &[u8; 16]) -> io::Result<Self> {
        let directory = base(&shelf).join(node.replace('/', "_")).join(to_hex(job));
        let mut attempts = 0;
        loop {
            attempts += 1;
            let locked = directory.ancestors().take(3).collect::<Vec<_>>().into_iter().rev().try_for_each(make_private).and_then(|()| {
                let lock = File::open(&directory)?;
                flock(&lock, FlockOperation::NonBlockingLockShared)?;
                // Another job's end, or a sweep, may have removed it before it was locked.
                fs::metadata(&directory).map(|_| lock)
            });
            match locked {
                Ok(lock) => return Ok(Self { shelf, directory, _lock: lock }),
                Err(error) if attempts < ATTEMPTS && matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
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
                remove_drafts(&entry.path());
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

    /// A file for a rank's image that does not have its name yet.
    pub fn draft(&self, number: u64, rank: Rank) -> io::Result<File> {
        self.prepare(number)?;
        let draft = draft_name(&self.image(number, rank), "saved");
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => create(&draft),
        }
    }

    /// Gives a draft its name.
    pub fn keep(&self, number: u64, rank: Rank) -> io::Result<()> {
        let image = self.image(number, rank);
        // An agent that was given the name has done this itself.
        if image.exists() { Ok(()) } else { publish(&draft_name(&image, "saved"), &image) }
    }

    /// Stores a checkpoint's manifest.
    pub fn manifest(&self, number: u64, text: &[u8]) -> io::Result<()> {
        self.prepare(number)?;
        let place = self.checkpoint(number).join("manifest.json");
        let mut draft = Draft::new(place)?;
        draft.file.write_all(text)?;
        draft.publish()
    }

    /// Takes a whole checkpoint away; the number may be used again. What is to be deleted.
    pub fn drop_checkpoint(&self, number: u64) -> Option<PathBuf> {
        self.set_aside(&self.checkpoint(number))
    }

    /// Removes these ranks' images of a checkpoint, and with the last of them all of it.
    pub fn remove(&self, number: u64, ranks: &[Rank]) {
        let checkpoint = self.checkpoint(number);
        for &rank in ranks {
            let image = self.image(number, rank);
            let _ = fs::remove_file(draft_name(&image, "saved"));
            let _ = fs::remove_file(image);
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
            found.push(Holding { shelf: self.shelf.clone(), number, images });
        }
        found
    }

    /// Bytes that can be written here without hurting programs.
    pub fn room(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.directory)?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        Ok(match self.shelf {
            Shelf::Memory => free.min(spare_memory()),
            Shelf::Directory(_) => free,
        })
    }
}

impl Drop for OpenShelf {
    fn drop(&mut self) {
        // What is empty goes; the rest stays for a restart.
        for directory in self.directory.ancestors().take(3) {
            if fs::remove_dir(directory).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                return;
            }
        }
    }
}

/// Memory that may be filled: what is available, less a part that programs can count on.
fn spare_memory() -> u64 {
    let table = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    match (field("MemAvailable"), field("MemTotal")) {
        (Some(available), Some(total)) => available.saturating_sub(total / RESERVE).min(group_memory()),
        _ => 0,
    }
}

/// What the control groups of this process leave (cgroup v2); file system pages count against the one who writes them.
fn group_memory() -> u64 {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return u64::MAX };
    let top = Path::new("/sys/fs/cgroup");
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let spare = |group: &Path| {
        let (most, used) = (number(group.join("memory.max"))?, number(group.join("memory.current"))?);
        Some(most.saturating_sub(used).saturating_sub(most / RESERVE))
    };
    top.join(path).ancestors().take_while(|group| group.starts_with(top)).filter_map(spare).min().unwrap_or(u64::MAX)
}

/// A file that will be at a place once it is whole. Nobody else's has its name; dropped, it goes.
#[derive(Debug)]
pub struct Draft {
    /// What is written.
    pub file: File,
    path: PathBuf,
    place: PathBuf,
}

impl Draft {
    /// A new file, readable by its owner alone, beside `place`.
    pub fn new(place: PathBuf) -> io::Result<Self> {
        let path = draft_name(&place, &to_hex(&mend_wire::random_bytes::<8>()));
        Ok(Self { file: create(&path)?, path, place })
    }

    /// Makes it durable and gives it its name.
    pub fn publish(self) -> io::Result<()> {
        publish(&self.path, &self.place)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Nothing is there if it got its name.
        let _ = fs::remove_file(&self.path);
    }
}

fn create(draft: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(draft)
}

fn draft_name(place: &Path, own: &str) -> PathBuf {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    place.with_file_name(format!(".{name}.{own}.partial"))
}

fn publish(draft: &Path, place: &Path) -> io::Result<()> {
    File::open(draft)?.sync_all()?;
    fs::rename(draft, place)?;
    File::open(place.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn remove_drafts(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(".partial") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes what jobs left on this shelf that are not here any more: what they had not finished, and everything once it
/// is older than `age`.
pub fn sweep(shelf: &Shelf, node: &str, age: Duration) {
    let home = base(shelf).join(node.replace('/', "_"));
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
            remove_drafts(&checkpoint.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn shelf(directory: &Path, job: u8) -> OpenShelf {
        OpenShelf::open(Shelf::Directory(directory.to_owned()), "n", &[job; 16]).unwrap()
    }

    fn put(shelf: &OpenShelf, number: u64, rank: Rank) {
        shelf.draft(number, rank).unwrap().write_all(b"image").unwrap();
        shelf.keep(number, rank).unwrap();
    }

    #[test]
    fn an_image_appears_when_it_is_kept_and_only_for_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let one = shelf(directory.path(), 1);
        one.draft(3, 0).unwrap().write_all(b"image").unwrap();
        assert!(one.holdings().iter().all(|holding| holding.images.is_empty()));
        one.keep(3, 0).unwrap();
        one.manifest(3, b"{}").unwrap();
        assert_eq!(one.holdings(), [Holding { shelf: one.shelf.clone(), number: 3, images: vec![(0, 5)] }]);
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
        let one = shelf(directory.path(), 1);
        for number in [1, 2, 3] {
            put(&one, number, 0);
        }
        drop(one.draft(2, 1).unwrap());
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
        drop(shelf(directory.path(), 1));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let _held = shelf(directory.path(), 1);
        let base = base(&Shelf::Directory(directory.path().to_owned()));
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        let refused = OpenShelf::open(Shelf::Directory(directory.path().to_owned()), "n", &[1; 16]).unwrap_err();
        assert!(refused.to_string().contains("not a directory of this user's alone"), "{refused}");
        fs::remove_dir_all(&base).unwrap();
        std::os::unix::fs::symlink("/tmp", &base).unwrap();
        assert!(OpenShelf::open(Shelf::Directory(directory.path().to_owned()), "n", &[1; 16]).is_err());
    }

    #[test]
    fn a_sweep_spares_jobs_that_are_here_and_young_images() {
        let directory = tempfile::tempdir().unwrap();
        let (used, left) = (shelf(directory.path(), 1), shelf(directory.path(), 2));
        for one in [&used, &left] {
            put(one, 1, 0);
            drop(one.draft(1, 1).unwrap());
        }
        let gone = left.directory.clone();
        drop(left);
        sweep(&used.shelf, "n", Duration::from_secs(3600));
        assert!(gone.join("1").join(image_name(0)).exists());
        assert_eq!((fs::read_dir(gone.join("1")).unwrap().count(), fs::read_dir(used.checkpoint(1)).unwrap().count()), (1, 2));
        sweep(&used.shelf, "n", Duration::ZERO);
        assert!(!gone.exists() && used.directory.exists());
    }
}
