//! The checkpoint directory that all nodes see.
//!
//! Invariant: what is published and whole stays so until the job has it removed, or a user does.

use mend_job::event::{Publication, PublishedImage};
use mend_messages::agent::ImageId;
use mend_messages::job::Rank;
use mend_policy::retention::{Bounds, KnownCheckpoint, builders, superseded};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// An image as its writer left it.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Its name.
    pub id: ImageId,
    /// The image that it builds on.
    pub base: Option<ImageId>,
    /// Every byte of it is there.
    pub whole: bool,
}

#[derive(Clone, Debug)]
struct Checkpoint {
    publication: Publication,
    images: BTreeMap<Rank, Image>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Disk {
    published: BTreeMap<u64, Checkpoint>,
    parts: BTreeMap<u64, BTreeMap<Rank, Image>>,
    /// Images that became bad, which only those see who read them.
    rotten: BTreeSet<(u64, Rank)>,
    /// Nothing can be written.
    pub full: bool,
}

impl Disk {
    /// Numbers of the published checkpoints, ascending.
    pub fn numbers(&self) -> Vec<u64> {
        self.published.keys().copied().collect()
    }

    /// Numbers of those that were begun.
    pub fn unfinished(&self) -> Vec<u64> {
        self.parts.keys().copied().collect()
    }

    /// Makes the directory of a new one.
    pub fn prepare(&mut self, number: u64) -> bool {
        if !self.full {
            self.parts.insert(number, BTreeMap::new());
        }
        !self.full
    }

    /// Whether these are the images of a published checkpoint, wherever they are.
    pub fn is_of(&self, number: u64, ids: &[ImageId]) -> bool {
        let same = |publication: &Publication| publication.images.iter().map(|image| image.id).eq(ids.iter().copied());
        self.publication(number).is_some_and(same)
    }

    /// Writes an image, or what fits of it.
    pub fn write(&mut self, number: u64, rank: Rank, id: ImageId, base: Option<ImageId>) -> bool {
        let whole = !self.full;
        if let Some(part) = self.parts.get_mut(&number) {
            part.insert(rank, Image { id, base, whole });
        }
        whole
    }

    /// An image of a published checkpoint that is in this directory.
    pub fn image(&self, number: u64, rank: Rank) -> Option<&Image> {
        self.published.get(&number)?.images.get(&rank)
    }

    /// A copy of an image of a published checkpoint is put here.
    pub fn add(&mut self, number: u64, rank: Rank, image: Image) -> bool {
        let Some(checkpoint) = self.published.get_mut(&number).filter(|_| !self.full) else { return false };
        checkpoint.images.insert(rank, image);
        true
    }

    /// Removes images, and leaves what says that they were there.
    pub fn remove_images(&mut self, number: u64, ranks: &[Rank]) {
        if let Some(checkpoint) = self.published.get_mut(&number) {
            checkpoint.images.retain(|rank, _| !ranks.contains(rank));
        }
    }

    /// Removes a checkpoint of which no image is here. False if there is one.
    pub fn remove_if_empty(&mut self, number: u64) -> bool {
        let empty = self.published.get(&number).is_none_or(|checkpoint| checkpoint.images.is_empty());
        if empty {
            self.published.remove(&number);
        }
        empty
    }

    /// Publishes. What the manifest says of an image is not compared with the image: that the job does so is to be found out.
    pub fn publish(&mut self, publication: &Publication) -> bool {
        let orphan = |image: &Image, base: Option<u64>| image.base.is_some() != base.is_some();
        let Some(images) = self.parts.get(&publication.number).filter(|_| !self.full) else { return false };
        if publication.images.iter().any(|entry| images.get(&entry.rank).is_some_and(|image| orphan(image, entry.base))) {
            return false;
        }
        let images = self.parts.remove(&publication.number).unwrap_or_default();
        self.rotten.retain(|(number, _)| *number != publication.number);
        self.published.insert(publication.number, Checkpoint { publication: publication.clone(), images });
        true
    }

    /// Whether all images are there that are to be published.
    pub fn has_parts(&self, publication: &Publication) -> bool {
        let there = |entry: &PublishedImage| {
            self.parts.get(&publication.number).and_then(|images| images.get(&entry.rank)).is_some_and(|image| image.id == entry.id)
        };
        publication.images.iter().all(there)
    }

    /// Removes what there is of an unfinished one.
    pub fn discard(&mut self, number: u64) {
        self.parts.remove(&number);
    }

    /// An image becomes bad.
    pub fn rot(&mut self, number: u64, rank: Rank) {
        self.rotten.insert((number, rank));
    }

    /// Whether a file has become bad.
    pub fn is_rotten(&self, path: &Path) -> bool {
        place(path).is_some_and(|place| self.rotten.contains(&place))
    }

    /// Whether a restart from a checkpoint finds all of it good.
    pub fn is_sound(&self, number: u64) -> bool {
        let sound = |(rank, chain): (usize, &Vec<u64>)| chain.iter().all(|&number| !self.rotten.contains(&(number, rank as Rank)));
        self.chains(number).is_some_and(|chains| chains.iter().enumerate().all(sound))
    }

    /// A user removes all.
    pub fn clear(&mut self) {
        self.published.clear();
        self.rotten.clear();
    }

    /// A user removes a checkpoint behind the job's back.
    pub fn vanish(&mut self, number: u64) {
        self.published.remove(&number);
    }

    /// Removes checkpoints, all or none.
    pub fn remove(&mut self, numbers: &[u64]) -> bool {
        let wanted: BTreeSet<u64> = numbers.iter().copied().collect();
        let known = self.known();
        let needed = |number: &u64| builders(&known, *number).iter().any(|by| !wanted.contains(by));
        if wanted.iter().any(|number| !self.published.contains_key(number) || needed(number)) {
            return false;
        }
        self.published.retain(|number, _| !wanted.contains(number));
        true
    }

    /// A round of upkeep.
    pub fn tidy(&mut self, bounds: Bounds) {
        for number in superseded(&self.known(), false, bounds) {
            self.published.remove(&number);
        }
    }

    fn known(&self) -> Vec<KnownCheckpoint> {
        let known = |(&number, checkpoint): (&u64, &Checkpoint)| KnownCheckpoint {
            number,
            periodic: checkpoint.publication.periodic,
            restorable: self.is_restorable(number),
            bases: checkpoint.publication.images.iter().filter_map(|image| image.base).collect(),
            bytes: checkpoint.publication.bytes(),
        };
        self.published.iter().map(known).collect()
    }

    /// What a checkpoint's manifest says.
    pub fn publication(&self, number: u64) -> Option<&Publication> {
        self.published.get(&number).map(|checkpoint| &checkpoint.publication)
    }

    /// For each rank the numbers of the checkpoints whose images a restart reads, newest first; `None` if one of them is not good.
    pub fn chains(&self, number: u64) -> Option<Vec<Vec<u64>>> {
        let publication = self.publication(number)?;
        publication.images.iter().map(|entry| self.chain(number, entry.rank)).collect()
    }

    fn chain(&self, number: u64, rank: Rank) -> Option<Vec<u64>> {
        let (mut chain, mut at, mut wanted) = (Vec::new(), number, None);
        loop {
            let checkpoint = self.published.get(&at)?;
            let entry = checkpoint.publication.images.get(rank as usize)?;
            let image = checkpoint.images.get(&rank).filter(|image| image.whole && image.id == entry.id)?;
            if wanted.is_some_and(|wanted| wanted != image.id) {
                return None;
            }
            chain.push(at);
            match (entry.base, image.base) {
                (None, None) => return Some(chain),
                (Some(base), Some(id)) if base < at => (at, wanted) = (base, Some(id)),
                _ => return None,
            }
        }
    }

    /// Whether a job can be restarted from a checkpoint.
    pub fn is_restorable(&self, number: u64) -> bool {
        self.chains(number).is_some()
    }

    /// Whether this file of a chain is there.
    pub fn has(&self, path: &Path) -> bool {
        place(path).is_some_and(|(number, rank)| {
            self.published.get(&number).and_then(|one| one.images.get(&rank)).is_some_and(|image| image.whole)
        })
    }
}

/// Number and rank in the path of an image, published or not.
pub fn place(path: &Path) -> Option<(u64, Rank)> {
    let directory = path.parent()?.file_name()?.to_str()?;
    let number = directory.strip_suffix(".part").unwrap_or(directory).parse().ok()?;
    let rank = path.file_name()?.to_str()?.strip_prefix("rank-")?.strip_suffix(".image")?.parse().ok()?;
    Some((number, rank))
}

pub(crate) fn no_space() -> mend_coordination::failure::Trouble {
    mend_coordination::failure::Trouble { error: "no space left".into(), hint: String::new() }
}
