//! Streams that processes on this node write and read, with a pipeline at the other end of each.
//!
//! ```text
//! save:     agent ══ stream ══► thread: seals ──► a partial rank-R.image ── keep(bytes) ─► fsync, rename ──► length
//! restore:  rank-R.image ──► thread: opens ══ stream ══► restorer
//! ```
//! Agent and restorer see a stream as they do in a migration, and know nothing of keys.
//! Invariants: a file has its name only when it is complete, durable and holds as many bytes as the agent says that it
//! wrote. A thread's memory is a piece, a chunk and the socket's buffers. Faults assumed: either end of a stream goes away at any moment;
//! disks fill up; files are anybody's.

use crate::TransferError;
use crate::atomic_file::AtomicFile;
use crate::pipeline::{Source, Stage, Stream, run};
use crate::progress::Progress;
use crate::stage::{Agreed, Seal};
use mend_image::HEADER_SIZE;
use mend_kernel::untrusted::open_regular;
use mend_sealed::{Key, Opener, opened_by};
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use tokio::sync::oneshot;

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
    pub fn begin(path: PathBuf, key: Key, progress: Arc<Progress>) -> io::Result<(Self, OwnedFd)> {
        let partial = AtomicFile::new(path.clone()).map_err(|error| named(&path, "created", &error))?;
        let (ours, theirs) = UnixStream::pair()?;
        let (expected, word) = oneshot::channel();
        let (report, result) = oneshot::channel();
        thread::Builder::new().name("seal".into()).spawn(move || {
            let stored = seal(ours, partial, &key, word, &progress).map_err(|error| match error {
                TransferError::Cancelled => None,
                error => Some(named(&path, "written", &cause(error))),
            });
            // Whoever asked may have gone.
            let _ = report.send(stored);
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

fn seal(
    mut stream: UnixStream,
    partial: AtomicFile,
    key: &Key,
    word: oneshot::Receiver<u64>,
    progress: &Progress,
) -> Result<u64, TransferError> {
    let stages: Vec<Box<dyn Stage>> = vec![Box::new(Agreed::new(word)), Box::new(Seal::new(key)?)];
    run(&mut stream, stages, partial, progress)
}

/// What the kernel said, if it is that: the file is named anyway.
fn cause(error: TransferError) -> io::Error {
    match error {
        TransferError::Source(cause) | TransferError::Target { source: cause, .. } | TransferError::Write(cause) => cause,
        error => io::Error::other(error),
    }
}

/// An error with the file's name, and what cannot be done to it.
#[must_use]
pub fn named(path: &Path, done: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} cannot be {done}: {error}", path.display()))
}

/// Why a stream to a process ended early.
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
pub fn open(path: &Path, key: Option<&Key>, progress: Arc<Progress>) -> io::Result<Opened> {
    let file = open_regular(path)?;
    let mut header = vec![0; HEADER_SIZE];
    // Reading at an offset leaves the file position where the restorer expects it.
    let length = read_at(&file, &mut header)?;
    header.truncate(length);
    match opened_by(&header, key)? {
        None => Ok(Opened { image: file.into(), header, stream_fault: None }),
        Some(key) => open_sealed(file, key, progress),
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

fn open_sealed(file: File, key: &Key, progress: Arc<Progress>) -> io::Result<Opened> {
    let mut opener = Opener::new(file, key)?;
    let mut header = Vec::with_capacity(HEADER_SIZE);
    (&mut opener).take(HEADER_SIZE as u64).read_to_end(&mut header)?;
    let (image, stream_fault) = stream_out(opener, header.clone(), progress)?;
    Ok(Opened { image, header, stream_fault: Some(stream_fault) })
}

/// A stream of all that a source gives, after what has been read of it `first`, for a process that reads it.
///
/// # Errors
/// Those of making a socket or a thread.
pub fn stream_out(source: impl Source + Send + 'static, first: Vec<u8>, progress: Arc<Progress>) -> io::Result<(OwnedFd, StreamFault)> {
    let (ours, theirs) = UnixStream::pair()?;
    let stream_fault = StreamFault::default();
    let told = stream_fault.clone();
    thread::Builder::new().name("open".into()).spawn(move || {
        let mut whole = Cursor::new(first).chain(source);
        // The stream ends with this thread, when why it ends is known. A process that went away says itself why.
        if let Err(TransferError::Source(error)) = run(&mut whole, Vec::new(), Stream::new(&ours, "the process"), &progress) {
            let _ = told.set(error.to_string());
        }
    })?;
    Ok((theirs.into(), stream_fault))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_sealed::SealError;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn key() -> Key {
        Key::from_bytes([5; 32])
    }

    async fn sealed(path: &Path, plain: &[u8], said: u64) -> io::Result<u64> {
        let (sealing, end) = Sealing::begin(path.to_owned(), key(), Arc::default()).unwrap();
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
        let opened = open(&path, Some(&key()), Arc::default()).unwrap();
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
        let (sealing, end) = Sealing::begin(path.clone(), key(), Arc::default()).unwrap();
        drop(end);
        assert!(sealing.give_up().await.is_none());
        assert!(names(directory.path()).is_empty());
        assert!(Sealing::begin(directory.path().join("absent/rank-0"), key(), Arc::default()).is_err());
    }

    #[tokio::test]
    async fn damage_and_keys_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-0.image");
        sealed(&path, &vec![7; 1 << 20], 1 << 20).await.unwrap();
        let why = |path: &Path, key: Option<&Key>| {
            let error = open(path, key, Arc::default()).unwrap_err();
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
        let opened = open(&path, Some(&key()), Arc::default()).unwrap();
        let mut back = Vec::new();
        UnixStream::from(opened.image).read_to_end(&mut back).unwrap();
        assert!(back.len() < 900_000);
        assert!(opened.stream_fault.unwrap().get().unwrap().contains("damaged or was changed"));
    }
}
