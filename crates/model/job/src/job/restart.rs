//! A restart: images are looked for in tiers if the job has some, and files are put back, before any process is built.
//!
//! Invariants: ranks are built only when all images of all of them are there; each is checked on its way here, or, where it
//! is here already, by the restorer; what was wrong with a copy is told.

use super::Job;
use crate::event::{End, Notice};
use crate::search::Search;
use crate::setup::SearchSetup;
use crate::tiering::object_address;
use mend_coordination::checkpoint::image_name;
use mend_coordination::recovery::{Action, Source};
use mend_messages::daemon::ToDaemon;
use mend_messages::files::{KeptFile, NotPut, PutOrder, is_shared_pointer};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{ImageLocation, ImageOrigin, ImageRef, TierDone, TierOrder};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

impl Job {
    /// Asks every node that there is what it has. The task has the node's number.
    pub(crate) fn begin_search(&mut self, setup: SearchSetup) {
        // A spare may be lost before the search begins: it never answers.
        let asked: BTreeSet<NodeIndex> = self.roster.alive().into_iter().collect();
        for &node in &asked {
            self.order(node, TierOrder::Inventory { task: u64::from(node) });
        }
        let places = self.roster.ranks.iter().map(|rank| rank.node).collect();
        let first_task = self.roster.nodes.len() as u64 + 1;
        self.searching = Some(Search::begin(setup, asked, first_task, places, self.now_us));
    }

    /// A node answered.
    pub(crate) fn searched(&mut self, node: NodeIndex, task: u64, result: Result<TierDone, String>) {
        let actions = self.searching.as_mut().map(|search| search.heard(node, task, result));
        self.do_search(actions.unwrap_or_default());
    }

    /// A node on which no rank is to be is lost.
    pub(crate) fn search_lost(&mut self, node: NodeIndex) {
        let actions = self.searching.as_mut().map(|search| search.lost(node));
        self.do_search(actions.unwrap_or_default());
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
        let Some(search) = self.searching.take() else { return };
        self.take_found(search.chains(&files), self.now_us.saturating_sub(search.begun_us));
        let is_in_directory = |(number, rank): &(u64, Rank), file: &PathBuf| *file == self.file(*number, *rank);
        let brought: Vec<(u64, Rank)> =
            files.iter().filter(|(image, file)| is_in_directory(image, file)).map(|(image, _)| *image).collect();
        let tiers = self.tiers.as_ref().map(|tiering| tiering.specs.as_slice()).unwrap_or_default();
        let (holdings, first_task) = search.into_holdings(&files, |image| [self.file(image.number, image.rank), self.spare(image)], tiers);
        self.order_ranks(holdings, &brought, first_task);
    }

    fn file(&self, number: u64, rank: Rank) -> PathBuf {
        self.checkpoints.join(number.to_string()).join(image_name(rank))
    }

    /// Where an image goes that no store takes: to the other ones of its checkpoint, also where its manifest was put elsewhere.
    fn spare(&self, image: &ImageRef) -> PathBuf {
        let given = self.restoring.as_ref().map(|restoring| (restoring.number, restoring.checkpoint.as_path()));
        match given {
            Some((number, place)) if place.parent() != Some(&*self.checkpoints) => {
                let place = if image.number == number { place.to_owned() } else { place.with_file_name(image.number.to_string()) };
                place.join(image_name(image.rank))
            }
            _ => self.file(image.number, image.rank),
        }
    }

    fn fetch(&mut self, task: u64, image: ImageRef, node: NodeIndex, source: &Source) {
        let check = self.searching.as_ref().is_some_and(Search::checks_all);
        let from = match source {
            Source::OwnMemory | Source::OwnDirectory(_) => source.store().map(ImageOrigin::NodeStore),
            Source::Memory(holder) | Source::Directory(holder, _) => {
                let token = self.tokens.draw();
                if let Some(store) = source.store() {
                    let address = self.roster.nodes[node as usize].setup.address;
                    self.order(*holder, TierOrder::Send { image, from: ImageLocation::NodeStore(store), address, token, hurry: true });
                }
                Some(ImageOrigin::Node { token })
            }
            Source::Shared => Some(ImageOrigin::File(self.file(image.number, image.rank))),
            Source::Object(base) => Some(ImageOrigin::Object(object_address(base, &self.id, image.number, &image_name(image.rank)))),
        };
        if let Some(from) = from {
            let order = TierOrder::Fetch { task, image, from, spare: self.spare(&image), check };
            self.order(node, order);
        }
    }

    /// Has the files that programs had open put back, each by one node, before any rank is built. False if there are none.
    pub(crate) fn put_files(&mut self) -> bool {
        let Some(restoring) = &self.restoring else { return false };
        let checkpoint = restoring.checkpoint.clone();
        let mut orders: BTreeMap<NodeIndex, Vec<KeptFile>> = BTreeMap::new();
        for file in restoring.files.clone() {
            if let Some(rank) = self.roster.ranks.get(file.rank as usize) {
                orders.entry(rank.node).or_default().push(file);
            }
        }
        self.putting = orders.keys().copied().collect();
        let pointers = |files: &Vec<KeptFile>| -> Vec<String> {
            files.iter().filter(|file| is_shared_pointer(&file.path, None)).map(|file| file.path.clone()).collect()
        };
        let pointers: Vec<(NodeIndex, Vec<String>)> = orders.iter().map(|(node, files)| (*node, pointers(files))).collect();
        for (node, files) in orders {
            let elsewhere = pointers.iter().filter(|(other, _)| *other != node).flat_map(|(_, paths)| paths.clone()).collect();
            self.send(node, ToDaemon::PutFiles(Box::new(PutOrder { checkpoint: checkpoint.clone(), files, elsewhere })));
        }
        !self.putting.is_empty()
    }

    /// A node put files back, or could not.
    pub(crate) fn files_put(&mut self, node: NodeIndex, result: Result<Vec<String>, NotPut>) {
        if self.ending.is_some() || !self.putting.remove(&node) {
            return;
        }
        match result {
            Ok(warnings) => warnings.into_iter().for_each(|warning| self.tell(Notice::FilePut(warning))),
            Err(NotPut { error, kept }) => return self.end(End::FileNotPut { node, error, kept }),
        }
        if self.putting.is_empty() {
            self.build_ranks();
        }
    }
}
