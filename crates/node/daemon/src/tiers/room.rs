//! Room in this node's stores for images that are on their way, of all jobs here: what one is to take is not there for another, from when its place is
//! chosen until it is written.
//!
//! Nothing is set aside in the file system: that takes time in which nobody reads from the sender, who would be taken for lost.

use super::SPACE_MARGIN_BYTES;
use mend_messages::tier::{ImageRef, NodeStore};
use mend_report::with_causes;
use mend_transfer::TransferError;
use mend_transfer::atomic_file::AtomicFile;
use mend_transfer::image::Mover;
use mend_transfer::node_store::OpenNodeStore;
use mend_transfer::pipeline::{Source, Target};
use mend_transfer::stage::Expected;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What images are still to take in each store, bytes.
#[derive(Clone, Debug, Default)]
pub struct Promises(Arc<Mutex<HashMap<NodeStore, u64>>>);

/// Room for what is not written yet of one image.
#[derive(Debug)]
pub struct Promise {
    all: Promises,
    store: NodeStore,
    bytes: u64,
}

/// Where an image goes.
#[derive(Debug)]
pub struct ImageDestination {
    path: PathBuf,
    promise: Option<Promise>,
    /// Where it goes if it cannot be there after all.
    spare: Option<PathBuf>,
}

/// Its file, for which less is promised with each byte that is written. The file goes first, its room after it.
#[derive(Debug)]
struct Taking {
    file: AtomicFile,
    promise: Option<Promise>,
}

impl Promises {
    fn all(&self) -> MutexGuard<'_, HashMap<NodeStore, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for so many bytes, if a store has it left.
    pub fn promise(&self, open: &OpenNodeStore, bytes: u64) -> io::Result<Promise> {
        let (room, store) = (open.room()?, open.store.clone());
        let mut all = self.all();
        let promised = all.entry(store.clone()).or_default();
        let (left, wanted) = (room.saturating_sub(*promised), bytes.saturating_add(SPACE_MARGIN_BYTES));
        if left < wanted {
            return Err(io::Error::other(format!("it has room for {left} bytes, {wanted} are wanted")));
        }
        *promised = promised.saturating_add(bytes);
        Ok(Promise { all: self.clone(), store, bytes })
    }

    /// A place for an image in a store that has room for it.
    pub fn place(&self, open: &OpenNodeStore, image: &ImageRef) -> io::Result<ImageDestination> {
        let promise = self.promise(open, image.bytes)?;
        open.prepare(image.number)?;
        Ok(ImageDestination { path: open.image(image.number, image.rank), promise: Some(promise), spare: None })
    }
}

impl Promise {
    /// So much of it is written: the file system knows of that.
    fn lower(&mut self, written: u64) {
        let written = written.min(self.bytes);
        self.bytes -= written;
        if let Some(promised) = self.all.all().get_mut(&self.store) {
            *promised = promised.saturating_sub(written);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.lower(self.bytes);
    }
}

impl Target for Taking {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.file.write(bytes)?;
        if let Some(promise) = &mut self.promise {
            promise.lower(bytes.len() as u64);
        }
        Ok(())
    }

    fn commit(self) -> Result<u64, TransferError> {
        self.file.commit()
    }
}

impl ImageDestination {
    /// A file outside of all stores.
    pub fn outside(path: PathBuf) -> Self {
        Self { path, promise: None, spare: None }
    }

    /// The same with a file outside for the case that it cannot be there after all.
    pub fn or(self, spare: PathBuf) -> Self {
        Self { spare: Some(spare), ..self }
    }

    /// Puts an image there. The file.
    pub fn take(self, source: &mut dyn Source, expected: &Expected, mover: &Mover) -> Result<PathBuf, TransferError> {
        let target = self.begin()?;
        let path = target.file.place().to_owned();
        mover.into_target(source, expected, target)?;
        Ok(path)
    }

    /// Makes the file in this place; in the spare one if it cannot be made here.
    fn begin(self) -> Result<Taking, TransferError> {
        let Self { path, promise, spare } = self;
        let begun = |path: PathBuf, promise| {
            let place = path.display().to_string();
            match AtomicFile::new(path) {
                Ok(file) => Ok(Taking { file, promise }),
                Err(source) => Err(TransferError::Target { place, source }),
            }
        };
        begun(path, promise).or_else(|error| {
            let Some(spare) = spare else { return Err(error) };
            tracing::info!(error = with_causes(&error), "an image goes to the checkpoint directory");
            begun(spare, None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn image(number: u64, bytes: u64) -> ImageRef {
        ImageRef { number, rank: 0, bytes, checksum: 0, id: Default::default() }
    }

    #[test]
    fn what_one_image_is_to_take_is_not_there_for_another() {
        let directory = tempfile::tempdir().unwrap();
        let open = OpenNodeStore::open(NodeStore::Directory(directory.path().to_owned()), "n", &[1; 16]).unwrap();
        let promises = Promises::default();
        let most = open.room().unwrap() / 3 * 2;
        let first = promises.place(&open, &image(1, most)).unwrap();
        let refused = promises.place(&open, &image(2, most)).unwrap_err().to_string();
        assert!(refused.starts_with("it has room for "), "{refused}");
        drop(first);
        promises.place(&open, &image(2, most)).unwrap();
        assert_eq!(promises.all()[&open.store], 0);
    }

    #[test]
    fn what_is_written_counts_in_the_file_system_alone() {
        let directory = tempfile::tempdir().unwrap();
        let open = OpenNodeStore::open(NodeStore::Directory(directory.path().to_owned()), "n", &[1; 16]).unwrap();
        let promises = Promises::default();
        let promised = || promises.all()[&open.store];
        let place = || promises.place(&open, &image(1, 3 << 20)).unwrap();
        let mut target = place().begin().unwrap();
        // The sender is not kept waiting for all of it.
        assert_eq!((target.file.file.metadata().unwrap().blocks(), promised()), (0, 3 << 20));
        target.write(&[1; 1 << 20]).unwrap();
        assert_eq!(promised(), 2 << 20);
        drop(target);
        assert_eq!(promised(), 0);
        let mut target = place().begin().unwrap();
        // A sender that says too much takes nothing of others.
        let other = place();
        target.write(&[1; 4 << 20]).unwrap();
        assert_eq!(promised(), 3 << 20);
        assert_eq!(target.commit().unwrap(), 4 << 20);
        assert_eq!(promised(), 3 << 20);
        drop(other);
        assert_eq!(promised(), 0);
    }

    #[test]
    fn an_image_that_cannot_be_in_the_store_after_all_goes_to_the_spare_place() {
        let directory = tempfile::tempdir().unwrap();
        let open = OpenNodeStore::open(NodeStore::Directory(directory.path().to_owned()), "n", &[1; 16]).unwrap();
        let (promises, spare) = (Promises::default(), directory.path().join("spare"));
        let place = || promises.place(&open, &image(1, 1)).unwrap();
        assert_eq!(place().or(spare.clone()).begin().unwrap().file.place(), open.image(1, 0));
        // Its directory is removed meanwhile.
        let gone = || {
            let place = place();
            std::fs::remove_dir(open.image(1, 0).parent().unwrap()).unwrap();
            place
        };
        assert_eq!(gone().or(spare.clone()).begin().unwrap().file.place(), spare);
        assert!(matches!(gone().begin(), Err(TransferError::Target { .. })));
        assert!(promises.all().values().all(|left| *left == 0));
    }
}
