//! Nodes that differ. Some worlds have different processors: there every node tells what its processor offers, a rank needs what the one
//! where it runs offers, and its image needs the same. Some have different files: each node has one of two versions of a library.
//!
//! What is asserted: no rank is built on a node whose processor lacks what it needs, or moves to one that has another library; a restart that
//! finds no processor for a rank was right. Drawn apart, so that all else stays as it was.

use super::World;
use crate::coming::{Coming, Fault};
use mend_image::cpu::{Cpu, CpuNeeds, Features};
use mend_messages::agent::ImageId;
use mend_messages::daemon::{FromDaemon, RestoreSource};
use mend_messages::job::Rank;
use mend_messages::needs::{Difference, FileDifference, FileUsage, NeededFile, NodeNeeds};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::BTreeMap;

/// What the better processors have, and the others.
const ALL: Features = Features([0b11, 0]);
const FEWER: Features = Features([0b01, 0]);

/// What nodes offer, and images need.
#[derive(Debug, Default)]
pub struct Differences {
    /// Of each node; empty: nothing is told in this world.
    nodes: Vec<Features>,
    images: BTreeMap<ImageId, Features>,
    /// Length of each node's library; empty: all are the same.
    libraries: Vec<u64>,
}

impl Differences {
    /// Those of a world.
    pub fn draw(seed: u64, nodes: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xcb0);
        let differ = rng.next_u64().is_multiple_of(4);
        let draw = |_| if rng.next_u64().is_multiple_of(3) { FEWER } else { ALL };
        let processors = if differ { (0..nodes).map(draw).collect() } else { Vec::new() };
        let others = rng.next_u64().is_multiple_of(4);
        let libraries = if others { (0..nodes).map(|_| rng.next_u64() % 2).collect() } else { Vec::new() };
        Self { nodes: processors, images: BTreeMap::new(), libraries }
    }

    /// Whether all nodes are alike.
    pub fn are_none(&self) -> bool {
        self.nodes.is_empty() && self.libraries.is_empty()
    }

    fn lacks(&self, at: usize, needs: Features) -> bool {
        self.nodes.get(at).is_some_and(|here| !needs.without(*here).is_empty())
    }

    /// The processor of a node.
    pub fn of(&self, at: usize) -> Cpu {
        Cpu { features: self.nodes.get(at).copied().unwrap_or_default(), ..Cpu::default() }
    }

    fn library(&self, at: usize) -> NeededFile {
        let size = self.libraries.get(at).copied().unwrap_or_default();
        NeededFile { path: "/lib".into(), usage: FileUsage::Mapped { size, modified: None, sample: 0 } }
    }

    /// What a rank that runs on a node needs.
    pub fn needs(&self, at: usize) -> NodeNeeds {
        let processor = if self.nodes.is_empty() { CpuNeeds::default() } else { self.of(at).needs(Features::default()) };
        NodeNeeds { processor, vdso: None, files: vec![self.library(at)] }
    }

    /// What a node's daemon finds that a rank needs and that is not the same there.
    pub fn compare(&self, at: usize, needs: &NodeNeeds) -> Vec<Difference> {
        let differ = |file: &NeededFile| {
            let what = FileDifference::Content;
            (*file != self.library(at)).then(|| Difference::File { path: file.path.clone(), what })
        };
        needs.files.iter().filter_map(differ).collect()
    }

    /// An image is taken on a node.
    pub fn saved(&mut self, at: usize, image: ImageId) {
        self.images.insert(image, self.of(at).features);
    }
}

impl World {
    /// All nodes tell, sooner or later; in some lives one dies first. Drawn apart, so that all else stays as it was.
    pub(crate) fn tell_processors(&mut self) {
        if self.differences.nodes.is_empty() {
            return;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ 0xd1f ^ (self.life << 40));
        if self.disturbed && rng.next_u64().is_multiple_of(3) {
            let at = self.hosts[(rng.next_u64() % self.hosts.len() as u64) as usize];
            self.plan(0, Coming::Fault(Fault::NodeDies(at)));
        }
        self.say_ready();
    }

    /// What nodes were about to tell a lost controller is lost with it, since it has no number. They tell its successor.
    pub(crate) fn tell_processors_again(&mut self) {
        if !self.differences.nodes.is_empty() {
            self.retain(|coming| !matches!(coming, Coming::ToJob { message: FromDaemon::Ready { .. }, .. }));
            self.say_ready();
        }
    }

    fn say_ready(&mut self) {
        for at in self.hosts.clone() {
            let processor = Box::new(self.differences.of(at));
            self.say(at, FromDaemon::Ready { name: format!("n{at}"), processor, succeeds: false });
        }
    }

    /// A rank is to be built on a node.
    pub(crate) fn check_node(&self, at: usize, rank: Rank, source: &RestoreSource, image: Option<ImageId>) -> Result<(), String> {
        let home = || (0..self.nodes.len()).find(|&other| other != at && self.nodes[other].ranks.contains_key(&rank));
        let needs = match source {
            RestoreSource::Transfer { .. } => home().map(|home| self.differences.of(home).features),
            RestoreSource::Files(_) => image.and_then(|image| self.differences.images.get(&image).copied()),
        };
        if matches!(source, RestoreSource::Transfer { .. })
            && home().is_some_and(|home| self.differences.library(home) != self.differences.library(at))
        {
            return Err(format!("rank {rank} moves to node {at}, which has another library than it uses"));
        }
        match needs.filter(|needs| self.differences.lacks(at, *needs)) {
            Some(needs) => Err(format!("rank {rank} is to be built on node {at}, whose processor lacks some of {:?}", needs.0)),
            None => Ok(()),
        }
    }

    /// Whether no node that the job began on has a processor for this rank.
    pub(crate) fn no_processor_for(&self, rank: Rank) -> bool {
        let restarted = self.from.and_then(|number| self.disk.publication(number));
        let image = restarted.and_then(|publication| publication.images.get(rank as usize));
        let needs = image.and_then(|image| self.differences.images.get(&image.id)).copied().unwrap_or_default();
        self.hosts.iter().all(|&at| self.differences.lacks(at, needs))
    }
}
