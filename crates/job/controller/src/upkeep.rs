//! The directory of a job's checkpoints over time: what is superseded goes, long chains are merged, leftovers of a crash are
//! swept up. `mend-policy` decides what; here it is done, on a thread of its own that stands back for the program.
//!
//! ```text
//! removal:  N ──rename──► N.old ──► gone                       those that build on others before the others
//! merge:    N/rank-R.merged.image.new ──fsync, rename──► N/rank-R.merged.image, all ranks
//!           ──► N/tiers.json, and of what builds on N, name no object storage: that has the old ones
//!           ──► N/manifest.json names them (written beside it, fsynced, renamed) ──► the old images go
//! ```
//! Invariants: at every moment, also after a crash or power failure, every checkpoint that is listed and could be restarted
//! before can be restarted, but for those being removed; a merged image has the name (id) of the one whose place it takes, so
//! that what builds on it goes on building on it. Only the holder of the job's lock removes or merges.
//! Faults assumed: SIGKILL between any two calls; disks full, slow, failing; files of others in the directory (left alone).

use crate::image_file::{self, ImageFile};
use crate::manifest::{self, Manifest, ManifestError, merged_name};
use crate::tiers;
use mend_coordination::checkpoint::image_name;
use mend_durable::sync_directory;
use mend_image::chain::Chain;
pub use mend_job::event::UpkeepDone as Done;
use mend_policy::retention::{self, Bounds, KnownCheckpoint, Merge, Weighed, is_given_up};
use mend_report::with_causes;
use mend_sealed::Key;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Why a checkpoint was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// No such checkpoint.
    #[error("there is no checkpoint {number}")]
    None {
        /// The number that was asked for.
        number: u64,
        /// Those there are.
        known: Vec<u64>,
    },
    /// Others need it.
    #[error("checkpoint {number} cannot be removed: {} on it", builders(by))]
    Needed {
        /// The number that was asked for.
        number: u64,
        /// Which build on it.
        by: Vec<u64>,
    },
    /// It is not known whether others need it.
    #[error("checkpoint {number} cannot be removed: another one cannot be read, and may build on it")]
    Unknown {
        /// The number that was asked for.
        number: u64,
    },
    /// The file system refuses.
    #[error("checkpoint {number} cannot be removed")]
    Io {
        /// The number that was asked for.
        number: u64,
        /// What went wrong.
        source: io::Error,
    },
}

fn builders(numbers: &[u64]) -> String {
    match numbers {
        [one] => format!("checkpoint {one} builds"),
        several => format!("checkpoints {} build", list(several)),
    }
}

fn list(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

impl RemoveError {
    /// What a user can do about it; may be empty.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::None { known, .. } if known.is_empty() => "the job has none".into(),
            Self::None { known, .. } => format!("there are {}", list(known)),
            Self::Needed { by, .. } => format!("remove {} first", list(by)),
            Self::Unknown { .. } => "`mend checkpoints` shows which one".into(),
            Self::Io { source, .. } if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                "is the directory of checkpoints still yours to write?".into()
            }
            Self::Io { .. } => String::new(),
        }
    }
}

/// Why a merge did not come about.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The job ends, or something else goes first.
    #[error("given up for something more urgent")]
    Cancelled,
    /// The file system has too little room for it.
    #[error("the file system of {} has too little room for the full checkpoint that is written before anything is removed", directory.display())]
    NoRoom {
        /// The directory that this is about.
        directory: PathBuf,
    },
    /// A restart looks for its images in tiers, under the names that they have there.
    #[error("its images are in tiers")]
    InTiers,
    /// The chain cannot be used; a restart could not use it either.
    #[error("rank {rank}: the images of checkpoint {number} and those it builds on are damaged")]
    Chain {
        /// The rank that this is about.
        rank: u32,
        /// The number of the checkpoint.
        number: u64,
        /// What is wrong.
        source: mend_image::chain::ChainError,
    },
    /// The merged image cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
        source: mend_image::write::WriteError,
    },
    /// A file cannot be used.
    #[error("cannot use {}", path.display())]
    Io {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The checkpoint cannot be read or rewritten.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// What there is.
#[derive(Debug, Default)]
pub struct CheckpointInventory {
    /// Checkpoints whose manifest is good, ascending.
    pub known: Vec<KnownCheckpoint>,
    /// Others, which may be good, too, and why nothing is known of them.
    pub unreadable: Vec<(u64, ManifestError)>,
}

/// Looks at all checkpoints of a directory. With a key, those that were not written with it are unreadable.
#[must_use]
pub fn survey(directory: &Path, key: Option<&Key>) -> CheckpointInventory {
    let mut survey = CheckpointInventory::default();
    for number in manifest::numbers(directory) {
        let place = directory.join(number.to_string());
        match manifest::read_alone(&place, key) {
            Ok(found) => survey.known.push(KnownCheckpoint {
                number,
                periodic: found.periodic,
                restorable: manifest::check(&place, &found, key).is_ok(),
                bases: found.bases(),
                bytes: found.bytes(),
            }),
            // What is damaged for good can't be restarted by anybody, and so needs nothing.
            Err(ManifestError::Damaged { .. } | ManifestError::None { .. }) => {}
            Err(error) => survey.unreadable.push((number, error)),
        }
    }
    survey
}

/// Removes a checkpoint: it is gone from the list at once and for good, also after a power failure.
///
/// # Errors
/// Those of the file system.
fn remove(directory: &Path, number: u64, step: &mut dyn FnMut()) -> io::Result<()> {
    let old = directory.join(format!("{number}.old"));
    remove_tree(&old)?;
    step();
    fs::rename(directory.join(number.to_string()), &old)?;
    step();
    sync_directory(directory)?;
    step();
    remove_tree(&old)
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Removes checkpoints that somebody wants gone.
///
/// # Errors
/// See [`RemoveError`]. All are refused if others build on one of them.
pub fn remove_by_hand(directory: &Path, numbers: &[u64]) -> Result<(), RemoveError> {
    // Who may remove files needs no key.
    let found = survey(directory, None);
    let there = manifest::numbers(directory);
    let mut order = numbers.to_vec();
    // What builds on others goes first.
    order.sort_unstable_by(|a, b| b.cmp(a));
    order.dedup();
    for &number in &order {
        if !there.contains(&number) {
            return Err(RemoveError::None { number, known: there });
        }
        let mut by = retention::builders(&found.known, number);
        by.retain(|builder| !order.contains(builder));
        if !by.is_empty() {
            return Err(RemoveError::Needed { number, by });
        }
        // One that cannot be read may itself go.
        if found.unreadable.iter().any(|(other, _)| !order.contains(other)) && found.known.iter().any(|one| one.number == number) {
            return Err(RemoveError::Unknown { number });
        }
    }
    order.into_iter().try_for_each(|number| remove(directory, number, &mut || {}).map_err(|source| RemoveError::Io { number, source }))
}

/// Removes what a crash left: checkpoints whose removal had begun, images that no manifest names.
pub fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".old"));
        if number.is_some_and(|number| number.parse::<u64>().is_ok())
            && let Err(error) = remove_tree(&entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "what is left of a checkpoint cannot be removed");
        }
    }
    for number in manifest::numbers(directory) {
        tidy_place(&directory.join(number.to_string()), &mut || {});
    }
}

/// The same in the directory of one checkpoint.
fn tidy_place(place: &Path, step: &mut dyn FnMut()) {
    if let Ok(manifest) = manifest::read_alone(place, None) {
        tidy(place, &manifest, step);
    }
}

/// Removes images in a checkpoint's directory that its manifest does not name.
fn tidy(place: &Path, manifest: &Manifest, step: &mut dyn FnMut()) {
    for image in &manifest.images {
        for name in [image_name(image.rank), merged_name(image.rank), partial_name(image.rank)] {
            if name != image.file() && fs::remove_file(place.join(name)).is_ok() {
                step();
            }
        }
    }
}

fn partial_name(rank: u32) -> String {
    format!("{}.new", merged_name(rank))
}

/// How a round is to be done.
#[derive(Clone, Debug, Default)]
pub struct UpkeepRules {
    /// What is kept; `None`: only leftovers are removed.
    pub bounds: Option<Bounds>,
    /// With a key, what is merged is encrypted.
    pub key: Option<Key>,
    /// What the round before found.
    pub weighed: Option<Weighed>,
    /// Checkpoints that were given up, as [`Branch::abandoned`](crate::branch::Branch::abandoned) has them: they stay, and do not count.
    pub abandoned: Vec<(u64, u64)>,
}

/// All checkpoints; those that were given up as ones that somebody has asked for, and from which nothing goes on.
fn weighed_up(directory: &Path, rules: &UpkeepRules) -> CheckpointInventory {
    let mut found = survey(directory, rules.key.as_ref());
    for one in found.known.iter_mut().filter(|one| is_given_up(&rules.abandoned, one.number)) {
        (one.periodic, one.restorable) = (false, false);
    }
    found
}

/// One round: removes what is superseded, merges what takes too much space, removes what that frees. With `cancel` it ends
/// soon, at a moment that leaves nothing half done.
#[must_use]
pub fn round(directory: &Path, rules: &UpkeepRules, cancel: &AtomicBool) -> Done {
    stepped_round(directory, rules, cancel, &mut || {})
}

/// [`round`], with a call between any two changes to the disk.
fn stepped_round(directory: &Path, rules: &UpkeepRules, cancel: &AtomicBool, step: &mut dyn FnMut()) -> Done {
    let mut done = Done { weighed: rules.weighed, ..Done::default() };
    sweep(directory);
    let Some(bounds) = rules.bounds else { return done };
    let key = rules.key.as_ref();
    let (failure, removed) = (&mut done.failure, &mut done.removed);
    let mut told = |text: String| {
        failure.get_or_insert(text);
    };
    remove_superseded(directory, bounds, rules, cancel, (step, removed), &mut told);
    let found = weighed_up(directory, rules);
    if let Some((number, error)) = found.unreadable.first() {
        let why = with_causes(error);
        told(format!("no checkpoint is removed or merged, as checkpoint {number} may need any of them: {why}"));
    }
    let wanted = retention::merge(&found.known, !found.unreadable.is_empty(), bounds);
    if let Some(wanted) = wanted.filter(|wanted| !rules.weighed.is_some_and(|weighed| weighed.holds(wanted))) {
        let merged = merge(directory, (&wanted, &found.known), rules, cancel, step);
        if merged.is_err() {
            // Images that it wrote before it failed take the room that is missing.
            let place = directory.join(wanted.at.to_string());
            // Whichever manifest is there now stays there.
            if sync_directory(&place).is_ok() {
                tidy_place(&place, step);
            }
        }
        match merged {
            Ok(weighed @ Some(_)) => done.weighed = weighed,
            Ok(None) => {
                (done.weighed, done.merged) = (None, Some(wanted.at));
                remove_superseded(directory, bounds, rules, cancel, (step, removed), &mut told);
            }
            Err(MergeError::Cancelled | MergeError::InTiers) => {}
            Err(error) => {
                done.damaged = matches!(error, MergeError::Chain { .. });
                told(format!("older checkpoints were not merged: {}", with_causes(&error)));
            }
        }
    }
    done.newest =
        manifest::numbers(directory).into_iter().rev().filter(|number| !is_given_up(&rules.abandoned, *number)).find_map(|number| {
            let place = directory.join(number.to_string());
            let chains = manifest::check(&place, &manifest::read_alone(&place, key).ok()?, key).ok()?;
            Some((number, chains.iter().map(|chain| chain.len() as u32 - 1).collect()))
        });
    done
}

fn remove_superseded(
    directory: &Path,
    bounds: Bounds,
    rules: &UpkeepRules,
    cancel: &AtomicBool,
    (step, removed): (&mut dyn FnMut(), &mut Vec<u64>),
    told: &mut dyn FnMut(String),
) {
    let found = weighed_up(directory, rules);
    for number in retention::superseded(&found.known, !found.unreadable.is_empty(), bounds) {
        if cancel.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = remove(directory, number, step) {
            return told(format!("checkpoint {number} is superseded and cannot be removed: {error}"));
        }
        removed.push(number);
        step();
    }
}

/// Makes all images of a checkpoint full ones, unless it is not worth it, as their tables show.
fn merge(
    directory: &Path,
    (wanted, known): (&Merge, &[KnownCheckpoint]),
    rules: &UpkeepRules,
    cancel: &AtomicBool,
    step: &mut dyn FnMut(),
) -> Result<Option<Weighed>, MergeError> {
    let (number, key) = (wanted.at, rules.key.as_ref());
    let place = directory.join(number.to_string());
    let mut manifest = manifest::read_alone(&place, key)?;
    if !tiers::is_plain(&manifest.tiers) {
        return Err(MergeError::InTiers);
    }
    let chains = manifest::check(&place, &manifest, key)?;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| MergeError::Io { path, source }
    };
    let (mut merged, mut written) = (0, 0_u64);
    for (image, files) in manifest.images.iter().zip(&chains) {
        if cancel.load(Ordering::Relaxed) {
            return Err(MergeError::Cancelled);
        }
        let bytes = match image.base {
            // It stays as it is.
            None => image.bytes,
            // Tables are small beside pages.
            Some(_) => {
                let chain = open(files, (image.rank, number), key)?;
                chain.pieces().iter().map(|piece| piece.end - piece.start).fold(chain.newest().bytes, u64::saturating_add)
            }
        };
        merged = u64::saturating_add(merged, bytes);
        written = written.saturating_add(if image.base.is_some() { bytes } else { 0 });
    }
    let weighed = rules.bounds.and_then(|bounds| wanted.weigh(merged, bounds));
    if weighed.is_some() {
        return Ok(weighed);
    }
    // Where that cannot be known it is tried.
    if rustix::fs::statvfs(&place).is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < written) {
        return Err(MergeError::NoRoom { directory: directory.to_owned() });
    }
    for (image, chain) in manifest.images.iter_mut().zip(&chains).filter(|(image, _)| image.base.is_some()) {
        let partial = place.join(partial_name(image.rank));
        let (bytes, checksum) = match merge_image(chain, &partial, (image.rank, number), key, cancel) {
            Ok(totals) => totals,
            Err(error) => return Err(if cancel.load(Ordering::Relaxed) { MergeError::Cancelled } else { error }),
        };
        step();
        let merged = place.join(merged_name(image.rank));
        fs::rename(&partial, &merged).map_err(io(&merged))?;
        step();
        (image.bytes, image.checksum, image.base, image.sequence, image.merged) = (bytes, checksum, None, 0, true);
    }
    sync_directory(&place).map_err(io(&place))?;
    step();
    // From here on images go that the manifest names until now.
    if cancel.load(Ordering::Relaxed) {
        return Err(MergeError::Cancelled);
    }
    for one in known.iter().filter(|one| one.number == number || retention::needed(known, [one.number]).contains(&number)) {
        let place = directory.join(one.number.to_string());
        tiers::forget_objects(&place).map_err(io(&place))?;
        step();
    }
    manifest::replace(&place, &manifest, key)?;
    step();
    tidy(&place, &manifest, step);
    Ok(None)
}

fn open(chain: &[PathBuf], (rank, number): (u32, u64), key: Option<&Key>) -> Result<Chain<ImageFile>, MergeError> {
    let open = |path: &PathBuf| ImageFile::open(path, key).map_err(|source| MergeError::Io { path: path.clone(), source });
    let files = chain.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    Chain::open(files).map_err(|source| MergeError::Chain { rank, number, source })
}

/// Writes one merged image, durable but for its name. Its length and checksum.
fn merge_image(
    chain: &[PathBuf],
    partial: &Path,
    (rank, number): (u32, u64),
    key: Option<&Key>,
    cancel: &AtomicBool,
) -> Result<(u64, u64), MergeError> {
    let damaged = |source| MergeError::Chain { rank, number, source };
    let mut chain = open(chain, (rank, number), key)?;
    let (length, end) = image_file::merge(&mut chain, partial, key, cancel).map_err(|error| match error {
        mend_image::merge::MergeError::Chain(source) => damaged(source),
        mend_image::merge::MergeError::Write(source) => MergeError::Write { path: partial.to_owned(), source },
    })?;
    Ok((length, end.stream))
}

/// Held while a round is under way: one that an earlier life of the job left behind may still be.
static ROUND: Mutex<()> = Mutex::new(());

/// Waits until no round is under way in this process: what manifests name goes with it.
pub async fn wait_for_round() {
    // What panicked does nothing any more.
    let waiting = tokio::task::spawn_blocking(|| drop(ROUND.lock().unwrap_or_else(PoisonError::into_inner)));
    let _ = waiting.await;
}

/// Does a round on a thread of its own, of low priority; `report` gets what came of it. Set the flag to end it early.
pub fn start(directory: PathBuf, rules: UpkeepRules, report: impl FnOnce(Done) + Send + 'static) -> Arc<AtomicBool> {
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    std::thread::spawn(move || {
        if let Err(error) = mend_kernel::background::stand_back() {
            tracing::debug!(%error, "upkeep of checkpoints runs at ordinary priority");
        }
        let under_way = ROUND.lock().unwrap_or_else(PoisonError::into_inner);
        let done = round(&directory, &rules, &flag);
        drop(under_way);
        report(done);
    });
    cancel
}

#[cfg(test)]
mod tests;
