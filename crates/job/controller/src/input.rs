//! Standard input of rank 0: how much of it the rank was given, so that a restart goes on behind what its checkpoint has.
//!
//! ```text
//! standard input ─ read one piece ─► the event loop ─► Stdin to rank 0 ─► its pipe ─ StdinTaken ─► the next piece
//! checkpoint: StdinHeld ─► InputAt in the manifest         (what is in the pipe and not read is in the image)
//! restart:    what an earlier life read behind InputAt and kept, then what comes
//! ```
//! A restart is given its input in one of two ways. A regular file that begins with what was read goes on behind that. Anything else is
//! new input: it follows what was read, also what was read after the checkpoint, which for this reason is kept in the job's directory
//! unless it can be read again: [`MAX_KEPT_BYTES`] bytes of it. What is compared of a pipe is kept as well: the next try of a restart
//! has no other. It is made durable from time to time, and with each checkpoint, and `input.json` says how much is: a failure of
//! the power may cost the newest of it, and less is never taken for all.

use crate::input_file::{Kind, beginning, follows, kind, seek_behind, set_follows};
use crate::record::JobDirectory;
use crate::standard_input::{MAX_PIECE_BYTES, Taken, are_alike, read_piece, take};
use mend_job::input::{Input, InputAt, Mark};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Bytes that are kept of what cannot be read again.
const MAX_KEPT_BYTES: u64 = 64 << 20;
/// What is kept is made durable after so many bytes, or when a piece comes and this time is over.
const SYNC: (u64, Duration) = (1 << 20, Duration::from_secs(1));
const STATE_FILE: &str = "input.json";
const LOG_FILE: &str = "input";

/// What a restart takes its standard input for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// A regular file that begins with what was read goes on behind it; anything else is new.
    #[default]
    Auto,
    /// It begins with what was read, which is skipped.
    Same,
    /// It is new.
    New,
    /// It is what this process has read so far, and goes on.
    Continued,
}

/// Why standard input cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It is not what was read before.
    #[error("standard input does not begin with the {bytes} bytes that were read before the checkpoint")]
    Another {
        /// How many bytes it has.
        bytes: u64,
    },
    /// It is not a file, and there was more than is kept of such input.
    #[error("standard input cannot be given again from byte {from} on: it is no file, and more than {} MiB of it were read", MAX_KEPT_BYTES >> 20)]
    NotKept {
        /// What the checkpoint has of it, bytes.
        from: u64,
    },
    /// What was kept of it is not all there.
    #[error("of the standard input that was read and kept, {lacks} bytes behind byte {from} are lost, as after a failure of the power")]
    Short {
        /// What is there, bytes since the beginning.
        from: u64,
        /// How many are missing at least.
        lacks: u64,
    },
    /// It cannot be read.
    #[error("standard input cannot be read")]
    Read(#[from] io::Error),
}

/// The event loop's side.
#[derive(Debug)]
pub struct InputReader {
    /// What was given.
    pub input: Input,
    /// Asks for the next piece.
    more: Option<mpsc::Sender<()>>,
}

impl InputReader {
    /// That of a lost controller. Without `more` nothing more is read.
    pub fn of(input: Input, more: Option<mpsc::Sender<()>>) -> Self {
        Self { input, more }
    }

    /// Of which so much was given already. Without `more` the rank reads the end after that.
    pub fn new(taken: Mark, more: Option<mpsc::Sender<()>>) -> Self {
        Self { input: Input::new(taken, more.is_some()), more }
    }

    /// Lets the next piece be read.
    pub fn ask(&self) {
        if let Some(more) = self.more.as_ref().filter(|_| self.input.is_open()) {
            let _ = more.try_send(());
        }
    }
}

/// What is kept of an input that cannot be read again: the bytes from `base` on.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    base: u64,
    /// There was more than could be kept.
    cut: bool,
    /// Its end was read.
    ended: bool,
    /// Bytes that were durable when this was written.
    #[serde(default)]
    durable: u64,
}

/// Where pieces come from.
#[derive(Debug)]
pub struct Source {
    /// What is read before standard input: this file, from here on.
    replay: Option<(File, u64)>,
    /// After that the end.
    ended: bool,
    keeper: Option<Keeper>,
    /// Read and kept, and to be given first.
    piece: Vec<u8>,
}

#[derive(Debug)]
struct Keeper {
    directory: PathBuf,
    kept: Kept,
    length: u64,
    file: Option<File>,
    synced: Option<Instant>,
}

impl Source {
    /// That of a new job.
    #[must_use]
    pub fn new(directory: &JobDirectory) -> Self {
        if matches!(kind(), Kind::Regular) {
            // Another life of the job begins there again. One that cannot be sought cannot be read either.
            let _ = beginning();
        }
        let keeper = matches!(kind(), Kind::Other).then(|| Keeper::new(directory.path(), 0));
        Self { replay: None, ended: false, keeper, piece: Vec::new() }
    }

    /// That of a job which goes on from here; `None` if there is no more. Says what it takes standard input for.
    ///
    /// # Errors
    /// [`InputError`].
    pub async fn after(directory: &JobDirectory, before: Option<InputAt>, wanted: Wanted, quiet: bool) -> Result<Option<Self>, InputError> {
        let Some(InputAt { at, ended: false }) = before else { return Ok(None) };
        let regular = matches!(kind(), Kind::Regular);
        if wanted == Wanted::Continued && regular && follows().at > 0 {
            return Self::behind_other(directory, at).map(Some);
        }
        if wanted == Wanted::Same && !regular {
            return Self::behind_same(directory, at, quiet).await.map(Some);
        }
        if regular {
            seek_behind(0)?;
        }
        let must = regular && matches!(wanted, Wanted::Same | Wanted::Continued);
        // Of an input whose checksum is not known, a file of any content would do.
        let may = wanted == Wanted::Auto && regular && at.sum.is_some();
        let alike = (must || may) && are_alike(Mark::default(), at)?;
        if must && !alike {
            return Err(InputError::Another { bytes: at.at });
        }
        if alike {
            if wanted != Wanted::Continued {
                tell_same(at.at, quiet);
            }
            // What was kept of another input is not of this one.
            let _ = fs::remove_file(directory.path().join(STATE_FILE));
            set_follows(Mark::default());
            return Ok(Some(Self { replay: None, ended: false, keeper: None, piece: Vec::new() }));
        }
        let mut source = Self { replay: None, ended: false, keeper: None, piece: Vec::new() };
        let mut so_far = at;
        match kept(directory, at.at, wanted)? {
            Some((mut kept, file, length)) => {
                so_far = end_of(&file, &kept, at)?;
                kept.ended &= wanted != Wanted::New;
                source = Self::replaying(directory, at, (kept, file, length));
            }
            None if wanted == Wanted::Continued && (at.at > 0 || is_not_all_kept(directory)) => {
                return Err(InputError::NotKept { from: at.at });
            }
            None => source.keeper = Some(Keeper::begin(directory.path(), at.at)),
        }
        if regular {
            seek_behind(0)?;
            set_follows(so_far);
        }
        if so_far.at > 0 && !source.ended && wanted != Wanted::Continued {
            tell(so_far.at, quiet);
        }
        Ok(Some(source))
    }

    /// What was kept from this place on, and then what comes.
    fn replaying(directory: &JobDirectory, at: Mark, (kept, file, length): (Kept, File, u64)) -> Self {
        let (replay, ended) = (Some((file, at.at - kept.base)), kept.ended);
        let keeper = Some(Keeper { directory: directory.path().to_owned(), kept, length, file: None, synced: None });
        Self { replay, ended, keeper, piece: Vec::new() }
    }

    /// Standard input is no file, and begins with what was read up to here. What this process reads of it to see that is kept, and is what the next try has.
    async fn behind_same(directory: &JobDirectory, at: Mark, quiet: bool) -> Result<Self, InputError> {
        let another = InputError::Another { bytes: at.at };
        if SAME_IS_KEPT.load(Ordering::Relaxed) {
            let Some((kept, file, length)) = kept(directory, at.at, Wanted::Same)? else {
                return Err(InputError::NotKept { from: at.at });
            };
            if kept.base == 0 && !mark_in(&file, (Mark::default(), 0), at.at)?.agrees(at) {
                return Err(another);
            }
            return Ok(Self::replaying(directory, at, (kept, file, length)));
        }
        // Where that is much, what follows has the room: an older checkpoint is not gone on from.
        let Taken { base, bytes, found } = take(at, MAX_KEPT_BYTES / 2).await;
        if !found.agrees(at) {
            return Err(another);
        }
        tell_same(at.at, quiet);
        let mut keeper = Keeper::begin(directory.path(), base);
        bytes.chunks(MAX_PIECE_BYTES).for_each(|piece| keeper.keep(piece));
        SAME_IS_KEPT.store(true, Ordering::Relaxed);
        let piece = bytes[(at.at - base) as usize..].to_vec();
        Ok(Self { replay: None, ended: false, keeper: Some(keeper), piece })
    }

    /// This process's regular file is new input behind other input, and the job goes on from `at`: in the one or in the other.
    fn behind_other(directory: &JobDirectory, at: Mark) -> Result<Self, InputError> {
        let follows = follows();
        let found = kept(directory, at.at, Wanted::Continued)?;
        if let Some((kept, file, length)) = found.filter(|(kept, _, length)| kept.base + length >= follows.at) {
            seek_behind(kept.base + length - follows.at)?;
            return Ok(Self::replaying(directory, at, (kept, file, length)));
        }
        if at.at < follows.at {
            return Err(InputError::NotKept { from: at.at });
        }
        // Of the file itself, which can be read again.
        seek_behind(0)?;
        if !are_alike(follows, at)? {
            return Err(InputError::Another { bytes: at.at });
        }
        let keeper = (!was_cut(directory)).then(|| Keeper::new(directory.path(), at.at));
        Ok(Self { replay: None, ended: false, keeper, piece: Vec::new() })
    }

    /// One that has come to its end.
    #[must_use]
    pub fn ended() -> Self {
        Self { replay: None, ended: true, keeper: None, piece: Vec::new() }
    }

    /// The next piece; empty at the end.
    async fn next(&mut self) -> Vec<u8> {
        if !self.piece.is_empty() {
            return std::mem::take(&mut self.piece);
        }
        if let Some((file, at)) = &mut self.replay {
            let mut piece = vec![0; MAX_PIECE_BYTES];
            match file.read_at(&mut piece, *at) {
                Ok(length) if length > 0 => {
                    *at += length as u64;
                    piece.truncate(length);
                    return piece;
                }
                _ => self.replay = None,
            }
        }
        if self.ended {
            return Vec::new();
        }
        let piece = read_piece().await;
        if let Some(keeper) = &mut self.keeper {
            keeper.keep(&piece);
        }
        piece
    }

    /// Reads one piece each time it is asked for. `wrap` makes an event of it.
    pub async fn read<E>(mut self, events: mpsc::Sender<E>, wrap: impl Fn(Vec<u8>) -> E, mut asked: mpsc::Receiver<()>) {
        while asked.recv().await.is_some() {
            let bytes = self.next().await;
            let end = bytes.is_empty();
            if events.send(wrap(bytes)).await.is_err() || end {
                return;
            }
        }
    }
}

/// What this process takes of standard input to compare it is in the job's directory.
static SAME_IS_KEPT: AtomicBool = AtomicBool::new(false);

/// True if more was read than could be kept.
fn was_cut(directory: &JobDirectory) -> bool {
    directory.read(STATE_FILE).is_ok_and(|kept: Kept| kept.cut)
}

/// True if what is kept is not all that was read: more than could be kept, or only what follows a later checkpoint.
fn is_not_all_kept(directory: &JobDirectory) -> bool {
    directory.read(STATE_FILE).is_ok_and(|kept: Kept| kept.cut || kept.base > 0)
}

fn tell_same(bytes: u64, quiet: bool) {
    if bytes > 0 && !quiet {
        mend_report::tell!("mend: standard input goes on behind the {bytes} bytes that were read before");
    }
}

fn tell(so_far: u64, quiet: bool) {
    match kind() {
        Kind::Null => {
            let what = format!("standard input is empty: rank 0 reads its end behind the {so_far} bytes that were read before");
            mend_report::tell!("{}", mend_report::failure("mend", &what, "if it came from a file, `mend restart JOB < FILE`"));
        }
        _ if quiet => {}
        Kind::Regular => {
            mend_report::tell!(
                "mend: standard input does not begin with what was read before: it is new input, behind those {so_far} bytes"
            );
        }
        Kind::Other => {
            let what = format!("what comes on standard input is new input, behind the {so_far} bytes that were read before");
            mend_report::tell!("{}", mend_report::failure("mend", &what, "`mend restart --input same` if it begins with them again"));
        }
    }
}

/// What earlier lives kept from this place on.
fn kept(directory: &JobDirectory, from: u64, wanted: Wanted) -> Result<Option<(Kept, File, u64)>, InputError> {
    let Ok(kept) = directory.read::<Kept>(STATE_FILE) else { return Ok(None) };
    let Ok(file) = File::open(directory.path().join(LOG_FILE)) else { return Ok(None) };
    let length = file.metadata()?.len();
    let (there, known) = (kept.base + length, from.max(kept.base + kept.durable));
    if kept.cut || from < kept.base {
        return Ok(None);
    }
    if there < known {
        // Who says that it is new input does not miss it.
        return if wanted == Wanted::New { Ok(None) } else { Err(InputError::Short { from: there, lacks: known - there }) };
    }
    Ok(Some((kept, file, length)))
}

/// Where what was kept ends, of which the job goes on from `at`.
fn end_of(file: &File, kept: &Kept, at: Mark) -> io::Result<Mark> {
    mark_in(file, (at, kept.base), u64::MAX)
}

/// The mark up to there, or at the end, in a file that begins at `base`.
fn mark_in(file: &File, (from, base): (Mark, u64), to: u64) -> io::Result<Mark> {
    let (mut end, mut bytes) = (from, vec![0; 1 << 16]);
    loop {
        let most = (bytes.len() as u64).min(to.saturating_sub(end.at)) as usize;
        match file.read_at(&mut bytes[..most], end.at - base)? {
            0 => return Ok(end),
            length => end = end.after(&bytes[..length]),
        }
    }
}

/// What is kept of standard input is not all that ranks were given: it is not taken for that any more.
pub fn note_lack(directory: &JobDirectory) {
    let noted =
        directory.read::<Kept>(STATE_FILE).map(|kept| Kept { cut: true, ..kept }).and_then(|kept| directory.write(STATE_FILE, &kept));
    if let Err(error) = noted {
        tracing::warn!(%error, "that kept input is not complete is not on record");
    }
}

/// Makes durable what is kept so far, as a checkpoint that counts on it is about to be.
///
/// # Errors
/// Those of the file system.
pub fn make_durable(directory: &JobDirectory) -> io::Result<()> {
    match File::open(directory.path().join(LOG_FILE)) {
        Ok(file) => file.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

impl Keeper {
    fn new(directory: &Path, base: u64) -> Self {
        Self { directory: directory.to_owned(), kept: Kept { base, ..Kept::default() }, length: 0, file: None, synced: None }
    }

    /// One that is on record from now on: what earlier lives kept is not taken for what this one does.
    fn begin(directory: &Path, base: u64) -> Self {
        let mut keeper = Self::new(directory, base);
        let begun = keeper.open().map(|file| keeper.file = Some(file));
        keeper.cut_after(begun);
        keeper
    }

    /// Keeps what was read; nothing is the end.
    fn keep(&mut self, bytes: &[u8]) {
        if !self.kept.cut {
            let kept = self.try_keep(bytes);
            self.cut_after(kept);
        }
    }

    fn cut_after(&mut self, kept: io::Result<()>) {
        if let Err(error) = kept {
            mend_report::tell!("mend: standard input cannot be kept ({error}); a restart goes on with what comes then");
            self.kept.cut = true;
            // A full disk may not take the state either. What goes needs no room, and nothing is taken for all of it then.
            let _ = fs::remove_file(self.directory.join(LOG_FILE));
            let _ = self.write_state();
        }
    }

    fn try_keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open()?,
        };
        if self.length + bytes.len() as u64 > MAX_KEPT_BYTES {
            self.kept.cut = true;
            return self.write_state();
        }
        file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        self.kept.ended = bytes.is_empty();
        let old = self.synced.is_none_or(|synced| synced.elapsed() >= SYNC.1);
        if self.kept.ended || old || self.length - self.kept.durable >= SYNC.0 {
            file.sync_data()?;
            self.kept.durable = self.length;
            self.write_state()?;
            self.synced = Some(Instant::now());
        }
        self.file = Some(file);
        Ok(())
    }

    fn open(&mut self) -> io::Result<File> {
        self.kept.durable = self.kept.durable.min(self.length);
        self.write_state()?;
        let file = crate::record::open_at_end(&self.directory.join(LOG_FILE))?;
        file.set_len(self.length)?;
        Ok(file)
    }

    fn write_state(&self) -> io::Result<()> {
        mend_durable::write(&self.directory.join(STATE_FILE), &serde_json::to_vec(&self.kept)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_was_kept_is_never_taken_for_all() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let mut keeper = Keeper::new(place.path(), 10);
        [&b"one\n"[..], b"two\n", b""].iter().for_each(|piece| keeper.keep(piece));
        let found = |from, wanted| kept(&directory, from, wanted).map(|found| found.map(|(kept, _, length)| (kept.ended, length)));
        for from in 10..=18 {
            assert_eq!(found(from, Wanted::Continued).unwrap(), Some((true, 8)));
        }
        assert_eq!(found(9, Wanted::Continued).unwrap(), None, "it was not kept");
        let (from, end) = (Mark { at: 14, sum: None }, Mark { at: 18, sum: None });
        let (there, file, _) = kept(&directory, 14, Wanted::Auto).unwrap().unwrap();
        assert_eq!(end_of(&file, &there, from).unwrap(), end);
        assert_eq!(end_of(&file, &there, Mark { sum: Mark::default().sum, ..from }).unwrap().sum, Mark::default().after(b"two\n").sum);
        let lacks = |from, wanted| match found(from, wanted) {
            Err(InputError::Short { from, lacks }) => (from, lacks),
            other => panic!("{other:?}"),
        };
        assert_eq!(lacks(20, Wanted::Auto), (18, 2), "a checkpoint knows of more");
        // Power has failed, and the file is shorter than it was.
        File::options().write(true).open(place.path().join(LOG_FILE)).unwrap().set_len(5).unwrap();
        assert_eq!((lacks(10, Wanted::Auto), lacks(10, Wanted::Continued)), ((15, 3), (15, 3)));
        assert_eq!(found(10, Wanted::New).unwrap(), None);
        note_lack(&directory);
        assert!(was_cut(&directory));
        assert_eq!(found(10, Wanted::Continued).unwrap(), None);
    }

    #[tokio::test]
    async fn what_only_follows_a_later_checkpoint_is_not_taken_for_all() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        Keeper::new(place.path(), 10).keep(b"more\n");
        let goes_on = |at| InputAt { at: Mark { at, sum: None }, ended: false };
        let refused = Source::after(&directory, Some(goes_on(0)), Wanted::Continued, true).await;
        assert!(matches!(refused, Err(InputError::NotKept { from: 0 })), "{refused:?}");
        let source = Source::after(&directory, Some(goes_on(12)), Wanted::Continued, true).await;
        assert_eq!(source.unwrap().unwrap().next().await, b"re\n");
        // What an older checkpoint goes on with is on record before any of it is read.
        Keeper::begin(place.path(), 0);
        assert!(Source::after(&directory, Some(goes_on(0)), Wanted::Continued, true).await.is_ok());
    }

    #[test]
    fn what_is_kept_is_on_record_as_durable_at_its_end_and_after_so_many_bytes() {
        let place = tempfile::tempdir().unwrap();
        let directory = JobDirectory::at(place.path());
        let durable = || directory.read::<Kept>(STATE_FILE).unwrap().durable;
        let mut keeper = Keeper::new(place.path(), 0);
        keeper.keep(b"one\n");
        assert_eq!(durable(), 4);
        keeper.keep(&vec![b'x'; SYNC.0 as usize]);
        assert_eq!(durable(), 4 + SYNC.0);
        keeper.keep(b"two\n");
        keeper.keep(b"");
        assert_eq!(durable(), 8 + SYNC.0);
    }
}
