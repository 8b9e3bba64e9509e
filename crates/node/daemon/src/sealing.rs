//! Images on their way into encrypted files and out of them.
//!
//! ```text
//! save:     agent ══ stream ══► thread: seals ──► a partial rank-R.image ── keep(bytes) ─► fsync, rename ──► length
//! restore:  rank-R.image ──► thread: opens ══ stream ══► restorer
//! ```
//! Agent and restorer see a stream as they do in a migration, and know nothing of keys.
//! Invariants: a file has its name only when it is complete, durable and holds as many bytes as the agent says that it
//! wrote. A thread's memory is a chunk and the socket's buffers. Faults assumed: either end of a stream goes away at any moment;
//! disks fill up; files are anybody's.

use crate::atomic_file::AtomicFile;
use crate::sink::{fell_short, named};
use mend_image::HEADER_SIZE;
use mend_kernel::untrusted::open_regular;
use mend_sealed::{Key, Opener, Sealer, opened_by};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use tokio::sync::oneshot;

/// Bytes moved at a time.
const PIECE_BYTES: usize = 256 << 10;

/// A file that is being sealed. Dropped before [`Sealing::keep`]: nothing remains of it.
#[derive(Debug)]
pub struct Sealing {
    expected: oneshot::Sender<u64>,
    /// `Err(None)`: nothing went wrong here, it was given up.
    result: oneshot::Receiver<Result<u64, Option<io::Error>>>,
}

impl Sealing {
    /// Begins the file that will be `path`. The agent is to write into the descriptor and close it.
    ///
    /// # Errors
    /// Those of making a socket, a file or a thread, with the file's name.
    pub fn begin(path: PathBuf, key: Key) -> io::Result<(Self, OwnedFd)> {
        let partial = AtomicFile::new(path.clone()).map_err(|error| named(&path, "created", &error))?;
        let (ours, theirs) = UnixStream::pair()?;
        let (expected, verdict) = oneshot::channel();
        let (report, result) = oneshot::channel();
        thread::Builder::new().name("seal".into()).spawn(move || {
            let stored = seal(&ours, partial, &key, verdict);
            // Whoever asked may have gone.
            let _ = report.send(stored.map_err(|error| error.map(|error| named(&path, "written", &error))));
        })?;
        Ok((Self { expected, result }, theirs.into()))
    }

    /// The agent has written `bytes`: makes the file durable and gives it its name. Returns its length, bytes.
    pub async fn keep(self, bytes: u64) -> io::Result<u64> {
        // A thread that ended early has said why.
        let _ = self.expected.send(bytes);
        match self.result.await {
            Ok(result) => result.map_err(|error| error.unwrap_or_else(|| io::Error::other("the image was given up"))),
            Err(_) => Err(io::Error::other("the thread that encrypts the image is gone")),
        }
    }

    /// The agent could not write all: gives the file up, and tells what went wrong here, if that is why.
    pub async fn give_up(self) -> Option<io::Error> {
        drop(self.expected);
        self.result.await.ok()?.err()?
    }
}

/// `Err(None)`: given up.
fn seal(stream: &UnixStream, partial: AtomicFile, key: &Key, verdict: oneshot::Receiver<u64>) -> Result<u64, Option<io::Error>> {
    let mut sealer = Sealer::new(&partial.file, key, mend_wire::random_bytes())?;
    let bytes = absorb(stream, &mut sealer)?;
    let expected = verdict.blocking_recv().map_err(|_| None)?;
    if bytes != expected {
        return Err(Some(fell_short(bytes, expected)));
    }
    sealer.finish()?;
    Ok(partial.publish()?)
}

/// All that comes; bytes.
fn absorb(mut stream: &UnixStream, sealer: &mut Sealer<&File>) -> io::Result<u64> {
    let (mut piece, mut bytes) = (vec![0; PIECE_BYTES], 0);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(length) => {
                sealer.write_all(&piece[..length])?;
                bytes += length as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Why a stream out of an encrypted file ended early.
pub type StreamFault = Arc<OnceLock<String>>;

/// An image ready to be read, and its header's bytes (fewer if it has fewer).
#[derive(Debug)]
pub struct Opened {
    /// A file at its beginning, or the stream out of an encrypted one.
    pub image: OwnedFd,
    /// What it begins with.
    pub header: Vec<u8>,
    /// What goes wrong with the stream later.
    pub stream_fault: Option<StreamFault>,
}

/// Opens an image. With a key it must be encrypted, without one it must not. Blocks.
///
/// # Errors
/// Those of reading; with a [`SealError`] in them, what is wrong with the encryption.
pub fn open(path: &Path, key: Option<&Key>) -> io::Result<Opened> {
    let file = open_regular(path)?;
    let mut header = vec![0; HEADER_SIZE];
    // Reading at an offset leaves the file position where the restorer expects it.
    let length = read_at(&file, &mut header)?;
    header.truncate(length);
    match opened_by(&header, key)? {
        None => Ok(Opened { image: file.into(), header, stream_fault: None }),
        Some(key) => open_sealed(file, key),
    }
}

fn read_at(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], filled as u64)? {
            0 => break,
            length => filled += length,
        }
    }
    Ok(filled)
}

fn open_sealed(file: File, key: &Key) -> io::Result<Opened> {
    let mut opener = Opener::new(file, key)?;
    let mut header = Vec::with_capacity(HEADER_SIZE);
    (&mut opener).take(HEADER_SIZE as u64).read_to_end(&mut header)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    let (stream_fault, first) = (StreamFault::default(), header.clone());
    let told = stream_fault.clone();
    thread::Builder::new().name("open".into()).spawn(move || {
        let mut piece = vec![0; PIECE_BYTES];
        let mut pass_on = || -> io::Result<()> {
            ours.write_all(&first)?;
            loop {
                let length = opener.read(&mut piece).inspect_err(|error| {
                    let _ = told.set(error.to_string());
                })?;
                if length == 0 {
                    return Ok(());
                }
                ours.write_all(&piece[..length])?;
            }
        };
        // A restorer that went away says itself why; what is wrong with the file has been noted.
        let _ = pass_on();
    })?;
    Ok(Opened { image: theirs.into(), header, stream_fault: Some(stream_fault) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_sealed::SealError;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn key() -> Key {
        Key::from_bytes([5; 32])
    }

    async fn sealed(path: &Path, plain: &[u8], said: u64) -> io::Result<u64> {
        let (sealing, end) = Sealing::begin(path.to_owned(), key()).unwrap();
        UnixStream::from(end).write_all(plain).unwrap();
        sealing.keep(said).await
    }

    fn names(directory: &Path) -> Vec<String> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_file_is_there_when_it_is_whole_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-0.image");
        let plain: Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        let stored = sealed(&path, &plain, plain.len() as u64).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), stored);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(directory.path()), ["rank-0.image"]);
        let opened = open(&path, Some(&key())).unwrap();
        assert_eq!(opened.header, plain[..HEADER_SIZE.min(plain.len())]);
        let mut back = Vec::new();
        UnixStream::from(opened.image).read_to_end(&mut back).unwrap();
        assert_eq!(back, plain);
    }

    #[tokio::test]
    async fn a_save_that_failed_or_fell_short_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-0.image");
        let error = sealed(&path, b"half", 8).await.unwrap_err();
        assert!(error.to_string().contains("4 bytes came of 8"), "{error}");
        let (sealing, end) = Sealing::begin(path.clone(), key()).unwrap();
        drop(end);
        assert!(sealing.give_up().await.is_none());
        assert!(names(directory.path()).is_empty());
        assert!(Sealing::begin(directory.path().join("absent/rank-0"), key()).is_err());
    }

    #[tokio::test]
    async fn damage_and_keys_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-0.image");
        sealed(&path, &vec![7; 1 << 20], 1 << 20).await.unwrap();
        let why = |path: &Path, key: Option<&Key>| {
            let error = open(path, key).unwrap_err();
            *error.into_inner().unwrap().downcast::<SealError>().unwrap()
        };
        assert_eq!(why(&path, None), SealError::NoKey);
        assert_eq!(why(&path, Some(&Key::from_bytes([6; 32]))), SealError::Key);
        let plain = directory.path().join("plain");
        fs::write(&plain, "not encrypted").unwrap();
        assert_eq!(why(&plain, Some(&key())), SealError::Plain);
        let mut bytes = fs::read(&path).unwrap();
        bytes[900_000] ^= 1;
        fs::write(&path, bytes).unwrap();
        let opened = open(&path, Some(&key())).unwrap();
        let mut back = Vec::new();
        UnixStream::from(opened.image).read_to_end(&mut back).unwrap();
        assert!(back.len() < 900_000);
        assert!(opened.stream_fault.unwrap().get().unwrap().contains("damaged or was changed"));
    }
}
