//! What is known of a job's tiers: where ranks save, which copies there are, which tasks daemons work on.

use crate::event::{Publication, PublishedImage};
use crate::search::Holdings;
use crate::setup::{Adopted, AdoptedImage, TierSetup};
use mend_coordination::portable::Copies;
use mend_coordination::replication::{Action, Published, Replication};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{Destination, ImageLocation, ImageRef, NodeStore, Tier, TierSpec};
use mend_policy::stagger::{Failures, KnownTier, Reach, Stagger, differs, stagger};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// FreeSpace that is asked for where nothing is known of a rank's size, bytes.
const ASSUMED_IMAGE_BYTES: u64 = 64 << 20;

/// The tiers of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tiering {
    pub(crate) specs: Vec<TierSpec>,
    pub(crate) rate: u64,
    pub(crate) machine: Replication,
    /// Files of portable checkpoints.
    pub(crate) portable: Copies,
    /// What each rank's image may take, as its agent said.
    sizes: BTreeMap<Rank, u64>,
    pub(crate) placed: BTreeMap<Rank, ImageLocation>,
    /// Tasks that daemons work on, with the machine's own numbers.
    pub(crate) tasks: BTreeMap<u64, u64>,
    next_task: u64,
    /// What the user was told once, and is not told again.
    pub(crate) told: BTreeSet<(NodeIndex, NodeStore)>,
    pub(crate) told_of_tiers: BTreeSet<String>,
    pub(crate) told_of_portable: BTreeSet<String>,
    wide_percent: u32,
    /// When the checkpoints were published whose copies are not measured yet, microseconds.
    published_us: BTreeMap<u64, u64>,
    /// How long it takes to copy one to each tier, seconds.
    copy_s: Vec<Option<f64>>,
}

/// How many of them are remembered.
const MAX_MEASURED: usize = 256;
/// Weight of the newest measurement.
const NEWEST_WEIGHT: f64 = 0.5;

fn reach(tier: &Tier) -> Reach {
    match tier {
        Tier::Memory | Tier::Local(_) => Reach::Processes,
        Tier::Partner => Reach::OneNode,
        Tier::Shared | Tier::Object(_) => Reach::AnyNodes,
    }
}

/// Node stores of these tiers, each once, nearest first.
pub(crate) fn stores<'a>(specs: impl IntoIterator<Item = &'a TierSpec>) -> Vec<NodeStore> {
    let mut found: Vec<NodeStore> = Vec::new();
    for store in specs.into_iter().filter_map(|spec| spec.tier.store()) {
        if !found.contains(&store) {
            found.push(store);
        }
    }
    found
}

/// Address of one object of a checkpoint.
pub(crate) fn object_address(base: &str, job: &str, number: u64, name: &str) -> String {
    format!("{base}/{job}/{number}/{name}")
}

impl Tiering {
    /// `keep`: periodic checkpoints in tiers that were told no number.
    pub(crate) fn new(setup: &TierSetup, nodes: u32, identity: [u8; 16], keep: Option<u32>) -> Self {
        let (seed, _) = identity.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let machine = Replication::new(setup.specs.clone(), 0..nodes, keep, u64::from_le_bytes(*seed), setup.writers);
        let (sizes, placed, tasks) = Default::default();
        let (told, told_of_tiers, told_of_portable) = Default::default();
        Self {
            specs: setup.specs.clone(),
            rate: setup.rate,
            machine,
            portable: Copies::new(setup.writers),
            sizes,
            placed,
            tasks,
            next_task: 0,
            told,
            told_of_tiers,
            told_of_portable,
            wide_percent: setup.wide_percent,
            published_us: BTreeMap::new(),
            copy_s: vec![None; setup.specs.len()],
        }
    }

    /// A tier holds the whole checkpoint.
    pub(crate) fn measure(&mut self, number: u64, tier: usize, now_us: u64) {
        let Some(published_us) = self.published_us.get(&number) else { return };
        let (Some(copy_s), taken_us) = (self.copy_s.get_mut(tier), now_us.saturating_sub(*published_us)) else { return };
        // One that ranks have written there is no copy.
        if taken_us > 0 {
            let found_s = taken_us as f64 / 1e6;
            *copy_s = Some(copy_s.map_or(found_s, |known| known + NEWEST_WEIGHT * (found_s - known)));
        }
    }

    /// Which checkpoints are copied where from now on, if that has changed: for each tier, how long a copy takes and what was decided. `interval_s`, above 0: from one
    /// checkpoint to the next; `mtbf_s`: from one failure to the next.
    pub(crate) fn stagger(&mut self, interval_s: f64, mtbf_s: f64) -> Option<Vec<(Option<f64>, Stagger)>> {
        let known = |(spec, copy_s): (&TierSpec, &Option<f64>)| KnownTier { reach: reach(&spec.tier), copy_s: *copy_s };
        let tiers: Vec<KnownTier> = self.specs.iter().zip(&self.copy_s).map(known).collect();
        let found = stagger(&tiers, interval_s, Failures { mtbf_s, wide_percent: self.wide_percent });
        let every: Vec<u32> = found.iter().map(|one| one.every).collect();
        if !self.machine.staggered().iter().zip(&every).any(|(known, found)| differs(*known, *found)) {
            return None;
        }
        self.machine.stagger(&every);
        Some(self.copy_s.iter().copied().zip(found).collect())
    }

    pub(crate) fn task(&mut self, of_machine: u64) -> u64 {
        self.next_task += 1;
        self.tasks.insert(self.next_task, of_machine);
        self.next_task
    }

    /// Node stores on which a rank may save; none: it saves in the shared directory.
    fn first_stores(&self) -> Vec<NodeStore> {
        let before = self.specs.iter().take_while(|spec| spec.tier != Tier::Shared).filter(|spec| spec.tier != Tier::Partner);
        before.filter_map(|spec| spec.tier.store()).collect()
    }

    pub(crate) fn index(&self, wanted: impl Fn(&Tier) -> bool) -> Option<usize> {
        self.specs.iter().position(|spec| wanted(&spec.tier))
    }

    /// Where a store's or a file's copy counts: the tier's index, and the node.
    fn site(&self, place: &ImageLocation, node: NodeIndex) -> Option<(usize, Option<NodeIndex>)> {
        match place {
            ImageLocation::NodeStore(NodeStore::Memory) => Some((self.index(|tier| *tier == Tier::Memory)?, Some(node))),
            ImageLocation::NodeStore(NodeStore::Directory(path)) => {
                Some((self.index(|tier| matches!(tier, Tier::Local(own) if own == path))?, Some(node)))
            }
            ImageLocation::File(_) => Some(self.directory()),
        }
    }

    /// Where a copy in the checkpoint directory counts.
    fn directory(&self) -> (usize, Option<NodeIndex>) {
        (self.index(|tier| *tier == Tier::Shared).unwrap_or(self.machine.beside()), None)
    }

    /// A restart has brought images to the checkpoint directory.
    pub(crate) fn brought(&mut self, images: impl Iterator<Item = (u64, Rank)>) {
        let site = self.directory();
        images.for_each(|(number, rank)| self.machine.brought(number, rank, site));
    }

    /// Takes note of what an agent said a full image may take.
    pub(crate) fn expect_size(&mut self, rank: Rank, bytes: u64) {
        self.sizes.insert(rank, bytes);
    }

    /// A rank is to be saved: stores for its image, and how much room it takes. `None`: it saves in the shared directory.
    pub(crate) fn save(&mut self, rank: Rank) -> Option<(Vec<NodeStore>, u64)> {
        self.placed.remove(&rank);
        let stores = self.first_stores();
        (!stores.is_empty()).then(|| (stores, self.sizes.get(&rank).copied().unwrap_or(ASSUMED_IMAGE_BYTES)))
    }

    /// Where a file of a checkpoint goes in a tier; `file`: where it is in the shared directory.
    pub(crate) fn destination(&self, tier: usize, job: &str, number: u64, name: &str, file: PathBuf) -> Destination {
        match &self.specs[tier].tier {
            Tier::Object(base) => Destination::Object(object_address(base, job, number, name)),
            tier => tier.store().map_or(Destination::File(file), Destination::NodeStore),
        }
    }

    /// A checkpoint is published: its copies follow.
    pub(crate) fn published(&mut self, publication: &Publication, now_us: u64) -> Vec<Action> {
        let placed = std::mem::take(&mut self.placed);
        let number = publication.number;
        self.published_us.insert(number, now_us);
        if self.published_us.len() > MAX_MEASURED {
            self.published_us.pop_first();
        }
        let image = |image: &PublishedImage| {
            let place = placed.get(&image.rank).cloned().unwrap_or(ImageLocation::File(PathBuf::new()));
            let site = self.site(&place, image.node);
            let reference = ImageRef { number, rank: image.rank, bytes: image.bytes, checksum: image.checksum, id: image.id };
            Published { image: reference, base: image.base, sites: site.into_iter().collect() }
        };
        let images = publication.images.iter().map(image).collect();
        self.machine.published(number, publication.periodic, images)
    }

    /// Checkpoints that were there before, with what the nodes have of them. `origin`: the one that the job was restarted from; `abandoned`: which are given up. Tasks
    /// are numbered from `first_task`.
    pub(crate) fn adopt(
        &mut self,
        adopted: Vec<Adopted>,
        (origin, abandoned): (Option<u64>, &[(u64, u64)]),
        hosts: &[&str],
        holdings: &Holdings,
        first_task: u64,
    ) {
        self.machine.restarted(origin, abandoned);
        self.next_task = self.next_task.max(first_task);
        for checkpoint in adopted {
            let image = |entry: AdoptedImage| {
                let sites = self.sites(&entry, checkpoint.number, hosts, holdings);
                Published { image: entry.image, base: entry.base, sites }
            };
            let images = checkpoint.images.into_iter().map(image).collect();
            let whole: Vec<usize> = checkpoint.objects.iter().filter_map(|object| self.index(|tier| tier == object)).collect();
            self.machine.adopt(checkpoint.number, checkpoint.periodic, images, &whole);
        }
    }

    /// Where there are copies of an image.
    fn sites(&self, entry: &AdoptedImage, number: u64, hosts: &[&str], holdings: &Holdings) -> Vec<(usize, Option<NodeIndex>)> {
        let mut sites = Vec::new();
        for (&node, holdings) in holdings {
            for holding in holdings.iter().filter(|holding| holding.number == number) {
                if !holding.images.contains(&(entry.image.rank, entry.image.bytes)) {
                    continue;
                }
                let own = hosts.get(node as usize) == Some(&entry.host.as_str());
                let partner = self.index(|tier| *tier == Tier::Partner).filter(|_| !own && holding.store == NodeStore::Memory);
                let site = partner.map(|tier| (tier, Some(node)));
                sites.extend(site.or_else(|| self.site(&ImageLocation::NodeStore(holding.store.clone()), node)));
            }
        }
        if entry.shared {
            sites.extend(self.site(&ImageLocation::File(PathBuf::new()), 0));
        }
        sites
    }
}
