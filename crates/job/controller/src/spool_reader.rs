//! Reads the spooled output of a job, also while it is written ([`crate::spool`]).
//!
//! ```text
//! segment N ── its end, and there is a later segment ──► the oldest of these
//!     └─ its end, and there is none ──► nothing more for now
//! ```
//! Invariants: each byte is read once, or told to be gone; a frame is read when it is whole. Faults assumed: segments are removed while they are
//! read; files that hold anything.

use mend_messages::daemon::Stream;
use mend_spool::{FRAME_HEAD, HeadError, MAX_BYTES, Next, Positions, SEGMENT_HEAD, next, read_segment_head};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The directory's name in the job's.
const DIRECTORY: &str = "spool";
/// Bytes that are read at once: a frame at least.
const READ_BYTES: usize = 4 * (FRAME_HEAD + MAX_BYTES);

/// Where the output of the job in this directory is.
pub(crate) fn directory_in(job: &Path) -> PathBuf {
    job.join(DIRECTORY)
}

/// Where a segment is.
pub(crate) fn segment_in(directory: &Path, number: u64) -> PathBuf {
    directory.join(number.to_string())
}

/// Numbers of the segments that are there, ascending.
///
/// # Errors
/// Those of the file system.
pub(crate) fn segments(directory: &Path) -> io::Result<Vec<u64>> {
    let entries = fs::read_dir(directory)?;
    let mut numbers: Vec<u64> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Why spooled output cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file system refuses.
    #[error("cannot use {}", path.display())]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Not a segment that this release reads.
    #[error("cannot read {}", path.display())]
    Head {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: HeadError,
    },
}

impl SpoolError {
    /// What a user can do about it; may be empty.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room there, or set MEND_HOME to a directory elsewhere",
                io::ErrorKind::PermissionDenied => "is the job's directory yours?",
                _ => mend_report::process_hint(source),
            },
            Self::Head { source: HeadError::Newer(_), .. } => "use the release that wrote it",
            Self::Head { .. } => "",
        }
    }
}

/// What is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// This was printed.
    Bytes(Stream, &'a [u8]),
    /// So many bytes are gone.
    Gone(Stream, u64),
    /// What follows in this file is damaged, and left out.
    Damaged(&'a Path),
}

#[derive(Debug)]
struct Segment {
    number: u64,
    file: File,
    /// Up to where it was read; 0 if its head was not.
    at: u64,
    /// What stands there is no frame.
    damaged: bool,
}

/// A reader of a job's output.
#[derive(Debug)]
pub struct SpoolReader {
    directory: PathBuf,
    segment: Option<Segment>,
    /// All segments up to this one were read.
    done: u64,
    positions: Positions,
}

impl SpoolReader {
    /// One that begins with the oldest output that is there.
    #[must_use]
    pub fn from_start(job: &Path) -> Self {
        Self { directory: directory_in(job), segment: None, done: 0, positions: Positions::default() }
    }

    /// One that begins behind what is there now.
    ///
    /// # Errors
    /// [`SpoolError`]
    pub fn at_end(job: &Path) -> Result<Self, SpoolError> {
        let mut reader = Self::from_start(job);
        // The newest may have no head yet, which says what is before it.
        let there = reader.later()?;
        reader.done = there[there.len().saturating_sub(2)..].first().map_or(0, |number| number.saturating_sub(1));
        reader.read(|_| Ok(()))?;
        Ok(reader)
    }

    /// How many bytes of each stream were printed up to where it has read.
    #[must_use]
    pub fn positions(&self) -> Positions {
        self.positions
    }

    /// Where the last whole frame ends in the segment that is read; `None` if something follows that is no frame, or if there is no segment.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.segment.as_ref().filter(|segment| !segment.damaged && segment.at > 0).map(|segment| segment.at)
    }

    /// The file that cannot be read on, because it is damaged.
    #[must_use]
    pub fn damaged(&self) -> Option<PathBuf> {
        self.segment.as_ref().filter(|segment| segment.damaged).map(|segment| segment_in(&self.directory, segment.number))
    }

    /// Reads what there is now.
    ///
    /// # Errors
    /// [`SpoolError`]; what `take` cannot take is one.
    pub fn read(&mut self, mut take: impl FnMut(Found<'_>) -> Result<(), SpoolError>) -> Result<(), SpoolError> {
        loop {
            self.read_segment(&mut take)?;
            let Some(following) = self.later()?.first().copied() else { return Ok(()) };
            // All that its writer wrote was there before the next one was.
            self.read_segment(&mut take)?;
            if let Some(path) = self.damaged() {
                take(Found::Damaged(&path))?;
            }
            let path = segment_in(&self.directory, following);
            match File::open(&path) {
                Ok(file) => self.segment = Some(Segment { number: following, file, at: 0, damaged: false }),
                // Removed, because there are newer ones.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(SpoolError::Io { path, source }),
            }
            self.done = following;
        }
    }

    /// Nothing more is written: what [`SpoolReader::read`] finds from now on is all that there is. What is open is opened again: NFS asks its server then how long a file is,
    /// and may know less of one that is open (nfs(5), "close-to-open").
    pub fn open_again(&mut self) {
        let Some(segment) = &mut self.segment else { return };
        if let Ok(file) = File::open(segment_in(&self.directory, segment.number)) {
            segment.file = file;
        }
    }

    /// Segments that were not read, ascending.
    fn later(&self) -> Result<Vec<u64>, SpoolError> {
        let io = |source| SpoolError::Io { path: self.directory.clone(), source };
        let mut numbers = segments(&self.directory).map_err(io)?;
        numbers.retain(|number| *number > self.done);
        Ok(numbers)
    }

    /// Reads the segment up to the last whole frame that is in it.
    fn read_segment(&mut self, take: &mut impl FnMut(Found<'_>) -> Result<(), SpoolError>) -> Result<(), SpoolError> {
        let Some(segment) = &mut self.segment else { return Ok(()) };
        let path = || segment_in(&self.directory, segment.number);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let length = read_at(&segment.file, &mut buffer, segment.at).map_err(|source| SpoolError::Io { path: path(), source })?;
            let mut rest = &buffer[..length];
            if segment.at == 0 {
                match read_segment_head(rest) {
                    Ok(Some(before)) => {
                        for stream in [Stream::Stdout, Stream::Stderr] {
                            pass(&mut self.positions, stream, before.of(stream), take)?;
                        }
                    }
                    Ok(None) => return Ok(()),
                    Err(HeadError::Foreign) => {
                        segment.damaged = true;
                        return Ok(());
                    }
                    Err(source) => return Err(SpoolError::Head { path: path(), source }),
                }
                rest = &rest[SEGMENT_HEAD..];
                segment.at = SEGMENT_HEAD as u64;
            }
            let begun = segment.at;
            segment.damaged = false;
            loop {
                match next(rest) {
                    Next::Whole(frame) => {
                        pass(&mut self.positions, frame.stream, frame.position, take)?;
                        take(Found::Bytes(frame.stream, frame.bytes))?;
                        self.positions.set(frame.stream, frame.position + frame.bytes.len() as u64);
                        rest = &rest[frame.length()..];
                        segment.at += frame.length() as u64;
                    }
                    Next::Part => break,
                    // Or not all of it is seen yet, over a network file system: it is looked at again.
                    Next::Damaged => {
                        segment.damaged = true;
                        return Ok(());
                    }
                }
            }
            if segment.at == begun {
                return Ok(());
            }
        }
    }
}

/// The stream goes on at `position`: what is before is gone.
fn pass(
    positions: &mut Positions,
    stream: Stream,
    position: u64,
    take: &mut impl FnMut(Found<'_>) -> Result<(), SpoolError>,
) -> Result<(), SpoolError> {
    let gone = position.saturating_sub(positions.of(stream));
    if gone > 0 {
        take(Found::Gone(stream, gone))?;
        positions.set(stream, position);
    }
    Ok(())
}

/// As many bytes as there are, up to the buffer's length.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], at + length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
