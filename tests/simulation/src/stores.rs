//! What a node keeps of checkpoints, in its memory and in a directory of its own.

use crate::disk::Image;
use mend_messages::agent::ImageId;
use mend_messages::job::Rank;
use mend_messages::tier::{Holding, ImageRef, NodeStore};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What a node keeps in its stores.
#[derive(Debug, Default)]
pub struct Stores {
    /// Checkpoints for which there is a place.
    pub places: BTreeSet<(NodeStore, u64)>,
    /// Images.
    pub images: BTreeMap<(NodeStore, u64, Rank), Image>,
    /// Nothing is kept any more.
    closed: bool,
}

impl Stores {
    /// All of it goes, and what is still on its way.
    pub fn close(&mut self) {
        *self = Self { closed: true, ..Self::default() };
    }

    /// A job begins.
    pub fn open(&mut self) {
        self.closed = false;
    }

    /// Makes a place for a checkpoint.
    pub fn make_place(&mut self, store: &NodeStore, number: u64) {
        if !self.closed {
            self.places.insert((store.clone(), number));
        }
    }

    /// Its memory is gone.
    pub fn reboot(&mut self) {
        self.places.retain(|(store, _)| *store != NodeStore::Memory);
        self.images.retain(|(store, ..), _| *store != NodeStore::Memory);
    }

    /// Drops what is not good.
    pub fn keep(&mut self, good: impl Fn(&NodeStore, u64, Rank) -> bool, places: impl Fn(&NodeStore, u64) -> bool) {
        self.images.retain(|(store, number, rank), _| good(store, *number, *rank));
        self.places.retain(|(store, number)| places(store, *number));
    }

    /// Writes an image, if there is still a place for its checkpoint.
    pub fn write(&mut self, store: &NodeStore, number: u64, rank: Rank, image: Image) -> bool {
        let there = self.places.contains(&(store.clone(), number));
        if there {
            self.images.insert((store.clone(), number, rank), image);
        }
        there
    }

    /// A copy of an image.
    pub fn find(&self, number: u64, rank: Rank, id: ImageId) -> Option<(&NodeStore, &Image)> {
        let same = |((_, its, of), image): &(&(NodeStore, u64, Rank), &Image)| (*its, *of, image.id) == (number, rank, id);
        self.images.iter().find(same).map(|((store, ..), image)| (store, image))
    }

    /// Checkpoints of which there is anything.
    pub fn numbers(&self) -> BTreeSet<u64> {
        self.images.keys().map(|(_, number, _)| *number).chain(self.places.iter().map(|(_, number)| *number)).collect()
    }

    /// As a daemon tells it.
    pub fn holdings(&self) -> Vec<Holding> {
        let mut found: BTreeMap<(NodeStore, u64), Vec<(Rank, u64)>> = BTreeMap::new();
        for (store, number, rank) in self.images.keys() {
            found.entry((store.clone(), *number)).or_default().push((*rank, 10));
        }
        found.into_iter().map(|((store, number), images)| Holding { store, number, images }).collect()
    }
}

/// An image that a node expects from another one.
#[derive(Clone, Debug)]
pub struct ExpectedImage {
    /// Number of the task.
    pub task: u64,
    /// Which.
    pub image: ImageRef,
    /// Where it goes.
    pub store: Option<NodeStore>,
    /// Where it goes if there is no store.
    pub spare: PathBuf,
}

/// The file of an image in a store.
pub fn file(store: &NodeStore, number: u64, rank: Rank) -> PathBuf {
    let base = match store {
        NodeStore::Memory => Path::new("/memory"),
        NodeStore::Directory(path) => path,
    };
    base.join(number.to_string()).join(format!("rank-{rank}.image"))
}

/// The store that a file is in; `None`: the shared directory.
pub fn store_of(path: &Path) -> Option<NodeStore> {
    if path.starts_with("/memory") {
        return Some(NodeStore::Memory);
    }
    path.starts_with("/l").then(|| NodeStore::Directory("/l".into()))
}
