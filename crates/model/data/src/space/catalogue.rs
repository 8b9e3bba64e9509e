//! What all targets of a space together know of its files.
//!
//! Each target tells what it came to know, in its order. Nothing of that contradicts anything else: an entry never changes, and one that is known to be
//! gone stays gone; one that is told again with other targets has a higher version. So the catalogue is the same whatever the order in which targets are heard, and lacks nothing as long as one holder of each entry is heard.

use super::{Entry, HIDDEN, Id, Kind, Striping};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

/// Something that a target came to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// An entry.
    There(Box<Entry>),
    /// It was removed. What keeps the word of that may never have known the entry.
    Gone(Id),
}

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// A file.
    File(&'a Entry),
    /// A directory: there because something is below it, or because somebody made it.
    Directory,
}

/// The names of a space.
#[derive(Debug, Default)]
pub struct Catalogue {
    entries: HashMap<Id, Entry>,
    gone: HashSet<Id>,
    /// By path, those that are not gone.
    paths: BTreeMap<String, Vec<Id>>,
}

impl Catalogue {
    /// Takes in what a target said.
    pub fn learn(&mut self, change: Change) {
        match change {
            Change::There(entry) => {
                if self.gone.contains(&entry.id) {
                    return;
                }
                if let Some(known) = self.entries.get_mut(&entry.id) {
                    if !entry.replaces(known) {
                        return;
                    }
                    if entry.path == known.path {
                        *known = *entry;
                        return;
                    }
                    if entry.written().is_none() {
                        return;
                    }
                    // It was renamed.
                    self.take_out(&entry.id);
                }
                self.paths.entry(entry.path.clone()).or_default().push(entry.id);
                self.entries.insert(entry.id, *entry);
            }
            Change::Gone(id) => {
                self.gone.insert(id);
                self.take_out(&id);
            }
        }
    }

    fn take_out(&mut self, id: &Id) {
        let Some(entry) = self.entries.remove(id) else { return };
        if let Some(ids) = self.paths.get_mut(&entry.path) {
            ids.retain(|other| other != id);
            if ids.is_empty() {
                self.paths.remove(&entry.path);
            }
        }
    }

    /// All entries with this path that are not gone: the one that is seen, and those that it replaced.
    #[must_use]
    pub fn all_at(&self, path: &str) -> Vec<&Entry> {
        self.paths.get(path).into_iter().flatten().filter_map(|id| self.entries.get(id)).collect()
    }

    /// The one that is seen.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Entry> {
        self.all_at(path).into_iter().max_by_key(|entry| (entry.version, entry.id))
    }

    /// Entries of its path that are not seen because of this one. What somebody makes there after it is none of them.
    #[must_use]
    pub fn hidden_by(&self, entry: &Entry) -> Vec<Id> {
        let order = |entry: &Entry| (entry.version, entry.id);
        self.all_at(&entry.path).into_iter().filter(|other| order(other) < order(entry)).map(|other| other.id).collect()
    }

    /// True of a file that ranks wrote and that nobody sees at its path, or that hides what is below it.
    #[must_use]
    pub fn is_conflict(&self, entry: &Entry) -> bool {
        let is_seen = || self.at(&entry.path).is_some_and(|seen| seen.id == entry.id);
        entry.written().is_some() && (!is_seen() || self.below(&entry.path).next().is_some())
    }

    /// All of these, in the order of their paths: [`conflicts`](super::conflicts) tells where they go.
    #[must_use]
    pub fn conflicts(&self) -> Vec<&Entry> {
        let mut found: Vec<&Entry> = self.entries.values().filter(|entry| self.is_conflict(entry)).collect();
        found.sort_by(|one, other| (&one.path, one.id).cmp(&(&other.path, other.id)));
        found
    }

    /// An entry that is not gone.
    #[must_use]
    pub fn entry(&self, id: &Id) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// If a target says something else of a file than is known: what is out of date, and what is not.
    #[must_use]
    pub fn differing(&self, told: &Entry) -> Option<(Entry, Entry)> {
        let known = self.entries.get(&told.id)?;
        match () {
            () if told.replaces(known) => Some((known.clone(), told.clone())),
            () if known.replaces(told) => Some((told.clone(), known.clone())),
            () => None,
        }
    }

    /// True of an entry that is known to be gone.
    #[must_use]
    pub fn is_gone(&self, id: &Id) -> bool {
        self.gone.contains(id)
    }

    /// The version that a new entry with this path gets, so that it is the one that is seen.
    #[must_use]
    pub fn next_version(&self, path: &str) -> u64 {
        self.at(path).map_or(1, |entry| entry.version.saturating_add(1))
    }

    /// What a path is; `None` if there is nothing. A file hides what is below its path.
    #[must_use]
    pub fn look(&self, path: &str) -> Option<Node<'_>> {
        if path.is_empty() {
            return Some(Node::Directory);
        }
        match self.at(path) {
            Some(entry) if entry.is_file() => Some(Node::File(entry)),
            Some(_) => Some(Node::Directory),
            None => self.below(path).next().map(|_| Node::Directory),
        }
    }

    /// Paths below a directory, in order.
    fn below<'a>(&'a self, directory: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        self.paths
            .range(prefix.clone()..)
            .map(|(path, _)| path.as_str())
            .take_while(move |path| path.starts_with(&prefix))
            .filter(|path| !path.is_empty())
    }

    /// What a directory has in it, by name.
    #[must_use]
    pub fn list(&self, directory: &str) -> Vec<(String, Node<'_>)> {
        let start = if directory.is_empty() { 0 } else { directory.len() + 1 };
        let mut found: Vec<(String, Node<'_>)> = Vec::new();
        let mut from = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let prefix = from.clone();
        while let Some((path, _)) = self.paths.range(from.clone()..).next().filter(|(path, _)| path.starts_with(&prefix)) {
            let Some(name) = path[start..].split('/').next().filter(|name| !name.is_empty()) else {
                // The root's own entry.
                from = format!("{path}\0");
                continue;
            };
            let child = &path[..start + name.len()];
            if let Some(node) = self.look(child).filter(|_| child != HIDDEN) {
                found.push((name.to_owned(), node));
            }
            // Behind all that is below it. What stands between (`a` and `a/b` have `a.x` between them) comes by itself, and `a` once more.
            from = if path.len() == child.len() { format!("{path}\0") } else { format!("{child}0") };
        }
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found.dedup_by(|one, other| one.0 == other.0);
        found
    }

    /// Files that stand behind this one in its directory, by name.
    pub fn following<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Entry> {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let name = move |path: &'a str| if directory.is_empty() { Some(path) } else { path.strip_prefix(directory)?.strip_prefix('/') };
        let behind = self.paths.range::<str, _>((Bound::Excluded(path), Bound::Unbounded)).map(|(path, _)| path.as_str());
        let there =
            behind.take_while(move |path| name(path).is_some()).filter(move |path| name(path).is_some_and(|name| !name.contains('/')));
        there.filter_map(|path| self.at(path)).filter(|entry| entry.is_file())
    }

    /// True if nothing but this path is below a directory.
    #[must_use]
    pub fn is_alone(&self, directory: &str, path: &str) -> bool {
        self.below(directory).all(|other| other == path)
    }

    /// All files at a path or below it, in the order of their paths.
    #[must_use]
    pub fn files(&self, path: &str) -> Vec<&Entry> {
        if let Some(Node::File(entry)) = self.look(path) {
            return vec![entry];
        }
        let shown = |at: &&str| path.starts_with(HIDDEN) || !at.starts_with(HIDDEN);
        self.below(path).filter(shown).filter_map(|path| self.at(path)).filter(|entry| entry.is_file()).collect()
    }

    /// All entries at a path or below it, those that were replaced as well.
    #[must_use]
    pub fn everything(&self, path: &str) -> Vec<&Entry> {
        let below: Vec<&str> = self.below(path).collect();
        std::iter::once(path).chain(below).flat_map(|path| self.all_at(path)).collect()
    }

    /// How a new file with this path is spread: as the nearest directory above says, else as the space does.
    #[must_use]
    pub fn striping(&self, path: &str, of_space: Striping) -> Striping {
        let mut above = path;
        loop {
            above = above.rsplit_once('/').map_or("", |(directory, _)| directory);
            match self.at(above).map(|entry| entry.kind.clone()) {
                Some(Kind::Directory(striping)) => return striping,
                _ if above.is_empty() => return of_space,
                _ => {}
            }
        }
    }

    /// Why no file can have this path: something above it is a file, or it is a directory.
    #[must_use]
    pub fn obstacle(&self, path: &str) -> Option<String> {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]);
        for directory in above {
            if let Some(Node::File(_)) = self.look(directory) {
                return Some(format!("{directory} is a file"));
            }
        }
        (self.look(path) == Some(Node::Directory)).then(|| format!("{path} is a directory"))
    }

    /// How many files there are, and how many bytes those have that were staged.
    #[must_use]
    pub fn total(&self) -> (u64, u64) {
        let bytes = |entry: &Entry| entry.file().map_or(0, |file| file.size);
        self.files("").iter().fold((0, 0), |(files, sum), entry| (files + 1, u64::saturating_add(sum, bytes(entry))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::*;
    use proptest::prelude::*;

    fn file(id: u8, version: u64, path: &str) -> Entry {
        let kind = Kind::File(File {
            size: 1,
            stripe: super::super::BLOCK,
            targets: vec![0],
            keepers: vec![0],
            sources: Vec::new(),
            replicas: Vec::new(),
        });
        Entry { id: [id; 16], version, path: path.into(), made_ns: 0, kind }
    }

    fn there(entry: &Entry) -> Change {
        Change::There(Box::new(entry.clone()))
    }

    fn named(catalogue: &Catalogue, directory: &str) -> Vec<(String, bool)> {
        catalogue.list(directory).into_iter().map(|(name, node)| (name, node == Node::Directory)).collect()
    }

    #[test]
    fn what_is_made_later_at_a_path_is_not_hidden_by_what_was_there() {
        let mut catalogue = Catalogue::default();
        let [oldest, seen, newer, elsewhere] = [file(9, 1, "a"), file(2, 2, "a"), file(1, 3, "a"), file(4, 1, "b")];
        [&oldest, &seen, &newer, &elsewhere].into_iter().for_each(|entry| catalogue.learn(there(entry)));
        assert_eq!(catalogue.hidden_by(&seen), [oldest.id]);
        assert_eq!(catalogue.hidden_by(&newer).len(), 2);
        assert!(catalogue.hidden_by(&oldest).is_empty() && catalogue.at("a") == Some(&newer));
    }

    #[test]
    fn what_ranks_wrote_and_nobody_sees_is_a_conflict() {
        let written = |id: u8, version: u64, path: &str| {
            let known = super::super::written::Written {
                stripe: super::super::BLOCK,
                objects: vec![[0, 1]],
                epoch: 0,
                filling: Vec::new(),
                mode: 0o644,
            };
            Entry { kind: Kind::Written(known), ..file(id, version, path) }
        };
        let mut catalogue = Catalogue::default();
        // Twins, one below a staged file, one that hides what is below it; and what is as it should be.
        let all = [written(1, 1, "a"), written(2, 1, "a"), file(3, 2, "b"), written(4, 1, "b"), written(5, 1, "c"), written(6, 1, "c/d")];
        let good = [written(7, 1, "e"), file(8, 1, "f"), file(9, 2, "f"), written(10, 1, "g/h"), written(11, 1, "c.x")];
        all.iter().chain(&good).for_each(|entry| catalogue.learn(there(entry)));
        let found: Vec<u8> = catalogue.conflicts().into_iter().map(|entry| entry.id[0]).collect();
        assert_eq!(found, [1, 4, 5]);
        for entry in [&all[0], &all[3], &all[4]] {
            catalogue.learn(there(&Entry { version: 2, path: super::super::conflicts::path_beside(entry), ..entry.clone() }));
        }
        assert!(catalogue.conflicts().is_empty() && catalogue.files("").len() == 10);
    }

    #[test]
    fn directories_are_there_by_what_is_below_them() {
        let mut catalogue = Catalogue::default();
        for (id, path) in ["a/b/c", "a.x", "a/d", "a0", "b"].into_iter().enumerate() {
            catalogue.learn(there(&file(id as u8, 1, path)));
        }
        let entry = |name: &str, directory| (name.to_owned(), directory);
        assert_eq!(named(&catalogue, ""), [entry("a", true), entry("a.x", false), entry("a0", false), entry("b", false)]);
        assert_eq!(named(&catalogue, "a"), [entry("b", true), entry("d", false)]);
        assert_eq!((catalogue.look("a/b"), catalogue.look("a/x"), catalogue.look("a/")), (Some(Node::Directory), None, None));
        assert_eq!(catalogue.files("a").len(), 2);
        let following = |path: &str| -> Vec<String> { catalogue.following(path).map(|entry| entry.path.clone()).collect() };
        assert_eq!((following("a.x"), following("a/b/c"), following("a/d")), (vec!["a0".to_owned(), "b".to_owned()], vec![], vec![]));
        assert_eq!(following("a/a"), ["a/d"]);
        assert_eq!((catalogue.is_alone("a/b", "a/b/c"), catalogue.is_alone("a", "a/b/c")), (true, false));
        assert_eq!(catalogue.total(), (5, 5));
        assert_eq!(catalogue.obstacle("a.x/y").as_deref(), Some("a.x is a file"));
        assert_eq!(catalogue.obstacle("a").as_deref(), Some("a is a directory"));
        assert_eq!(catalogue.obstacle("a/new"), None);
    }

    #[test]
    fn the_later_one_is_seen_and_the_nearest_directory_says_how_files_are_spread() {
        let mut catalogue = Catalogue::default();
        let (old, new) = (file(9, 1, "a/x"), file(2, 2, "a/x"));
        catalogue.learn(there(&new));
        catalogue.learn(there(&old));
        assert_eq!(catalogue.at("a/x").unwrap().id, new.id);
        assert_eq!((catalogue.everything("a").len(), catalogue.files("").len()), (2, 1));
        catalogue.learn(Change::Gone(new.id));
        assert_eq!(catalogue.at("a/x").unwrap().id, old.id);
        let (wide, space) = (Striping { size: super::super::BLOCK, count: 3 }, Striping::default());
        catalogue.learn(there(&Entry { kind: Kind::Directory(wide), ..file(4, 1, "a") }));
        assert_eq!(
            (catalogue.striping("a/b/c", space), catalogue.striping("c", space), catalogue.striping("a", space)),
            (wide, space, space)
        );
        assert_eq!(named(&catalogue, ""), [("a".to_owned(), true)]);
        catalogue.learn(there(&Entry { kind: Kind::Directory(wide), ..file(5, 1, "") }));
        assert_eq!((catalogue.striping("c", space), named(&catalogue, "").len()), (wide, 1));
    }

    #[test]
    fn of_one_file_the_latest_map_counts_in_any_order() {
        let old = file(1, 1, "a");
        let moved = |version: u64, target: u16| {
            let Kind::File(inside) = old.kind.clone() else { unreachable!() };
            Entry {
                version,
                kind: Kind::File(super::super::File { targets: vec![target], keepers: vec![target], ..inside }),
                ..old.clone()
            }
        };
        let told = [old.clone(), moved(2, 1), moved(2, 2)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut catalogue = Catalogue::default();
            order.iter().for_each(|at| catalogue.learn(there(&told[*at])));
            assert_eq!(catalogue.at("a"), Some(&told[2]), "{order:?}");
            assert_eq!(catalogue.differing(&old), Some((old.clone(), told[2].clone())));
            assert_eq!(catalogue.differing(&told[2]), None);
        }
        let mut catalogue = Catalogue::default();
        catalogue.learn(Change::Gone(old.id));
        catalogue.learn(there(&told[2]));
        assert_eq!(catalogue.at("a"), None);
    }

    /// What happens to a space: a path gets a file or a directory, or loses all that it has.
    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, usize),
        Remove(usize),
    }

    const PATHS: [&str; 6] = ["a", "a/b", "a/b/c", "b", "b.c", "d/e"];

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (any::<u8>(), 0..PATHS.len()).prop_map(|(holder, path)| Step::Add(holder, path)),
            (0..PATHS.len()).prop_map(Step::Remove)
        ];
        prop::collection::vec(step, 0..30)
    }

    proptest! {
        /// Every entry is kept by two of four targets, removals by all that answer. Any one target is lost; the others are heard in any order, in pieces.
        #[test]
        fn no_target_s_loss_changes_what_is_seen(steps in steps(), lost in 0_usize..4, order in prop::collection::vec(0_usize..4, 0..60)) {
            let mut all = Catalogue::default();
            let mut logs: Vec<Vec<Change>> = vec![Vec::new(); 4];
            for (number, step) in steps.iter().enumerate() {
                match step {
                    Step::Add(holder, path) => {
                        let path = PATHS[*path];
                        let entry = file(number as u8, all.next_version(path), path);
                        let first = usize::from(*holder) % 4;
                        for at in [first, (first + 1 + usize::from(*holder / 4) % 3) % 4] {
                            logs[at].push(there(&entry));
                        }
                        all.learn(there(&entry));
                    }
                    Step::Remove(path) => {
                        let ids: Vec<Id> = all.everything(PATHS[*path]).iter().map(|entry| entry.id).collect();
                        for id in ids {
                            logs.iter_mut().for_each(|log| log.push(Change::Gone(id)));
                            all.learn(Change::Gone(id));
                        }
                    }
                }
            }
            let mut heard = Catalogue::default();
            let mut at = [0; 4];
            for target in order.into_iter().chain((0..4).flat_map(|target| std::iter::repeat_n(target, 60))) {
                if target != lost && at[target] < logs[target].len() {
                    heard.learn(logs[target][at[target]].clone());
                    at[target] += 1;
                }
            }
            let paths = |catalogue: &Catalogue| -> Vec<(String, Id)> { catalogue.files("").iter().map(|entry| (entry.path.clone(), entry.id)).collect() };
            prop_assert_eq!(paths(&all), paths(&heard));
            for directory in ["", "a", "a/b", "d"] {
                prop_assert_eq!(named(&all, directory), named(&heard, directory));
            }
        }

        #[test]
        fn a_listing_is_what_a_walk_over_all_paths_finds(used in prop::collection::vec("[ab./0]{1,5}", 0..12)) {
            let mut catalogue = Catalogue::default();
            let used: Vec<&String> = used.iter().filter(|path| super::super::is_path(path)).collect();
            for (id, path) in used.iter().enumerate() {
                catalogue.learn(there(&file(id as u8, 1, path)));
            }
            let mut names: Vec<&str> = used.iter().filter_map(|path| path.split('/').next()).collect();
            names.sort_unstable();
            names.dedup();
            let listed = catalogue.list("");
            prop_assert_eq!(listed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names);
        }
    }
}
