//! Tiers of a running job's checkpoints: where ranks save, which copies follow, what is removed. Decisions are
//! `mend_coordination::replication`'s; this has them carried out.
//!
//! ```text
//! checkpoint: Save per rank ─► Placed ─► Saved … all ─► published ─► copies follow
//! ```
//! Invariants: a checkpoint is published only when every image has its name in the tier it was written to; its manifest
//! is in the checkpoint directory whichever tiers hold the images. With the default, the shared directory alone, nothing
//! of this takes part.

use super::Job;
use crate::event::{Effect, GoesOn, Notice, Publication};
use crate::operation::Operation;
use crate::questions::Purpose;
use crate::safeguard::Safeguard;
use crate::search::Holdings;
use crate::setup::SearchSetup;
use crate::tiering::{object_address, stores};
use mend_coordination::checkpoint::image_name;
use mend_coordination::replication::Action;
use mend_journal::Event as Happened;
use mend_journal::event::{Asker, StaggeredTier};
use mend_messages::agent::SaveOrder;
use mend_messages::daemon::ToDaemon;
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{Destination, ImageLocation, ImageRef, NodeStore, Tier, TierDone, TierOrder, TierReport, TierSpec};
use mend_policy::schedule::Choice;
use mend_policy::stagger::Stagger;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Longest time the image of one rank may take to be written, microseconds.
const MAX_SAVE_US: u64 = 3_600_000_000;

impl Job {
    /// Tells every node which stores the job has, and those that a restart reads.
    pub(crate) fn open_tiers(&mut self, search: Option<&SearchSetup>) {
        let own = self.tiers.as_ref();
        let read = search.map(|search| search.specs.as_slice()).unwrap_or_default();
        if own.is_none() && read.is_empty() {
            return;
        }
        let rate = own.map(|tiering| tiering.rate).or(search.map(|search| search.rate)).unwrap_or(0);
        let stores = stores(own.into_iter().flat_map(|tiering| &tiering.specs).chain(read));
        let no_partner = own.is_some_and(|tiering| tiering.index(|tier| *tier == Tier::Partner).is_some()) && self.roster.nodes.len() < 2;
        // What it goes on from may be known by manifests that were put elsewhere, and need others that nodes have.
        let needed = search.iter().flat_map(|search| search.lineage.iter().flatten().map(|image| image.number));
        let keep = self.listed.iter().copied().chain(needed).collect::<BTreeSet<u64>>().into_iter().collect();
        self.send_to_all(&ToDaemon::Tier(Box::new(TierOrder::Open { stores, keep, rate })));
        self.open_portable();
        if no_partner {
            self.tell(Notice::NoPartner);
        }
    }

    /// Saves a rank on a store, if it does not save in the shared directory. False: ask its agent as usual.
    pub(crate) fn save_in_node_store(&mut self, rank: Rank, number: u64, order: &SaveOrder) -> bool {
        let Some(tiering) = self.tiers.as_mut().filter(|_| self.time_up.is_none()) else { return false };
        let Some((stores, needed)) = tiering.save(rank) else { return false };
        let seq = self.new_seq(rank, Purpose::Checkpoint, MAX_SAVE_US);
        let order = TierOrder::Save { seq, rank, number, stores, needed, order: order.clone() };
        self.send_to_rank(rank, ToDaemon::Tier(Box::new(order)));
        true
    }

    /// Whether a checkpoint may be built on: a last one, when the job's time is up, only on what is left when the nodes are taken away.
    pub(crate) fn outlives_nodes(&self, base: u64) -> bool {
        let Some(tiering) = self.tiers.as_ref().filter(|_| self.time_up.is_some()) else { return true };
        !self.keeps(Safeguard::LastOneOutlivesNodes) || tiering.machine.complete(base).iter().any(|spec| spec.tier == Tier::Shared)
    }

    /// A checkpoint failed: what was written of it goes.
    pub(crate) fn drop_checkpoint(&mut self, number: u64) {
        self.effect(Effect::Discard { number });
        let Some(tiering) = &mut self.tiers else { return };
        tiering.placed.clear();
        for store in stores(&tiering.specs) {
            let order = TierOrder::Remove { place: Destination::NodeStore(store), number, ranks: Vec::new() };
            self.send_to_all(&ToDaemon::Tier(Box::new(order)));
        }
    }

    /// The checkpoint is published: its copies follow.
    pub(crate) fn replicate(&mut self, publication: &Publication) {
        let Some(tiering) = &mut self.tiers else { return };
        let actions = tiering.published(publication, self.now_us);
        self.do_tiers(actions);
    }

    /// Checkpoints that were there before the job was restarted, with what the nodes have of them. `brought`: what the restart has brought to the checkpoint directory.
    /// Tasks are numbered from `first_task`.
    pub(crate) fn adopt(&mut self, holdings: &Holdings, brought: &[(u64, Rank)], first_task: u64) {
        let adopted = std::mem::take(&mut self.adopted);
        let Some(tiering) = &mut self.tiers else { return };
        let hosts: Vec<&str> = self.roster.node_numbers().map(|node| self.roster.node_name(node)).collect();
        let origin = self.restoring.as_ref().map(|restoring| restoring.number);
        tiering.adopt(adopted, (origin, &self.abandoned), &hosts, holdings, first_task);
        tiering.brought(brought.iter().copied());
        let lost = self.roster.node_numbers().filter(|&node| !self.roster.is_alive(node));
        // What was to be copied anyway may begin as soon as it is clear who is there.
        let actions = lost.flat_map(|node| tiering.machine.lost(node)).collect();
        self.do_tiers(actions);
    }

    /// A daemon reports.
    pub(crate) fn tier_report(&mut self, node: NodeIndex, report: TierReport) {
        match report {
            TierReport::PassedOver { store, why } => {
                // Once for each place: how much room there is differs from time to time.
                let first = match (&mut self.tiers, &mut self.searching) {
                    (Some(tiering), _) => tiering.told.insert((node, store.clone())),
                    (None, Some(searching)) => searching.told.insert((node, store.clone())),
                    (None, None) => false,
                };
                let tier = match &store {
                    NodeStore::Memory => Tier::Memory,
                    NodeStore::Directory(path) => Tier::Local(path.clone()),
                };
                self.record_node(node, Happened::TierPassedOver { tier: tier.to_string(), why: why.clone() });
                if first {
                    self.tell(Notice::PassedOver { node, store, why });
                }
            }
            TierReport::Placed { rank, number, place } => {
                let under_way = self.operation.as_ref().or(self.background.as_ref());
                let current = matches!(under_way, Some(Operation::Checkpoint { number: now, .. }) if *now == number);
                if let (true, Some(tiering)) = (current, &mut self.tiers) {
                    tiering.placed.insert(rank, place);
                }
            }
            TierReport::Portable(report) => self.portable_report(node, report),
            TierReport::Done { task, result } if self.searching.is_some() => self.searched(node, task, result),
            TierReport::Done { task, result } => {
                let Some(number) = self.tiers.as_mut().and_then(|tiering| tiering.tasks.remove(&task)) else { return };
                self.tier_task_done(number, result.map(|_: TierDone| ()));
            }
        }
    }

    /// A task with the replication's own number is over.
    pub(crate) fn tier_task_done(&mut self, number: u64, result: Result<(), String>) {
        let Some(tiering) = &mut self.tiers else { return };
        let actions = tiering.machine.finished(number, result);
        self.do_tiers(actions);
    }

    /// A node is lost, and what it held.
    pub(crate) fn tiers_lost(&mut self, node: NodeIndex) {
        let Some(tiering) = &mut self.tiers else { return };
        let actions = tiering.machine.lost(node);
        self.do_tiers(actions);
        self.portable_lost(node);
    }

    /// The newest checkpoint of which the nodes that are left have all.
    pub(crate) fn newest_left(&self) -> Option<u64> {
        let whole = |number: u64| self.tiers.as_ref().is_none_or(|tiering| tiering.machine.is_restorable(number));
        self.to_go_on_from().find(|number| whole(*number) || self.elsewhere == Some(*number))
    }

    /// From where the job goes on whose ranks run, with what the nodes that are left have.
    pub(crate) fn goes_on(&self) -> GoesOn {
        match self.newest_left() {
            Some(number) => GoesOn::From(number),
            None if self.newest_listed().is_none() => GoesOn::NoCheckpoint,
            None => GoesOn::NotAllThere,
        }
    }

    /// Lets go of checkpoints that others removed, once it is known again which there are.
    pub(crate) fn tidy_tiers(&mut self) {
        let Some(tiering) = &mut self.tiers else { return };
        let gone: Vec<u64> = tiering.machine.numbers().filter(|number| !self.listed.contains(number)).collect();
        let actions: Vec<Action> = gone.iter().flat_map(|&number| tiering.machine.forgotten(number)).collect();
        self.do_tiers(actions);
        gone.into_iter().for_each(|number| self.clear_stores(number));
    }

    /// A checkpoint is no more: no node keeps anything of it. Copies that are not known of, as of a restart that was cut short, go, too.
    fn clear_stores(&mut self, number: u64) {
        let stores = self.tiers.as_ref().map(|tiering| stores(&tiering.specs)).unwrap_or_default();
        for store in stores {
            let order = TierOrder::Remove { place: Destination::NodeStore(store), number, ranks: Vec::new() };
            self.send_to_all(&ToDaemon::Tier(Box::new(order)));
        }
    }

    /// The job has ended well: nothing of it is left on any node.
    pub(crate) fn close_tiers(&mut self) {
        // Copies that are reported later are gone by then.
        if let Some(tiering) = self.tiers.take() {
            for number in tiering.machine.numbers() {
                let complete = tiering.machine.complete(number);
                let left: Vec<String> =
                    complete.iter().filter(|spec| spec.tier.store().is_none()).map(|spec| spec.tier.to_string()).collect();
                if left.len() < complete.len() {
                    self.effect(Effect::KeepTiers { number, complete: left });
                }
            }
            self.send_to_all(&ToDaemon::Tier(Box::new(TierOrder::Close)));
        }
    }

    pub(crate) fn order(&mut self, node: NodeIndex, order: TierOrder) {
        self.send(node, ToDaemon::Tier(Box::new(order)));
    }

    fn do_tiers(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Copy { task, image, node, from, to, target } => self.copy(task, image, node, (from, to), target),
                Action::Manifest { task, number, tier, node } => self.store_manifest(task, number, tier, node),
                Action::Complete { number, tier } => self.tier_complete(number, tier),
                Action::GaveUp { number, tier, why } => self.tell_of_tier(number, tier, why),
                Action::Remove { number, tier, node, ranks } => self.remove_copies(number, tier, node, ranks),
            }
        }
    }

    fn copy(&mut self, task: u64, image: ImageRef, node: NodeIndex, (from, to): (usize, usize), target: Option<NodeIndex>) {
        let name = image_name(image.rank);
        let file = self.checkpoints.join(image.number.to_string()).join(&name);
        let Some(tiering) = &mut self.tiers else { return };
        let task = tiering.task(task);
        let from = tiering.specs[from].tier.store().map_or_else(|| ImageLocation::File(file.clone()), ImageLocation::NodeStore);
        let to = tiering.destination(to, &self.id, image.number, &name, file);
        let partner = target.and_then(|target| self.roster.nodes.get(target as usize)).map(|node| node.setup.address);
        if let (Some(address), Some(target)) = (partner, target) {
            let token = self.tokens.draw();
            self.order(target, TierOrder::Receive { task, image, store: NodeStore::Memory, token });
            return self.order(node, TierOrder::Send { image, from, address, token, hurry: false });
        }
        self.order(node, TierOrder::Copy { task, image, from, to });
    }

    fn store_manifest(&mut self, task: u64, number: u64, tier: usize, node: NodeIndex) {
        let Some(tiering) = &mut self.tiers else { return };
        let task = tiering.task(task);
        let to = tiering.destination(tier, &self.id, number, "manifest.json", PathBuf::new());
        self.effect(Effect::StoreManifest { task, number, node, to });
    }

    /// A manifest that was to be stored cannot be read.
    pub(crate) fn manifest_unreadable(&mut self, task: u64, why: String) {
        if let Some(number) = self.tiers.as_mut().and_then(|tiering| tiering.tasks.remove(&task)) {
            self.tier_task_done(number, Err(why));
        }
    }

    fn tier_complete(&mut self, number: u64, tier: usize) {
        let now_us = self.now_us;
        if let Some(tiering) = &mut self.tiers {
            tiering.measure(number, tier, now_us);
        }
        self.record_tiers(number);
        self.stagger_tiers();
    }

    /// Decides anew which checkpoints are copied to which tier, if costs decide how often they are taken. What changes is put into the journal.
    fn stagger_tiers(&mut self) {
        let Some(Choice { interval_s, mtbf_s, .. }) = self.periodic.choice() else { return };
        let Some(tiering) = &mut self.tiers else { return };
        let Some(found) = tiering.stagger(interval_s, mtbf_s) else { return };
        let staggered = |(spec, (copy_s, one)): (&TierSpec, (Option<f64>, Stagger))| StaggeredTier {
            tier: spec.tier.to_string(),
            every: one.every,
            copy_s,
            needed_s: one.needed_s,
        };
        let tiers = tiering.specs.iter().zip(found).map(staggered).collect();
        self.record(Happened::TiersStaggered { interval_s, tiers });
    }

    /// For people, and `mend checkpoints`.
    fn record_tiers(&mut self, number: u64) {
        // Of one that others removed there is no record any more.
        let Some(tiering) = self.tiers.as_mut().filter(|_| self.listed.contains(&number)) else { return };
        let complete: Vec<String> = tiering.machine.complete(number).iter().map(|spec| spec.tier.to_string()).collect();
        tiering.told_of_tiers.retain(|tier| !complete.contains(tier));
        self.record(Happened::TierComplete { checkpoint: number, tiers: complete.clone() });
        self.effect(Effect::KeepTiers { number, complete });
    }

    fn tell_of_tier(&mut self, number: u64, tier: usize, why: String) {
        let Some(tiering) = &mut self.tiers else { return };
        let tier = tiering.specs[tier].tier.to_string();
        // Once until a checkpoint is whole there: how much room there is, and where, differs each time.
        let first = tiering.told_of_tiers.insert(tier.clone());
        self.record(Happened::TierFailed { checkpoint: number, tier: tier.clone(), error: why.clone() });
        if first {
            self.tell(Notice::TierGaveUp { tier, number, why });
        }
    }

    fn remove_copies(&mut self, number: u64, tier: usize, node: NodeIndex, ranks: Vec<Rank>) {
        let Some(tiering) = &self.tiers else { return };
        // What is in no tier is in the checkpoint directory.
        match tiering.specs.get(tier).map_or(&Tier::Shared, |spec| &spec.tier) {
            Tier::Shared => self.effect(Effect::RemoveImages { number, ranks }),
            Tier::Object(base) => {
                // Others' chains may build on what is left.
                let last = if tiering.machine.is_in(number, tier) { "" } else { "manifest.json" };
                let place = Destination::Object(object_address(base, &self.id, number, last));
                self.order(node, TierOrder::Remove { place, number, ranks });
            }
            spec => {
                if let Some(store) = spec.store() {
                    self.order(node, TierOrder::Remove { place: Destination::NodeStore(store), number, ranks });
                }
            }
        }
        let anywhere = self.tiers.as_ref().is_some_and(|tiering| tiering.machine.is_anywhere(number));
        if anywhere {
            self.record_tiers(number);
        } else {
            // Nothing can be restarted from a manifest alone.
            self.effect(Effect::RemoveIfEmpty { number });
        }
    }

    /// A checkpoint of which no tier is known to have anything was looked at.
    pub(crate) fn emptied(&mut self, number: u64, gone: bool) {
        if !gone {
            return self.record_tiers(number);
        }
        self.listed.remove(&number);
        self.newer_than_lists.remove(&number);
        self.note_removed(&[number], Asker::Schedule);
        if let Some(tiering) = &mut self.tiers {
            let actions = tiering.machine.forgotten(number);
            self.do_tiers(actions);
        }
        self.clear_stores(number);
    }
}
