//! What the user has seen of each stream of each rank, on record at every moment: `shown.json`, and since that was written, `shown.log`.
//!
//! ```text
//! {"generation":G,"targets":[…],"streams":[…]}        shown.json, as of the beginning of the log
//! G                                                   shown.log: of the same generation, or it is not read
//! {"rank":0,"stream":"Stdout","bytes":4096,…}         written before the bytes are
//! +                                                   and after
//! ```
//! A controller that is killed leaves at most the last entry undecided. Where its bytes were going to a regular file, what is in the file
//! decides; where they were spooled ([`crate::spool`]), the spool does; else they count as not shown, and may be printed twice: at most [`MAX_STEP_BYTES`] of them.
//! After a failure of the power an entry may be there whose bytes are not: those of a spool are looked for, and those of a regular file, if the machine was started since.
//! Each controller makes both files anew before it prints first ([`crate::held_file`]), so that what one that has lost the job still writes is in no file that is read.
//! Faults assumed: the controller is killed at any moment, or stands still and has a successor; the file was truncated or replaced since.

use crate::held_file;
use crate::lock_identity::LockIdentity;
use crate::manifest::Printed;
use crate::record::JobDirectory;
use crate::spool_reader::SpoolReader;
use crate::stream_digest::{Mark, StreamDigest};
use mend_messages::daemon::Stream;
use mend_messages::job::Rank;
use mend_spool::Positions;
use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, fstat, seek};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are written at once to what is not a regular file.
pub const MAX_STEP_BYTES: usize = 4096;
/// The log is begun anew when it is longer.
const MAX_LOG_BYTES: u64 = 4 << 20;
/// A rank's bytes of which an entry is: more do not come in one message.
const MAX_ENTRY_BYTES: u64 = 64 << 20;
const STATE_FILE: &str = "shown.json";
const LOG_FILE: &str = "shown.log";

/// What was shown of each stream.
pub type StreamDigests = BTreeMap<(Rank, Stream), StreamDigest>;

/// A regular file that a stream goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Target {
    device: u64,
    inode: u64,
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct State {
    generation: u64,
    /// Of standard output and standard error.
    targets: [Option<Target>; 2],
    /// Or it is spooled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    spooled: bool,
    /// The machine of the controller, and which of its starts that was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    machine_start: String,
    /// Bytes of standard output, and of standard error, that were in the spool then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spooled_stdout: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spooled_stderr: Option<u64>,
    streams: Vec<(Rank, Stream, StreamDigest)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    rank: Rank,
    stream: Stream,
    bytes: u64,
    /// Where in the regular file, or in the spooled stream.
    place: Option<u64>,
    /// First the digest ends here: what was beyond it is printed anew.
    cut: Option<Mark>,
    /// The digest with these bytes.
    end: Mark,
    lines: Vec<Mark>,
    open: bool,
}

/// What is known of an earlier controller's output.
#[derive(Debug, Default)]
pub struct ShownOutput {
    /// What was shown.
    pub digests: StreamDigests,
    /// Of whose last bytes it is not known whether they were, and how many.
    pub doubt: Option<(Rank, Stream, u64)>,
    /// If it was spooled: how much of the spool's streams this is. What ranks have printed behind it, after a power failure, counts as not shown.
    pub spooled_until: Option<Positions>,
}

fn ours(stream: Stream) -> BorrowedFd<'static> {
    match stream {
        Stream::Stdout => rustix::stdio::stdout(),
        Stream::Stderr => rustix::stdio::stderr(),
    }
}

fn target(stream: Stream) -> Option<Target> {
    let file = fstat(ours(stream)).ok()?;
    if rustix::fs::FileType::from_raw_mode(file.st_mode) != rustix::fs::FileType::RegularFile {
        return None;
    }
    let path = fs::read_link(format!("/proc/self/fd/{}", 1 + stream as usize)).ok()?;
    Some(Target { device: file.st_dev, inode: file.st_ino, path })
}

/// The file, if it still is the same. Another start of a machine may have other numbers for its devices (`any_device`).
fn reopen(target: &Target, any_device: bool) -> Option<File> {
    // Not one that somebody put there to be waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc_nonblock()).open(&target.path).ok()?;
    let found = file.metadata().ok()?;
    let same = found.ino() == target.inode && (any_device || found.dev() == target.device);
    (found.is_file() && same).then_some(file)
}

/// Which start of which machine this is; empty if it does not say.
fn machine_start() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

fn libc_nonblock() -> i32 {
    (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32
}

/// What earlier controllers of the job have shown.
#[must_use]
pub fn load(directory: &JobDirectory) -> ShownOutput {
    let Ok(state) = directory.read::<State>(STATE_FILE) else {
        // As releases before 0.6 kept it.
        let printed: BTreeMap<Rank, Printed> = directory.read("printed.json").unwrap_or_default();
        let both = |(rank, printed): (Rank, Printed)| {
            [
                ((rank, Stream::Stdout), StreamDigest::of_length(printed.stdout)),
                ((rank, Stream::Stderr), StreamDigest::of_length(printed.stderr)),
            ]
        };
        return ShownOutput { digests: printed.into_iter().flat_map(both).collect(), doubt: None, spooled_until: None };
    };
    // An earlier release says nothing of standard error.
    let until = |stdout| Positions { stdout, stderr: state.spooled_stderr.unwrap_or(u64::MAX) };
    let mut found = ShownOutput { spooled_until: state.spooled_stdout.map(until), ..ShownOutput::default() };
    for (rank, stream, digest) in state.streams {
        found.digests.insert((rank, stream), digest);
    }
    let log = fs::read_to_string(directory.path().join(LOG_FILE)).unwrap_or_default();
    let mut lines = log.lines();
    if lines.next().and_then(|line| line.parse().ok()) != Some(state.generation) {
        // Something was printed that could not be put on record: nothing says what of the spool counts.
        found.spooled_until = None;
        return found;
    }
    let spooled = state.spooled.then(|| SpoolReader::at_end(directory.path()).map(|reader| reader.positions()).unwrap_or_default());
    let mut undecided: Option<Entry> = None;
    // Without a failure of the power the files have what was written; what they lack has been taken out by somebody.
    let may_lack = spooled.is_none() && !state.machine_start.is_empty() && state.machine_start != machine_start();
    let mut files = if may_lack { state.targets.each_ref().map(|target| reopen(target.as_ref()?, true)) } else { [None, None] };
    let mut ended = [false; 2];
    for line in lines {
        match (line, serde_json::from_str(line)) {
            ("+", _) => match (undecided.take(), spooled) {
                // Where power has failed, the record may be longer than the spool.
                (Some(entry), Some(there)) if !entry.is_in(there) => return found,
                (Some(entry), None) => {
                    let stream = entry.stream as usize;
                    if ended[stream] {
                        continue;
                    }
                    match files[stream].take() {
                        Some(file) if !found.is_in_file(&entry, &file) => {
                            ended[stream] = true;
                            // What was begun of it counts.
                            found.decide(entry, &state.targets, may_lack);
                        }
                        file => {
                            files[stream] = file;
                            found.take(entry);
                        }
                    }
                }
                (entry, _) => entry.into_iter().for_each(|entry| found.take(entry)),
            },
            (_, Ok(entry)) => undecided = Some(entry),
            // Torn: what it would have announced was not written.
            _ => break,
        }
    }
    match (undecided, spooled) {
        // It is in the spool as a whole or not at all.
        (Some(entry), Some(there)) if entry.is_in(there) => found.take(entry),
        (Some(entry), None) if !ended[entry.stream as usize] => found.decide(entry, &state.targets, may_lack),
        (Some(_) | None, _) => {}
    }
    found
}

impl Entry {
    /// Whether a spool with so much of each stream has it.
    fn is_in(&self, spooled: Positions) -> bool {
        self.place.is_some_and(|place| spooled.of(self.stream) >= place.saturating_add(self.bytes))
    }
}

impl ShownOutput {
    fn take(&mut self, Entry { rank, stream, cut, end, lines, open, bytes, place }: Entry) {
        if let (Some(until), Some(place)) = (&mut self.spooled_until, place) {
            until.set(stream, place.saturating_add(bytes));
        }
        let digest = self.digests.entry((rank, stream)).or_default();
        cut.into_iter().for_each(|cut| digest.cut(cut));
        digest.extend(end, &lines, open);
    }

    /// Whether this file has what the entry says, where it says.
    fn is_in_file(&self, entry: &Entry, file: &File) -> bool {
        let there = |place| {
            let mut bytes = vec![0; entry.bytes.min(MAX_ENTRY_BYTES) as usize];
            file.read_exact_at(&mut bytes, place).ok()?;
            let before = self.digests.get(&(entry.rank, entry.stream)).map(StreamDigest::end).unwrap_or_default();
            Some(entry.cut.unwrap_or(before).after(&bytes).agrees(entry.end))
        };
        entry.place.and_then(there).unwrap_or(false)
    }

    fn decide(&mut self, entry: Entry, targets: &[Option<Target>; 2], may_lack: bool) {
        let target = &targets[entry.stream as usize];
        let file = target.as_ref().and_then(|target| reopen(target, may_lack));
        let (Some(file), Some(place)) = (file, entry.place) else {
            self.doubt = Some((entry.rank, entry.stream, entry.bytes));
            return;
        };
        let there = file.metadata().map_or(0, |found| found.len()).saturating_sub(place);
        if there >= entry.bytes {
            if self.is_in_file(&entry, &file) {
                self.take(entry);
            } else if !may_lack {
                // A full disk took a part of it, and a message of ours came next.
                self.doubt = Some((entry.rank, entry.stream, entry.bytes));
            }
            return;
        }
        let mut begun = vec![0; there as usize];
        if there > 0 && file.read_exact_at(&mut begun, place).is_ok() {
            let digest = self.digests.entry((entry.rank, entry.stream)).or_default();
            entry.cut.into_iter().for_each(|cut| digest.cut(cut));
            digest.add(&begun);
        }
    }
}

/// The record of a controller that prints.
#[derive(Debug)]
pub struct ShownLog {
    directory: PathBuf,
    /// The lock of the controller that prints.
    holder: LockIdentity,
    digests: StreamDigests,
    generation: u64,
    log: Option<Arc<File>>,
    length: u64,
    targets: [Option<Target>; 2],
    spooled: bool,
    /// What is in the spool with what was begun last.
    last: Option<Positions>,
    /// What went wrong with it first; told once.
    trouble: Option<io::Error>,
    told: bool,
}

impl ShownLog {
    /// That of a job of which so much was shown, for the holder of its lock.
    #[must_use]
    pub fn new(directory: &Path, holder: LockIdentity, digests: StreamDigests, spooled: bool) -> Self {
        let targets = if spooled { [None, None] } else { [Stream::Stdout, Stream::Stderr].map(target) };
        let directory = directory.to_owned();
        Self { directory, holder, digests, generation: 0, log: None, length: 0, targets, spooled, last: None, trouble: None, told: false }
    }

    /// How much may be written at once.
    #[must_use]
    pub fn step(&self, stream: Stream) -> usize {
        if self.spooled {
            // A frame, with a line's end ahead of it.
            return mend_spool::MAX_BYTES - 1;
        }
        if self.targets[stream as usize].is_some() { usize::MAX } else { MAX_STEP_BYTES }
    }

    /// Whether all is put into one file with what is written next. What was printed before has to be durable then, as this file is.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.log.is_none() || self.length > MAX_LOG_BYTES
    }

    /// The record, to be made durable.
    #[must_use]
    pub fn file(&self) -> Option<Arc<File>> {
        self.log.clone()
    }

    /// These bytes are about to be written, at the end of the stream or, to begin anew, at `cut`. `ahead` more go before them that are not
    /// the rank's. `spooled` is how much the spool has of each stream, if they go there.
    pub fn begin(&mut self, (rank, stream): (Rank, Stream), bytes: &[u8], cut: Option<Mark>, ahead: u64, spooled: Option<Positions>) {
        if self.is_due() {
            let begun = self.begin_log(spooled);
            self.check(begun);
        }
        let in_file = || self.targets[stream as usize].as_ref().and_then(|_| end_of(ours(stream)).ok());
        let place = spooled.map_or_else(in_file, |positions| Some(positions.of(stream))).map(|place| place + ahead);
        if let (Some(mut positions), Some(place)) = (spooled, place) {
            positions.set(stream, place + bytes.len() as u64);
            self.last = Some(positions);
        }
        let digest = self.digests.entry((rank, stream)).or_default();
        cut.into_iter().for_each(|cut| digest.cut(cut));
        let from = digest.end().at;
        digest.add(bytes);
        let (end, open, lines) = (digest.end(), digest.is_open(), digest.lines_beyond(from).to_vec());
        let entry = Entry { rank, stream, bytes: bytes.len() as u64, place, cut, end, lines, open };
        let text = serde_json::to_string(&entry).map_err(io::Error::other);
        let written = text.and_then(|text| self.append(&format!("{text}\n")));
        self.check(written);
    }

    /// What was begun is written.
    pub fn done(&mut self) {
        let written = self.append("+\n");
        self.check(written);
    }

    /// The end: all is in one file.
    pub fn close(mut self) {
        if self.generation > 0 {
            let begun = self.begin_log(self.last);
            self.check(begun);
        }
        self.tell();
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        self.length += text.len() as u64;
        match &mut self.log {
            Some(log) => (&**log).write_all(text.as_bytes()),
            None => Ok(()),
        }
    }

    fn begin_log(&mut self, until: Option<Positions>) -> io::Result<()> {
        if self.generation == 0 {
            let before = fs::read(self.directory.join(STATE_FILE)).ok().and_then(|text| serde_json::from_slice::<State>(&text).ok());
            self.generation = before.map_or(0, |state| state.generation);
        }
        self.generation += 1;
        let streams = self.digests.iter().map(|((rank, stream), digest)| (*rank, *stream, digest.clone())).collect();
        let (spooled_stdout, spooled_stderr) = (until.map(|until| until.stdout), until.map(|until| until.stderr));
        let (targets, spooled) = (self.targets.clone(), self.spooled);
        let machine_start = machine_start();
        let state = State { generation: self.generation, targets, spooled, machine_start, spooled_stdout, spooled_stderr, streams };
        held_file::replace(&self.directory, STATE_FILE, self.holder, &serde_json::to_vec(&state)?)?;
        let head = format!("{}\n", self.generation);
        self.log = Some(Arc::new(held_file::begin(&self.directory, LOG_FILE, self.holder, head.as_bytes())?));
        self.length = 0;
        Ok(())
    }

    fn check(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        // What it lacks must not be taken for what was not shown, nor half a line be gone on with. All is put on record anew with what is written next.
        self.log = None;
        held_file::remove(&self.directory, LOG_FILE, self.holder);
        // Who has lost the job is about to see that.
        if !self.told && !held_file::is_lost(&error) {
            self.trouble.get_or_insert(error);
        }
    }

    /// Says once what went wrong. Not while the spool is in use: what is said goes there, too.
    pub fn tell(&mut self) {
        if let Some(error) = self.trouble.take()
            && !std::mem::replace(&mut self.told, true)
        {
            mend_report::tell!("mend: what was printed cannot be put on record ({error}); a restart may print some of it again");
        }
    }
}

/// Where the next write goes.
fn end_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    if fcntl_getfl(file)?.contains(OFlags::APPEND) {
        return Ok(fstat(file.as_fd())?.st_size as u64);
    }
    Ok(seek(file, SeekFrom::Current(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::Spool;

    #[test]
    fn what_a_power_failure_took_from_the_spool_counts_as_not_shown() {
        let place = tempfile::tempdir().unwrap();
        let lock = JobDirectory::at(place.path()).lock("a-job").unwrap();
        let mut spool = Spool::open(place.path(), 1 << 20).unwrap();
        let mut log = ShownLog::new(place.path(), lock.identity(), StreamDigests::new(), true);
        let segment = crate::spool_reader::segment_in(&crate::spool_reader::directory_in(place.path()), 1);
        let mut lengths = Vec::new();
        for line in ["one\n", "two\n", "three\n"] {
            log.begin((0, Stream::Stdout), line.as_bytes(), None, 0, Some(spool.positions()));
            spool.write(Stream::Stdout, line.as_bytes());
            log.done();
            lengths.push(fs::metadata(&segment).unwrap().len());
        }
        let all = fs::read(&segment).unwrap();
        // The record may be shorter than the spool as well: it says how much of it counts.
        let record = fs::read_to_string(place.path().join(LOG_FILE)).unwrap();
        let lines: Vec<&str> = record.lines().collect();
        for (kept, expected) in [(1, 0), (3, 4), (5, 8), (7, 14)] {
            fs::write(place.path().join(LOG_FILE), lines[..kept].join("\n") + "\n").unwrap();
            let until = Positions { stdout: expected, stderr: 0 };
            assert_eq!(load(&JobDirectory::at(place.path())).spooled_until, Some(until), "{kept}");
        }
        for length in (lengths[0] as usize..=all.len()).rev() {
            fs::write(&segment, &all[..length]).unwrap();
            let there = if length < lengths[1] as usize { "one\n" } else { "one\ntwo\n" };
            let there = if length == all.len() { "one\ntwo\nthree\n" } else { there };
            let found = load(&JobDirectory::at(place.path()));
            assert_eq!(found.digests[&(0, Stream::Stdout)].end(), Mark::default().after(there.as_bytes()), "{length}");
        }
    }

    #[test]
    fn what_a_power_failure_took_from_a_regular_file_counts_as_not_shown() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let out = place.path().join("out");
        let all = b"one\ntwo\nthree\n";
        fs::write(&out, all).unwrap();
        let lock = directory.lock("a-job").unwrap();
        let mut log = ShownLog::new(place.path(), lock.identity(), StreamDigests::new(), false);
        let found = fs::metadata(&out).unwrap();
        log.targets[0] = Some(Target { device: found.dev(), inode: found.ino(), path: out.clone() });
        // As if standard output were that file.
        let digest = |text: &[u8]| Mark::default().after(text);
        log.begin_log(None).unwrap();
        for (from, to) in [(0, 4), (4, 8), (8, 14)] {
            let (bytes, place) = ((to - from) as u64, Some(from as u64));
            let entry =
                Entry { rank: 0, stream: Stream::Stdout, bytes, place, cut: None, end: digest(&all[..to]), lines: Vec::new(), open: false };
            log.append(&format!("{}\n+\n", serde_json::to_string(&entry).unwrap())).unwrap();
        }
        let shown = || load(&directory).digests.get(&(0, Stream::Stdout)).map_or(0, |digest| digest.end().at);
        fs::write(&out, &all[..6]).unwrap();
        assert_eq!(shown(), 14, "its user has taken it out");
        let mut state: State = directory.read(STATE_FILE).unwrap();
        state.machine_start = "another".into();
        fs::write(place.path().join(STATE_FILE), serde_json::to_vec(&state).unwrap()).unwrap();
        for length in 0..=all.len() {
            fs::write(&out, &all[..length]).unwrap();
            assert_eq!(shown(), length as u64);
        }
        // The file is as long as it was, and has nothing there.
        fs::write(&out, b"one\ntwo\n\0\0\0\0\0\0").unwrap();
        assert_eq!(shown(), 8);
        fs::write(&out, b"one\n\0\0\0\0three\n").unwrap();
        assert_eq!(shown(), 4);
    }

    #[test]
    fn a_message_of_ours_where_a_full_disk_took_a_part_is_not_the_ranks() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let out = place.path().join("out");
        fs::write(&out, b"").unwrap();
        let lock = directory.lock("a-job").unwrap();
        let mut log = ShownLog::new(place.path(), lock.identity(), StreamDigests::new(), false);
        let found = fs::metadata(&out).unwrap();
        log.targets[0] = Some(Target { device: found.dev(), inode: found.ino(), path: out.clone() });
        log.begin_log(None).unwrap();
        let end = Mark::default().after(b"one\ntwo\n");
        let entry = Entry { rank: 0, stream: Stream::Stdout, bytes: 8, place: Some(0), cut: None, end, lines: Vec::new(), open: false };
        log.append(&format!("{}\n", serde_json::to_string(&entry).unwrap())).unwrap();
        for (there, shown, doubt) in [("one\ntwo\n", 8, None), ("one\nmend: no space is left\n", 0, Some((0, Stream::Stdout, 8)))] {
            fs::write(&out, there).unwrap();
            let found = load(&directory);
            assert_eq!(found.digests.get(&(0, Stream::Stdout)).map_or(0, |digest| digest.end().at), shown);
            assert_eq!(found.doubt, doubt);
        }
    }

    #[test]
    fn what_a_controller_that_has_lost_the_job_still_writes_is_in_no_file_that_is_read() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let print = |log: &mut ShownLog, text: &str| {
            log.begin((0, Stream::Stdout), text.as_bytes(), None, 0, None);
            log.done();
        };
        let first = directory.lock("a-job").unwrap();
        let mut silent = ShownLog::new(place.path(), first.identity(), StreamDigests::new(), false);
        print(&mut silent, "one\n");
        let second = directory.seize_lock("a-job", first.identity()).unwrap();
        let mut successor = ShownLog::new(place.path(), second.identity(), load(&directory).digests, false);
        print(&mut successor, "two\n");
        let is_the_successors = |expected: &str| {
            let found = load(&directory);
            assert_eq!(found.digests[&(0, Stream::Stdout)].end(), Mark::default().after(expected.as_bytes()));
        };
        // It goes on with its log, begins another one, and comes to its end.
        print(&mut silent, "late\n");
        is_the_successors("one\ntwo\n");
        silent.length = MAX_LOG_BYTES + 1;
        print(&mut silent, "later\n");
        is_the_successors("one\ntwo\n");
        silent.close();
        print(&mut successor, "three\n");
        is_the_successors("one\ntwo\nthree\n");
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_on_record_with_what_comes_next() {
        let place = tempfile::tempdir().unwrap();
        let lock = JobDirectory::at(place.path()).lock("a-job").unwrap();
        let mut spool = Spool::open(place.path(), 1 << 20).unwrap();
        let mut log = ShownLog::new(place.path(), lock.identity(), StreamDigests::new(), true);
        let loaded = || load(&JobDirectory::at(place.path()));
        let mut shown = Vec::new();
        for (line, is_full) in [("one\n", false), ("two\n", true), ("three\n", false), ("four\n", true), ("five\n", false)] {
            if is_full {
                log.log = Some(Arc::new(File::options().write(true).open("/dev/full").unwrap()));
            }
            log.begin((0, Stream::Stdout), line.as_bytes(), None, 0, Some(spool.positions()));
            spool.write(Stream::Stdout, line.as_bytes());
            log.done();
            shown.extend_from_slice(line.as_bytes());
            if is_full {
                assert_eq!(loaded().spooled_until, None, "nothing says what counts");
            } else {
                assert_eq!(loaded().spooled_until, Some(Positions { stdout: shown.len() as u64, stderr: 0 }));
                assert_eq!(loaded().digests[&(0, Stream::Stdout)].end(), Mark::default().after(&shown));
            }
            log.tell();
        }
    }

    #[test]
    fn of_a_spool_the_last_entry_is_decided_wherever_the_controller_was_killed() {
        let (rank, stream) = (0, Stream::Stdout);
        for (written, ahead) in [(false, ""), (true, ""), (false, "\n"), (true, "\n")] {
            let place = tempfile::tempdir().unwrap();
            let lock = JobDirectory::at(place.path()).lock("a-job").unwrap();
            let mut spool = Spool::open(place.path(), 1 << 20).unwrap();
            let mut log = ShownLog::new(place.path(), lock.identity(), StreamDigests::new(), true);
            log.begin((rank, stream), b"one\ntw", None, 0, Some(spool.positions()));
            spool.write(stream, b"one\ntw");
            log.done();
            // A message of ours between the two is not the rank's.
            spool.write_message(b"mend: a message\n");
            log.begin((rank, stream), b"o\nthree", None, ahead.len() as u64, Some(spool.positions()));
            if written {
                spool.write(stream, format!("{ahead}o\nthree").as_bytes());
            }
            let found = load(&JobDirectory::at(place.path()));
            let expected = if written { "one\ntwo\nthree" } else { "one\ntw" };
            assert_eq!(found.doubt, None);
            assert_eq!(found.digests[&(rank, stream)].end(), Mark::default().after(expected.as_bytes()), "{written} {ahead:?}");
        }
    }
}
