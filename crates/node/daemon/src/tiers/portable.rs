//! Files of portable checkpoints on this node: those that its ranks have written in the first tier, and copies of other nodes'.
//!
//! ```text
//! rank ─► ROOT/own/KEY/checkpoint-N/rank-R.*  ─┬─ to the directory, an object store   here, by the thread `behind`
//!                                              └─ Offer ─► the partner: ROOT/copies/KEY/…   as the controller orders
//! rank ─► ROOT/wanted/JOB.KEY.N.R ─ Wanted ─► from another node, or from an object: ROOT/copies/KEY/…
//! ```
//! Ranks see ROOT as `REQUESTS/fast`, with `REQUESTS` the directory in which they are asked for portable checkpoints; the library's side is `app/lib/src/places.c`. Which
//! checkpoint is copied to which tier the library's rank 0 says in its directory, so that all nodes copy the same.
//!
//! Invariants: nothing is copied or removed before the checkpoint's manifest is there, but for what is older than one that counts; a copy has its name only when all of it
//! is there; ranks never wait for a copy of theirs. Faults assumed: any file vanishes, is cut or is nonsense: whoever restores compares hashes. The job ends at any moment:
//! what is on the node then serves another job, and goes when nobody has used it for `MEND_TIER_HOURS`.

mod behind;
pub mod opening;

use super::turns::Turns;
use super::work;
use crate::outbox::Urgent;
use mend_coordination::portable::{Chains, Held, MAX_TEXT, Targets, oldest_linked, surplus};
use mend_kernel::untrusted::read_within;
use mend_messages::daemon::{FromDaemon, JobIntroduction};
use mend_messages::files::KeptFile;
use mend_messages::portable::{FileName, Part, PortableReport, checkpoint_name, checkpoint_number, is_key};
use mend_messages::tier::{NodeStore, Tier, TierReport, TierSpec};
use mend_transfer::atomic_file::AtomicFile;
use mend_transfer::image::Mover;
use mend_transfer::node_store;
use mend_wire::secret::to_hex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

/// Names of the tiers that all nodes share.
const SHARED: &str = "shared";
const OBJECT: &str = "object";
/// By which ranks know the directory where they are asked; a setting of the library.
const REQUESTS: &str = "MEND_APP_REQUESTS";
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How often the lock's directory is given a new time, by which a sweep sees that it is used.
const TOUCH_AGAIN: Duration = Duration::from_secs(60);
/// A file that was offered or asked for so long ago, and did not come, is offered or asked for again.
const SAY_AGAIN: Duration = Duration::from_secs(30);
/// The first lines of a manifest have at most so many bytes.
const MAX_HEAD: u64 = 8 << 10;
/// That a tier does not get files is told so often at most.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// What was touched so lately may be written just now.
const WRITING_TIME: Duration = Duration::from_secs(60);
/// How long the nodes whose ranks wrote a file have for copying it, before one that holds a copy does.
pub const OWNERS_TIME: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Said {
    offered: HashMap<FileName, Instant>,
    wanted: HashMap<FileName, Instant>,
    kept: HashSet<FileName>,
    /// When it was told last that a tier does not get files.
    failures: HashMap<String, Instant>,
    turns: Turns,
    /// What the controller has said of partners' copies, and the watching thread has not seen to yet. The job's loop waits for no file server.
    partners: Vec<Partners>,
}

/// What became of copies that partners were to have.
#[derive(Debug)]
enum Partners {
    Have(FileName),
    Lost(Vec<FileName>),
}

/// What both threads and the job's loop share.
#[derive(Debug)]
struct PortableArea {
    root: PathBuf,
    requests: PathBuf,
    job: String,
    store: NodeStore,
    tiers: Vec<TierSpec>,
    urgent: Urgent,
    over: AtomicBool,
    ending: Condvar,
    said: Mutex<Said>,
    lock: File,
}

/// The files of one job. [`Portable::end`] ends its threads.
#[derive(Clone, Debug)]
pub struct Portable {
    place: Arc<PortableArea>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

/// A directory of checkpoints that the job uses.
struct Directory {
    key: String,
    path: PathBuf,
    targets: Targets,
    /// Since when these are the targets.
    since: Option<SystemTime>,
}

impl Portable {
    /// Begins to keep files in a place: its threads run until [`Portable::end`].
    fn begin(place: PortableArea, paced: Mover) -> io::Result<Self> {
        let place = Arc::new(place);
        place.say(PortableReport::Holds { files: place.all() });
        let (near, far) = (place.clone(), place.clone());
        let watching = thread::Builder::new().name("mendd-portable".into()).spawn(move || near.watch())?;
        let copying = thread::Builder::new().name("mendd-behind".into()).spawn(move || {
            let _ = mend_kernel::background::stand_back();
            far.copy_behind(&paced);
        })?;
        Ok(Self { place, threads: Arc::new(Mutex::new(vec![watching, copying])) })
    }

    /// Names files that ranks see in this store as they are named here: ranks that were saved while they wrote one have it open.
    pub fn locate(&self, files: &mut [KeptFile]) {
        let (root, seen) = self.mount();
        for file in files {
            let Ok(below) = Path::new(&file.path).strip_prefix(&seen) else { continue };
            let path = root.join(below);
            if let (Some(parent), Some(text)) = (path.parent(), path.to_str()) {
                // What is wrong with it is told when the file is put there.
                let _ = make(parent);
                text.clone_into(&mut file.path);
            }
        }
    }

    /// The directory, and where ranks see it.
    pub fn mount(&self) -> (PathBuf, PathBuf) {
        (self.place.root.clone(), self.place.requests.join("fast"))
    }

    /// A file that is here, if it is.
    pub fn find(&self, name: &FileName) -> Option<PathBuf> {
        self.place.find(name)
    }

    /// Where a copy of so many bytes goes.
    ///
    /// # Errors
    /// There is no room, or no directory can be made.
    pub fn place_for(&self, name: &FileName, bytes: u64) -> io::Result<PathBuf> {
        let room = node_store::room(&self.place.store, &self.place.root)?;
        if room < bytes.saturating_add(super::SPACE_MARGIN_BYTES) {
            return Err(io::Error::other(format!("there is room for {room} bytes only")));
        }
        self.place.copy_of(name)
    }

    /// What came of one that was to come from another node.
    pub fn taken(&self, name: FileName, result: Result<u64, String>) {
        self.place.settle(&name);
        self.place.say(PortableReport::Taken { name, result });
    }

    /// See `PortableOrder::Kept`.
    pub fn kept(&self, name: FileName) {
        self.place.note(Partners::Have(name));
    }

    /// See `PortableOrder::Lost`: what partners have of these is to be offered again.
    pub fn lost(&self, names: Vec<FileName>) {
        self.place.note(Partners::Lost(names));
    }

    /// See `PortableOrder::Turn`.
    pub fn turn(&self, tier: String, turn: u64) {
        if !self.place.said().turns.grant(&tier, turn) {
            self.place.say(PortableReport::Over { tier, turn });
        }
        self.place.ending.notify_all();
    }

    /// See `PortableOrder::Missing`: an object store may have it; else the rank that waits goes on.
    pub fn missing(&self, name: FileName, mover: Mover) {
        let place = self.place.clone();
        tokio::spawn(async move {
            let (other, wanted) = (place.clone(), name.clone());
            let got = work(false, move || other.get_object(&wanted, &mover)).await;
            match got {
                Ok(()) => place.settle(&name),
                Err(why) => {
                    tracing::info!(%name, why, "a file of a portable checkpoint is nowhere");
                    place.answer(name.key(), name.checkpoint, name.rank);
                }
            }
        });
    }

    /// Has both threads end soon; what is here stays.
    pub fn end(&self) {
        self.place.over.store(true, Ordering::Relaxed);
        self.place.ending.notify_all();
    }

    /// The job leaves: waits for the threads, whose copies are cancelled, and takes away what is empty. Blocks.
    pub fn leave(&self) {
        self.end();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().for_each(|thread| drop(thread.join()));
        node_store::leave_portable(&self.place.root, &self.place.lock);
    }

    /// The job has ended well: the directory gets what it lacks of the newest checkpoint, and nothing is left here that it has. What cannot be copied stays, as
    /// if the job had failed. What is a copy of another node's is left to that one for so long. Blocks.
    pub fn close(self, mover: &Mover, patience: Duration) {
        self.end();
        for mut directory in self.place.directories() {
            let newest = directory.targets.newest;
            for target in directory.targets.tiers.values_mut() {
                *target = newest;
            }
            if !self.place.close_directory(&mut directory, mover, patience) {
                tracing::warn!(directory = %directory.path.display(), "the newest portable checkpoint stays on this node: it was not copied");
                continue;
            }
            for kind in ["own", "copies"] {
                let _ = fs::remove_dir_all(self.place.root.join(kind).join(&directory.key));
            }
        }
        self.leave();
    }
}

/// A tier's name in the library's files.
fn name_of(tier: &Tier) -> &'static str {
    match tier {
        Tier::Memory => "memory",
        Tier::Partner => "partner",
        Tier::Local(_) => "local",
        Tier::Shared => SHARED,
        Tier::Object(_) => OBJECT,
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    let mut partial = AtomicFile::new(path.to_owned())?;
    partial.file.write_all(text.as_bytes())?;
    partial.publish().map(drop)
}

/// Notes in the directory that a tier has a rank's files.
fn mark(directory: &Path, name: &FileName, tier: &str) {
    let _ = File::create(marker(directory, name, tier));
}

fn marker(directory: &Path, name: &FileName, tier: &str) -> PathBuf {
    directory.join(checkpoint_name(name.checkpoint)).join(format!("rank-{:05}.{tier}", name.rank))
}

/// The oldest checkpoint that one links to; `None` if it does not count, as it has no manifest.
///
/// # Errors
/// Its manifest cannot be read: it may link to any.
fn oldest_needed(directory: &Path, checkpoint: u64) -> io::Result<Option<u64>> {
    let manifest = match File::open(directory.join(checkpoint_name(checkpoint)).join("manifest")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        manifest => manifest?,
    };
    let mut head = Vec::new();
    manifest.take(MAX_HEAD).read_to_end(&mut head)?;
    Ok(Some(oldest_linked(&String::from_utf8_lossy(&head), checkpoint)))
}

fn entries(path: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let found = fs::read_dir(path).into_iter().flatten().flatten();
    found.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

impl PortableArea {
    /// Makes the place, and offers it to the ranks that start from now on. `None` if the program has no directory for it, or that is not seen here. Blocks, as long as the
    /// file system of the job's directory hangs.
    fn open(job: &JobIntroduction, node: &str, tiers: Vec<TierSpec>, urgent: Urgent) -> io::Result<Option<Self>> {
        let requests = job.program.env.iter().find(|(name, _)| name == REQUESTS).map(|(_, path)| PathBuf::from(path));
        let (Some(requests), Some(store)) = (requests, tiers.first().and_then(|first| first.tier.store())) else { return Ok(None) };
        if !requests.parent().is_some_and(Path::is_dir) {
            return Ok(None);
        }
        let (root, lock) = node_store::portable(&store, node)?;
        make(&requests.join("fast"))?;
        for name in ["own", "copies", "wanted"] {
            make(&root.join(name))?;
        }
        let job = to_hex(&job.identity);
        put(&root.join("node"), &format!("node = {node}\n"))?;
        let names: Vec<&str> = tiers.iter().map(|spec| name_of(&spec.tier)).collect();
        put(&requests.join("tiers"), &format!("tiers = {}\njob = {job}\n", names.join(",")))?;
        let (over, ending, said) = Default::default();
        Ok(Some(Self { root, requests, job, store, tiers, urgent, over, ending, said, lock }))
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, report: PortableReport) {
        self.urgent.send(FromDaemon::Tier(TierReport::Portable(report)));
    }

    fn has(&self, wanted: &Tier) -> bool {
        self.tiers.iter().any(|spec| spec.tier == *wanted)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn find(&self, name: &FileName) -> Option<PathBuf> {
        ["own", "copies"].into_iter().map(|kind| self.root.join(kind).join(name.to_string())).find(|path| path.is_file())
    }

    fn copy_of(&self, name: &FileName) -> io::Result<PathBuf> {
        let path = self.root.join("copies").join(name.to_string());
        path.parent().map_or(Ok(()), make)?;
        Ok(path)
    }

    /// Files of a checkpoint in one of both places, with their lengths.
    fn files(&self, kind: &str, key: &str, checkpoint: u64) -> Vec<(FileName, PathBuf, u64)> {
        let directory = self.root.join(kind).join(key).join(checkpoint_name(checkpoint));
        let file = |(name, path): (String, PathBuf)| {
            let length = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
            Some((FileName::of_file(key, checkpoint, &name)?, path, length))
        };
        let mut found: Vec<_> = entries(&directory).filter_map(file).collect();
        // Variables before their seal.
        found.sort();
        found
    }

    fn checkpoints(&self, kind: &str, key: &str) -> Vec<u64> {
        entries(&self.root.join(kind).join(key)).filter_map(|(name, _)| checkpoint_number(&name)).collect()
    }

    /// What there is in one of both places of a checkpoint and of all that it links to, oldest first; nothing before it counts.
    fn chain(&self, kind: &str, directory: &Directory, target: u64) -> Vec<(FileName, PathBuf, u64)> {
        let Ok(Some(oldest)) = oldest_needed(&directory.path, target) else { return Vec::new() };
        let mut numbers = self.checkpoints(kind, &directory.key);
        numbers.retain(|number| {
            (oldest..=target).contains(number) && (*number == target || matches!(oldest_needed(&directory.path, *number), Ok(Some(_))))
        });
        numbers.sort_unstable();
        numbers.into_iter().flat_map(|number| self.files(kind, &directory.key, number)).collect()
    }

    /// All that is here, also of other jobs: one of them may be what this job's program goes on from.
    fn all(&self) -> Vec<(FileName, u64)> {
        let mut found = BTreeMap::new();
        for kind in ["own", "copies"] {
            for (key, _) in entries(&self.root.join(kind)).filter(|(name, _)| is_key(name)) {
                for checkpoint in self.checkpoints(kind, &key) {
                    found.extend(self.files(kind, &key, checkpoint).into_iter().map(|(name, _, bytes)| (name, bytes)));
                }
            }
        }
        found.into_iter().collect()
    }

    /// Where the job's programs have their checkpoints.
    fn directories(&self) -> Vec<Directory> {
        let mut found: Vec<Directory> = Vec::new();
        for (name, _) in entries(&self.requests).filter(|(name, _)| name.ends_with(".directory")) {
            let Ok(text) = read_within(&self.requests, Path::new(&name), MAX_TEXT) else { continue };
            let text = String::from_utf8_lossy(&text);
            let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            let (Some(path), Some(key)) = (value("directory"), value("key").filter(|key| is_key(key))) else { continue };
            if found.iter().all(|one| one.key != key) {
                let path = PathBuf::from(path);
                let targets = read_within(&path, Path::new("targets"), MAX_TEXT).unwrap_or_default();
                let since = fs::metadata(path.join("targets")).and_then(|about| about.modified()).ok();
                found.push(Directory { key: key.to_owned(), path, targets: Targets::parse(&String::from_utf8_lossy(&targets)), since });
            }
        }
        found
    }

    /// The thread that nothing keeps waiting: offers, wanted files, what a node need not keep.
    fn watch(&self) {
        let mut touched: Option<Instant> = None;
        while !self.is_over() {
            self.look_at_wanted();
            let news = std::mem::take(&mut self.said().partners);
            news.into_iter().for_each(|one| self.take_in(one));
            for directory in self.directories() {
                self.offer(&directory);
                self.clear(&directory);
            }
            if touched.is_none_or(|at| at.elapsed() > TOUCH_AGAIN) {
                touched = Some(Instant::now());
                let _ = File::open(&self.root).and_then(|root| root.set_modified(SystemTime::now()));
            }
            self.pause();
        }
    }

    fn note(&self, news: Partners) {
        self.said().partners.push(news);
        self.ending.notify_all();
    }

    fn take_in(&self, news: Partners) {
        match news {
            Partners::Have(name) => {
                let mut said = self.said();
                said.kept.insert(name.clone());
                let whole = [Part::Variables, Part::Seal].into_iter().all(|part| said.kept.contains(&name.with(part)));
                drop(said);
                if let Some(directory) = self.directories().into_iter().find(|one| whole && one.key == name.key()) {
                    mark(&directory.path, &name, "partner");
                }
            }
            Partners::Lost(names) => {
                let directories = self.directories();
                for name in names.iter().filter(|name| self.root.join("own").join(name.to_string()).is_file()) {
                    let mut said = self.said();
                    said.kept.remove(name);
                    said.offered.remove(name);
                    drop(said);
                    if let Some(directory) = directories.iter().find(|one| one.key == name.key()) {
                        let _ = fs::remove_file(marker(&directory.path, name, "partner"));
                    }
                }
            }
        }
    }

    fn offer(&self, directory: &Directory) {
        let Some(&target) = directory.targets.tiers.get("partner") else { return };
        for (name, _, bytes) in self.chain("own", directory, target) {
            if marker(&directory.path, &name, "partner").exists() {
                continue;
            }
            let mut said = self.said();
            if said.offered.get(&name).is_none_or(|at| at.elapsed() > SAY_AGAIN) {
                said.offered.insert(name.clone(), Instant::now());
                drop(said);
                self.say(PortableReport::Offer { name, bytes });
            }
        }
    }

    fn clear(&self, directory: &Directory) {
        for kind in ["own", "copies"] {
            let keeps = match kind {
                "own" => self.tiers.first(),
                _ => self.tiers.iter().find(|spec| spec.tier == Tier::Partner),
            };
            let keep = keeps.map_or(1, |spec| spec.keep);
            let home = self.root.join(kind).join(&directory.key);
            let held = |number: u64| Held {
                number,
                young: fs::metadata(home.join(checkpoint_name(number)))
                    .and_then(|about| about.modified())
                    .is_ok_and(|at| at.elapsed().is_ok_and(|since| since < WRITING_TIME)),
            };
            let all: Vec<Held> = self.checkpoints(kind, &directory.key).into_iter().map(held).collect();
            let targets = &directory.targets;
            let named = all.iter().map(|one| one.number).chain(targets.tiers.values().copied()).chain(targets.keep).chain([targets.newest]);
            let needed = |number: u64| Ok(oldest_needed(&directory.path, number)?.map(|oldest| (number, oldest)));
            // What cannot be told apart from what is needed stays until it can.
            let Ok(chains) = named.filter_map(|number| needed(number).transpose()).collect::<io::Result<Chains>>() else { continue };
            for number in surplus(&all, targets, &chains, keep) {
                for (name, _, _) in self.files(kind, &directory.key, number) {
                    let _ = fs::remove_file(marker(&directory.path, &name, if kind == "own" { "node" } else { "partner" }));
                }
                let _ = fs::remove_dir_all(home.join(checkpoint_name(number)));
                let stays = |name: &FileName| name.key() != directory.key || name.checkpoint != number;
                let mut said = self.said();
                said.kept.retain(stays);
                said.offered.retain(|name, _| stays(name));
                drop(said);
                if ["own", "copies"].iter().all(|kind| self.files(kind, &directory.key, number).is_empty()) {
                    self.say(PortableReport::Gone { key: directory.key.clone(), checkpoint: number });
                }
            }
        }
    }

    fn pause(&self) {
        let said = self.said();
        if !self.is_over() {
            drop(self.ending.wait_timeout(said, LOOK_AGAIN));
        }
    }

    /// Files that ranks of the job wait for: `JOB.KEY.N.R`.
    fn look_at_wanted(&self) {
        for (text, path) in entries(&self.root.join("wanted")) {
            let mut words = text.split('.');
            if words.next() != Some(self.job.as_str()) {
                continue;
            }
            let (key, number, rank) =
                (words.next(), words.next().and_then(|word| word.parse().ok()), words.next().and_then(|word| word.parse().ok()));
            let name = key.zip(number).zip(rank).and_then(|((key, number), rank)| FileName::new(key, number, rank, Part::Variables));
            let Some(name) = name else {
                let _ = fs::remove_file(path);
                continue;
            };
            let lacking = |name: &FileName| !self.has_both(name) && !self.root.join("copies").join(name.to_string()).is_file();
            for name in [name.clone(), name.with(Part::Seal)].into_iter().filter(lacking) {
                let mut said = self.said();
                if said.wanted.get(&name).is_none_or(|at| at.elapsed() > SAY_AGAIN) {
                    said.wanted.insert(name.clone(), Instant::now());
                    drop(said);
                    self.say(PortableReport::Wanted { name });
                }
            }
            self.settle(&name);
        }
    }

    /// A rank's two files are here, and in one place: of one that lost half of them the other half is of no use.
    fn has_both(&self, name: &FileName) -> bool {
        let has = |kind: &str, part| self.root.join(kind).join(name.with(part).to_string()).is_file();
        ["own", "copies"].into_iter().any(|kind| has(kind, Part::Variables) && has(kind, Part::Seal))
    }

    /// A rank waits no longer if both files are here.
    fn settle(&self, name: &FileName) {
        if self.has_both(name) {
            self.answer(name.key(), name.checkpoint, name.rank);
        }
    }

    fn answer(&self, key: &str, checkpoint: u64, rank: u32) {
        self.said().wanted.retain(|name, _| (name.key(), name.checkpoint, name.rank) != (key, checkpoint, rank));
        let _ = fs::remove_file(self.root.join("wanted").join(format!("{}.{key}.{checkpoint}.{rank}", self.job)));
    }
}

#[cfg(test)]
mod tests;
