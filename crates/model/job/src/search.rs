//! The search for the images of a restart in tiers: for each rank the nearest good copy of every image that it needs.
//!
//! ```text
//! Inventory ─► each node ─► Holdings ─► per image its sources ─► Fetch nearest … next … ─► files
//! ```
//! Faults assumed: copies are torn, foreign, gone; nodes are lost in the middle.

use crate::setup::SearchSetup;
use mend_coordination::recovery::{Action, CopyInventory, Recovery, Want, sources};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{Holding, ImageRef, NodeStore, Tier, TierDone, TierSpec};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What each node has.
pub(crate) type Holdings = BTreeMap<NodeIndex, Vec<Holding>>;

/// A search under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Search {
    setup: SearchSetup,
    pub(crate) begun_us: u64,
    /// Where each rank is to be.
    places: Vec<NodeIndex>,
    /// The first number of a task that is no node's.
    first_task: u64,
    /// Nodes that have not said what they have.
    waiting: BTreeSet<NodeIndex>,
    holdings: Holdings,
    machine: Option<Recovery>,
    /// Node stores of which the user was told that they are passed over.
    pub(crate) told: BTreeSet<(NodeIndex, NodeStore)>,
}

impl Search {
    /// A search in which these nodes were asked what they have, by tasks that have the nodes' numbers; others are numbered from `first_task`.
    pub(crate) fn begin(setup: SearchSetup, waiting: BTreeSet<NodeIndex>, first_task: u64, places: Vec<NodeIndex>, now_us: u64) -> Self {
        let (holdings, told) = Default::default();
        Self { setup, begun_us: now_us, places, first_task, waiting, holdings, machine: None, told }
    }

    /// Copies that are already where they are needed are checked, too.
    pub(crate) fn checks_all(&self) -> bool {
        self.setup.check
    }

    /// A node has done a task.
    pub(crate) fn heard(&mut self, node: NodeIndex, task: u64, result: Result<TierDone, String>) -> Vec<Action> {
        if let Some(machine) = &mut self.machine {
            let path = |done| match done {
                TierDone::Image(path) => Ok(path),
                _ => Err("the node answered something else".to_owned()),
            };
            return machine.fetched(task, result.and_then(path));
        }
        if task != u64::from(node) || !self.waiting.remove(&node) {
            return Vec::new();
        }
        if let Ok(TierDone::Holdings(found)) = result {
            self.holdings.insert(node, found);
        }
        self.weigh_sources()
    }

    /// A node on which no rank is to be is lost.
    pub(crate) fn lost(&mut self, node: NodeIndex) -> Vec<Action> {
        if let Some(machine) = &mut self.machine {
            return machine.lost(node);
        }
        self.waiting.remove(&node);
        self.holdings.remove(&node);
        self.weigh_sources()
    }

    /// All have said what they have: the nearest copies are fetched.
    fn weigh_sources(&mut self) -> Vec<Action> {
        if !self.waiting.is_empty() {
            return Vec::new();
        }
        let survey = CopyInventory { nodes: self.holdings.clone(), shared: self.setup.shared.clone() };
        let (mut wants, mut actions) = (Vec::new(), Vec::new());
        for (chain, &node) in self.setup.lineage.iter().zip(&self.places) {
            for &image in chain {
                let (sources, torn) = sources(&survey, &self.setup.specs, &image, node);
                actions.extend(torn.into_iter().map(|(source, why)| Action::Tell { image, node, source, why }));
                wants.push(Want { image, node, sources });
            }
        }
        let (machine, first) = Recovery::start(wants, self.first_task);
        self.machine = Some(machine);
        actions.extend(first);
        actions
    }

    /// For each rank the files that were found, newest first.
    pub(crate) fn chains(&self, files: &BTreeMap<(u64, Rank), PathBuf>) -> Vec<Vec<PathBuf>> {
        let file = |image: &ImageRef| files.get(&(image.number, image.rank)).cloned().unwrap_or_default();
        self.setup.lineage.iter().map(|chain| chain.iter().map(file).collect()).collect()
    }

    /// What the nodes have now that each has these files, but for what is `outside` of their stores; and the number of the first task that was not given out.
    /// `tiers`: the job's own, into which they may have been put.
    pub(crate) fn into_holdings(
        mut self,
        files: &BTreeMap<(u64, Rank), PathBuf>,
        outside: impl Fn(&ImageRef) -> [PathBuf; 2],
        tiers: &[TierSpec],
    ) -> (Holdings, u64) {
        let own = |spec: &TierSpec| if let Tier::Local(path) = &spec.tier { Some(path.clone()) } else { None };
        let directories: Vec<PathBuf> = tiers.iter().chain(&self.setup.specs).filter_map(own).collect();
        for (chain, &node) in self.setup.lineage.iter().zip(&self.places) {
            for image in chain {
                let outside = outside(image);
                let Some(file) = files.get(&(image.number, image.rank)).filter(|file| !outside.contains(file)) else { continue };
                // One of them may be in another.
                let around = directories.iter().filter(|path| file.starts_with(path)).max_by_key(|path| path.components().count());
                let store = around.map_or(NodeStore::Memory, |path| NodeStore::Directory(path.clone()));
                let (held, found) = (self.holdings.entry(node).or_default(), (image.rank, image.bytes));
                match held.iter_mut().find(|held| held.store == store && held.number == image.number) {
                    Some(held) if held.images.contains(&found) => {}
                    Some(held) => held.images.push(found),
                    None => held.push(Holding { store, number: image.number, images: vec![found] }),
                }
            }
        }
        (self.holdings, self.machine.map_or(0, |machine| machine.next_task()))
    }
}
