//! Tiers of a running job's checkpoints: where ranks save, which copies follow, what is removed. Decisions are
//! `mend_coordination::replication`'s; this carries them out.
//!
//! ```text
//! checkpoint: Save per rank ─► Placed ─► Saved … all ─► published ─► copies follow
//! ```
//! Invariants: a checkpoint is published only when every image has its name in the tier it was written to; its manifest
//! is in the checkpoint directory whichever tiers hold the images. With the default, the shared directory alone, nothing
//! of this takes part.

use crate::job::Job;
use crate::manifest::{self, Manifest, numbers};
use crate::operation::Operation;
use crate::record::write_durably;
use mend_coordination::checkpoint::image_name;
use mend_coordination::replication::{Action, Published, Replication};
use mend_journal::Event as Happened;
use mend_journal::event::Asker;
use mend_kernel::untrusted::read_within;
use mend_messages::agent::SaveOrder;
use mend_messages::daemon::ToDaemon;
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{Destination, Holding, ImageRef, Place, Shelf, Tier, TierOrder, TierReport, TierSpec};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time the image of one rank may take to be written.
const SAVE_PATIENCE: Duration = Duration::from_secs(3600);
/// Room that is asked for where nothing is known of a rank's size, bytes.
const UNKNOWN: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

/// The tiers of one job.
#[derive(Debug)]
pub struct Tiering {
    specs: Vec<TierSpec>,
    machine: Replication,
    /// What each rank's image may take, as its agent said.
    sizes: BTreeMap<Rank, u64>,
    placed: BTreeMap<Rank, Place>,
    /// Tasks that daemons work on, with the machine's own numbers.
    tasks: BTreeMap<u64, u64>,
    next_task: u64,
    told: Told,
}

/// What the user was told once, and is not told again.
#[derive(Debug, Default)]
pub struct Told(BTreeSet<String>);

impl Told {
    fn first(&mut self, what: String) -> bool {
        self.0.insert(what)
    }

    /// Says so once for each place: how much room there is differs from time to time.
    pub fn passed_over(&mut self, host: &str, shelf: Shelf, why: &str) {
        let tier = tier_of(&shelf);
        if self.first(format!("{host}: {tier}")) {
            eprintln!("mend: on {host}, what {tier} would hold goes to the next tier: {why}");
        }
    }
}

fn tier_of(shelf: &Shelf) -> Tier {
    match shelf {
        Shelf::Memory => Tier::Memory,
        Shelf::Directory(path) => Tier::Local(path.clone()),
    }
}

#[derive(Serialize, Deserialize)]
struct Held {
    complete: Vec<String>,
}

/// Names of the tiers that hold the whole checkpoint in this directory, as the job recorded it; none if nothing is on
/// record (a job with the shared directory alone keeps no record).
#[must_use]
pub fn held(directory: &Path) -> Vec<String> {
    let text = read_within(directory, Path::new("tiers.json"), 1 << 20).unwrap_or_default();
    serde_json::from_slice::<Held>(&text).map(|held| held.complete).unwrap_or_default()
}

/// True for the shared directory alone with all its checkpoints: then images lie beside the manifest, and that is all.
#[must_use]
pub fn is_plain(specs: &[TierSpec]) -> bool {
    matches!(specs, [] | [TierSpec { tier: Tier::Shared, keep: 0 }])
}

/// Shelves of these tiers, each once, nearest first.
#[must_use]
pub fn shelves(specs: &[TierSpec]) -> Vec<Shelf> {
    let mut found: Vec<Shelf> = Vec::new();
    for shelf in specs.iter().filter_map(|spec| spec.tier.shelf()) {
        if !found.contains(&shelf) {
            found.push(shelf);
        }
    }
    found
}

/// The order that opens the shelves on a node.
pub fn open_order(specs: &[TierSpec], checkpoints: &Path) -> Result<ToDaemon, mend_settings::SettingError> {
    let rate = mend_settings::TIER_RATE.number()?.saturating_mul(MIB);
    let order = TierOrder::Open { shelves: shelves(specs), keep: numbers(checkpoints), rate };
    Ok(ToDaemon::Tier(Box::new(order)))
}

/// Address of one object of a checkpoint.
pub fn object_address(base: &str, job: &str, number: u64, name: &str) -> String {
    format!("{base}/{job}/{number}/{name}")
}

impl Tiering {
    /// `None` if there is nothing to do. `keep`: periodic checkpoints in tiers that were told no number; tasks are numbered
    /// from `first_task`; `told` goes on.
    pub fn new(
        specs: Vec<TierSpec>,
        nodes: u32,
        identity: [u8; 16],
        (keep, first_task): (Option<u32>, u64),
        told: Told,
    ) -> Result<Option<Self>, mend_settings::SettingError> {
        if is_plain(&specs) {
            return Ok(None);
        }
        let writers = mend_settings::TIER_WRITERS.number()? as usize;
        let (seed, _) = identity.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let machine = Replication::new(specs.clone(), 0..nodes, keep, u64::from_le_bytes(*seed), writers);
        let (sizes, placed, tasks) = Default::default();
        Ok(Some(Self { specs, machine, sizes, placed, tasks, next_task: first_task, told }))
    }

    /// As text in manifests.
    pub fn specs(&self) -> Vec<TierSpec> {
        self.specs.clone()
    }

    fn task(&mut self, of_machine: u64) -> u64 {
        self.next_task += 1;
        self.tasks.insert(self.next_task, of_machine);
        self.next_task
    }

    /// Shelves on which a rank may save; none: it saves in the shared directory.
    fn first_shelves(&self) -> Vec<Shelf> {
        let before = self.specs.iter().take_while(|spec| spec.tier != Tier::Shared).filter(|spec| spec.tier != Tier::Partner);
        before.filter_map(|spec| spec.tier.shelf()).collect()
    }

    fn index(&self, wanted: impl Fn(&Tier) -> bool) -> Option<usize> {
        self.specs.iter().position(|spec| wanted(&spec.tier))
    }

    /// Where a shelf's or a file's copy counts: the tier's index, and the node.
    fn site(&self, place: &Place, node: NodeIndex) -> Option<(usize, Option<NodeIndex>)> {
        match place {
            Place::Shelf(Shelf::Memory) => Some((self.index(|tier| *tier == Tier::Memory)?, Some(node))),
            Place::Shelf(Shelf::Directory(path)) => Some((self.index(|tier| matches!(tier, Tier::Local(own) if own == path))?, Some(node))),
            Place::File(_) => Some((self.index(|tier| *tier == Tier::Shared)?, None)),
        }
    }

    /// Takes note of what an agent said a full image may take.
    pub fn expect_size(&mut self, rank: Rank, bytes: u64) {
        self.sizes.insert(rank, bytes);
    }
}

/// An image as its manifest knows it.
pub fn reference(number: u64, image: &manifest::ImageEntry) -> ImageRef {
    ImageRef { number, rank: image.rank, bytes: image.bytes, checksum: image.checksum, id: image.id }
}

impl Job {
    /// Tells every node which shelves the job has.
    pub(crate) fn open_tiers(&mut self) {
        let Some(tiering) = &self.tiers else { return };
        if self.nodes.len() < 2 && tiering.index(|tier| *tier == Tier::Partner).is_some() {
            eprintln!("mend: the job has one node: nothing is kept in a partner's memory");
        }
    }

    /// Saves a rank on a shelf, if it does not save in the shared directory. False: ask its agent as usual.
    pub(crate) fn save_on_shelf(&mut self, rank: Rank, number: u64, order: &SaveOrder) -> bool {
        let Some(tiering) = &mut self.tiers else { return false };
        tiering.placed.remove(&rank);
        let shelves = tiering.first_shelves();
        if shelves.is_empty() {
            return false;
        }
        let needed = tiering.sizes.get(&rank).copied().unwrap_or(UNKNOWN);
        let seq = self.new_seq(rank, SAVE_PATIENCE);
        let order = TierOrder::Save { seq, rank, number, shelves, needed, order: order.clone() };
        self.send_to_rank(rank, ToDaemon::Tier(Box::new(order)));
        true
    }

    /// A checkpoint failed: what was written of it goes.
    pub(crate) fn drop_checkpoint(&mut self, number: u64) {
        let Some(tiering) = &mut self.tiers else { return };
        tiering.placed.clear();
        for shelf in shelves(&tiering.specs) {
            for node in self.nodes.iter().filter(|node| node.alive) {
                let order = TierOrder::Remove { place: Destination::Shelf(shelf.clone()), number, ranks: Vec::new() };
                node.send(ToDaemon::Tier(Box::new(order)));
            }
        }
    }

    /// The checkpoint is published: its copies follow.
    pub(crate) fn replicate(&mut self, manifest: &Manifest) {
        let Some(tiering) = &mut self.tiers else { return };
        let placed = std::mem::take(&mut tiering.placed);
        let image = |entry: &manifest::ImageEntry| {
            let place = placed.get(&entry.rank).cloned().unwrap_or(Place::File(PathBuf::new()));
            let site = tiering.site(&place, self.ranks[entry.rank as usize].node);
            Published { image: reference(manifest.number, entry), base: entry.base, sites: site.into_iter().collect() }
        };
        let images = manifest.images.iter().map(image).collect();
        let actions = tiering.machine.published(manifest.number, manifest.periodic, images);
        self.do_tiers(actions);
    }

    /// Checkpoints that were there before the job was restarted, with what the nodes have of them.
    pub(crate) fn adopt(&mut self, holdings: &BTreeMap<NodeIndex, Vec<Holding>>) {
        let Some(tiering) = &mut self.tiers else { return };
        for number in numbers(&self.record.checkpoints) {
            let directory = self.record.checkpoints.join(number.to_string());
            let Ok(manifest) = manifest::load(&directory, self.key.as_ref()) else { continue };
            let mut images = Vec::new();
            for entry in &manifest.images {
                let mut sites = Vec::new();
                for (&node, holdings) in holdings {
                    for holding in holdings.iter().filter(|holding| holding.number == number) {
                        if !holding.images.contains(&(entry.rank, entry.bytes)) {
                            continue;
                        }
                        let own = self.nodes[node as usize].name == entry.host;
                        let partner = tiering.index(|tier| *tier == Tier::Partner).filter(|_| !own && holding.shelf == Shelf::Memory);
                        let site = partner.map(|tier| (tier, Some(node)));
                        sites.extend(site.or_else(|| tiering.site(&Place::Shelf(holding.shelf.clone()), node)));
                    }
                }
                let file = directory.join(entry.file());
                if fs::metadata(&file).is_ok_and(|found| found.len() == entry.bytes) {
                    sites.extend(tiering.site(&Place::File(file), 0));
                }
                images.push(Published { image: reference(number, entry), base: entry.base, sites });
            }
            tiering.machine.adopt(number, manifest.periodic, images);
        }
    }

    /// A daemon reports.
    pub(crate) fn tier_report(&mut self, node: NodeIndex, report: TierReport) {
        match report {
            TierReport::PassedOver { shelf, why } => {
                self.record_node(node, Happened::TierPassedOver { tier: tier_of(&shelf).to_string(), why: why.clone() });
                let host = self.nodes.get(node as usize).map_or("?", |node| node.name.as_str());
                if let Some(tiering) = &mut self.tiers {
                    tiering.told.passed_over(host, shelf, &why);
                }
            }
            TierReport::Placed { rank, number, place } => {
                let under_way = self.operation.as_ref().or(self.background.as_ref());
                let current = matches!(under_way, Some(Operation::Checkpoint { number: now, .. }) if *now == number);
                if let (true, Some(tiering)) = (current, &mut self.tiers) {
                    tiering.placed.insert(rank, place);
                }
            }
            TierReport::Done { task, result } => {
                let Some(tiering) = &mut self.tiers else { return };
                let Some(number) = tiering.tasks.remove(&task) else { return };
                let actions = tiering.machine.finished(number, result.map(|_| ()));
                self.do_tiers(actions);
            }
        }
    }

    /// A node is lost, and what it held.
    pub(crate) fn tiers_lost(&mut self, node: NodeIndex) {
        let Some(tiering) = &mut self.tiers else { return };
        let actions = tiering.machine.lost(node);
        self.do_tiers(actions);
    }

    /// The newest checkpoint of which the nodes that are left have all.
    pub(crate) fn newest_left(&self) -> Option<u64> {
        let left = |number: &u64| self.tiers.as_ref().is_none_or(|tiering| tiering.machine.is_restorable(*number));
        numbers(&self.record.checkpoints).into_iter().rev().find(left)
    }

    /// Lets go of checkpoints that others removed. To be called now and then.
    pub(crate) fn tidy_tiers(&mut self) {
        let Some(tiering) = &mut self.tiers else { return };
        let there: BTreeSet<u64> = numbers(&self.record.checkpoints).into_iter().collect();
        let gone: Vec<u64> = tiering.machine.numbers().filter(|number| !there.contains(number)).collect();
        let actions: Vec<Action> = gone.into_iter().flat_map(|number| tiering.machine.forgotten(number)).collect();
        self.do_tiers(actions);
    }

    /// The job has ended well: nothing of it is left on any node.
    pub(crate) fn close_tiers(&self) {
        if self.tiers.is_some() {
            for node in self.nodes.iter().filter(|node| node.alive) {
                node.send(ToDaemon::Tier(Box::new(TierOrder::Close)));
            }
        }
    }

    fn order(&self, node: NodeIndex, order: TierOrder) {
        if let Some(node) = self.nodes.get(node as usize) {
            node.send(ToDaemon::Tier(Box::new(order)));
        }
    }

    fn do_tiers(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Copy { task, image, node, from, to, target } => self.copy(task, image, node, (from, to), target),
                Action::Manifest { task, number, tier, node } => self.store_manifest(task, number, tier, node),
                Action::Complete { number, .. } => self.record_tiers(number),
                Action::GaveUp { number, tier, why } => self.tell_once(number, tier, &why),
                Action::Remove { number, tier, node, ranks } => self.remove_copies(number, tier, node, ranks),
            }
        }
    }

    fn copy(&mut self, task: u64, image: ImageRef, node: NodeIndex, (from, to): (usize, usize), target: Option<NodeIndex>) {
        let file = self.record.checkpoints.join(image.number.to_string()).join(image_name(image.rank));
        let Some(tiering) = &mut self.tiers else { return };
        let task = tiering.task(task);
        let from = tiering.specs[from].tier.shelf().map_or_else(|| Place::File(file.clone()), Place::Shelf);
        let partner = target.and_then(|target| self.nodes.get(target as usize)).map(|node| node.address);
        if let (Some(address), Some(target)) = (partner, target) {
            let token = mend_wire::random_bytes();
            self.order(target, TierOrder::Receive { task, image, shelf: Shelf::Memory, token });
            return self.order(node, TierOrder::Send { image, from, address, token, hurry: false });
        }
        let to = match &tiering.specs[to].tier {
            Tier::Object(base) => Destination::Object(object_address(base, &self.record.id, image.number, &image_name(image.rank))),
            tier => tier.shelf().map_or(Destination::File(file), Destination::Shelf),
        };
        self.order(node, TierOrder::Copy { task, image, from, to });
    }

    fn store_manifest(&mut self, task: u64, number: u64, tier: usize, node: NodeIndex) {
        let text = fs::read(self.record.checkpoints.join(number.to_string()).join("manifest.json"));
        let Some(tiering) = &mut self.tiers else { return };
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                let actions = tiering.machine.finished(task, Err(format!("its manifest cannot be read: {error}")));
                return self.do_tiers(actions);
            }
        };
        let task = tiering.task(task);
        let to = match &tiering.specs[tier].tier {
            Tier::Object(base) => Destination::Object(object_address(base, &self.record.id, number, "manifest.json")),
            spec => spec.shelf().map_or(Destination::File(PathBuf::new()), Destination::Shelf),
        };
        self.order(node, TierOrder::Manifest { task, number, to, text });
    }

    /// For people, and `mend checkpoints`.
    fn record_tiers(&mut self, number: u64) {
        let Some(tiering) = &self.tiers else { return };
        let directory = self.record.checkpoints.join(number.to_string());
        let complete: Vec<String> = tiering.machine.complete(number).iter().map(|spec| spec.tier.to_string()).collect();
        self.journal.record(Happened::TierComplete { checkpoint: number, tiers: complete.clone() });
        let written = serde_json::to_vec_pretty(&Held { complete }).map_err(Into::into);
        if let Err(error) = written.and_then(|text| write_durably(&directory.join("tiers.json"), &text)) {
            tracing::warn!(%error, number, "which tiers hold the checkpoint is not on record");
        }
    }

    fn tell_once(&mut self, number: u64, tier: usize, why: &str) {
        let Some(tiering) = &mut self.tiers else { return };
        let tier = tiering.specs[tier].tier.to_string();
        self.journal.record(Happened::TierFailed { checkpoint: number, tier: tier.clone(), error: why.to_owned() });
        if tiering.told.first(format!("{tier}: {why}")) {
            eprintln!("mend: {tier} does not hold the whole checkpoint {number}: {why}");
        }
    }

    fn remove_copies(&mut self, number: u64, tier: usize, node: NodeIndex, ranks: Vec<Rank>) {
        let Some(tiering) = &self.tiers else { return };
        let directory = self.record.checkpoints.join(number.to_string());
        match &tiering.specs[tier].tier {
            Tier::Shared => {
                for rank in ranks {
                    let _ = fs::remove_file(directory.join(image_name(rank)));
                }
            }
            Tier::Object(base) => {
                let place = Destination::Object(object_address(base, &self.record.id, number, ""));
                self.order(node, TierOrder::Remove { place, number, ranks });
            }
            spec => {
                if let Some(shelf) = spec.shelf() {
                    self.order(node, TierOrder::Remove { place: Destination::Shelf(shelf), number, ranks });
                }
            }
        }
        let Some(tiering) = &mut self.tiers else { return };
        if !tiering.machine.is_anywhere(number) && !has_images(&directory) {
            // Nothing can be restarted from a manifest alone.
            tiering.machine.forgotten(number);
            let _ = fs::remove_dir_all(&directory);
            self.note_removed(&[number], Asker::Schedule);
        } else {
            self.record_tiers(number);
        }
    }
}

fn has_images(directory: &Path) -> bool {
    let is_image = |entry: fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".image");
    fs::read_dir(directory).is_ok_and(|entries| entries.flatten().any(is_image))
}
