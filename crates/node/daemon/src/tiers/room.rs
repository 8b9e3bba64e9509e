//! Room in this node's stores for images that are on their way: what one is to take is not there for another, from when its place is chosen to when its file has it.

use super::SPACE_MARGIN_BYTES;
use mend_messages::tier::{ImageRef, NodeStore};
use mend_report::with_causes;
use mend_transfer::TransferError;
use mend_transfer::atomic_file::AtomicFile;
use mend_transfer::image::Mover;
use mend_transfer::node_store::OpenNodeStore;
use mend_transfer::pipeline::Source;
use mend_transfer::stage::Expected;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What images are to take in each store, bytes.
#[derive(Clone, Debug, Default)]
pub struct Promises(Arc<Mutex<HashMap<NodeStore, u64>>>);

/// Room for one image, until it is dropped.
#[derive(Debug)]
struct Promise {
    all: Promises,
    store: NodeStore,
    bytes: u64,
}

/// Where an image goes.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    promise: Option<Promise>,
    /// Where it goes if there is no room after all.
    spare: Option<PathBuf>,
}

impl Promises {
    fn all(&self) -> MutexGuard<'_, HashMap<NodeStore, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that a store has left for others.
    pub fn left(&self, open: &OpenNodeStore) -> io::Result<u64> {
        let promised = self.all().get(&open.store).copied().unwrap_or(0);
        Ok(open.room()?.saturating_sub(promised))
    }

    /// A place for an image in a store that has room for it.
    pub fn place(&self, open: &OpenNodeStore, image: &ImageRef) -> io::Result<Place> {
        let left = self.left(open)?;
        if left < image.bytes.saturating_add(SPACE_MARGIN_BYTES) {
            return Err(io::Error::other(format!("there is room for {left} bytes only")));
        }
        open.prepare(image.number)?;
        let (store, bytes) = (open.store.clone(), image.bytes);
        *self.all().entry(store.clone()).or_default() += bytes;
        let promise = Promise { all: self.clone(), store, bytes };
        Ok(Place { path: open.image(image.number, image.rank), promise: Some(promise), spare: None })
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(promised) = self.all.all().get_mut(&self.store) {
            *promised = promised.saturating_sub(self.bytes);
        }
    }
}

impl Place {
    /// A file outside of all stores.
    pub fn outside(path: PathBuf) -> Self {
        Self { path, promise: None, spare: None }
    }

    /// The same with a file outside for the case that there is no room after all.
    pub fn or(self, spare: PathBuf) -> Self {
        Self { spare: Some(spare), ..self }
    }

    /// Puts an image there. The file.
    pub fn take(self, source: &mut dyn Source, expected: &Expected, mover: &Mover) -> Result<PathBuf, TransferError> {
        let (target, _promise) = self.begin(expected.image.bytes)?;
        let path = target.place().to_owned();
        mover.into_target(source, expected, target)?;
        Ok(path)
    }

    /// Its file, and what is still promised.
    fn begin(self, bytes: u64) -> Result<(AtomicFile, Option<Promise>), TransferError> {
        let Self { path, promise, spare } = self;
        let failed = |path: &PathBuf| {
            let place = path.display().to_string();
            move |source| TransferError::Target { place, source }
        };
        if promise.is_none() {
            return Ok((AtomicFile::new(path.clone()).map_err(failed(&path))?, None));
        }
        let begun = AtomicFile::new(path.clone()).and_then(|target| Ok((target.reserve(bytes)?, target)));
        match (begun, spare) {
            // The file system knows of it now.
            (Ok((true, target)), _) => Ok((target, None)),
            (Ok((false, target)), _) => Ok((target, promise)),
            (Err(error), Some(spare)) => {
                tracing::info!(path = %path.display(), error = with_causes(&error), "an image goes to the checkpoint directory: there is no room for it here");
                Ok((AtomicFile::new(spare.clone()).map_err(failed(&spare))?, None))
            }
            (Err(error), None) => Err(failed(&path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(refused.starts_with("there is room for "), "{refused}");
        drop(first);
        let second = promises.place(&open, &image(2, most)).unwrap();
        // As soon as its file has the room, it counts in the file system alone.
        let (target, left) = second.begin(1 << 20).unwrap();
        if left.is_none() {
            assert_eq!(promises.all()[&open.store], 0);
        }
        drop((target, left));
        assert_eq!(promises.all()[&open.store], 0);
    }

    #[test]
    fn an_image_for_which_there_is_no_room_after_all_goes_to_the_spare_place() {
        let directory = tempfile::tempdir().unwrap();
        let open = OpenNodeStore::open(NodeStore::Directory(directory.path().to_owned()), "n", &[1; 16]).unwrap();
        let (promises, spare) = (Promises::default(), directory.path().join("spare"));
        let place = || promises.place(&open, &image(1, 1)).unwrap();
        let (target, _) = place().or(spare.clone()).begin(1).unwrap();
        assert_eq!(target.place(), open.image(1, 0));
        // Others took it meanwhile.
        std::fs::remove_dir(open.image(1, 0).parent().unwrap()).unwrap_err();
        drop(target);
        let taken = place().or(spare.clone());
        std::fs::remove_dir(open.image(1, 0).parent().unwrap()).unwrap();
        assert_eq!(taken.begin(1).unwrap().0.place(), spare);
        let full = place().or(spare.clone()).begin(u64::MAX >> 2);
        assert_eq!(full.unwrap().0.place(), spare);
        assert!(matches!(place().begin(u64::MAX >> 2), Err(TransferError::Target { .. })));
        assert!(promises.all().values().all(|left| *left == 0));
    }
}
