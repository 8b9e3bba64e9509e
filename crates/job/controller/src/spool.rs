//! The output of a detached job, in its directory: `spool/` (0700), with segments `1`, `2`, … and `lock` (all 0600).
//!
//! ```text
//! write ─► frame ─► newest segment ── full ──► the next segment
//!                                   └─ all are longer than the bound, or the disk is full ──► the oldest is removed
//! ```
//! Both streams are in the same segments, in the order in which they were printed; [`mend_spool`] says how. Invariants: one controller writes,
//! and has the lock until the last byte is written (one that has lost it, and does not know it yet, adds to its own segment, and begins no other); what was written is whole or not read ([`crate::spool_reader`]); of the newest output, at
//! least seven eighths of the bound stay. Faults assumed: SIGKILL at any moment; disks full or failing. What could not be
//! written is missing, and a reader is told how much. Whole segments are durable. The newest one is so when [`crate::failover::flush`] says so, in
//! jobs whose controllers may have successors; in others a power failure may cost what is in it.

use crate::job_lock::held;
use crate::record::{make_at_end, make_directories, open_at_end};
use crate::spool_reader::{SpoolError, SpoolReader, directory_in, segment_in, segments};
use mend_messages::daemon::Stream;
use mend_spool::{MAX_BYTES, Next, Positions, SEGMENT_HEAD, encode, encode_message, next, read_segment_head, segment_head};
use rustix::fs::{FlockOperation, flock};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// So many segments fill the bound.
const SEGMENTS: u64 = 8;
/// Name of the lock.
const LOCK: &str = "lock";
/// Longest segment, bytes.
const MAX_SEGMENT_BYTES: u64 = 16 << 20;

/// Whether the job of this directory has, or had, a controller that spools its output.
#[must_use]
pub fn is_there(job: &Path) -> bool {
    directory_in(job).is_dir()
}

/// Whether a controller may still write output of the job of this directory.
#[must_use]
pub fn is_open(job: &Path) -> bool {
    File::open(directory_in(job).join(LOCK)).is_ok_and(|file| held(&file))
}

/// What a controller writes its job's output to.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    limit: u64,
    /// Number and length of each, oldest first.
    segments: VecDeque<(u64, u64)>,
    /// The newest one.
    file: Option<File>,
    positions: Positions,
    lock: File,
}

impl Spool {
    /// Opens that of a job, or makes one, of so many bytes. Waits for the controller that had it before, which is about to end.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn open(job: &Path, limit: u64) -> Result<Self, SpoolError> {
        Self::open_as(job, limit, false)
    }

    /// The same, but does not wait for the controller that had it, which is silent: what comes next is in a segment that it does not know.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn seize(job: &Path, limit: u64) -> Result<Self, SpoolError> {
        Self::open_as(job, limit, true)
    }

    fn open_as(job: &Path, limit: u64, seize: bool) -> Result<Self, SpoolError> {
        let directory = directory_in(job);
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| SpoolError::Io { path, source }
        };
        make_directories(&directory).map_err(io(&directory))?;
        let path = directory.join(LOCK);
        if seize {
            // Another file takes its place, of another identity for certain as long as both are there.
            let ours = directory.join("lock.new");
            let _ = fs::remove_file(&ours);
            let taken = make_at_end(&ours).and_then(|_| mend_durable::rename(&ours, &path));
            taken.map_err(io(&path))?;
        }
        let lock = open_at_end(&path).map_err(io(&path))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| io(&path)(error.into()))?;
        let numbers = segments(&directory).map_err(io(&directory))?;
        let length = |number: &u64| fs::metadata(segment_in(&directory, *number)).map_or(0, |found| found.len());
        let segments = numbers.iter().map(|number| (*number, length(number))).collect();
        let reader = SpoolReader::at_end(job)?;
        let positions = reader.positions();
        let mut spool = Self { directory, limit, segments, file: None, positions, lock };
        // One whose end cannot be read stays as it is, and the next one follows it.
        if let (false, Some(newest), Some(end)) = (seize, spool.segments.back_mut(), reader.end()) {
            let path = segment_in(&spool.directory, newest.0);
            let file = open_at_end(&path).map_err(io(&path))?;
            file.set_len(end).map_err(io(&path))?;
            newest.1 = end;
            spool.file = Some(file);
        }
        Ok(spool)
    }

    /// How many bytes of each stream were written, or could not be, since the job began.
    #[must_use]
    pub fn positions(&self) -> Positions {
        self.positions
    }

    /// The newest segment; what is in older ones is durable. `None`: nothing was written.
    ///
    /// # Errors
    /// Those of the system.
    pub fn newest(&self) -> io::Result<Option<File>> {
        self.file.as_ref().map(File::try_clone).transpose()
    }

    /// Writes what was printed. What cannot be written is missing: the job runs on.
    pub fn write(&mut self, stream: Stream, bytes: &[u8]) {
        self.write_frames(stream, bytes, |position, piece| encode(stream, position, piece));
    }

    /// Writes a message of Mend itself, as standard error.
    pub fn write_message(&mut self, bytes: &[u8]) {
        self.write_frames(Stream::Stderr, bytes, encode_message);
    }

    fn write_frames(&mut self, stream: Stream, bytes: &[u8], encode: impl Fn(u64, &[u8]) -> Vec<u8>) {
        for piece in bytes.chunks(MAX_BYTES) {
            let position = self.positions.of(stream);
            // A reader sees from the next position that it is missing.
            let _ = self.append(&encode(position, piece));
            self.positions.set(stream, position.saturating_add(piece.len() as u64));
        }
    }

    /// Of each stream so much is `known` to have been printed. What ranks have printed behind it was never confirmed, and comes again: the first of
    /// that goes, and with it all that was written later.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn forget_behind(&mut self, known: Positions) -> io::Result<()> {
        let mut end = None;
        for at in (0..self.segments.len()).rev() {
            let bytes = fs::read(segment_in(&self.directory, self.segments[at].0))?;
            let Ok(Some(before)) = read_segment_head(&bytes) else { break };
            let (whole, any_known) = known_part(&bytes, before, known);
            if let Some((length, positions)) = whole {
                end = Some((at, length, positions));
            }
            if any_known {
                break;
            }
        }
        if let Some((at, length, positions)) = end {
            self.file = None;
            for (number, _) in self.segments.drain(at + 1..).rev() {
                fs::remove_file(segment_in(&self.directory, number))?;
            }
            let (number, its_length) = &mut self.segments[at];
            let file = open_at_end(&segment_in(&self.directory, *number))?;
            file.set_len(length)?;
            file.sync_data()?;
            *its_length = length;
            self.positions = positions;
            self.file = Some(file);
        }
        mend_durable::sync_directory(&self.directory)
    }

    fn append(&mut self, frame: &[u8]) -> io::Result<()> {
        loop {
            match self.try_append(frame) {
                Err(error) if is_full(&error) && self.remove_oldest() => {}
                done => return done,
            }
        }
    }

    fn try_append(&mut self, frame: &[u8]) -> io::Result<()> {
        let longest = (self.limit / SEGMENTS).clamp(1, MAX_SEGMENT_BYTES);
        let length = self.segments.back().map_or(0, |(_, length)| *length);
        if self.file.is_none() || length + frame.len() as u64 > longest.max(2 * frame.len() as u64) {
            self.begin_segment()?;
        }
        while self.segments.iter().map(|(_, length)| *length).sum::<u64>() + frame.len() as u64 > self.limit && self.remove_oldest() {}
        self.write_whole(frame)
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        if let Some(file) = self.file.take() {
            // An error leaves it as it is: the job runs on.
            let _ = file.sync_data();
        }
        if !self.is_ours() {
            return Err(io::Error::other("another controller writes the output"));
        }
        let mut number = self.segments.back().map_or(1, |(number, _)| number + 1);
        self.file = Some(loop {
            match make_at_end(&segment_in(&self.directory, number)) {
                // Of a beginning that did not come to its end, or another controller's.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                file => break file?,
            }
        });
        self.segments.push_back((number, 0));
        let begun = self.write_whole(&segment_head(self.positions));
        if begun.is_err() {
            (self.file, _) = (None, self.segments.pop_back());
            let _ = fs::remove_file(segment_in(&self.directory, number));
        }
        let _ = mend_durable::sync_directory(&self.directory);
        begun
    }

    /// Whether no other controller has taken this one's place.
    fn is_ours(&self) -> bool {
        let of = |file: io::Result<File>| file.and_then(|file| file.metadata()).ok().map(|found| found.ino());
        let ours = self.lock.metadata().ok().map(|found| found.ino());
        ours.is_some() && of(File::open(self.directory.join(LOCK))) == ours
    }

    /// All of it or nothing.
    fn write_whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (Some(file), Some((_, length))) = (&mut self.file, self.segments.back_mut()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let written = file.write_all(bytes);
        match &written {
            Ok(()) => *length += bytes.len() as u64,
            // What is left of it in its middle would hide what follows: that goes into the next segment.
            Err(_) if file.set_len(*length).is_err() => self.file = None,
            Err(_) => {}
        }
        written
    }

    /// False if only the newest is left.
    fn remove_oldest(&mut self) -> bool {
        if self.segments.len() < 2 {
            return false;
        }
        if let Some((number, _)) = self.segments.pop_front() {
            // One that stays is removed with the job.
            let _ = fs::remove_file(segment_in(&self.directory, number));
        }
        true
    }
}

/// Where the first frame of a segment is that a rank has printed and that is not known, and how much each stream had there; and whether one that is
/// known comes before it.
fn known_part(segment: &[u8], mut before: Positions, known: Positions) -> (Option<(u64, Positions)>, bool) {
    let (mut at, mut any_known) = (SEGMENT_HEAD, false);
    while let Next::Whole(frame) = next(&segment[at..]) {
        let end = frame.position + frame.bytes.len() as u64;
        if !frame.is_message {
            if end > known.of(frame.stream) {
                return (Some((at as u64, before)), any_known);
            }
            any_known = true;
        }
        before.set(frame.stream, end);
        at += frame.length();
    }
    (None, any_known)
}

/// Whether this error says that a disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool_reader::Found;
    use std::os::unix::fs::PermissionsExt;

    /// What a reader finds: standard output, standard error, and how much of each is gone; and whether anything is damaged.
    fn look(job: &Path) -> (String, String, [u64; 2], bool) {
        let (mut texts, mut gone, mut damaged) = ([Vec::new(), Vec::new()], [0; 2], false);
        let mut reader = SpoolReader::from_start(job);
        let found = reader.read(|found| {
            match found {
                Found::Bytes(stream, bytes) => texts[stream as usize].extend_from_slice(bytes),
                Found::Gone(stream, bytes) => gone[stream as usize] += bytes,
                Found::Damaged(_) => damaged = true,
            }
            Ok(())
        });
        found.unwrap();
        damaged |= reader.damaged().is_some();
        let [out, err] = texts.map(|bytes| String::from_utf8(bytes).unwrap());
        (out, err, gone, damaged)
    }

    fn read(job: &Path) -> (String, String, [u64; 2]) {
        let (out, err, gone, damaged) = look(job);
        assert!(!damaged);
        (out, err, gone)
    }

    fn bytes_on_disk(job: &Path) -> u64 {
        let directory = directory_in(job);
        segments(&directory).unwrap().iter().map(|number| fs::metadata(segment_in(&directory, *number)).unwrap().len()).sum()
    }

    #[test]
    fn both_streams_are_read_as_they_were_written_also_by_another_controller() {
        let job = tempfile::tempdir().unwrap();
        for life in 0..3 {
            let mut spool = Spool::open(job.path(), 1 << 20).unwrap();
            spool.write(Stream::Stdout, format!("out {life}\n").as_bytes());
            spool.write(Stream::Stderr, format!("err {life}\n").as_bytes());
            assert!(is_open(job.path()));
        }
        assert!(is_there(job.path()) && !is_open(job.path()));
        assert_eq!(read(job.path()), ("out 0\nout 1\nout 2\n".into(), "err 0\nerr 1\nerr 2\n".into(), [0, 0]));
    }

    #[test]
    fn who_has_lost_the_spool_begins_no_segment_in_it() {
        let job = tempfile::tempdir().unwrap();
        let mut silent = Spool::open(job.path(), 1 << 20).unwrap();
        silent.write(Stream::Stdout, b"one\n");
        let mut successor = Spool::seize(job.path(), 1 << 20).unwrap();
        successor.write(Stream::Stdout, b"two\n");
        // Its segment is full, or was lost.
        silent.file = None;
        silent.write(Stream::Stdout, b"late\n");
        successor.write(Stream::Stdout, b"three\n");
        assert_eq!(read(job.path()), ("one\ntwo\nthree\n".into(), String::new(), [0, 0]));
        // Nor does it where the successor has written nothing yet; and that takes no file for its own that it has not made.
        let mut next = Spool::seize(job.path(), 1 << 20).unwrap();
        successor.file = None;
        successor.write(Stream::Stdout, b"late\n");
        fs::write(segment_in(&directory_in(job.path()), 3), "").unwrap();
        next.write(Stream::Stdout, b"four\n");
        assert_eq!(read(job.path()), ("one\ntwo\nthree\nfour\n".into(), String::new(), [0, 0]));
    }

    #[test]
    fn what_is_behind_a_position_goes_from_all_segments() {
        let job = tempfile::tempdir().unwrap();
        let lines: Vec<String> = (0..40_000).map(|line| format!("line {line}\n")).collect();
        let all = lines.concat();
        for keep in [0, 1, 7, 20_000, 39_999, 40_000] {
            let _ = fs::remove_dir_all(directory_in(job.path()));
            let mut spool = Spool::open(job.path(), 1 << 22).unwrap();
            for (at, line) in lines.iter().enumerate() {
                if at == 5 {
                    spool.write(Stream::Stderr, b"early\n");
                }
                spool.write(Stream::Stdout, line.as_bytes());
            }
            assert!(spool.segments.len() > 1);
            let kept = lines[..keep].concat();
            spool.forget_behind(Positions { stdout: kept.len() as u64, stderr: 6 }).unwrap();
            assert_eq!(spool.positions().stdout, kept.len() as u64);
            let early = if keep < 5 { "" } else { "early\n" };
            assert_eq!(read(job.path()), (kept.clone(), early.into(), [0, 0]), "{keep}");
            // It goes on there.
            spool.write(Stream::Stdout, &all.as_bytes()[kept.len()..]);
            assert_eq!(read(job.path()).0, all, "{keep}");
            drop(spool);
            assert_eq!(Spool::open(job.path(), 1 << 22).unwrap().positions().stdout, all.len() as u64);
        }
    }

    #[test]
    fn of_standard_error_messages_stay_and_what_comes_again_goes() {
        let job = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(job.path(), 1 << 20).unwrap();
        spool.write(Stream::Stderr, b"known\n");
        let known = spool.positions();
        spool.write_message(b"mend: a message\n");
        let kept = spool.positions();
        spool.forget_behind(known).unwrap();
        assert_eq!(spool.positions(), kept);
        spool.write(Stream::Stderr, b"not known\n");
        spool.write(Stream::Stdout, b"nor this\n");
        spool.write_message(b"mend: another message\n");
        spool.forget_behind(known).unwrap();
        assert_eq!((spool.positions(), read(job.path())), (kept, (String::new(), "known\nmend: a message\n".into(), [0, 0])));
        spool.write(Stream::Stderr, b"not known\n");
        assert_eq!(read(job.path()).1, "known\nmend: a message\nnot known\n");
    }

    #[test]
    fn it_is_for_its_owner_alone() {
        let job = tempfile::tempdir().unwrap();
        Spool::open(job.path(), 1 << 20).unwrap().write(Stream::Stdout, b"text");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let directory = directory_in(job.path());
        assert_eq!((mode(&directory), mode(&segment_in(&directory, 1)), mode(&directory.join("lock"))), (0o700, 0o600, 0o600));
    }

    #[test]
    fn its_oldest_part_goes_at_the_bound_and_readers_are_told_how_much() {
        let job = tempfile::tempdir().unwrap();
        let limit = 1 << 20;
        let mut spool = Spool::open(job.path(), limit).unwrap();
        spool.write(Stream::Stderr, b"begun\n");
        let all: String = (0..400_000).map(|line| format!("line {line}\n")).collect();
        for piece in all.as_bytes().chunks(5000) {
            spool.write(Stream::Stdout, piece);
            assert!(bytes_on_disk(job.path()) <= limit);
        }
        let (out, err, gone) = read(job.path());
        assert_eq!((err.as_str(), gone), ("", [all.len() as u64 - out.len() as u64, 6]));
        assert!(all.ends_with(&out) && out.len() as u64 > limit * 7 / 8 - 10_000, "{} of {}", out.len(), all.len());
        // And goes on so with another controller.
        drop(spool);
        let mut spool = Spool::open(job.path(), limit).unwrap();
        assert_eq!(spool.positions(), Positions { stdout: all.len() as u64, stderr: 6 });
        spool.write(Stream::Stderr, &vec![b'x'; 2 * limit as usize]);
        assert!(bytes_on_disk(job.path()) <= limit);
        let (out, err, gone) = read(job.path());
        assert_eq!((out.len(), gone[0]), (0, all.len() as u64));
        assert_eq!(err.len() as u64 + gone[1], 6 + 2 * limit);
    }

    #[test]
    fn wherever_a_controller_was_killed_the_next_goes_on_behind_the_last_whole_frame() {
        let job = tempfile::tempdir().unwrap();
        Spool::open(job.path(), 1 << 20).unwrap().write(Stream::Stdout, b"one\n");
        let path = segment_in(&directory_in(job.path()), 1);
        let one = fs::read(&path).unwrap();
        Spool::open(job.path(), 1 << 20).unwrap().write(Stream::Stdout, b"two\n");
        let two = fs::read(&path).unwrap();
        for length in 0..two.len() {
            let _ = fs::remove_file(segment_in(&directory_in(job.path()), 2));
            fs::write(&path, &two[..length]).unwrap();
            let before = if length < one.len() { "" } else { "one\n" };
            assert_eq!(read(job.path()).0, before, "{length}");
            let mut spool = Spool::open(job.path(), 1 << 20).unwrap();
            assert_eq!(spool.positions().stdout, before.len() as u64, "{length}");
            spool.write(Stream::Stdout, b"three\n");
            assert_eq!(read(job.path()).0, format!("{before}three\n"), "{length}");
        }
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_missing_and_told() {
        let job = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(job.path(), 1 << 20).unwrap();
        let full = || File::options().append(true).open("/dev/full").ok();
        spool.write(Stream::Stdout, b"one\n");
        spool.file = full();
        spool.write(Stream::Stdout, b"two\n");
        spool.write(Stream::Stdout, b"three\n");
        assert_eq!(read(job.path()), ("one\nthree\n".into(), String::new(), [4, 0]));
        // Where there is more than one segment, the oldest makes room.
        spool.file = full();
        spool.write(Stream::Stdout, b"four\n");
        assert_eq!(read(job.path()), ("three\nfour\n".into(), String::new(), [8, 0]));
    }

    #[test]
    fn behind_damage_the_next_segment_is_read_and_the_damage_is_told() {
        let job = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(job.path(), 1 << 20).unwrap();
        spool.write(Stream::Stdout, b"one\n");
        spool.write(Stream::Stdout, b"two\n");
        drop(spool);
        let path = segment_in(&directory_in(job.path()), 1);
        let good = fs::read(&path).unwrap();
        // In its last frame, and in its head.
        for (at, before) in [(good.len() - 1, "one\n"), (0, "")] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let _ = fs::remove_file(segment_in(&directory_in(job.path()), 2));
            assert_eq!(look(job.path()), (before.into(), String::new(), [0, 0], true));
            Spool::open(job.path(), 1 << 20).unwrap().write(Stream::Stdout, b"three\n");
            assert_eq!(look(job.path()), (format!("{before}three\n"), String::new(), [0, 0], true));
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    /// As NFS may show it: the file that is open ends where it ended when it was opened.
    #[test]
    fn a_reader_that_opens_again_sees_what_the_open_file_does_not_show() {
        let job = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(job.path(), 1 << 20).unwrap();
        spool.write(Stream::Stdout, b"one\n");
        let (mut reader, mut text) = (SpoolReader::from_start(job.path()), Vec::new());
        let mut read = |reader: &mut SpoolReader| {
            let take = |found: Found<'_>| {
                let Found::Bytes(Stream::Stdout, bytes) = found else { panic!("{found:?}") };
                text.extend_from_slice(bytes);
                Ok(())
            };
            reader.read(take).unwrap();
            String::from_utf8(text.clone()).unwrap()
        };
        assert_eq!(read(&mut reader), "one\n");
        let path = segment_in(&directory_in(job.path()), 1);
        fs::copy(&path, path.with_extension("new")).unwrap();
        fs::rename(path.with_extension("new"), &path).unwrap();
        spool.file = Some(open_at_end(&path).unwrap());
        spool.write(Stream::Stdout, b"two\n");
        assert_eq!(read(&mut reader), "one\n");
        reader.open_again();
        assert_eq!(read(&mut reader), "one\ntwo\n");
    }

    #[test]
    fn a_reader_that_follows_reads_each_byte_once_also_when_segments_go() {
        let job = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(job.path(), 1 << 20).unwrap();
        spool.write(Stream::Stdout, b"before\n");
        let (mut follower, mut newest) = (SpoolReader::from_start(job.path()), SpoolReader::at_end(job.path()).unwrap());
        let (mut followed, mut since) = (Vec::new(), Vec::new());
        let take = |found: Found<'_>, all: &mut Vec<u8>| {
            let Found::Bytes(Stream::Stdout, bytes) = found else { panic!("{found:?}") };
            all.extend_from_slice(bytes);
            Ok(())
        };
        let mut all = b"before\n".to_vec();
        for round in 0..3000 {
            let piece = format!("{round} ").repeat(200);
            spool.write(Stream::Stdout, piece.as_bytes());
            all.extend_from_slice(piece.as_bytes());
            if round % 7 == 0 {
                follower.read(|found| take(found, &mut followed)).unwrap();
                newest.read(|found| take(found, &mut since)).unwrap();
            }
        }
        follower.read(|found| take(found, &mut followed)).unwrap();
        newest.read(|found| take(found, &mut since)).unwrap();
        assert!(followed == all && since == all[7..]);
        assert!(!segment_in(&directory_in(job.path()), 1).exists());
    }
}
