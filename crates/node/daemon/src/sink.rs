//! Where agents write images that they cannot or must not open themselves: those that are to be encrypted, and those in
//! the node's `/dev/shm`, of which ranks have one of their own.
//!
//! ```text
//! agent ══ descriptor ══► a partial file ── keep(bytes) ─► fsync, rename ──► length
//! ```
//! Invariants: the file has its name only when the agent says that it is complete, it holds as many bytes as the agent
//! wrote, and it is durable; dropped before, nothing remains of it. Faults assumed: agents and disks fail at any moment.

use crate::bounded;
use crate::shared_memory;
use mend_messages::agent::{Reply, Request, SaveOrder, SaveTarget, Saved};
use mend_messages::files::KeepOrder;
use mend_report::storage_hint;
use mend_sealed::Key;
use mend_transfer::TransferError;
use mend_transfer::atomic_file::AtomicFile;
use mend_transfer::peer_image::OutgoingImage;
use mend_transfer::process_stream::{Sealing, named};
use mend_transfer::progress::Progress;
use mend_transfer::stored::StoredImage;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;

/// See the module's head.
#[derive(Debug)]
pub enum Sink {
    /// A thread encrypts what comes.
    Sealed(Sealing),
    /// The agent writes into the file itself.
    Plain(AtomicFile),
    /// It does, and what it wrote is on its way to another node.
    Stored(StoredImage),
}

/// See [`Sinks::filled_in`].
pub fn files_key(key: &Key) -> [u8; 32] {
    key.authenticate(b"mend: files that programs have open")
}

/// Makes the sinks of one job. Disks are looked at in threads that nobody else waits for.
#[derive(Debug)]
pub struct Sinks {
    key: Option<Key>,
    progress: Arc<Progress>,
    /// Directories of checkpoints, and whether agents would not find what is in them.
    hidden: Mutex<HashMap<PathBuf, bool>>,
}

impl Sinks {
    /// With a key, all images are to be encrypted.
    pub fn new(key: Option<Key>, progress: Arc<Progress>) -> Self {
        Self { key, progress, hidden: Mutex::default() }
    }

    /// Where what passes through this daemon on its way counts.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Whether images are to be encrypted.
    pub fn encrypts(&self) -> bool {
        self.key.is_some()
    }

    /// A file in which an image is stored on its way: an unnamed one, or one of this name.
    ///
    /// # Errors
    /// Those of making it, with its name.
    pub async fn stored(&self, image: OutgoingImage, shared: Option<PathBuf>) -> io::Result<(OwnedFd, Option<Sink>)> {
        let progress = self.progress.clone();
        let made = tokio::task::spawn_blocking(move || StoredImage::begin(image, shared, progress)).await;
        let (stored, file) = made.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok((file, Some(Sink::Stored(stored))))
    }

    /// The request with what copies of the program's files are encrypted with, if images are: ranks never see the key itself.
    pub fn filled_in(&self, request: Request) -> Request {
        match request {
            Request::KeepFiles(order) => Request::KeepFiles(KeepOrder { seal: self.key.as_ref().map(files_key), ..order }),
            request => request,
        }
    }

    /// The order as the agent is to get it, and the descriptor and sink that go with it if it is not to open its file
    /// itself: it is to be encrypted with a key, or the agent would not find it.
    ///
    /// # Errors
    /// Those of making a file, socket or thread, with the file's name.
    pub async fn for_order(self: Arc<Self>, order: SaveOrder) -> io::Result<(SaveOrder, Option<(OwnedFd, Sink)>)> {
        let SaveTarget::File(path) = &order.target else { return Ok((order, None)) };
        if self.key.is_none() && self.known(path) == Some(false) {
            return Ok((order, None));
        }
        let path = path.clone();
        let made = tokio::task::spawn_blocking(move || self.make(path)).await;
        let given = made.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(match given {
            Some(given) => (SaveOrder { target: SaveTarget::Descriptor, ..order }, Some(given)),
            None => (order, None),
        })
    }

    /// Whether the file's directory is hidden, if that was looked up for another checkpoint.
    fn known(&self, file: &Path) -> Option<bool> {
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner).get(checkpoints_of(file)).copied()
    }

    fn make(&self, path: PathBuf) -> io::Result<Option<(OwnedFd, Sink)>> {
        if let Some(key) = &self.key {
            let (sealing, end) = Sealing::begin(path, key.clone(), self.progress.clone())?;
            return Ok(Some((end, Sink::Sealed(sealing))));
        }
        let hidden = self.known(&path).unwrap_or_else(|| {
            let hidden = shared_memory::hides(&path);
            self.hidden.lock().unwrap_or_else(PoisonError::into_inner).insert(checkpoints_of(&path).to_owned(), hidden);
            hidden
        });
        if !hidden {
            return Ok(None);
        }
        let partial = AtomicFile::new(path.clone()).map_err(|error| named(&path, "created", &error))?;
        Ok(Some((partial.file.try_clone()?.into(), Sink::Plain(partial))))
    }
}

/// The directory in which each checkpoint has one of its own, of an image's file.
fn checkpoints_of(file: &Path) -> &Path {
    file.parent().and_then(Path::parent).unwrap_or(file)
}

impl Sink {
    /// The agent has written `bytes`: makes the file durable and gives it its name. Returns its length, bytes.
    pub async fn keep(self, bytes: u64) -> io::Result<u64> {
        match self {
            Self::Sealed(sealing) => sealing.keep(bytes).await,
            Self::Plain(partial) => {
                let place = partial.place().to_owned();
                let publish = move || match partial.file.metadata()?.len() {
                    found if found == bytes => partial.publish(),
                    found => Err(io::Error::other(TransferError::Short { found, expected: bytes })),
                };
                let published = tokio::task::spawn_blocking(publish).await.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
                published.map_err(|error| named(&place, "written", &error))
            }
            Self::Stored(stored) => {
                tokio::task::spawn_blocking(move || stored.keep(bytes)).await.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
            }
        }
    }

    /// The agent could not write all: gives the file up, and tells what went wrong here, if that is why.
    pub async fn give_up(self) -> Option<io::Error> {
        match self {
            Self::Sealed(sealing) => sealing.give_up().await,
            file @ (Self::Plain(_) | Self::Stored(_)) => {
                bounded::apart(move || drop(file)).await;
                None
            }
        }
    }
}

/// Nobody writes into these any more: nothing remains of them.
pub fn give_up_all(sinks: Vec<Sink>) {
    // At the daemon's end there may be no thread for it any more.
    if let (false, Ok(runtime)) = (sinks.is_empty(), Handle::try_current()) {
        runtime.spawn_blocking(move || drop(sinks));
    }
}

/// The agent has written all; only when the file is durable is it saved.
pub async fn keep_saved(saved: Saved, sink: Sink) -> Reply {
    let began = Instant::now();
    match sink.keep(saved.bytes).await {
        Ok(bytes) => {
            let write_us = saved.write_us.saturating_add(began.elapsed().as_micros() as u64);
            Reply::Saved(Saved { bytes, write_us, ..saved })
        }
        Err(error) => not_kept(&error),
    }
}

/// What the agent is said to have answered.
pub fn not_kept(error: &io::Error) -> Reply {
    Reply::Failed { error: error.to_string(), hint: storage_hint(error).into() }
}

/// The controller knows of it what its text says.
pub fn hinting(error: &io::Error) -> String {
    match storage_hint(error) {
        "" => error.to_string(),
        hint => format!("{error} (hint: {hint})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::Write;

    fn order(path: &Path) -> SaveOrder {
        SaveOrder::full(SaveTarget::File(path.to_owned()))
    }

    fn sinks() -> Arc<Sinks> {
        Arc::new(Sinks::new(None, Arc::default()))
    }

    #[tokio::test]
    async fn what_agents_find_themselves_is_left_to_them() {
        let sinks = sinks();
        for number in ["1", "2"] {
            let path = std::env::temp_dir().join(number).join("rank-0.image");
            let (order, sink) = sinks.clone().for_order(order(&path)).await.unwrap();
            assert!(sink.is_none() && order.target == SaveTarget::File(path.clone()));
            assert_eq!(sinks.known(&path), Some(false));
        }
        // The key's images go through us, wherever they are.
        let directory = tempfile::tempdir().unwrap();
        let sealing = Arc::new(Sinks::new(Some(Key::from_bytes([1; 32])), Arc::default()));
        let (order, sink) = sealing.for_order(order(&directory.path().join("rank-0.image"))).await.unwrap();
        assert!(matches!(sink, Some((_, Sink::Sealed(_)))) && order.target == SaveTarget::Descriptor);
    }

    #[tokio::test]
    async fn in_shared_memory_a_file_is_there_when_it_is_whole() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let link = tempfile::tempdir().unwrap();
        let through = link.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &through).unwrap();
        for (base, said, kept) in [(directory.path(), 5, true), (directory.path(), 6, false), (&*through, 5, true)] {
            let path = base.join("rank-0.image");
            let _ = fs::remove_file(&path);
            let (order, sink) = sinks().for_order(order(&path)).await.unwrap();
            assert_eq!(order.target, SaveTarget::Descriptor);
            let (file, sink) = sink.unwrap();
            File::from(file).write_all(b"image").unwrap();
            assert!(!path.exists());
            assert_eq!(sink.keep(said).await.is_ok(), kept);
            assert_eq!((path.exists(), fs::read_dir(directory.path()).unwrap().count()), (kept, usize::from(kept)));
        }
        let absent = directory.path().join("absent/rank-0.image");
        assert!(sinks().for_order(order(&absent)).await.unwrap_err().to_string().contains("cannot be created"));
    }
}
