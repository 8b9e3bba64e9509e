//! Moving an image from one place to another, checking it on the way.
//!
//! Invariant: a copy gets its name only after every byte of it has been seen to be the image that was meant: its job,
//! rank, name, length, all checksums. Faults assumed: the source is torn, foreign or damaged, or ends early; the target
//! is full; the job leaves in the middle.

use crate::draft::Draft;
use mend_image::verify::Verifier;
use mend_messages::tier::ImageRef;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are moved at a time.
const PIECE: usize = 1 << 20;
/// Longest sleep before looking whether the job has left.
const NAP: Duration = Duration::from_millis(100);

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
                Some(left) => std::thread::sleep(left.min(NAP)),
            }
        }
    }
}

/// What an image has to be.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The job's identity.
    pub job: [u8; 16],
    /// The image.
    pub image: ImageRef,
}

/// Checks an image piece by piece.
pub struct Inspector {
    expected: Expected,
    verifier: Verifier,
    seen: u64,
}

impl Inspector {
    /// Before the first byte.
    pub fn new(expected: Expected) -> Self {
        Self { expected, verifier: Verifier::new(), seen: 0 }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        self.seen += bytes.len() as u64;
        if self.seen > self.expected.image.bytes {
            return Err(CopyError::Damaged(format!("is longer than the {} bytes that were saved", self.expected.image.bytes)));
        }
        self.verifier.feed(bytes).map_err(|error| CopyError::Damaged(format!("is damaged: {error}")))
    }

    /// After the last byte.
    pub fn finish(&self) -> Result<(), CopyError> {
        let Expected { job, image } = self.expected;
        if self.seen < image.bytes {
            return Err(CopyError::Damaged(format!("is torn: {} bytes instead of {}", self.seen, image.bytes)));
        }
        let verified = self.verifier.finish().map_err(|error| CopyError::Damaged(format!("is damaged: {error}")))?;
        let header = verified.header;
        let same = header.job == job && header.rank == image.rank && header.id == image.id.0 && verified.end.stream == image.checksum;
        if same { Ok(()) } else { Err(CopyError::Damaged("is another image than the one that was saved".into())) }
    }
}

/// Reads the whole image, checks it, and hands it on piece by piece.
pub fn relay(
    source: &mut impl Read,
    expected: Expected,
    pace: &Pace,
    mut to: impl FnMut(&[u8]) -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let mut inspector = Inspector::new(expected);
    let mut piece = vec![0; PIECE];
    loop {
        let length = match source.read(&mut piece) {
            Ok(0) => return inspector.finish(),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Source(error)),
        };
        pace.spend(length)?;
        inspector.feed(&piece[..length])?;
        to(&piece[..length])?;
    }
}

/// Checks the image in a file.
pub fn check(path: &Path, expected: Expected, pace: &Pace) -> Result<(), CopyError> {
    let mut file = File::open(path).map_err(CopyError::Source)?;
    relay(&mut file, expected, pace, |_| Ok(()))
}

/// Copies the image from a reader into a file, which appears only if the image is good.
pub fn into_file(source: &mut impl Read, expected: Expected, pace: &Pace, place: &Path) -> Result<(), CopyError> {
    let failed = |source| CopyError::Target { place: place.display().to_string(), source };
    let mut draft = Draft::new(place.to_owned()).map_err(failed)?;
    relay(source, expected, pace, |piece| draft.file.write_all(piece).map_err(failed))?;
    draft.publish().map(drop).map_err(failed)
}

/// Writes a file to a stream as it is: the receiver checks.
pub fn pour(path: &Path, to: &mut impl Write, pace: &Pace) -> Result<(), CopyError> {
    let mut file = File::open(path).map_err(CopyError::Source)?;
    let mut piece = vec![0; PIECE];
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
        Expected { job: [5; 16], image }
    }

    #[test]
    fn a_pace_is_kept_and_can_be_ended() {
        let pace = Pace::new(1 << 20);
        pace.spend(1 << 20).unwrap();
        assert!(*pace.free_at.lock().unwrap() > Instant::now());
        pace.cancel();
        assert!(matches!(pace.spend(1), Err(CopyError::Cancelled)));
    }

    #[test]
    fn only_the_image_that_was_meant_gets_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (place, pace) = (directory.path().join("rank-2.image"), Pace::new(0));
        let mut wanted = expected(2);
        let bytes = an_image(&mut wanted, &[7; 8192]);
        let mut another = expected(2);
        another.image.id = ImageId([4; 16]);
        let foreign = an_image(&mut another, &[7; 8192]);
        let mut flipped = bytes.clone();
        flipped[3000] ^= 1;
        let longer = [&bytes[..], b"x"].concat();
        for (wrong, what) in [(&bytes[..3000], "torn"), (&flipped, "damaged"), (&foreign, "another image"), (&longer, "longer")] {
            let refused = into_file(&mut &wrong[..], wanted, &pace, &place).unwrap_err();
            assert!(refused.to_string().contains(what), "{refused}");
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{what}");
        }
        into_file(&mut &bytes[..], wanted, &pace, &place).unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), bytes);
        check(&place, wanted, &pace).unwrap();
        assert!(check(&place, Expected { job: [6; 16], ..wanted }, &pace).is_err());
        let mut poured = Vec::new();
        pour(&place, &mut poured, &pace).unwrap();
        assert_eq!(poured, bytes);
    }

    #[test]
    fn a_full_target_leaves_nothing() {
        let mut wanted = expected(0);
        let bytes = an_image(&mut wanted, &[7; 4096]);
        let refused = into_file(&mut &bytes[..], wanted, &Pace::new(0), Path::new("/proc/nowhere/rank-0.image")).unwrap_err();
        assert!(matches!(refused, CopyError::Target { .. }), "{refused}");
    }
}
