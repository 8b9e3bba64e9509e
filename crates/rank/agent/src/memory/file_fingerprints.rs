//! Fingerprints of the files that the program maps: size, time, and a hash of the beginning and the end. A restart refuses a file with another one.
//!
//! A program with many libraries maps hundreds. Each is read once, while the program runs, and again only if the kernel says that it was
//! changed: everybody waits for what is read while the program stands still.

use crate::descriptors::table;
use mend_image::record::{Object, object};
use mend_kernel::sample::Sample;
use rustix::fd::FromRawFd;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fs::{File, Metadata, metadata};
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt;

/// Seconds after a change that another one may bear the same time: the clock of a file system ticks, and a server has one of its own.
const MAX_CLOCK_TICK_S: i64 = 2;

/// Device, inode, length; times of the last change of the content and of anything, seconds and nanoseconds.
type Version = ([u64; 3], [i64; 4]);

/// Fingerprints of files, by path.
#[derive(Debug, Default)]
pub(crate) struct FileFingerprints {
    known: HashMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    version: Version,
    object: Object,
    /// Since the last [`FileFingerprints::tidy`].
    used: bool,
}

impl FileFingerprints {
    /// Forgets what was not asked for since this was last called.
    pub fn tidy(&mut self) {
        self.known.retain(|_, known| std::mem::take(&mut known.used));
    }

    /// Files to be described. `locked` are those with POSIX locks, by device and inode, with a descriptor of the program's: the locks would
    /// be lost if the agent opened and closed them in the program's table (see [`crate::descriptors::locks`]).
    pub fn files<'a>(&'a mut self, locked: &'a [((u64, u64), i32)]) -> DescribedFiles<'a> {
        DescribedFiles { fingerprints: self, locked, changed: false }
    }
}

/// See [`FileFingerprints::files`].
pub(crate) struct DescribedFiles<'a> {
    fingerprints: &'a mut FileFingerprints,
    locked: &'a [((u64, u64), i32)],
    changed: bool,
}

impl DescribedFiles<'_> {
    /// Whether any of the described files has changed since it was last described, or is new.
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// The record of a file, but for its text.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn describe(&mut self, path: &str) -> io::Result<Object> {
        let metadata = metadata(path)?;
        let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        let version = ([metadata.dev(), metadata.ino(), metadata.len()], times);
        if let Some(known) = self.fingerprints.known.get_mut(path).filter(|known| known.version == version) {
            known.used = true;
            return Ok(known.object);
        }
        self.changed = true;
        // A file system without such times has zeros there.
        let settled = metadata.ctime() > 0 && metadata.ctime() + MAX_CLOCK_TICK_S <= clock_gettime(ClockId::Realtime).tv_sec;
        let object = self.read(path, &metadata)?;
        if settled {
            self.fingerprints.known.insert(path.to_owned(), Known { version, object, used: true });
        }
        Ok(object)
    }

    fn read(&self, path: &str, metadata: &Metadata) -> io::Result<Object> {
        match self.locked.iter().find(|(identity, _)| *identity == (metadata.dev(), metadata.ino())) {
            // SAFETY: an open descriptor of the program's, never closed here.
            Some((_, fd)) if !table::apart() => fingerprint(&ManuallyDrop::new(unsafe { File::from_raw_fd(*fd) }), metadata),
            // Locks are the table's in which they were taken.
            _ => fingerprint(&File::open(path)?, metadata),
        }
    }
}

fn fingerprint(file: &File, metadata: &Metadata) -> io::Result<Object> {
    let size = metadata.len();
    let Sample { hash, elf } = Sample::of(file, size)?;
    Ok(Object {
        flags: if elf { object::ELF } else { 0 },
        text: 0,
        text_length: 0,
        mode: metadata.mode(),
        size,
        mtime: metadata.mtime(),
        mtime_ns: metadata.mtime_nsec() as u64,
        sample: hash,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant, SystemTime};

    /// Puts back the time of a file's content, as those do who hide what they did.
    fn write(path: &str, content: &[u8]) {
        std::fs::write(path, content).unwrap();
        File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }

    fn changed(fingerprints: &mut FileFingerprints, path: &str) -> bool {
        let mut files = fingerprints.files(&[]);
        files.describe(path).unwrap();
        files.changed()
    }

    #[test]
    fn a_file_is_read_again_if_anything_of_it_may_have_changed() {
        let path = std::env::temp_dir().join(format!("mend-fingerprints-{}", std::process::id()));
        let path = path.to_str().unwrap();
        let mut fingerprints = FileFingerprints::default();
        write(path, b"first");
        let first = fingerprints.files(&[]).describe(path).unwrap();
        assert!(fingerprints.known.is_empty(), "what was changed just now may change again and bear the same time");
        assert!(changed(&mut fingerprints, path));
        write(path, b"other");
        let other = fingerprints.files(&[]).describe(path).unwrap();
        assert_eq!((first.size, first.mtime, first.mtime_ns), (other.size, other.mtime, other.mtime_ns));
        assert_ne!(first.sample, other.sample);
        let began = Instant::now();
        while fingerprints.known.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "never known");
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(fingerprints.files(&[]).describe(path).unwrap(), other);
        }
        assert!(!changed(&mut fingerprints, path));
        // From memory: the record that is kept is the one that is told.
        fingerprints.known.get_mut(path).unwrap().object.sample ^= 1;
        assert_ne!(fingerprints.files(&[]).describe(path).unwrap().sample, other.sample);
        write(path, b"third");
        assert!(changed(&mut fingerprints, path));
        let third = fingerprints.files(&[]).describe(path).unwrap();
        assert!(![first.sample, other.sample, other.sample ^ 1].contains(&third.sample));
        std::fs::remove_file(path).unwrap();
        fingerprints.files(&[]).describe(path).unwrap_err();
    }

    #[test]
    fn what_is_not_asked_for_is_forgotten() {
        let mut fingerprints = FileFingerprints::default();
        let program = std::env::current_exe().unwrap();
        let path = program.to_str().unwrap();
        let began = Instant::now();
        while fingerprints.known.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "never known");
            fingerprints.files(&[]).describe(path).unwrap();
        }
        fingerprints.tidy();
        assert_eq!(fingerprints.known.len(), 1);
        fingerprints.tidy();
        assert!(fingerprints.known.is_empty());
    }
}
