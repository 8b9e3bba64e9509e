//! From where each rank's images are taken at a restart: the nearest copy first, the next one if that is not good.
//!
//! ```text
//! per image: source 1 ── not good ──► source 2 ── … ──► none left: the checkpoint cannot be used
//!               └── whole ──► here
//! ```
//! Invariants: a rank is rebuilt only from files that are all there, and that the caller calls good; sources are tried in order of
//! nearness; a source is tried once. Faults assumed: any copy is torn, foreign or gone; any node vanishes.

use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::{Holding, ImageRef, NodeStore, Tier, TierSpec};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

/// A copy of an image, as seen from the node that wants it. Ordered from near to far.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Source {
    /// The node's own memory.
    OwnMemory,
    /// Another node's memory.
    Memory(NodeIndex),
    /// A directory of the node's own.
    OwnDirectory(PathBuf),
    /// A directory of another node.
    Directory(NodeIndex, PathBuf),
    /// The checkpoint directory that all nodes see.
    Shared,
    /// Object storage below this address.
    Object(String),
}

impl Source {
    /// The node it needs besides the one that wants the image.
    #[must_use]
    pub fn node(&self) -> Option<NodeIndex> {
        match self {
            Self::Memory(node) | Self::Directory(node, _) => Some(*node),
            _ => None,
        }
    }

    /// The store it is in, if it is in one.
    #[must_use]
    pub fn store(&self) -> Option<NodeStore> {
        match self {
            Self::OwnMemory | Self::Memory(_) => Some(NodeStore::Memory),
            Self::OwnDirectory(path) | Self::Directory(_, path) => Some(NodeStore::Directory(path.clone())),
            Self::Shared | Self::Object(_) => None,
        }
    }

    /// For messages: "the memory of node2".
    pub fn describe(&self, own: &str, name: impl Fn(NodeIndex) -> String) -> String {
        match self {
            Self::OwnMemory => format!("the memory of {own}"),
            Self::Memory(node) => format!("the memory of {}", name(*node)),
            Self::OwnDirectory(path) => format!("{} on {own}", path.display()),
            Self::Directory(node, path) => format!("{} on {}", path.display(), name(*node)),
            Self::Shared => "the checkpoint directory".into(),
            Self::Object(address) => address.clone(),
        }
    }
}

/// What is known of copies before any of them is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyInventory {
    /// What each node has in its stores.
    pub nodes: BTreeMap<NodeIndex, Vec<Holding>>,
    /// Length of each image in the checkpoint directory, by checkpoint and rank.
    pub shared: BTreeMap<(u64, Rank), u64>,
}

/// Copies of an image, nearest first, and what is wrong with those that need not be tried.
#[must_use]
pub fn sources(survey: &CopyInventory, tiers: &[TierSpec], image: &ImageRef, node: NodeIndex) -> (Vec<Source>, Vec<(Source, String)>) {
    let (mut found, mut torn) = (Vec::new(), Vec::new());
    let mut judge = |source: Source, bytes: u64| match bytes == image.bytes {
        true => found.push(source),
        false => torn.push((source, format!("is torn: {bytes} bytes instead of {}", image.bytes))),
    };
    for (&holder, holdings) in &survey.nodes {
        for holding in holdings.iter().filter(|holding| holding.number == image.number) {
            let Some(&(_, bytes)) = holding.images.iter().find(|(rank, _)| *rank == image.rank) else { continue };
            let source = match (&holding.store, holder == node) {
                (NodeStore::Memory, true) => Source::OwnMemory,
                (NodeStore::Memory, false) => Source::Memory(holder),
                (NodeStore::Directory(path), true) => Source::OwnDirectory(path.clone()),
                (NodeStore::Directory(path), false) => Source::Directory(holder, path.clone()),
            };
            judge(source, bytes);
        }
    }
    if let Some(&bytes) = survey.shared.get(&(image.number, image.rank)) {
        judge(Source::Shared, bytes);
    }
    // Whether the object is there is found out by asking for it.
    found.extend(tiers.iter().filter_map(|spec| match &spec.tier {
        Tier::Object(address) => Some(Source::Object(address.clone())),
        _ => None,
    }));
    found.sort();
    (found, torn)
}

/// An image that a node needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The image that this is about.
    pub image: ImageRef,
    /// Who needs it.
    pub node: NodeIndex,
    /// Where it may be had, nearest first.
    pub sources: Vec<Source>,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Have `node` fetch the image from there.
    Fetch {
        /// To be named in [`Recovery::fetched`].
        task: u64,
        /// The image that this is about.
        image: ImageRef,
        /// The node that fetches it.
        node: NodeIndex,
        /// The copy that it is fetched from.
        source: Source,
    },
    /// A copy was not good; say so.
    Tell {
        /// Of which image.
        image: ImageRef,
        /// Who wanted it.
        node: NodeIndex,
        /// The copy that this is about.
        source: Source,
        /// What is wrong.
        why: String,
    },
    /// All images are where they are needed.
    Ready(BTreeMap<(u64, Rank), PathBuf>),
    /// No copy of this image is good.
    Impossible(ImageRef),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Search {
    image: ImageRef,
    node: NodeIndex,
    left: VecDeque<Source>,
    trying: Option<(u64, Source)>,
    found: Option<PathBuf>,
}

/// The search for all images of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    searches: Vec<Search>,
    next_task: u64,
    over: bool,
}

impl Recovery {
    /// Begins. Tasks are numbered from `first_task`.
    #[must_use]
    pub fn start(wants: Vec<Want>, first_task: u64) -> (Self, Vec<Action>) {
        let search = |want: Want| Search { image: want.image, node: want.node, left: want.sources.into(), trying: None, found: None };
        let mut machine = Self { searches: wants.into_iter().map(search).collect(), next_task: first_task, over: false };
        let actions = machine.advance();
        (machine, actions)
    }

    /// Number of the first task that was not given out.
    #[must_use]
    pub fn next_task(&self) -> u64 {
        self.next_task
    }

    /// A fetch is over.
    pub fn fetched(&mut self, task: u64, result: Result<PathBuf, String>) -> Vec<Action> {
        let trying = |search: &&mut Search| search.trying.as_ref().is_some_and(|(number, _)| *number == task);
        let Some(search) = self.searches.iter_mut().find(trying) else { return Vec::new() };
        let Some((_, source)) = search.trying.take() else { return Vec::new() };
        let mut actions = Vec::new();
        match result {
            Ok(path) => search.found = Some(path),
            Err(why) => actions.push(Action::Tell { image: search.image, node: search.node, source, why }),
        }
        actions.extend(self.advance());
        actions
    }

    /// A node is gone, and what it had.
    pub fn lost(&mut self, node: NodeIndex) -> Vec<Action> {
        let mut actions = Vec::new();
        for search in &mut self.searches {
            search.left.retain(|source| source.node() != Some(node));
            if search.node == node {
                // The rank has no place any more.
                search.left.clear();
                (search.trying, search.found) = (None, None);
            } else if let Some((_, source)) = search.trying.take_if(|(_, source)| source.node() == Some(node)) {
                actions.push(Action::Tell { image: search.image, node: search.node, source, why: "its node is lost".into() });
            }
        }
        actions.extend(self.advance());
        actions
    }

    fn advance(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.over {
            return actions;
        }
        for search in self.searches.iter_mut().filter(|search| search.found.is_none() && search.trying.is_none()) {
            let Some(source) = search.left.pop_front() else {
                self.over = true;
                return vec![Action::Impossible(search.image)];
            };
            search.trying = Some((self.next_task, source.clone()));
            actions.push(Action::Fetch { task: self.next_task, image: search.image, node: search.node, source });
            self.next_task += 1;
        }
        if self.searches.iter().all(|search| search.found.is_some()) {
            self.over = true;
            let found =
                self.searches.iter_mut().filter_map(|search| Some(((search.image.number, search.image.rank), search.found.take()?)));
            actions.push(Action::Ready(found.collect()));
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::tier::parse_tiers;
    use proptest::prelude::*;

    fn image(number: u64, rank: Rank) -> ImageRef {
        ImageRef { number, rank, bytes: 10, checksum: 0, id: Default::default() }
    }

    fn holding(store: NodeStore, number: u64, images: &[(Rank, u64)]) -> Holding {
        Holding { store, number, images: images.to_vec() }
    }

    #[test]
    fn the_nearest_comes_first_and_torn_ones_are_named() {
        let local = || NodeStore::Directory("/l".into());
        let survey = CopyInventory {
            nodes: [
                (0, vec![holding(NodeStore::Memory, 3, &[(0, 10)]), holding(local(), 3, &[(0, 10), (1, 10)])]),
                (1, vec![holding(NodeStore::Memory, 3, &[(0, 10), (1, 4)]), holding(local(), 2, &[(0, 10)])]),
            ]
            .into(),
            shared: [((3, 0), 10), ((3, 1), 9)].into(),
        };
        let tiers = parse_tiers("memory,partner,local:/l,shared,s3://b").unwrap();
        let (found, torn) = sources(&survey, &tiers, &image(3, 0), 1);
        let expected =
            [Source::OwnMemory, Source::Memory(0), Source::Directory(0, "/l".into()), Source::Shared, Source::Object("s3://b".into())];
        assert_eq!((found, torn), (expected.to_vec(), vec![]));
        let (found, torn) = sources(&survey, &tiers, &image(3, 1), 0);
        assert_eq!(found, [Source::OwnDirectory("/l".into()), Source::Object("s3://b".into())]);
        assert_eq!(torn.iter().map(|(source, _)| source).collect::<Vec<_>>(), [&Source::Memory(1), &Source::Shared]);
    }

    fn a_source() -> impl Strategy<Value = Source> {
        prop_oneof![
            Just(Source::OwnMemory),
            (0u32..3).prop_map(Source::Memory),
            Just(Source::Shared),
            Just(Source::Object("s3://b".into())),
        ]
    }

    proptest! {
        #[test]
        fn it_ends_with_checked_files_for_all_or_names_one_that_has_none(
            sources in prop::collection::vec(prop::collection::btree_set(a_source(), 0..4), 1..6),
            verdicts in prop::collection::vec(any::<bool>(), 32),
            lost in prop::option::of((0usize..6, 0u32..3)),
        ) {
            let want = |(rank, sources): (usize, std::collections::BTreeSet<Source>)| {
                Want { image: image(1, rank as Rank), node: rank as u32 % 3, sources: sources.into_iter().collect() }
            };
            let wants: Vec<Want> = sources.into_iter().enumerate().map(want).collect();
            let (mut machine, first) = Recovery::start(wants.clone(), 7);
            let (mut queue, mut good, mut steps): (VecDeque<Action>, BTreeMap<(u64, Rank), PathBuf>, usize) = (first.into(), BTreeMap::new(), 0);
            let mut tried: Vec<(ImageRef, Source)> = Vec::new();
            let mut end = None;
            while let Some(action) = queue.pop_front() {
                match action {
                    Action::Fetch { task, image, source, .. } => {
                        prop_assert!(!tried.contains(&(image, source.clone())), "tried twice");
                        tried.push((image, source.clone()));
                        if lost.is_some_and(|(at, _)| at == steps) {
                            let node = lost.unwrap().1;
                            good.retain(|(_, rank), _| rank % 3 != node);
                            queue.extend(machine.lost(node));
                        }
                        let verdict = verdicts[steps % verdicts.len()];
                        steps += 1;
                        let path = PathBuf::from(format!("{}", image.rank));
                        let result = if verdict { Ok(path.clone()) } else { Err("bad".into()) };
                        queue.extend(machine.fetched(task, result));
                        if verdict {
                            good.insert((1, image.rank), path);
                        }
                    }
                    Action::Tell { .. } => {}
                    over => {
                        prop_assert!(end.is_none(), "it ended twice");
                        end = Some(over);
                    }
                }
            }
            match end {
                Some(Action::Ready(found)) => {
                    prop_assert_eq!(found.len(), wants.len());
                    for (image, path) in found {
                        prop_assert_eq!(good.get(&image), Some(&path));
                    }
                }
                Some(Action::Impossible(_)) => {}
                other => prop_assert!(false, "no end: {:?}", other),
            }
        }
    }
}
