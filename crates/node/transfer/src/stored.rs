//! Images that are stored in files on their way to another node, to compare migrations through a pipeline with.
//!
//! ```text
//! shared:  agent ══► PATH, synced ── "stored" ─────────────► target opens PATH, removes the name ══► restorer
//! local:   agent ══► unnamed file ── then all of it, TCP ──────────────────────────────────────────► restorer
//! staged:  agent ══ TCP ══► unnamed file, then all of it ══════════════════════════════════════════► restorer
//! ```
//! Unnamed files are in `TMPDIR`, else `/tmp`; they are not synced, since a node that fails takes the rank with it, too.
//! Faults assumed: either side dies at any moment, file systems fill up. Of a file in the shared directory nothing remains unless both sides
//! die; the next one of that rank takes its place.

use crate::TransferError;
use crate::peer::{BegunImage, ExpectedTransfer, take};
use crate::peer_image::OutgoingImage;
use crate::pipeline::{Stream, Target, run};
use crate::process_stream::{Opened, named, open};
use crate::progress::Progress;
use mend_messages::daemon::JobIntroduction;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// What the source says when a file in the shared directory is complete.
const STORED: &[u8] = b"stored";
/// Longest time that it may take to store an image; the controller gives up before.
pub const MAX_STORING_TIME: Duration = Duration::from_secs(4000);

/// A file that an agent writes, and where what is in it goes.
#[derive(Debug)]
pub struct StoredImage {
    file: File,
    image: OutgoingImage,
    /// Its name, if the target opens it itself.
    shared: Option<Named>,
    progress: Arc<Progress>,
}

/// A name that is removed when it is dropped.
#[derive(Debug)]
struct Named(PathBuf);

impl Drop for Named {
    fn drop(&mut self) {
        // The target has removed it, unless something went wrong.
        let _ = fs::remove_file(&self.0);
    }
}

impl StoredImage {
    /// An unnamed file here, or one of this name, and the descriptor that the agent is to write into. Blocks.
    ///
    /// # Errors
    /// Those of making a file, with its name.
    pub fn begin(image: OutgoingImage, shared: Option<PathBuf>, progress: Arc<Progress>) -> io::Result<(Self, OwnedFd)> {
        let (file, shared) = match shared {
            None => (unnamed()?, None),
            Some(path) => (create(&path).map_err(|error| named(&path, "created", &error))?, Some(Named(path))),
        };
        let descriptor = file.try_clone()?.into();
        Ok((Self { file, image, shared, progress }, descriptor))
    }

    /// The agent has written `bytes`: has them go to the target, which notices by itself if they do not come. Returns their number. Blocks until
    /// they are stored.
    ///
    /// # Errors
    /// If the file does not hold as many, or cannot be read again.
    pub fn keep(self, bytes: u64) -> io::Result<u64> {
        let Self { mut file, mut image, shared, progress } = self;
        let found = file.metadata()?.len();
        if found != bytes {
            return Err(io::Error::other(TransferError::Short { found, expected: bytes }));
        }
        if let Some(name) = shared {
            // Another node sees it when it is at the server.
            file.sync_all().map_err(|error| named(&name.0, "written", &error))?;
            drop(file);
            thread::Builder::new().name("stored".into()).spawn(move || {
                if image.write(STORED).is_ok() {
                    image.wait_until_closed();
                }
                drop(name);
            })?;
            return Ok(bytes);
        }
        file.rewind()?;
        thread::Builder::new().name("send stored".into()).spawn(move || {
            if let Err(error) = run(&mut file, Vec::new(), image, &progress) {
                tracing::warn!(%error, "a stored image did not go to its node");
            }
        })?;
        Ok(bytes)
    }
}

fn unnamed() -> io::Result<File> {
    let failed = |error: io::Error| named(&std::env::temp_dir(), "used for an image on its way", &error);
    tempfile::tempfile().map_err(failed)
}

fn create(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    // One that is there is of a move that failed, and perhaps still open: it is not written over.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Waits for a transfer, takes the image into an unnamed file, and then gives that.
///
/// # Errors
/// If nothing comes, it breaks off, or the file cannot be written.
pub async fn staged(
    arrival: ExpectedTransfer,
    job: &JobIntroduction,
    patience: Duration,
    progress: Arc<Progress>,
) -> Result<BegunImage, TransferError> {
    let mut incoming = take(arrival, job, patience).await?;
    blocking(move || {
        let mut file = unnamed()?;
        run(&mut incoming, Vec::new(), Stream::new(&file, "an unnamed file in its directory for temporary files"), &progress)?;
        file.rewind()?;
        let mut header = Vec::with_capacity(mend_image::HEADER_SIZE);
        (&file).take(mend_image::HEADER_SIZE as u64).read_to_end(&mut header)?;
        file.rewind()?;
        Ok(BegunImage { image: file.into(), header, fault: None })
    })
    .await
}

/// Waits until the source says that the image is stored in this file, and gives that; the name is gone then.
///
/// # Errors
/// If nothing comes, or the file cannot be read here.
pub async fn shared(
    arrival: ExpectedTransfer,
    job: &JobIntroduction,
    patience: Duration,
    path: PathBuf,
    progress: Arc<Progress>,
) -> Result<BegunImage, TransferError> {
    let mut incoming = take(arrival, job, patience).await?;
    blocking(move || {
        let (mut word, begun) = (Vec::new(), Instant::now());
        loop {
            match (&mut incoming).take(STORED.len() as u64).read_to_end(&mut word) {
                Ok(_) if word == STORED => break,
                Ok(_) => return Err(TransferError::Closed),
                // Until the rank is stored, nothing comes.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < MAX_STORING_TIME => {}
                Err(error) => return Err(TransferError::Socket(error)),
            }
        }
        let Opened { image, header, .. } = open(&path, None, progress).map_err(|error| named(&path, "read here", &error))?;
        fs::remove_file(&path).map_err(|error| named(&path, "removed", &error))?;
        Ok(BegunImage { image, header, fault: None })
    })
    .await
}

async fn blocking(work: impl FnOnce() -> Result<BegunImage, TransferError> + Send + 'static) -> Result<BegunImage, TransferError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(TransferError::Socket(io::Error::other(error))))
}
