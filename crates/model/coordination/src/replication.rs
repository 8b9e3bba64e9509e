//! Which copy of which image is made next, when a tier holds a checkpoint as a whole, and what may be removed.
//!
//! ```text
//! published ──► held in the tier it was written to
//!                 │ per later tier: the newest checkpoint becomes its target, one at a time
//!                 ▼
//!               copying ── all images of its chains held ──► manifests ──► complete ──► older ones go
//!                 └── a copy fails ──► given up; the next checkpoint is tried
//! ```
//! Invariants:
//! - A tier is complete for a checkpoint only if it holds every image of the checkpoint and all that these build on.
//! - No image is removed that the newest restorable checkpoint needs, wherever its copy is; nor one that a tier's newest
//!   complete checkpoints (as many as it keeps) or its target need, nor one that is being copied. A tier that was told no
//!   number keeps every checkpoint that somebody asked for.
//! - The loss of one node leaves what the partners held as a whole, or something newer: of that the nodes keep their own copies, too.
//! - What lies in the checkpoint directory though that is no tier goes as from a tier that was told no number.
//! - A checkpoint that the job does not go on from is never the newest of anything: one that was given up stays where it is, one that a restart has
//!   passed over goes. The one that the job was restarted from stays until a newer one is complete there or farther away.
//! - A tier that all nodes share is written by a bounded number of nodes at a time, in an order drawn by the seed; no
//!   node makes two copies for the same tier at once.
//! - Of checkpoints that nobody asked for a tier gets every n-th ([`Replication::stagger`]), the next one if it has none or could not have the last.
//!
//! Faults assumed: any copy fails; a node and all on it vanishes at any moment; a checkpoint is removed by others.

mod contract;
mod lineage;

pub use contract::{Action, Published, Site};

use lineage::Lineage;
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{ImageRef, Tier, TierSpec};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Image {
    reference: ImageRef,
    base: Option<u64>,
    sites: BTreeSet<Site>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Task {
    number: u64,
    tier: usize,
    node: NodeIndex,
    target: Option<NodeIndex>,
    /// `None`: the manifest.
    rank: Option<Rank>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Lane {
    target: Option<u64>,
    /// Manifests of the target, and of what it builds on, that nodes still lack; `None` before the images are there.
    manifests: Option<BTreeSet<(u64, Option<NodeIndex>)>>,
    /// Images of the target that could not be copied; with the next target they are tried again.
    failed: BTreeMap<(u64, Rank), String>,
    complete: BTreeSet<u64>,
    given_up: BTreeSet<u64>,
    /// Every so manieth checkpoint that nobody asked for is copied here; 0 and 1: each.
    every: u32,
    /// Checkpoints since the last one that was to be copied here.
    since: u32,
    /// Those that are not to be.
    skipped: BTreeSet<u64>,
}

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replication {
    tiers: Vec<TierSpec>,
    /// Periodic checkpoints that a tier keeps which was told no number; `None`: all.
    keep: Option<u32>,
    seed: u64,
    writers: usize,
    nodes: BTreeSet<NodeIndex>,
    checkpoints: BTreeMap<u64, Vec<Image>>,
    /// Those that nobody asked for.
    periodic: BTreeSet<u64>,
    lineage: Lineage,
    lanes: Vec<Lane>,
    running: BTreeMap<u64, Task>,
    tasks: u64,
}

impl Replication {
    /// Nothing is there yet. `keep`: periodic checkpoints that a tier keeps which was told no number, besides all that
    /// somebody asked for; `None`: all. `writers`: nodes that may write to a tier of all nodes at once, at least 1.
    #[must_use]
    pub fn new(tiers: Vec<TierSpec>, nodes: impl IntoIterator<Item = NodeIndex>, keep: Option<u32>, seed: u64, writers: usize) -> Self {
        let lanes = tiers.iter().map(|_| Lane::default()).collect();
        Self {
            tiers,
            keep,
            seed,
            writers: writers.max(1),
            nodes: nodes.into_iter().collect(),
            checkpoints: BTreeMap::new(),
            periodic: BTreeSet::new(),
            lineage: Lineage::default(),
            lanes,
            running: BTreeMap::new(),
            tasks: 0,
        }
    }

    /// The tiers, nearest first.
    #[must_use]
    pub fn tiers(&self) -> &[TierSpec] {
        &self.tiers
    }

    /// What stands for the checkpoint directory where that is no tier.
    #[must_use]
    pub fn beside(&self) -> usize {
        self.tiers.len()
    }

    /// An image is at this place, too.
    pub fn brought(&mut self, number: u64, rank: Rank, site: Site) {
        let image = self.checkpoints.get_mut(&number).and_then(|images| image_of(images, rank));
        let _ = image.map(|image| image.sites.insert(site));
    }

    /// The job was restarted from this checkpoint, and has given up some: for each pair those after the first number, up to the second. To be called before any is
    /// adopted.
    pub fn restarted(&mut self, origin: Option<u64>, abandoned: &[(u64, u64)]) {
        self.lineage = Lineage::new(origin, abandoned);
    }

    /// A checkpoint that was there before, as it was found; to be called in ascending order, before any other event. `whole`: tiers of all nodes that have all that a
    /// restart from it reads, as is on record.
    pub fn adopt(&mut self, number: u64, periodic: bool, images: Vec<Published>, whole: &[usize]) {
        self.insert(number, periodic, images);
        for (number, rank) in if whole.is_empty() { BTreeSet::new() } else { self.closure(number) } {
            whole.iter().for_each(|&tier| self.brought(number, rank, (tier, None)));
        }
        self.lineage.adopt(number);
        for tier in 0..self.tiers.len() {
            // Its copies were begun by a controller that is no more; the next checkpoint's will be made.
            let whole = self.holds_all(tier, number);
            let lane = &mut self.lanes[tier];
            if whole {
                lane.complete.insert(number)
            } else {
                lane.given_up.insert(number)
            };
        }
    }

    /// From now on every n-th checkpoint that nobody asked for is copied to each tier; those that somebody asked for are copied to all.
    pub fn stagger(&mut self, every: &[u32]) {
        for (lane, every) in self.lanes.iter_mut().zip(every) {
            lane.every = *every;
        }
    }

    /// Every so manieth checkpoint is copied to each tier.
    #[must_use]
    pub fn staggered(&self) -> Vec<u32> {
        self.lanes.iter().map(|lane| lane.every.max(1)).collect()
    }

    /// A checkpoint has been published; one image per rank that had not ended.
    pub fn published(&mut self, number: u64, periodic: bool, images: Vec<Published>) -> Vec<Action> {
        self.insert(number, periodic, images);
        for lane in &mut self.lanes {
            lane.since = lane.since.saturating_add(1);
            if periodic && lane.since < lane.every && lane.has_something(&self.lineage) {
                lane.skipped.insert(number);
            } else {
                lane.since = 0;
            }
        }
        self.advance()
    }

    fn insert(&mut self, number: u64, periodic: bool, images: Vec<Published>) {
        let image = |one: Published| Image {
            reference: one.image,
            base: one.base,
            sites: one.sites.into_iter().filter(|(_, node)| node.is_none_or(|node| self.nodes.contains(&node))).collect(),
        };
        let mut images: Vec<Image> = images.into_iter().map(image).collect();
        images.sort_unstable_by_key(|image| image.reference.rank);
        self.checkpoints.insert(number, images);
        if periodic {
            self.periodic.insert(number);
        }
    }

    /// A task is over.
    pub fn finished(&mut self, task: u64, result: Result<(), String>) -> Vec<Action> {
        let Some(task) = self.running.remove(&task) else { return Vec::new() };
        let Task { number, tier, node, target, rank } = task;
        let site = (tier, if self.tiers[tier].tier.is_common() { None } else { Some(target.unwrap_or(node)) });
        let mut actions = Vec::new();
        let image = rank.and_then(|rank| image_of(self.checkpoints.get_mut(&number)?, rank));
        match (rank, image, result) {
            (Some(_), Some(image), Ok(())) => drop(image.sites.insert(site)),
            (Some(rank), Some(_), Err(why)) => drop(self.lanes[tier].failed.insert((number, rank), why)),
            // The checkpoint was removed meanwhile.
            (Some(rank), None, Ok(())) => actions.push(Action::Remove { number, tier, node: site.1.unwrap_or(node), ranks: vec![rank] }),
            (Some(_), None, Err(_)) => {}
            (None, _, result) => {
                let lane = &mut self.lanes[tier];
                let is_wanted = lane.manifests.as_mut().is_some_and(|missing| missing.remove(&(number, site.1)));
                if let (true, Some(target), Err(why)) = (is_wanted, lane.target, result) {
                    lane.give_up(target);
                    actions.push(Action::GaveUp { number: target, tier, why });
                }
            }
        }
        actions.extend(self.advance());
        actions
    }

    /// A node and everything on it is gone.
    pub fn lost(&mut self, node: NodeIndex) -> Vec<Action> {
        self.nodes.remove(&node);
        for image in self.checkpoints.values_mut().flatten() {
            image.sites.retain(|(_, at)| *at != Some(node));
        }
        // Begun again elsewhere, if there is a source.
        self.running.retain(|_, task| task.node != node && task.target != Some(node));
        for lane in &mut self.lanes {
            if let Some(missing) = &mut lane.manifests {
                missing.retain(|(_, at)| *at != Some(node));
            }
        }
        for tier in 0..self.tiers.len() {
            let whole: BTreeSet<u64> = self.lanes[tier].complete.iter().copied().filter(|&number| self.holds_all(tier, number)).collect();
            self.lanes[tier].complete = whole;
            if !self.lanes[tier].has_something(&self.lineage) {
                // The newest is copied at once.
                self.lanes[tier].skipped.clear();
            }
        }
        self.advance()
    }

    /// The checkpoint is no more: what there is of it goes.
    pub fn forgotten(&mut self, number: u64) -> Vec<Action> {
        let Some(images) = self.checkpoints.remove(&number) else { return Vec::new() };
        self.periodic.remove(&number);
        self.lineage.forget(number);
        let mut going: BTreeMap<Site, Vec<Rank>> = BTreeMap::new();
        for image in &images {
            for site in &image.sites {
                going.entry(*site).or_default().push(image.reference.rank);
            }
        }
        for lane in &mut self.lanes {
            lane.complete.remove(&number);
            lane.skipped.remove(&number);
            if lane.target == Some(number) {
                lane.leave_target();
            }
        }
        let mut actions = self.removals(number, going);
        actions.extend(self.advance());
        actions
    }

    /// Numbers of the checkpoints that others must leave alone: the newest restorable one, each tier's newest complete
    /// one and its target, and all that they build on.
    #[must_use]
    pub fn needed(&self) -> BTreeSet<u64> {
        let newest = self.counted().find(|&&number| self.is_restorable(number)).copied();
        let lanes = self.lanes.iter().flat_map(|lane| [lane.target, lane.newest(&self.lineage)]);
        let wanted: Vec<u64> = lanes.chain([newest]).flatten().collect();
        wanted.into_iter().flat_map(|number| self.closure(number)).map(|(number, _)| number).collect()
    }

    /// Names of the tiers that hold the whole checkpoint, nearest first.
    #[must_use]
    pub fn complete(&self, number: u64) -> Vec<&TierSpec> {
        let held = |tier: &usize| self.lanes[*tier].complete.contains(&number);
        (0..self.tiers.len()).filter(held).map(|tier| &self.tiers[tier]).collect()
    }

    /// Numbers of the checkpoints that the job may go on from, the newest first.
    fn counted(&self) -> impl Iterator<Item = &u64> {
        self.checkpoints.keys().rev().filter(|number| self.lineage.counts(**number))
    }

    /// Numbers of the checkpoints that are known, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.checkpoints.keys().copied()
    }

    /// Whether any tier has any image of the checkpoint.
    #[must_use]
    pub fn is_anywhere(&self, number: u64) -> bool {
        self.checkpoints.get(&number).is_some_and(|images| images.iter().any(|image| !image.sites.is_empty()))
    }

    /// Whether a tier has any image of the checkpoint.
    #[must_use]
    pub fn is_in(&self, number: u64, tier: usize) -> bool {
        self.checkpoints.get(&number).is_some_and(|images| images.iter().any(|image| image.is_in(tier)))
    }

    /// All images that a restart from the checkpoint reads, as (number, rank).
    fn closure(&self, number: u64) -> BTreeSet<(u64, Rank)> {
        let mut found = BTreeSet::new();
        let Some(images) = self.checkpoints.get(&number) else { return found };
        for image in images {
            let rank = image.reference.rank;
            let mut next = Some(number);
            while let Some(number) = next {
                found.insert((number, rank));
                // Numbers descend, so this ends.
                next = self.image(number, rank).and_then(|image| image.base).filter(|base| *base < number);
            }
        }
        found
    }

    fn image(&self, number: u64, rank: Rank) -> Option<&Image> {
        let images = self.checkpoints.get(&number)?;
        images.binary_search_by_key(&rank, |image| image.reference.rank).ok().map(|at| &images[at])
    }

    /// Whether every image that a restart from the checkpoint reads is somewhere.
    #[must_use]
    pub fn is_restorable(&self, number: u64) -> bool {
        let is_somewhere = |(number, rank)| self.image(number, rank).is_some_and(|image| !image.sites.is_empty());
        self.checkpoints.contains_key(&number) && self.closure(number).into_iter().all(is_somewhere)
    }

    fn holds_all(&self, tier: usize, number: u64) -> bool {
        self.closure(number).into_iter().all(|(number, rank)| self.image(number, rank).is_some_and(|image| image.is_in(tier)))
    }

    /// Begins what can be begun, and removes what is not needed any more.
    fn advance(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        for tier in 0..self.tiers.len() {
            while self.advance_lane(tier, &mut actions) {}
        }
        for tier in 0..=self.beside() {
            self.clear(tier, &mut actions);
        }
        actions
    }

    /// True if the lane's target is over, and another may be begun.
    fn advance_lane(&mut self, tier: usize, actions: &mut Vec<Action>) -> bool {
        let Some(number) = self.lanes[tier].target.or_else(|| self.choose_target(tier)) else { return false };
        self.lanes[tier].target = Some(number);
        self.begin_copies(tier, number, actions);
        if self.running.values().any(|task| task.tier == tier) {
            return false;
        }
        if !self.holds_all(tier, number) {
            // What could be copied is; a rank whose image was written farther away is not brought nearer.
            let why = self.lanes[tier].failed.values().next().cloned();
            self.lanes[tier].give_up(number);
            if let Some(why) = why {
                actions.push(Action::GaveUp { number, tier, why });
            }
            return true;
        }
        let missing = match self.lanes[tier].manifests.take() {
            Some(missing) => missing,
            None => self.lacking_manifests(tier, number),
        };
        for &(number, site) in &missing {
            // Any node reaches a tier of all nodes.
            let Some(node) = site.or_else(|| self.nodes.first().copied()) else { continue };
            let task = self.begin(Task { number, tier, node, target: None, rank: None });
            actions.push(Action::Manifest { task, number, tier, node });
        }
        let over = missing.is_empty();
        self.lanes[tier].manifests = Some(missing);
        if over {
            let lane = &mut self.lanes[tier];
            lane.leave_target();
            lane.complete.insert(number);
            actions.push(Action::Complete { number, tier });
        }
        over
    }

    /// The newest checkpoint that is to be copied there, unless the tier has it, has a newer one, or has given it up.
    fn choose_target(&self, tier: usize) -> Option<u64> {
        let lane = &self.lanes[tier];
        let newest = *self.counted().find(|number| !lane.skipped.contains(number))?;
        (lane.newest(&self.lineage).is_none_or(|complete| complete < newest) && !lane.given_up.contains(&newest)).then_some(newest)
    }

    /// Manifests that a restart from the tier alone reads and that were not stored yet: the checkpoint's wherever images of its chains are, and those of what it
    /// builds on, if that never was complete here. The checkpoint directory has all of them already.
    fn lacking_manifests(&self, tier: usize, number: u64) -> BTreeSet<(u64, Option<NodeIndex>)> {
        let mut lacking = BTreeSet::new();
        if self.tiers[tier].tier == Tier::Shared {
            return lacking;
        }
        let closure = self.closure(number);
        let images = closure.into_iter().filter_map(|(of, rank)| Some((of, self.image(of, rank)?)));
        for (of, (_, node)) in images.flat_map(|(of, image)| image.sites.iter().filter(|(at, _)| *at == tier).map(move |site| (of, *site)))
        {
            lacking.insert((number, node));
            if !self.lanes[tier].complete.contains(&of) {
                lacking.insert((of, node));
            }
        }
        lacking
    }

    fn begin(&mut self, task: Task) -> u64 {
        self.tasks += 1;
        self.running.insert(self.tasks, task);
        self.tasks
    }

    fn begin_copies(&mut self, tier: usize, number: u64, actions: &mut Vec<Action>) {
        let mut wanted: Vec<(u64, NodeIndex, u64, Rank, usize)> = Vec::new();
        for (number, rank) in self.closure(number) {
            let Some(image) = self.image(number, rank) else { continue };
            if image.is_in(tier) || self.lanes[tier].failed.contains_key(&(number, rank)) {
                continue;
            }
            let Some((from, node)) = self.source(image, tier) else { continue };
            wanted.push((drawn(self.seed, number, node), node, number, rank, from));
        }
        wanted.sort_unstable();
        for (_, node, number, rank, from) in wanted {
            let busy: BTreeSet<NodeIndex> = self.running.values().filter(|task| task.tier == tier).map(|task| task.node).collect();
            if busy.contains(&node) {
                continue;
            }
            if self.tiers[tier].tier.is_common() && busy.len() >= self.writers {
                return;
            }
            let target = match self.tiers[tier].tier {
                Tier::Partner => match self.partner(node) {
                    Some(partner) => Some(partner),
                    None => continue,
                },
                _ => None,
            };
            let Some(image) = self.image(number, rank).map(|image| image.reference) else { continue };
            let task = self.begin(Task { number, tier, node, target, rank: Some(rank) });
            actions.push(Action::Copy { task, image, node, from, to: tier, target });
        }
    }

    /// The nearest copy in a tier before this one, and who reads it.
    fn source(&self, image: &Image, tier: usize) -> Option<(usize, NodeIndex)> {
        let near = |(from, _): &&Site| *from < tier && !matches!(self.tiers[*from].tier, Tier::Object(_));
        let (from, node) = *image.sites.iter().find(near)?;
        // Copies of one node's images in a tier of all nodes are read by whoever is there.
        Some((from, node.or_else(|| self.nodes.first().copied())?))
    }

    /// The next node in the ring.
    fn partner(&self, node: NodeIndex) -> Option<NodeIndex> {
        let after = self.nodes.range(node + 1..).next().or_else(|| self.nodes.first());
        after.copied().filter(|&partner| partner != node)
    }

    /// Removes from a tier what nobody needs.
    fn clear(&mut self, tier: usize, actions: &mut Vec<Action>) {
        // Told no number, it keeps all that somebody asked for, and of the others as many as the user keeps.
        let beside = tier == self.beside();
        let (keep, asked) = match (self.tiers.get(tier).map_or(0, |spec| spec.keep), self.keep) {
            (0, None) => return,
            (0, Some(keep)) => (keep.max(1) as usize, true),
            (keep, _) => (keep as usize, false),
        };
        let counts = |number: &&u64| !asked || self.periodic.contains(number);
        // Beside the tiers there need not be anything of a newer one.
        let in_tier = |number: &&u64| {
            let mut images = self.closure(**number).into_iter().filter_map(|(number, rank)| self.image(number, rank));
            beside || images.any(|image| image.is_in(tier))
        };
        let restorable = self.counted().filter(counts).filter(|&&number| self.is_restorable(number)).filter(in_tier).take(keep);
        let complete = self.lanes.get(tier).into_iter().flat_map(|lane| lane.counted(&self.lineage).take(keep));
        let targets = self.lanes.iter().filter_map(|lane| lane.target.as_ref());
        let mut kept: BTreeSet<u64> = restorable.chain(complete).chain(targets).copied().collect();
        kept.extend(self.second_copies(tier));
        kept.extend(self.lineage.given_up());
        kept.extend(self.origin_in(tier));
        // Not older than all of these: under way, or not yet looked at.
        kept.extend(self.checkpoints.keys().rev().take(1));
        kept.extend(self.checkpoints.keys().filter(|number| !counts(number)));
        let mut needed: BTreeSet<(u64, Rank)> = kept.iter().flat_map(|&number| self.closure(number)).collect();
        // Copies of a target that was given up since, because its manifest could not be stored, are still being read.
        needed.extend(self.running.values().filter_map(|task| Some((task.number, task.rank?))));
        let mut going: BTreeMap<(u64, Site), Vec<Rank>> = BTreeMap::new();
        for (&number, images) in &self.checkpoints {
            for image in images.iter().filter(|image| !needed.contains(&(number, image.reference.rank))) {
                for site in image.sites.iter().filter(|(at, _)| *at == tier) {
                    going.entry((number, *site)).or_default().push(image.reference.rank);
                }
            }
        }
        for ((number, site), ranks) in going {
            for &rank in &ranks {
                if let Some(image) = self.checkpoints.get_mut(&number).and_then(|images| image_of(images, rank)) {
                    image.sites.remove(&site);
                }
            }
            let _ = self.lanes.get_mut(tier).map(|lane| lane.complete.remove(&number));
            actions.extend(self.removals(number, [(site, ranks)].into()));
        }
    }

    /// Checkpoints of which partners have one copy of each image, and the nodes before that the other: without theirs one lost node takes images of both its own
    /// ranks and those that it was the partner of. What all nodes share needs no second copy.
    fn second_copies(&self, tier: usize) -> BTreeSet<u64> {
        let newest = |at: &usize| self.lanes[*at].newest(&self.lineage);
        let all = 0..self.tiers.len();
        let shared = all.clone().filter(|at| self.tiers[*at].tier.is_common()).filter_map(|at| newest(&at)).max();
        let partners = all.skip(tier + 1).filter(|at| self.tiers[*at].tier == Tier::Partner && self.nodes.len() > 1);
        partners.filter_map(|at| newest(&at)).filter(|number| shared.is_none_or(|shared| shared < *number)).collect()
    }

    /// The checkpoint that the job was restarted from, as long as no newer one is complete in this tier or one farther away; beside the tiers, in any.
    fn origin_in(&self, tier: usize) -> Option<u64> {
        let lanes = if tier == self.beside() { &self.lanes } else { &self.lanes[tier..] };
        self.lineage.origin().filter(|origin| lanes.iter().all(|lane| lane.newest(&self.lineage).is_none_or(|newest| newest <= *origin)))
    }

    fn removals(&self, number: u64, going: BTreeMap<Site, Vec<Rank>>) -> Vec<Action> {
        let action = |((tier, node), ranks): (Site, Vec<Rank>)| {
            Some(Action::Remove { number, tier, node: node.or_else(|| self.nodes.first().copied())?, ranks })
        };
        going.into_iter().filter_map(action).collect()
    }
}

/// A rank's image of those of a checkpoint. They are ascending, with gaps where ranks of spawned worlds have ended.
fn image_of(images: &mut [Image], rank: Rank) -> Option<&mut Image> {
    images.binary_search_by_key(&rank, |image| image.reference.rank).ok().map(|at| &mut images[at])
}

impl Image {
    fn is_in(&self, tier: usize) -> bool {
        self.sites.iter().any(|(at, _)| *at == tier)
    }
}

impl Lane {
    /// Those that it holds as a whole and that the job may go on from, the newest first.
    fn counted(&self, lineage: &Lineage) -> impl Iterator<Item = &u64> {
        self.complete.iter().rev().filter(|number| lineage.counts(**number))
    }

    fn newest(&self, lineage: &Lineage) -> Option<u64> {
        self.counted(lineage).next().copied()
    }

    /// Without a copy the next checkpoint is waited for, and not the one after so many.
    fn has_something(&self, lineage: &Lineage) -> bool {
        self.target.is_some() || self.newest(lineage).is_some()
    }

    fn give_up(&mut self, number: u64) {
        self.leave_target();
        self.given_up.insert(number);
        self.since = u32::MAX;
    }

    fn leave_target(&mut self) {
        (self.target, self.manifests) = (None, None);
        self.failed.clear();
    }
}

/// A number that orders the nodes anew for each checkpoint, so that no node is always the last.
fn drawn(seed: u64, number: u64, node: NodeIndex) -> u64 {
    xxh3_64_with_seed([number, u64::from(node)].map(u64::to_le_bytes).as_flattened(), seed)
}

#[cfg(test)]
mod tests;
