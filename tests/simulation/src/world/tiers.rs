//! Tiers: what the nodes keep of checkpoints in stores of their own, how they copy it, and what is asserted of that.
//!
//! What is asserted: a tier that is said to hold a checkpoint does; a restart gives a checkpoint up only if no node that takes part has a
//! copy; of checkpoints that are not, nothing is left in any store; of a job that ended well, nothing at all.

use super::World;
use crate::coming::{Coming, MILLISECOND_US, NODE_TIMEOUT_US, SECOND_US};
use crate::disk::{Image, place};
use crate::node::node_at;
use crate::stores::{ExpectedImage, file, store_of};
use mend_job::event::Event;
use mend_job::setup::{Adopted, AdoptedImage, SearchSetup};
use mend_messages::agent::{ImageId, SaveOrder, SaveTarget};
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{
    Destination, ImageLocation, ImageOrigin, ImageRef, NodeStore, TierDone, TierOrder, TierReport, TierSpec, parse_tiers,
};
use mend_node_job::event::Event as NodeEvent;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What worlds have as tiers; the first of them none but the shared directory.
const LISTS: [&str; 5] = ["memory,partner", "memory,shared", "memory,partner,shared", "local:/l,shared", "memory,local:/l@1,shared@2"];

impl World {
    pub(crate) fn draw_tiers(&mut self) {
        if self.chance(2) {
            let list = LISTS[self.draw(LISTS.len() as u64) as usize];
            self.tiers = parse_tiers(list).unwrap_or_default();
        }
    }

    /// Writes a rank's image where its order says.
    pub(crate) fn write_image(&mut self, at: usize, path: &Path, rank: Rank, (id, base): (ImageId, Option<ImageId>)) -> bool {
        let Some((number, _)) = place(path) else { return false };
        match store_of(path) {
            Some(store) => self.nodes[at].stores.write(&store, number, rank, Image { id, base, whole: true }),
            None => self.disk.write(number, rank, id, base),
        }
    }

    /// Whether a file of a chain is there, as a node sees it.
    pub(crate) fn has_file(&self, at: usize, path: &Path) -> bool {
        match (store_of(path), place(path)) {
            (Some(store), Some((number, rank))) => self.nodes[at].stores.images.contains_key(&(store, number, rank)),
            _ => self.disk.has(path),
        }
    }

    fn done(&mut self, at: usize, task: u64, result: Result<TierDone, String>) {
        self.say(at, FromDaemon::Tier(TierReport::Done { task, result }));
    }

    /// A node does what is ordered. Of a save: where it goes.
    pub(crate) fn obey_tier(&mut self, at: usize, order: TierOrder) -> Option<NodeEvent> {
        match order {
            TierOrder::Open { keep, .. } => {
                let keep: BTreeSet<u64> = keep.into_iter().collect();
                self.nodes[at].stores.keep(|_, number, _| keep.contains(&number), |_, number| keep.contains(&number));
            }
            TierOrder::Save { seq, rank, number, stores, order, .. } => {
                return Some(self.place_save(at, seq, (rank, number), stores, order));
            }
            TierOrder::Remove { place: Destination::NodeStore(store), number, ranks } => {
                let goes = |its: &NodeStore, of: u64| *its == store && of == number;
                let all = ranks.is_empty();
                self.nodes[at]
                    .stores
                    .keep(|its, of, rank| !(goes(its, of) && (all || ranks.contains(&rank))), |its, of| !(goes(its, of) && all));
                let stores = &mut self.nodes[at].stores;
                let used: BTreeSet<(NodeStore, u64)> = stores.images.keys().map(|(store, number, _)| (store.clone(), *number)).collect();
                if !all {
                    stores.places.retain(|place| place != &(store.clone(), number) || used.contains(place));
                }
            }
            TierOrder::Close => self.nodes[at].stores.close(),
            // No program here has the library.
            TierOrder::OpenPortable { .. } | TierOrder::Portable(_) => {}
            TierOrder::Receive { task, image, store, token } => {
                let spare = PathBuf::new();
                self.expect_image(at, token, ExpectedImage { task, image, store: Some(store), spare });
            }
            TierOrder::Fetch { task, image, from: ImageOrigin::Node { token }, spare, .. } => {
                let store = self.tiers.iter().find_map(|spec| spec.tier.store());
                self.expect_image(at, token, ExpectedImage { task, image, store, spare });
            }
            order => {
                let delay = self.delay() + self.draw(500 * MILLISECOND_US);
                let life = self.life;
                let until = self.now + NODE_TIMEOUT_US;
                self.plan(delay, Coming::TierWork { life, at, order: Box::new(order), until });
            }
        }
        None
    }

    fn expect_image(&mut self, at: usize, token: [u8; 16], expected: ExpectedImage) {
        self.nodes[at].images.insert(token, expected);
        let life = self.life;
        self.plan(NODE_TIMEOUT_US, Coming::NoImage { life, at, token });
    }

    /// An image that was expected did not come.
    pub(crate) fn no_image(&mut self, life: u64, at: usize, token: [u8; 16]) {
        if self.works(life, at)
            && let Some(expected) = self.nodes[at].images.remove(&token)
        {
            self.done(at, expected.task, Err("no transfer came".into()));
        }
    }

    fn works(&self, life: u64, at: usize) -> bool {
        self.nodes[at].up && self.nodes[at].connection == life && !self.nodes[at].leaving
    }

    /// Decides where a rank saves, and tells the job.
    fn place_save(&mut self, at: usize, seq: u64, (rank, number): (Rank, u64), stores: Vec<NodeStore>, mut order: SaveOrder) -> NodeEvent {
        let mut place = match &order.target {
            SaveTarget::File(path) => ImageLocation::File(path.clone()),
            SaveTarget::Descriptor | SaveTarget::Begun => ImageLocation::File(PathBuf::new()),
        };
        for store in stores {
            if self.fails(12) {
                self.say(at, FromDaemon::Tier(TierReport::PassedOver { store, why: "no room".into() }));
                continue;
            }
            self.nodes[at].stores.make_place(&store, number);
            order.target = SaveTarget::File(file(&store, number, rank));
            place = ImageLocation::NodeStore(store);
            break;
        }
        self.say(at, FromDaemon::Tier(TierReport::Placed { rank, number, place }));
        NodeEvent::Placed { seq, rank, order }
    }

    fn look_up(&self, at: usize, image: &ImageRef, from: &ImageLocation) -> Option<Image> {
        let key = |store: &NodeStore| (store.clone(), image.number, image.rank);
        let found = match from {
            ImageLocation::NodeStore(store) => self.nodes[at].stores.images.get(&key(store)),
            ImageLocation::File(_) => self.disk.image(image.number, image.rank),
        };
        found.filter(|found| found.id == image.id && found.whole).cloned()
    }

    /// A node does a longer work.
    pub(crate) fn tier_work(&mut self, life: u64, at: usize, order: TierOrder, until: u64) {
        if !self.works(life, at) {
            return;
        }
        let fails = self.fails(25);
        let missing = || Err("it is not here".to_owned());
        match order {
            TierOrder::Inventory { task } => {
                let holdings = self.nodes[at].stores.holdings();
                self.done(at, task, Ok(TierDone::Holdings(holdings)));
            }
            TierOrder::Manifest { task, .. } => {
                let result = if fails { Err("no space left".into()) } else { Ok(TierDone::Stored) };
                self.done(at, task, result);
            }
            TierOrder::Copy { task, image, from, to } => {
                let found = self.look_up(at, &image, &from).filter(|_| !fails);
                let stored = found.is_some_and(|found| match to {
                    Destination::NodeStore(store) => {
                        self.nodes[at].stores.make_place(&store, image.number);
                        self.nodes[at].stores.write(&store, image.number, image.rank, found)
                    }
                    _ => self.disk.add(image.number, image.rank, found),
                });
                self.done(at, task, if stored { Ok(TierDone::Stored) } else { missing() });
            }
            TierOrder::Fetch { task, image, from, spare, .. } => {
                let (location, path) = match from {
                    ImageOrigin::NodeStore(store) => {
                        let path = file(&store, image.number, image.rank);
                        (ImageLocation::NodeStore(store), path)
                    }
                    _ => (ImageLocation::File(spare.clone()), spare),
                };
                let found = self.look_up(at, &image, &location);
                self.done(at, task, if found.is_some() { Ok(TierDone::Image(path)) } else { missing() });
            }
            TierOrder::Send { image, from, address, token, hurry } => {
                let to = node_at(address);
                if self.works(life, to) && !self.nodes[to].images.contains_key(&token) && self.now < until {
                    // A stream may be there before the order to expect it.
                    let order = Box::new(TierOrder::Send { image, from, address, token, hurry });
                    return self.plan(100 * MILLISECOND_US, Coming::TierWork { life, at, order, until });
                }
                let found = self.look_up(at, &image, &from).filter(|_| hurry || !fails);
                if self.works(life, to)
                    && let Some(expected) = self.nodes[to].images.remove(&token)
                {
                    self.take_image(to, expected, found);
                }
            }
            _ => {}
        }
    }

    /// An image comes from another node, or the connection ends without it.
    fn take_image(&mut self, at: usize, expected: ExpectedImage, found: Option<Image>) {
        let ExpectedImage { task, image, store, spare } = expected;
        let Some(found) = found else { return self.done(at, task, Err("the connection ended".into())) };
        let done = match store {
            Some(store) => {
                let path = file(&store, image.number, image.rank);
                self.nodes[at].stores.make_place(&store, image.number);
                self.nodes[at].stores.write(&store, image.number, image.rank, found).then_some(path)
            }
            None => self.disk.add(image.number, image.rank, found).then_some(spare.clone()),
        };
        let done = match (done, spare.as_os_str().is_empty()) {
            (Some(_), true) => Ok(TierDone::Stored),
            (Some(path), false) => Ok(TierDone::Image(path)),
            (None, _) => Err("no space left".into()),
        };
        self.done(at, task, done);
    }

    /// Has a node store a manifest.
    pub(crate) fn store_manifest(&mut self, task: u64, number: u64, node: NodeIndex, to: Destination) {
        if self.disk.publication(number).is_none() {
            return self.later(Event::ManifestUnreadable { task, why: "it is gone".into() });
        }
        let (at, life) = (self.hosts[node as usize], self.life);
        let message = ToDaemon::Tier(Box::new(TierOrder::Manifest { task, number, to, text: Vec::new() }));
        if let Some(retold) = self.retold.as_mut().filter(|retold| retold.log.is_some()) {
            retold.order(node, &message);
        }
        self.send(at, false, Coming::ToNode { life, at, message });
    }

    /// The images that a restart of a rank from a checkpoint reads, newest first.
    fn lineage(&self, number: u64, rank: Rank) -> Vec<ImageRef> {
        let (mut found, mut next) = (Vec::new(), Some(number));
        while let Some(number) = next {
            let Some(entry) = self.disk.publication(number).and_then(|one| one.images.get(rank as usize)) else { break };
            found.push(ImageRef { number, rank, bytes: entry.bytes, checksum: entry.checksum, id: entry.id });
            next = entry.base.filter(|base| *base < number);
        }
        found
    }

    /// What the machine is told of older checkpoints.
    pub(crate) fn adopted(&self) -> Vec<Adopted> {
        let adopt = |number: u64| {
            let (publication, (_, hosts)) = (self.disk.publication(number)?, self.manifests.get(&number)?);
            let image = |entry: &mend_job::event::PublishedImage| AdoptedImage {
                image: ImageRef { number, rank: entry.rank, bytes: entry.bytes, checksum: entry.checksum, id: entry.id },
                host: hosts.get(entry.rank as usize).cloned().unwrap_or_default(),
                base: entry.base,
                shared: self.disk.image(number, entry.rank).is_some(),
            };
            let images = publication.images.iter().map(image).collect();
            Some(Adopted { number, periodic: publication.periodic, images, objects: Vec::new() })
        };
        self.disk.numbers().into_iter().filter_map(adopt).collect()
    }

    /// Where a restart looks for its images.
    pub(crate) fn search(&self, number: u64, check: bool) -> SearchSetup {
        let lineage: Vec<Vec<ImageRef>> = (0..self.size).map(|rank| self.lineage(number, rank)).collect();
        let shared = lineage.iter().flatten().filter(|image| self.disk.image(image.number, image.rank).is_some());
        let shared = shared.map(|image| ((image.number, image.rank), image.bytes)).collect();
        SearchSetup { specs: self.tiers.clone(), rate: 0, lineage, shared, check }
    }

    /// A tier is said to hold the whole checkpoint.
    pub(crate) fn check_tiers(&self, number: u64, complete: &[String]) -> Result<(), String> {
        // What a node had that is lost is not said to be there for long.
        let stable = self.hosts.iter().all(|&at| self.nodes[at].up && !self.nodes[at].cut && !self.nodes[at].leaving);
        if !stable || self.disk.publication(number).is_none() || self.removed_unknown.contains(&number) {
            return Ok(());
        }
        let held = |spec: &TierSpec, image: &ImageRef| match spec.tier.store() {
            Some(store) => self.hosts.iter().any(|&at| {
                let found = self.nodes[at].stores.images.get(&(store.clone(), image.number, image.rank));
                found.is_some_and(|found| found.id == image.id)
            }),
            None => self.disk.image(image.number, image.rank).is_some_and(|found| found.id == image.id),
        };
        for spec in self.tiers.iter().filter(|spec| complete.contains(&spec.tier.to_string())) {
            let images = (0..self.size).flat_map(|rank| self.lineage(number, rank));
            if let Some(image) = images.into_iter().find(|image| !held(spec, image)) {
                return Err(format!("{} is said to hold checkpoint {number}, and lacks {image:?}", spec.tier));
            }
        }
        Ok(())
    }

    /// Nodes let go of whole checkpoints only if those are no more, or a controller that lost its power has forgotten that they were published.
    pub(crate) fn check_removal(&self, message: &ToDaemon) -> Result<(), String> {
        match message {
            ToDaemon::Tier(order) if self.summary.power_losses == 0 => match &**order {
                TierOrder::Remove { number, ranks, .. } if ranks.is_empty() && self.disk.publication(*number).is_some() => {
                    Err(format!("checkpoint {number} is there, and nodes are to remove all that they have of it"))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// All that a restart reads of a checkpoint is in the shared directory.
    pub(crate) fn outlives_nodes(&self, number: u64) -> bool {
        let shared = |image: ImageRef| self.disk.image(image.number, image.rank).is_some_and(|found| found.id == image.id);
        (0..self.size).flat_map(|rank| self.lineage(number, rank)).all(shared)
    }

    /// A restart gave a checkpoint up for want of this image.
    pub(crate) fn check_no_copy(&self, image: &ImageRef) -> Result<(), String> {
        if self.reasons.contains("a node was lost") {
            return Ok(());
        }
        let holder = self.hosts.iter().find(|&&at| self.nodes[at].stores.find(image.number, image.rank, image.id).is_some());
        match (holder, self.disk.image(image.number, image.rank)) {
            (Some(at), _) => Err(format!("a restart finds no copy of {image:?}, and node {at} has one")),
            (None, Some(found)) if found.id == image.id => Err(format!("a restart finds no copy of {image:?} in the shared directory")),
            _ => Ok(()),
        }
    }

    /// It was said that a job which lost a node can go on from this checkpoint.
    pub(crate) fn check_left(&self, number: u64) -> Result<(), String> {
        let gone = self.hosts.iter().filter(|&&at| !self.nodes[at].up || self.nodes[at].cut).count();
        if gone > 1 || self.tiers.is_empty() || self.vanished.is_some() || self.removed_unknown.contains(&number) {
            // Of another node that was lost the job has not heard yet.
            return Ok(());
        }
        let left = |image: &ImageRef| {
            let live = |&&at: &&usize| self.nodes[at].up && !self.nodes[at].cut;
            let kept = self.hosts.iter().filter(live).any(|&at| self.nodes[at].stores.find(image.number, image.rank, image.id).is_some());
            kept || self.disk.image(image.number, image.rank).is_some_and(|found| found.id == image.id)
        };
        match (0..self.size).flat_map(|rank| self.lineage(number, rank)).find(|image| !left(image)) {
            Some(image) => Err(format!("the job is said to go on from checkpoint {number}, and {image:?} is nowhere")),
            None => Ok(()),
        }
    }

    /// When nothing is under way: what is in the stores belongs to a checkpoint.
    pub(crate) fn look_at_stores(&self) -> Result<(), String> {
        // What a user removed is noticed when the checkpoints are looked at.
        if self.vanished.is_some_and(|vanished| self.now < vanished + 10 * SECOND_US) {
            return Ok(());
        }
        let numbers = self.disk.numbers();
        for &at in self.hosts.iter().filter(|&&at| self.nodes[at].up && self.nodes[at].connection == self.life && !self.nodes[at].cut) {
            if let Some(number) = self.nodes[at].stores.numbers().iter().find(|number| !numbers.contains(number)) {
                return Err(format!("what node {at} has of checkpoint {number}, which there is not, is left behind"));
            }
        }
        Ok(())
    }

    /// A job ended well.
    pub(crate) fn check_closed(&self) -> Result<(), String> {
        let left = |&&at: &&usize| self.nodes[at].up && !self.nodes[at].cut && !self.nodes[at].stores.numbers().is_empty();
        match self.hosts.iter().find(left) {
            Some(at) if !self.tiers.is_empty() && !self.reasons.contains("a node was lost") => {
                Err(format!("the job ended well, and node {at} keeps something of it"))
            }
            _ => Ok(()),
        }
    }
}
