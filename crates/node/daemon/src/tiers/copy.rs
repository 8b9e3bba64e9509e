//! Moving an image from one place to another, checking it on the way.
//!
//! Invariant: a copy gets its name only after every byte of it has been seen to be the image that was meant: its job,
//! rank, name, length, all checksums; with a key, every byte also opened with that. An encrypted image is copied as it is
//! stored. Faults assumed: the source is torn, foreign or damaged, or ends early; the target
//! is full; the job leaves in the middle.

use crate::atomic_file::AtomicFile;
use mend_image::ImageError;
use mend_image::verify::{Verified, verify};
use mend_kernel::untrusted::open_regular;
use mend_messages::tier::ImageRef;
use mend_sealed::{HEAD, Key, Opener, opened_by};
use std::io::{self, BufReader, Cursor, Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are moved at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Longest sleep before looking whether the job has left.
const MAX_SLEEP_TIME: Duration = Duration::from_millis(100);

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The source cannot be read.
    #[error("cannot be read: {0}")]
    Source(io::Error),
    /// It is not the image.
    #[error("{0}")]
    Damaged(String),
    /// The target cannot be written.
    #[error("cannot be written to {place}: {source}")]
    Target {
        /// Where.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// The job left.
    #[error("the job has left")]
    Cancelled,
}

/// How fast the copies of a job on this node may be, and whether they are still wanted.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second; 0: no bound.
    rate: u64,
    free_at: Mutex<Instant>,
    cancelled: AtomicBool,
}

impl Pace {
    /// At most `rate` bytes per second; 0: no bound.
    pub fn new(rate: u64) -> Self {
        Self { rate, free_at: Mutex::new(Instant::now()), cancelled: AtomicBool::new(false) }
    }

    /// Ends all copies.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits until as many bytes may be moved.
    pub fn spend(&self, bytes: usize) -> Result<(), CopyError> {
        let mut due = Instant::now();
        if self.rate > 0 {
            let mut free_at = self.free_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            due = (*free_at).max(due);
            *free_at = due + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        }
        loop {
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(CopyError::Cancelled);
            }
            match due.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => return Ok(()),
                Some(left) => std::thread::sleep(left.min(MAX_SLEEP_TIME)),
            }
        }
    }
}

/// What an image has to be.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The job's identity.
    pub job: [u8; 16],
    /// The image.
    pub image: ImageRef,
    /// With a key it must be encrypted with this, without one it must not be.
    pub key: Option<Key>,
}

impl Expected {
    fn matches(&self, verified: &Verified) -> bool {
        let (Verified { header, end }, image) = (verified, &self.image);
        header.job == self.job && header.rank == image.rank && header.id == image.id.0 && end.stream == image.checksum
    }
}

/// Bytes on their way: each is paced, counted and handed on as it is read.
struct CheckedReader<'a, R, F> {
    source: &'a mut R,
    to: F,
    pace: &'a Pace,
    seen: u64,
    /// Bytes that there may be.
    most: u64,
    ended: bool,
    failed: Option<CopyError>,
}

impl<R: Read, F: FnMut(&[u8]) -> Result<(), CopyError>> Read for CheckedReader<'_, R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = loop {
            match self.source.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(length) => break length,
                Err(error) => return self.fail(CopyError::Source(error)),
            }
        };
        self.seen += length as u64;
        self.ended = length == 0;
        if self.seen > self.most {
            return self.fail(CopyError::Damaged(format!("is longer than the {} bytes that were saved", self.most)));
        }
        let passed = self.pace.spend(length).and_then(|()| (self.to)(&buffer[..length]));
        passed.map(|()| length).or_else(|error| self.fail(error))
    }
}

impl<R, F> CheckedReader<'_, R, F> {
    /// Who reads hears that it failed; why is kept here.
    fn fail(&mut self, error: CopyError) -> io::Result<usize> {
        self.failed = Some(error);
        Err(io::ErrorKind::Other.into())
    }
}

/// Reads all of an image's file and checks all that it holds. What is wrong with its encryption is an error of reading.
fn inspect(mut file: impl Read, key: Option<&Key>) -> io::Result<Result<Verified, ImageError>> {
    let mut head = Vec::with_capacity(HEAD);
    (&mut file).take(HEAD as u64).read_to_end(&mut head)?;
    let key = opened_by(&head, key)?;
    let mut whole = Cursor::new(head).chain(file);
    match key {
        Some(key) => verify(&mut Opener::new(whole, key)?),
        None => verify(&mut whole),
    }
}

/// Reads the whole image, checks it, and hands it on piece by piece as it is stored. A piece is handed on before it has
/// been checked: what was handed on counts only if all is well.
pub fn copy_checked(
    source: &mut impl Read,
    expected: &Expected,
    pace: &Pace,
    to: impl FnMut(&[u8]) -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let most = expected.image.bytes;
    let mut reader = CheckedReader { source, to, pace, seen: 0, most, ended: false, failed: None };
    let inspected = inspect(BufReader::with_capacity(PIECE_BYTES, &mut reader), expected.key.as_ref());
    if let Some(error) = reader.failed {
        return Err(error);
    }
    if reader.ended && reader.seen < most {
        return Err(CopyError::Damaged(format!("is torn: {} bytes instead of {most}", reader.seen)));
    }
    match inspected {
        Ok(Ok(verified)) if expected.matches(&verified) => Ok(()),
        Ok(Ok(_)) => Err(CopyError::Damaged("is another image than the one that was saved".into())),
        Ok(Err(error)) => Err(CopyError::Damaged(format!("is damaged: {error}"))),
        Err(error) => Err(CopyError::Damaged(format!("cannot be used: {error}"))),
    }
}

/// Checks the image in a file.
pub fn check(path: &Path, expected: &Expected, pace: &Pace) -> Result<(), CopyError> {
    let mut file = open_regular(path).map_err(CopyError::Source)?;
    copy_checked(&mut file, expected, pace, |_| Ok(()))
}

/// Checks that a file can be read and is as long as the image, and nothing of what it holds.
pub fn measure(path: &Path, expected: &Expected) -> Result<(), CopyError> {
    let bytes = open_regular(path).and_then(|file| file.metadata()).map_err(CopyError::Source)?.len();
    if bytes != expected.image.bytes {
        return Err(CopyError::Damaged(format!("is torn: {bytes} bytes instead of {}", expected.image.bytes)));
    }
    Ok(())
}

/// Copies the image from a reader into a file, which appears only if the image is good.
pub fn into_file(source: &mut impl Read, expected: &Expected, pace: &Pace, place: &Path) -> Result<(), CopyError> {
    let failed = |source| CopyError::Target { place: place.display().to_string(), source };
    let mut partial = AtomicFile::new(place.to_owned()).map_err(failed)?;
    copy_checked(source, expected, pace, |piece| partial.file.write_all(piece).map_err(failed))?;
    partial.publish().map(drop).map_err(failed)
}

/// Writes a file to a stream as it is: the receiver checks.
pub fn pour(path: &Path, to: &mut impl Write, pace: &Pace) -> Result<(), CopyError> {
    let mut file = open_regular(path).map_err(CopyError::Source)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = file.read(&mut piece).map_err(CopyError::Source)?;
        if length == 0 {
            return Ok(());
        }
        pace.spend(length)?;
        to.write_all(&piece[..length]).map_err(|source| CopyError::Target { place: "the other node".into(), source })?;
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use mend_image::record::Kind;
    use mend_image::write::StreamWriter;
    use mend_messages::agent::ImageId;
    use std::path::PathBuf;

    /// A small sound image, of which `expected` is then what a manifest would say.
    pub fn an_image(expected: &mut Expected, pages: &[u8]) -> Vec<u8> {
        let header =
            mend_image::Header { job: expected.job, rank: expected.image.rank, id: expected.image.id.0, ..mend_image::Header::default() };
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::new(&mut bytes, &header).unwrap();
        for (kind, payload) in [(Kind::Strings, &b"abc"[..]), (Kind::Objects, b""), (Kind::Mappings, b""), (Kind::Threads, b"xx")] {
            writer.record(kind, 0, 0, payload).unwrap();
        }
        writer.record(Kind::Process, 0, 0, b"process").unwrap();
        writer.record(Kind::Pages, 0, 4096, pages).unwrap();
        let end = writer.finish().unwrap();
        (expected.image.bytes, expected.image.checksum) = (bytes.len() as u64, end.stream);
        bytes
    }

    pub fn expected(rank: u32) -> Expected {
        let image = ImageRef { number: 1, rank, bytes: 0, checksum: 0, id: ImageId([3; 16]) };
        Expected { job: [5; 16], image, key: None }
    }

    #[test]
    fn a_pace_is_kept_and_can_be_ended() {
        let pace = Pace::new(1 << 20);
        pace.spend(1 << 20).unwrap();
        assert!(*pace.free_at.lock().unwrap() > Instant::now());
        pace.cancel();
        assert!(matches!(pace.spend(1), Err(CopyError::Cancelled)));
    }

    /// An empty directory for one image.
    struct Target {
        directory: tempfile::TempDir,
        place: PathBuf,
        pace: Pace,
    }

    impl Target {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let place = directory.path().join("rank-2.image");
            Self { directory, place, pace: Pace::new(0) }
        }

        /// What it says names the reason, and nothing stays.
        fn refuses(&self, bytes: &[u8], expected: &Expected, what: &str) {
            let refused = into_file(&mut &bytes[..], expected, &self.pace, &self.place).unwrap_err();
            assert!(refused.to_string().contains(what), "{refused}, not {what}");
            assert_eq!(std::fs::read_dir(self.directory.path()).unwrap().count(), 0, "{what}");
        }

        fn takes(&self, bytes: &[u8], expected: &Expected) {
            into_file(&mut &bytes[..], expected, &self.pace, &self.place).unwrap();
            assert_eq!(std::fs::read(&self.place).unwrap(), bytes);
        }
    }

    /// A sound image that is not the one that is meant.
    fn another_image(wanted: &Expected) -> Vec<u8> {
        let mut another = wanted.clone();
        another.image.id = ImageId([4; 16]);
        an_image(&mut another, &[7; 8192])
    }

    fn flipped(bytes: &[u8]) -> Vec<u8> {
        let mut flipped = bytes.to_vec();
        flipped[3000] ^= 1;
        flipped
    }

    #[test]
    fn only_the_image_that_was_meant_gets_its_name() {
        let target = Target::new();
        let mut wanted = expected(2);
        let bytes = an_image(&mut wanted, &[7; 8192]);
        target.refuses(&bytes[..3000], &wanted, "torn");
        target.refuses(&flipped(&bytes), &wanted, "damaged");
        target.refuses(&another_image(&wanted), &wanted, "another image");
        target.refuses(&[&bytes[..], b"x"].concat(), &wanted, "longer");
        target.takes(&bytes, &wanted);
        let Target { place, pace, .. } = &target;
        check(place, &wanted, pace).unwrap();
        assert!(check(place, &Expected { job: [6; 16], ..wanted.clone() }, pace).is_err());
        measure(place, &wanted).unwrap();
        let longer = Expected { image: ImageRef { bytes: wanted.image.bytes + 1, ..wanted.image }, ..wanted.clone() };
        assert!(measure(place, &longer).unwrap_err().to_string().contains("torn"));
        assert!(matches!(measure(Path::new("/nowhere"), &wanted), Err(CopyError::Source(_))));
        let mut poured = Vec::new();
        pour(place, &mut poured, pace).unwrap();
        assert_eq!(poured, bytes);
    }

    #[test]
    fn an_encrypted_image_is_copied_as_it_is_and_checked_with_its_key() {
        let mut wanted = expected(2);
        let plain = an_image(&mut wanted, &[7; 8192]);
        let key = |byte: u8| Some(Key::from_bytes([byte; 32]));
        let seal = |plain: &[u8]| {
            let mut sealer = mend_sealed::Sealer::new(Vec::new(), &key(1).unwrap(), [9; 32]).unwrap();
            sealer.write_all(plain).unwrap();
            sealer.finish().unwrap().0
        };
        let bytes = seal(&plain);
        wanted.key = key(1);
        wanted.image.bytes = bytes.len() as u64;
        Target::new().takes(&bytes, &wanted);
        let target = Target::new();
        let of = |key: Option<Key>| Expected { key, ..wanted.clone() };
        target.refuses(&bytes, &of(None), "it is encrypted");
        target.refuses(&bytes, &of(key(2)), "encrypted with another key");
        target.refuses(&flipped(&bytes), &wanted, "damaged or was changed");
        target.refuses(&seal(&another_image(&wanted)), &wanted, "another image");
        target.refuses(&bytes[..3000], &wanted, "torn");
        target.refuses(&bytes[..10], &wanted, "torn");
        target.refuses(&[&bytes[..], b"x"].concat(), &wanted, "longer");
        let unsealed = Expected { image: ImageRef { bytes: plain.len() as u64, ..wanted.image }, ..wanted.clone() };
        target.refuses(&plain, &unsealed, "it is not encrypted");
    }

    #[test]
    fn a_full_target_leaves_nothing() {
        let mut wanted = expected(0);
        let bytes = an_image(&mut wanted, &[7; 4096]);
        let refused = into_file(&mut &bytes[..], &wanted, &Pace::new(0), Path::new("/proc/nowhere/rank-0.image")).unwrap_err();
        assert!(matches!(refused, CopyError::Target { .. }), "{refused}");
    }
}
