//! A restart from tiers: for each rank the nearest good copy of every image that it needs, before any process is built.
//!
//! ```text
//! Inventory ─► each node ─► Holdings ─► per image its sources ─► Fetch nearest … next … ─► files
//! ```
//! Invariants: ranks are built only when all images of all of them are there; each is checked on its way here, or, where it
//! is here already, by the restorer; what was wrong with a copy is told. Faults assumed: copies are torn, foreign, gone; nodes are lost in the middle.

use crate::event::{End, Notice};
use crate::job::Job;
use crate::setup::SearchSetup;
use crate::tiers::object_address;
use mend_coordination::checkpoint::image_name;
use mend_coordination::recovery::{Action, CopyInventory, Recovery, Source, Want, sources};
use mend_messages::daemon::ToDaemon;
use mend_messages::files::{KeptFile, PutOrder};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{Holding, ImageLocation, ImageOrigin, ImageRef, NodeStore, TierDone, TierOrder};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What each node has.
pub(crate) type Holdings = BTreeMap<NodeIndex, Vec<Holding>>;

/// A search under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Searching {
    setup: SearchSetup,
    begun_us: u64,
    /// Nodes that have not said what they have.
    waiting: BTreeSet<NodeIndex>,
    holdings: Holdings,
    machine: Option<Recovery>,
    /// Node stores of which the user was told that they are passed over.
    pub(crate) told: BTreeSet<(NodeIndex, NodeStore)>,
}

impl Job {
    /// Asks every node what it has. The task has the node's number.
    pub(crate) fn begin_search(&mut self, setup: SearchSetup) {
        let waiting: BTreeSet<NodeIndex> = (0..self.nodes.len() as NodeIndex).collect();
        for &node in &waiting {
            self.order(node, TierOrder::Inventory { task: u64::from(node) });
        }
        let (holdings, told) = Default::default();
        self.searching = Some(Searching { setup, begun_us: self.now_us, waiting, holdings, machine: None, told });
    }

    /// A node answered.
    pub(crate) fn searched(&mut self, node: NodeIndex, task: u64, result: Result<TierDone, String>) {
        let Some(searching) = &mut self.searching else { return };
        if let Some(machine) = &mut searching.machine {
            let path = |done| match done {
                TierDone::Image(path) => Ok(path),
                _ => Err("the node answered something else".to_owned()),
            };
            let actions = machine.fetched(task, result.and_then(path));
            return self.do_search(actions);
        }
        if task == u64::from(node) && searching.waiting.remove(&node) {
            if let Ok(TierDone::Holdings(found)) = result {
                searching.holdings.insert(node, found);
            }
            self.weigh_sources();
        }
    }

    /// A node on which no rank is to be is lost.
    pub(crate) fn search_lost(&mut self, node: NodeIndex) {
        let Some(searching) = &mut self.searching else { return };
        match &mut searching.machine {
            Some(machine) => {
                let actions = machine.lost(node);
                self.do_search(actions);
            }
            None => {
                searching.waiting.remove(&node);
                searching.holdings.remove(&node);
                self.weigh_sources();
            }
        }
    }

    /// All have said what they have: the nearest copies are fetched.
    fn weigh_sources(&mut self) {
        let Some(searching) = self.searching.as_mut().filter(|searching| searching.waiting.is_empty()) else { return };
        let survey = CopyInventory { nodes: searching.holdings.clone(), shared: searching.setup.shared.clone() };
        let (mut wants, mut notices) = (Vec::new(), Vec::new());
        for (chain, rank) in searching.setup.lineage.iter().zip(&self.ranks) {
            for &image in chain {
                let node = rank.node;
                let (sources, torn) = sources(&survey, &searching.setup.specs, &image, node);
                notices.extend(torn.into_iter().map(|(source, why)| Notice::BadCopy { image, node, source, why }));
                wants.push(Want { image, node, sources });
            }
        }
        let first = self.nodes.len() as u64 + 1;
        let (machine, actions) = Recovery::start(wants, first);
        searching.machine = Some(machine);
        notices.into_iter().for_each(|notice| self.tell(notice));
        self.do_search(actions);
    }

    fn do_search(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Fetch { task, image, node, source } => self.fetch(task, image, node, &source),
                Action::Tell { image, node, source, why } => self.tell(Notice::BadCopy { image, node, source, why }),
                Action::Ready(files) => self.found(files),
                Action::Impossible(image) => self.end(End::NoGoodCopy(image)),
            }
        }
    }

    fn found(&mut self, files: BTreeMap<(u64, Rank), PathBuf>) {
        let Some(searching) = self.searching.take() else { return };
        let file = |image: &ImageRef| files.get(&(image.number, image.rank)).cloned().unwrap_or_default();
        let chains = searching.setup.lineage.iter().map(|chain| chain.iter().map(file).collect()).collect();
        self.take_found(chains, self.now_us.saturating_sub(searching.begun_us));
        let first_task = searching.machine.map_or(0, |machine| machine.next_task());
        self.order_ranks(searching.holdings, first_task);
    }

    fn file(&self, image: &ImageRef) -> PathBuf {
        self.checkpoints.join(image.number.to_string()).join(image_name(image.rank))
    }

    fn fetch(&mut self, task: u64, image: ImageRef, node: NodeIndex, source: &Source) {
        let check = self.searching.as_ref().is_some_and(|searching| searching.setup.check);
        let from = match source {
            Source::OwnMemory | Source::OwnDirectory(_) => source.store().map(ImageOrigin::NodeStore),
            Source::Memory(holder) | Source::Directory(holder, _) => {
                let token = self.tokens.draw();
                if let Some(store) = source.store() {
                    let address = self.nodes[node as usize].setup.address;
                    self.order(*holder, TierOrder::Send { image, from: ImageLocation::NodeStore(store), address, token, hurry: true });
                }
                Some(ImageOrigin::Node { token })
            }
            Source::Shared => Some(ImageOrigin::File(self.file(&image))),
            Source::Object(base) => Some(ImageOrigin::Object(object_address(base, &self.id, image.number, &image_name(image.rank)))),
        };
        if let Some(from) = from {
            let order = TierOrder::Fetch { task, image, from, spare: self.file(&image), check };
            self.order(node, order);
        }
    }

    /// Has the files that programs had open put back, each by one node, before any rank is built. False if there are none.
    pub(crate) fn put_files(&mut self) -> bool {
        let Some(restoring) = &mut self.restoring else { return false };
        let checkpoint = restoring.checkpoint.clone();
        let mut orders: BTreeMap<NodeIndex, Vec<KeptFile>> = BTreeMap::new();
        for file in std::mem::take(&mut restoring.files) {
            if let Some(rank) = self.ranks.get(file.rank as usize) {
                orders.entry(rank.node).or_default().push(file);
            }
        }
        self.putting = orders.keys().copied().collect();
        for (node, files) in orders {
            self.send(node, ToDaemon::PutFiles(Box::new(PutOrder { checkpoint: checkpoint.clone(), files })));
        }
        !self.putting.is_empty()
    }

    /// A node put files back, or could not.
    pub(crate) fn files_put(&mut self, node: NodeIndex, result: Result<Vec<String>, String>) {
        if self.ending.is_some() || !self.putting.remove(&node) {
            return;
        }
        match result {
            Ok(warnings) => warnings.into_iter().for_each(|warning| self.tell(Notice::FilePut(warning))),
            Err(error) => return self.end(End::FileNotPut { node, error }),
        }
        if self.putting.is_empty() {
            self.build_ranks();
        }
    }
}
