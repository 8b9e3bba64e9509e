//! A restart from tiers: for each rank the nearest good copy of every image that it needs, before any process is built.
//!
//! ```text
//! Inventory ─► each node ─► Holdings ─► per image its sources ─► Fetch nearest … next … ─► files
//! ```
//! Invariants: ranks are built only when all images of all of them are there; each is checked on its way here, or, where it
//! is here already, by the restorer; what was wrong with a copy is told. Faults assumed: copies are torn, foreign, gone; nodes are lost in the middle.

use crate::error::RunError;
use crate::job::Event;
use crate::manifest::{Manifest, ManifestError, lineage, numbers};
use crate::nodes::{Node, NodeEvent};
use crate::tiers::{Told, object_address, reference};
use mend_coordination::checkpoint::image_name;
use mend_coordination::recovery::{Action, Recovery, Source, Survey, Want, sources};
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{Holding, ImageRef, Origin, Place, TierDone, TierOrder, TierReport, TierSpec};
use mend_sealed::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Where each image is, by checkpoint and rank.
type Files = BTreeMap<(u64, Rank), PathBuf>;

/// What was found for a restart.
#[derive(Debug)]
pub struct Found {
    /// For each rank its image's file on its node and those of the images it builds on, newest first.
    pub files: Vec<Vec<PathBuf>>,
    /// What each node has.
    pub holdings: BTreeMap<NodeIndex, Vec<Holding>>,
    /// Number of the last task that was given out.
    pub last_task: u64,
}

/// Looks for all images of a checkpoint.
pub struct Search<'a> {
    /// The checkpoint.
    pub manifest: &'a Manifest,
    /// Its directory.
    pub directory: &'a Path,
    /// What it was authenticated with.
    pub key: Option<&'a Key>,
    /// The job's tiers.
    pub specs: &'a [TierSpec],
    /// Where each rank will be.
    pub places: &'a [NodeIndex],
    /// The job's nodes.
    pub nodes: &'a mut [Node],
    /// What they say.
    pub events: &'a mut mpsc::Receiver<Event>,
    /// Tiers that are passed over.
    pub told: &'a mut Told,
    /// Whether copies are read before that are where they are needed already.
    pub checks: Checks,
}

/// When a copy is checked that need not be moved. What comes from elsewhere is always checked on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// By the restorer, which reads it anyway: if it is not good, nothing ran yet, and the restart is tried again with
    /// [`Checks::Before`].
    WhileRestoring,
    /// Before any process is built: one that is not good is named, and the next taken.
    Before,
}

impl Search<'_> {
    /// Runs the search to its end.
    ///
    /// # Errors
    /// [`RunError::Manifest`] if an image has no good copy; [`RunError::Interrupted`].
    pub async fn run(mut self) -> Result<Found, RunError> {
        let holdings = self.survey().await?;
        let lineage = lineage(self.directory, self.manifest, self.key)?;
        let survey = Survey { nodes: holdings, shared: self.shared() };
        let mut wants = Vec::new();
        for (chain, &node) in lineage.iter().zip(self.places) {
            for (number, entry) in chain {
                let image = reference(*number, entry);
                let (sources, torn) = sources(&survey, self.specs, &image, node);
                for (source, why) in torn {
                    self.tell(&image, node, &source, &why);
                }
                wants.push(Want { image, node, sources });
            }
        }
        let first = self.nodes.len() as u64 + 1;
        let (mut machine, actions) = Recovery::start(wants, first);
        let mut found = self.carry_out(actions)?;
        while found.is_none() {
            let actions = match self.next().await? {
                Heard::Done(task, result) => {
                    let path = |done| match done {
                        TierDone::Image(path) => Ok(path),
                        _ => Err("the node answered something else".to_owned()),
                    };
                    machine.fetched(task, result.and_then(path))
                }
                Heard::Lost(node) => machine.lost(node),
            };
            found = self.carry_out(actions)?;
        }
        let found = found.unwrap_or_default();
        let file = |number: &u64, rank: Rank| found.get(&(*number, rank)).cloned().unwrap_or_default();
        let files = lineage.iter().map(|chain| chain.iter().map(|(number, entry)| file(number, entry.rank)).collect()).collect();
        Ok(Found { files, holdings: survey.nodes, last_task: machine.next_task() })
    }

    /// Asks every node what it has.
    async fn survey(&mut self) -> Result<BTreeMap<NodeIndex, Vec<Holding>>, RunError> {
        let mut waiting: BTreeSet<NodeIndex> = BTreeSet::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            node.send(ToDaemon::Tier(Box::new(TierOrder::Inventory { task: index as u64 })));
            waiting.insert(index as NodeIndex);
        }
        let mut holdings = BTreeMap::new();
        while !waiting.is_empty() {
            match self.next().await? {
                Heard::Done(task, result) => {
                    if let Ok(TierDone::Holdings(found)) = result {
                        holdings.insert(task as NodeIndex, found);
                    }
                    waiting.remove(&(task as NodeIndex));
                }
                Heard::Lost(node) => {
                    waiting.remove(&node);
                    holdings.remove(&node);
                }
            }
        }
        Ok(holdings)
    }

    /// Lengths of the images in the checkpoint directory.
    fn shared(&self) -> BTreeMap<(u64, Rank), u64> {
        let checkpoints = self.directory.parent().unwrap_or(Path::new("/"));
        let mut found = BTreeMap::new();
        for number in numbers(checkpoints) {
            for image in &self.manifest.images {
                if let Ok(file) = fs::metadata(checkpoints.join(number.to_string()).join(image_name(image.rank))) {
                    found.insert((number, image.rank), file.len());
                }
            }
        }
        found
    }

    fn file(&self, image: &ImageRef) -> PathBuf {
        self.directory.with_file_name(image.number.to_string()).join(image_name(image.rank))
    }

    /// The files, once all are there.
    fn carry_out(&self, actions: Vec<Action>) -> Result<Option<Files>, RunError> {
        for action in actions {
            match action {
                Action::Fetch { task, image, node, source } => self.fetch(task, image, node, &source),
                Action::Tell { image, node, source, why } => self.tell(&image, node, &source, &why),
                Action::Ready(files) => return Ok(Some(files)),
                Action::Impossible(image) => {
                    let what = "has no good copy in any tier that can be reached".into();
                    return Err(ManifestError::Image { rank: image.rank, path: self.file(&image), what }.into());
                }
            }
        }
        Ok(None)
    }

    fn fetch(&self, task: u64, image: ImageRef, node: NodeIndex, source: &Source) {
        let from = match source {
            Source::OwnMemory | Source::OwnDirectory(_) => source.shelf().map(Origin::Shelf),
            Source::Memory(holder) | Source::Directory(holder, _) => {
                let token = mend_wire::random_bytes();
                if let (Some(shelf), Some(holder)) = (source.shelf(), self.nodes.get(*holder as usize)) {
                    let address = self.nodes[node as usize].address;
                    let order = TierOrder::Send { image, from: Place::Shelf(shelf), address, token, hurry: true };
                    holder.send(ToDaemon::Tier(Box::new(order)));
                }
                Some(Origin::Node { token })
            }
            Source::Shared => Some(Origin::File(self.file(&image))),
            Source::Object(base) => Some(Origin::Object(object_address(base, &self.manifest.job, image.number, &image_name(image.rank)))),
        };
        if let Some(from) = from {
            let order = TierOrder::Fetch { task, image, from, spare: self.file(&image), check: self.checks == Checks::Before };
            self.nodes[node as usize].send(ToDaemon::Tier(Box::new(order)));
        }
    }

    fn tell(&self, image: &ImageRef, node: NodeIndex, source: &Source, why: &str) {
        let name = |node: NodeIndex| self.nodes[node as usize].name.clone();
        let place = source.describe(&name(node), name);
        eprintln!("mend: rank {}: its image of checkpoint {} in {place} {why}", image.rank, image.number);
    }

    /// What matters here of what the nodes say.
    async fn next(&mut self) -> Result<Heard, RunError> {
        loop {
            match self.events.recv().await {
                Some(Event::Node(_, NodeEvent::Message(FromDaemon::Tier(TierReport::Done { task, result })))) => {
                    return Ok(Heard::Done(task, result));
                }
                Some(Event::Node(node, NodeEvent::Message(FromDaemon::Tier(TierReport::PassedOver { shelf, why })))) => {
                    self.told.passed_over(&self.nodes[node as usize].name, shelf, &why);
                }
                Some(Event::Node(node, NodeEvent::Message(FromDaemon::Refused { error }))) => {
                    let host = self.nodes[node as usize].name.clone();
                    return Err(RunError::Refused { host, error });
                }
                Some(Event::Node(node, NodeEvent::Lost(why))) => {
                    let lost = &mut self.nodes[node as usize];
                    lost.alive = false;
                    if self.places.contains(&node) {
                        let ranks = (0..self.places.len()).filter(|&rank| self.places[rank] == node).map(|rank| rank.to_string());
                        let ranks = ranks.collect::<Vec<_>>().join(",");
                        return Err(RunError::NodeLost { host: lost.name.clone(), why, ranks, hint: "`mend restart` again".into() });
                    }
                    eprintln!("mend: node {} is lost ({why}); no rank was on it", lost.name);
                    return Ok(Heard::Lost(node));
                }
                Some(Event::Signal(signal)) => return Err(RunError::Interrupted { signal }),
                Some(_) => {}
                None => return Err(RunError::Interrupted { signal: 15 }),
            }
        }
    }
}

enum Heard {
    Done(u64, Result<TierDone, String>),
    Lost(NodeIndex),
}
