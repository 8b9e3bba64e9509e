//! `mend data check`: what is wrong with files, found by reading all of them.
//!
//! ```text
//! paths ──walk──► files, cut into runs of blocks ──► threads that read ──► damaged ranges
//! ```
//! A file with checksums is compared with them. One without is read, which finds what gives EIO and, if its length is known, what is missing; it is compared
//! with its source if that is asked for. Links to directories are not followed. Faults assumed: those of media (see `medium`); files that change or go
//! while they are read.

use crate::failure::{FAILED, Failure};
use crate::medium::{Aligned, Block, Medium};
use crate::names;
use crate::origin;
use crate::record_file::{self, Found};
use mend_data::damage::{self, Cause, Damage};
use mend_data::ranges::{self, Range};
use mend_data::record::Record;
use mend_data::sums::{BLOCK, Sum, Sums};
use serde::Serialize;
use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Blocks that a thread reads of a file before another may.
const RUN: u64 = 16;
/// Runs that wait for a thread.
const WAITING: usize = 256;

/// How a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it was staged.
    Whole,
    /// All of it can be read, and it has the right length; there are no checksums.
    Readable,
    /// Nothing is known of it, and all of it can be read.
    Unknown,
    /// Something is wrong.
    Damaged,
    /// It is gone, and what stands beside it says that it was there.
    Missing,
    /// It could not be looked at.
    Failed,
}

/// What was found of a file.
#[derive(Debug, Serialize)]
pub struct Checked {
    pub path: PathBuf,
    pub state: State,
    /// Bytes that it has.
    pub size: u64,
    pub damages: Vec<Damage>,
    pub remarks: Vec<String>,
    #[serde(skip)]
    pub found: Found,
    /// Which file was read; `None` if that could not be told.
    #[serde(skip)]
    pub identity: Option<Identity>,
    /// Given by name, not found in a directory.
    #[serde(skip)]
    pub named: bool,
}

/// A file that was read, and its record: another one may have its name later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    inode: (u64, u64),
    record: Option<u64>,
}

impl Identity {
    /// Of a file and the record that it has, which must not have learned anything since.
    pub fn of(metadata: &fs::Metadata, record: Option<&Record>) -> Self {
        let digest = |record: &Record| record.encode().ok().map(|bytes| xxhash_rust::xxh3::xxh3_64(&bytes));
        Self { inode: (metadata.dev(), metadata.ino()), record: record.and_then(digest) }
    }
}

/// A file while it is read.
struct Reading {
    path: PathBuf,
    named: bool,
    size: u64,
    /// What of it is compared and what it must have, if that is known.
    wanted: Option<u64>,
    found: Found,
    identity: Option<Identity>,
    medium: OnceLock<Medium>,
    bad: Mutex<Vec<(Range, Cause)>>,
    failed: Mutex<Option<io::Error>>,
    runs: AtomicUsize,
}

struct Run {
    of: Arc<Reading>,
    range: Range,
}

/// Checks files and all below directories. Nothing of it is asynchronous.
pub fn all(paths: &[PathBuf], readers: usize) -> Vec<Checked> {
    let (to_readers, runs) = sync_channel::<Run>(WAITING);
    let runs = Mutex::new(runs);
    let mut readings = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| read_runs(&runs));
        }
        walk(paths, &mut |path, named, failed| {
            let reading = Arc::new(begin(path, named, failed));
            for range in cut(&reading) {
                // The readers outlive this loop.
                let _ = to_readers.send(Run { of: reading.clone(), range });
            }
            readings.push(reading);
        });
        drop(to_readers);
    });
    readings.into_iter().filter_map(Arc::into_inner).map(conclude).collect()
}

/// Calls back for each file, and for each directory that cannot be read to its end, with what is wrong with it.
fn walk(paths: &[PathBuf], file: &mut dyn FnMut(PathBuf, bool, Option<io::Error>)) {
    let mut directories = VecDeque::new();
    for path in paths {
        if path.is_dir() { directories.push_back(path.clone()) } else { file(path.clone(), true, None) }
    }
    while let Some(directory) = directories.pop_front() {
        let mut entries = Vec::new();
        let listed = fs::read_dir(&directory).and_then(|all| {
            for entry in all {
                entries.push(entry?);
            }
            Ok(())
        });
        if let Err(error) = listed {
            file(directory, true, Some(error));
        }
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        let of_long_names: HashSet<PathBuf> = entries.iter().filter_map(|entry| names::earlier_record(&entry.path())).collect();
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type());
            if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
                directories.push_back(path);
            } else if let Some(gone) = names::described(&path).filter(|described| !described.exists() && !of_long_names.contains(&path)) {
                file(gone, false, None);
            } else if !names::is_own(&entry.file_name()) && !kind.is_ok_and(|kind| !kind.is_file()) {
                file(path, false, None);
            }
        }
    }
}

fn begin(path: PathBuf, named: bool, failed: Option<io::Error>) -> Reading {
    let mut reading = Reading {
        path,
        named,
        size: 0,
        wanted: None,
        found: Found::default(),
        identity: None,
        medium: OnceLock::new(),
        bad: Mutex::default(),
        failed: Mutex::default(),
        runs: AtomicUsize::new(0),
    };
    if let Some(error) = failed {
        reading.failed = Mutex::new(Some(error));
        return reading;
    }
    let looked = record_file::load(&reading.path).and_then(|found| {
        reading.found = found;
        reading.wanted = reading.found.record.as_ref().map(|record| record.size);
        match fs::metadata(&reading.path) {
            Ok(metadata) if metadata.is_file() => {
                reading.size = metadata.len();
                reading.identity = Some(Identity::of(&metadata, reading.found.record.as_ref()));
            }
            Ok(_) => return Err(io::Error::other("it is no file")),
            // What stands beside it says that it was there.
            Err(error) if error.kind() == io::ErrorKind::NotFound && reading.wanted.is_some() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    });
    reading.failed = Mutex::new(looked.err());
    reading
}

impl Reading {
    fn sums(&self) -> Option<&Sums> {
        self.found.record.as_ref().and_then(|record| record.known())
    }

    fn note(&self, range: Range, cause: Cause) {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).push((range, cause));
    }

    /// Compares a block with its checksum, if it has one.
    fn compare(&self, index: u64, sum: impl FnOnce() -> Sum) {
        if let Some(expected) = self.sums().and_then(|sums| sums.get(index)) {
            let range = ranges::block(index, self.size.min(self.wanted.unwrap_or(self.size)));
            // What a short file lacks of its last block is missing, not different.
            let whole = range == ranges::block(index, self.wanted.unwrap_or(self.size));
            if whole && expected != sum() {
                self.note(range, Cause::Differs);
            }
        }
    }
}

/// A file's runs. What is a hole is dealt with here: there is nothing to read.
fn cut(reading: &Arc<Reading>) -> Vec<Range> {
    if reading.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        return Vec::new();
    }
    let compared = reading.size.min(reading.wanted.unwrap_or(reading.size));
    let sparse = fs::metadata(&reading.path).is_ok_and(|metadata| metadata.blocks().saturating_mul(512) < metadata.len());
    let holes =
        if sparse { fs::File::open(&reading.path).map(|file| origin::holes(&file, compared)).unwrap_or_default() } else { Vec::new() };
    let mut runs = Vec::new();
    let mut at = 0;
    for hole in holes {
        let first = hole.offset.div_ceil(BLOCK);
        let last = if hole.end() >= compared { ranges::blocks(compared) } else { hole.end() / BLOCK };
        if first >= last {
            continue;
        }
        runs.extend(runs_of(at, first * BLOCK));
        for index in first..last {
            let length = ranges::block(index, compared).length;
            reading.compare(index, || of_zeros(length));
        }
        at = (last * BLOCK).min(compared);
    }
    runs.extend(runs_of(at, compared));
    reading.runs.store(runs.len(), Ordering::Relaxed);
    runs
}

/// The sum of so many zeros, at most a block.
pub fn of_zeros(length: u64) -> Sum {
    static WHOLE: OnceLock<Sum> = OnceLock::new();
    let sum = |length: u64| Sum::of(&vec![0; length as usize]);
    if length == BLOCK { *WHOLE.get_or_init(|| sum(BLOCK)) } else { sum(length) }
}

fn runs_of(from: u64, end: u64) -> impl Iterator<Item = Range> {
    (from..end).step_by((RUN * BLOCK) as usize).map(move |at| Range::between(at, end.min(at + RUN * BLOCK)))
}

fn read_runs(runs: &Mutex<Receiver<Run>>) {
    let mut memory = Aligned::new();
    loop {
        let next = runs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(run) = next else { return };
        if let Err(error) = read_run(&run, &mut memory) {
            run.of.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }
}

fn read_run(run: &Run, memory: &mut Aligned) -> io::Result<()> {
    let opened;
    let medium = match run.of.medium.get() {
        Some(medium) => medium,
        // Few files are open at a time: one that is a single run is closed behind it.
        None if run.of.runs.load(Ordering::Relaxed) == 1 => {
            opened = Medium::open(&run.of.path)?;
            &opened
        }
        None => {
            let opened = Medium::open(&run.of.path)?;
            run.of.medium.get_or_init(|| opened)
        }
    };
    let mut at = run.range.offset;
    while at < run.range.end() {
        let index = at / BLOCK;
        let range = Range::between(at, run.range.end().min((index + 1) * BLOCK));
        match medium.read(range, memory)? {
            Block::Read(bytes) if bytes.len() as u64 == range.length => run.of.compare(index, || Sum::of(bytes)),
            // It was cut meanwhile.
            Block::Read(bytes) => run.of.note(Range::between(range.offset + bytes.len() as u64, range.end()), Cause::Differs),
            Block::Unreadable(bad) => bad.into_iter().for_each(|(range, cause)| run.of.note(range, cause)),
        }
        at = range.end();
    }
    Ok(())
}

fn conclude(reading: Reading) -> Checked {
    let bad = reading.bad.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = reading.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let gone = failed.is_none() && !reading.path.exists();
    let mut damages = damage::of_file(reading.size, reading.wanted.unwrap_or(reading.size), &bad);
    let mut remarks = reading.found.remarks.clone();
    let state = match &failed {
        // A file whose directory entry is there and whose inode is lost gives these when it is opened.
        Some(error) if crate::medium::of_medium(error) && reading.wanted.is_some() => {
            damages = vec![Damage { range: Range::between(0, reading.wanted.unwrap_or(0)), cause: Cause::Unreadable }];
            remarks.push(error.to_string());
            State::Damaged
        }
        Some(error) => {
            remarks.push(error.to_string());
            State::Failed
        }
        None if gone => State::Missing,
        None if !damages.is_empty() => State::Damaged,
        None if reading.found.record.as_ref().is_some_and(|record| record.known().is_some()) => State::Whole,
        None if reading.wanted.is_some() => State::Readable,
        None => State::Unknown,
    };
    let Reading { path, size, found, identity, named, .. } = reading;
    Checked { path, state, size, damages, remarks, found, identity, named }
}

/// One line about a damaged range.
pub fn told(damage: &Damage) -> String {
    let Range { offset, length } = damage.range;
    let cause = match damage.cause {
        Cause::Unreadable => "cannot be read",
        Cause::Short => "are missing at the end",
        Cause::Differs => "differ",
        Cause::Longer => "are too many at the end",
    };
    format!("{length} bytes from offset {offset} {cause}")
}

/// The failure of a file without a known source, which was given by name.
pub fn unknown(path: &Path) -> Failure {
    Failure::new(format!("{}: no source is known for it", path.display()), "`mend data sources FILE --add URI` names one", FAILED)
}
