//! Published checkpoints: a directory `N` with one image per rank and `manifest.json`, which was renamed to that name
//! only when every byte in it was durable. `N.part` is one that was never finished and is never read.

use crate::record::{is_job_name, make_directories};
use crate::stream_digest::Mark;
use mend_coordination::checkpoint::image_name;
use mend_coordination::pmi::PmiServer;
use mend_coordination::worlds::{SpawnedWorld, Worlds};
use mend_image::cpu::CpuNeeds;
use mend_job::input::InputAt;
use mend_kernel::untrusted::read_within;
use mend_messages::agent::ImageId;
use mend_messages::control::Phases;
use mend_messages::daemon::Stream;
use mend_messages::files::{KEPT_DIRECTORY, Keeping, KeptFile};
use mend_messages::job::{FurtherProgram, MAX_RANKS, Program, Rank};
use mend_messages::tier::TierSpec;
use mend_policy::schedule::CheckpointKind;
use mend_sealed::{Key, SealError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

mod lineage;
pub(crate) mod listing;

pub use lineage::{Line, chain_of, chains, files, lineage};
pub use listing::{listed, listed_at_first, numbers};

/// Version of the manifest that is written for a job of one world.
pub const FORMAT: u32 = 4;

/// The same for a job with spawned worlds, which earlier releases do not know.
pub const FORMAT_OF_WORLDS: u32 = 5;

/// The oldest that is read; others are refused.
pub const OLDEST_FORMAT: u32 = 2;

/// Most bytes of a manifest: some hundred for each of a million ranks.
const MAX_MANIFEST_BYTES: u64 = 512 << 20;

/// One rank's image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageEntry {
    /// The rank that this is about.
    pub rank: Rank,
    /// Host the rank was on.
    pub host: String,
    /// Length of the file, bytes.
    pub bytes: u64,
    /// The stream's own checksum.
    pub checksum: u64,
    /// The image's name.
    pub id: ImageId,
    /// Number of the checkpoint whose image of this rank it builds on; `None`: it is full.
    pub base: Option<u64>,
    /// 0 for a full image; else larger than that of the image it builds on.
    pub sequence: u32,
    /// It was incremental and was made full since, with all that it built on: it has another file name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merged: bool,
    /// What the rank needs of a node's processor; `None` in manifests of formats 2 and 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<CpuNeeds>,
}

impl ImageEntry {
    /// Name of its file in the checkpoint's directory.
    #[must_use]
    pub fn file(&self) -> String {
        if self.merged { merged_name(self.rank) } else { image_name(self.rank) }
    }
}

/// File name of an image that was made full after it was published.
#[must_use]
pub fn merged_name(rank: Rank) -> String {
    format!("rank-{rank}.merged.image")
}

/// What a rank had printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// Bytes to standard output.
    pub stdout: u64,
    /// Bytes to standard error.
    pub stderr: u64,
    /// Checksum of these bytes, as [`Mark`] has it; `None` in manifests of format 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_sum: Option<u64>,
    /// The same of standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_sum: Option<u64>,
}

impl Printed {
    /// How far a stream had come.
    #[must_use]
    pub fn mark(&self, stream: Stream) -> Mark {
        let (at, sum) = match stream {
            Stream::Stdout => (self.stdout, self.stdout_sum),
            Stream::Stderr => (self.stderr, self.stderr_sum),
        };
        if at == 0 { Mark::default() } else { Mark { at, sum } }
    }

    /// It has come so far.
    pub fn set(&mut self, stream: Stream, mark: Mark) {
        match stream {
            Stream::Stdout => (self.stdout, self.stdout_sum) = (mark.at, mark.sum),
            Stream::Stderr => (self.stderr, self.stderr_sum) = (mark.at, mark.sum),
        }
    }
}

/// Everything but the images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`] or [`FORMAT_OF_WORLDS`].
    pub format: u32,
    /// Release of Mend that wrote it.
    pub release: String,
    /// Name of the job.
    pub job: String,
    /// The job's permanent identity.
    pub identity: [u8; 16],
    /// Number of the checkpoint in the job, from 1.
    pub number: u64,
    /// Seconds since 1970.
    pub taken: u64,
    /// What runs.
    #[serde(with = "RecordedProgram")]
    pub program: Program,
    /// All hosts, spares last.
    pub hosts: Vec<String>,
    /// True if the job ran on its own machine alone, with an embedded daemon.
    pub local: bool,
    /// One per rank that had not ended, ascending.
    pub images: Vec<ImageEntry>,
    /// Files that the program had open, and what is kept of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<KeptFile>,
    /// The PMI server of the job's first world at the moment of the snapshot.
    pub pmi: PmiServer,
    /// Worlds that were spawned, and their PMI servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spawned: Vec<SpawnedWorld>,
    /// What had been printed at that moment.
    pub printed: BTreeMap<Rank, Printed>,
    /// How far standard input had been read; `None` in manifests of format 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputAt>,
    /// How long it took.
    pub phases: Phases,
    /// How long the rank that took longest was stopped, microseconds.
    pub stopped_us: u64,
    /// From the first request to suspend until every image was durable, microseconds.
    pub durable_us: u64,
    /// Taken by the schedule, not because somebody asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub periodic: bool,
    /// Tiers that were to hold the images, nearest first; none: they lie beside this file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierSpec>,
    /// The images are encrypted, and this is authenticated with the same key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// The files' times of the last change are left out where they do not tell of each change since
    /// ([`FileState::is_settled`](mend_messages::files::FileState::is_settled)). Manifests of older releases have all of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled_times: bool,
}

impl Manifest {
    /// Length of all images.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.images.iter().map(|image| image.bytes).sum()
    }

    /// Length of what is kept of the program's files.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.files.iter().map(KeptFile::stored).fold(0, u64::saturating_add)
    }

    /// The program's files, to be put back.
    #[must_use]
    pub fn files_to_put(&self) -> Vec<KeptFile> {
        let told =
            |file: &KeptFile| KeptFile { state: if self.settled_times { file.state } else { file.state.unsettled() }, ..file.clone() };
        self.files.iter().map(told).collect()
    }

    /// All worlds of the job.
    #[must_use]
    pub fn worlds(&self) -> Worlds {
        Worlds::of(self.pmi.clone(), self.spawned.clone())
    }

    /// The image of a rank, if it had not ended.
    #[must_use]
    pub fn image(&self, rank: Rank) -> Option<&ImageEntry> {
        let at = self.images.binary_search_by_key(&rank, |image| image.rank).ok()?;
        self.images.get(at)
    }

    /// True if a rank that a restart needs has no image, or an image is of no rank of the job's.
    fn missing_ranks(&self) -> bool {
        let first = self.spawned.first().map_or(self.images.len() as Rank, |spawned| spawned.world.first);
        let size = self.spawned.iter().try_fold(first, |end, spawned| {
            let fits = spawned.world.first == end && spawned.world.size() > 0 && spawned.world.ranks().end <= MAX_RANKS;
            fits.then(|| spawned.world.ranks().end)
        });
        let ascending = self.images.windows(2).all(|pair| pair[0].rank < pair[1].rank);
        let within = self.images.last().is_some_and(|last| size.is_some_and(|size| last.rank < size));
        let worlds = self.worlds();
        !ascending || !within || (0..first).any(|rank| self.image(rank).is_none() && !worlds.may_leave(rank))
    }

    /// Numbers of the checkpoints that it builds on directly.
    #[must_use]
    pub fn bases(&self) -> BTreeSet<u64> {
        self.images.iter().filter_map(|image| image.base).collect()
    }

    /// How much of it is incremental.
    #[must_use]
    pub fn kind(&self) -> CheckpointKind {
        match self.images.iter().filter(|image| image.base.is_none()).count() {
            0 => CheckpointKind::Incremental,
            full if full == self.images.len() => CheckpointKind::Full,
            _ => CheckpointKind::Mixed,
        }
    }
}

/// A program as manifests have it: that of a job of one program reads as it always did, and has the checksum that it had.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Program")]
struct RecordedProgram {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: PathBuf,
    /// Each image has its rank's.
    #[serde(skip)]
    umask: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    further: Vec<FurtherProgram>,
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    checksum: String,
    /// Of those who have the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<[u8; 32]>,
    manifest: Manifest,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The manifest cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// No checkpoint there.
    #[error("{} holds no complete checkpoint", path.display())]
    None {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Not what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file that this is about.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The key that there is does not do, or none is there.
    #[error("{} cannot be used", path.display())]
    Sealed {
        /// The file that this is about.
        path: PathBuf,
        /// What went wrong.
        source: SealError,
    },
    /// Authenticated with another key, or not what was authenticated.
    #[error("{} was encrypted with another key, or was changed by somebody who does not have it", path.display())]
    Forged {
        /// The file that this is about.
        path: PathBuf,
    },
    /// Somebody else could have written anything into it.
    #[error("{} belongs to the user with the id {owner}, and you are {}", path.display(), rustix::process::geteuid().as_raw())]
    Owner {
        /// The file that this is about.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Written by another release.
    #[error("{} has format {format}, this release reads {OLDEST_FORMAT} to {FORMAT_OF_WORLDS}", path.display())]
    Format {
        /// The file that this is about.
        path: PathBuf,
        /// The format that it says it has.
        format: u64,
    },
    /// An image is missing or torn.
    #[error("rank {rank}: image {} {what}", path.display())]
    Image {
        /// The rank that this is about.
        rank: Rank,
        /// The file that this is about.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// What was kept of a file is missing or torn.
    #[error("what was kept of {file}, {}, {what}", path.display())]
    File {
        /// The program's file.
        file: String,
        /// What was kept.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A checkpoint that this one builds on cannot be used.
    #[error("rank {rank}: its image in {} builds on checkpoint {base}, which cannot be used", path.display())]
    Base {
        /// The rank that this is about.
        rank: Rank,
        /// The checkpoint that builds on it.
        path: PathBuf,
        /// The number of the checkpoint that it builds on.
        base: u64,
        /// What went wrong.
        source: Box<ManifestError>,
    },
    /// Cannot be written.
    #[error("cannot publish the checkpoint in {}", path.display())]
    Publish {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

impl ManifestError {
    /// What a user can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Io { .. } | Self::None { .. } => "`mend checkpoints` lists what can be restarted".into(),
            Self::Damaged { .. } | Self::File { .. } | Self::Image { .. } | Self::Base { .. } => "restart from an older checkpoint with --checkpoint N, if `mend checkpoints` lists one".into(),
            Self::Sealed { source, .. } => source.hint().into(),
            Self::Forged { .. } => {
                "name the key that the job was started with, or restart from an older checkpoint with --checkpoint N".into()
            }
            Self::Owner { .. } => {
                "what is in a checkpoint runs as you, and files are written that it names: name its directory with --any-owner if you trust its owner".into()
            }
            Self::Format { .. } => "restart it with the release of Mend that wrote it".into(),
            Self::Publish { source, .. } => mend_report::storage_hint(source).into(),
        }
    }
}

/// Makes the directory in which checkpoint `number` is written. What an unfinished one left there is removed.
///
/// # Errors
/// [`ManifestError::Publish`].
pub fn prepare(directory: &Path, number: u64) -> Result<PathBuf, ManifestError> {
    let part = directory.join(format!("{number}.part"));
    let failed = |source| ManifestError::Publish { path: part.clone(), source };
    match fs::remove_dir_all(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    make_directories(&part).map_err(failed)?;
    Ok(part)
}

/// Removes what an unfinished checkpoint left.
pub fn discard(part: &Path) {
    let _ = fs::remove_dir_all(part);
}

/// Writes the manifest into `part`, authenticated if there is a key, and renames it to its number. After this it is durable; if it fails,
/// there is no checkpoint of that number.
///
/// # Errors
/// [`ManifestError::Publish`], [`ManifestError::Image`] if an image is not in this (shared) directory.
pub fn publish(part: &Path, manifest: &Manifest, key: Option<&Key>) -> Result<PathBuf, ManifestError> {
    check_images(part, manifest)?;
    let failed = |source| ManifestError::Publish { path: part.to_owned(), source };
    mend_durable::write(&part.join("manifest.json"), &sealed(manifest, key).map_err(failed)?).map_err(failed)?;
    let place = part.with_file_name(manifest.number.to_string());
    fs::rename(part, &place).map_err(failed)?;
    if let Err(error) = mend_durable::sync_name(&place) {
        // What is reported as failed must not be found later: its images are about to go.
        let _ = fs::rename(&place, part);
        return Err(failed(error));
    }
    Ok(place)
}

/// Puts another manifest in the place of that of a published checkpoint, durably. A crash leaves the one or the other.
///
/// # Errors
/// As [`publish`].
pub fn replace(place: &Path, manifest: &Manifest, key: Option<&Key>) -> Result<(), ManifestError> {
    check_images(place, manifest)?;
    let failed = |source| ManifestError::Publish { path: place.to_owned(), source };
    mend_durable::write(&place.join("manifest.json"), &sealed(manifest, key).map_err(failed)?).map_err(failed)
}

fn sealed(manifest: &Manifest, key: Option<&Key>) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(manifest)?;
    let code = key.map(|key| key.authenticate(&text));
    Ok(serde_json::to_vec(&Sealed { checksum: checksum(&text), code, manifest: manifest.clone() })?)
}

fn checksum(text: &[u8]) -> String {
    format!("{:016x}", xxh3_64(text))
}

fn check_images(directory: &Path, manifest: &Manifest) -> Result<(), ManifestError> {
    for image in &manifest.images {
        let path = directory.join(image.file());
        let wrong = |what: String| ManifestError::Image { rank: image.rank, path: path.clone(), what };
        if image.base.is_some() != (image.sequence > 0) {
            return Err(wrong("builds on an image that no checkpoint holds".into()));
        }
        // Which tiers have it now, and whether it is good there, is found out by a restart.
        if !manifest.tiers.is_empty() {
            continue;
        }
        match fs::symlink_metadata(&path) {
            Ok(found) if !found.is_file() => return Err(wrong("is not a regular file".into())),
            Ok(found) if found.len() == image.bytes => {}
            Ok(found) => return Err(wrong(format!("is torn: {} bytes instead of {}", found.len(), image.bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong("is missing (is the checkpoint directory shared by all nodes?)".into()));
            }
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        }
    }
    check_files(directory, manifest)
}

/// What is kept of files lies beside the manifest, with tiers, too.
fn check_files(directory: &Path, manifest: &Manifest) -> Result<(), ManifestError> {
    for file in &manifest.files {
        let Keeping::Content { name, stored, .. } = &file.keeping else { continue };
        let path = directory.join(KEPT_DIRECTORY).join(name);
        let wrong = |what: String| ManifestError::File { file: file.path.clone(), path: path.clone(), what };
        if name.contains('/') || name.starts_with('.') {
            return Err(wrong("has a name that no checkpoint has".into()));
        }
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() && found.len() == *stored => {}
            Ok(found) => return Err(wrong(format!("is torn: {} bytes instead of {stored}", found.len()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(wrong("is missing".into())),
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        }
    }
    Ok(())
}

/// Reads a checkpoint's manifest and [`check`]s it.
///
/// # Errors
/// See [`ManifestError`].
pub fn load(directory: &Path, key: Option<&Key>) -> Result<Manifest, ManifestError> {
    let manifest = read_alone(directory, key)?;
    check(directory, &manifest, key)?;
    Ok(manifest)
}

/// Checks that every image of a checkpoint is there at its full length, with all that it builds on. The files, as
/// [`chains`] has them. The images' content is checked while they are restored.
///
/// # Errors
/// [`ManifestError::Image`], [`ManifestError::Base`].
pub fn check(directory: &Path, manifest: &Manifest, key: Option<&Key>) -> Result<Vec<Vec<PathBuf>>, ManifestError> {
    check_images(directory, manifest)?;
    chains(directory, manifest, key)
}

/// Reads a manifest and checks that its own images are there at their full length, not what they build on.
///
/// # Errors
/// See [`ManifestError`].
pub fn read(directory: &Path, key: Option<&Key>) -> Result<Manifest, ManifestError> {
    let manifest = read_alone(directory, key)?;
    check_images(directory, &manifest)?;
    Ok(manifest)
}

/// Refuses a checkpoint of which a part is not the user's own: its directory, its manifest, any image, anything kept of files.
///
/// # Errors
/// [`ManifestError::Owner`].
pub fn check_owner(directory: &Path, manifest: &Manifest, chains: &[Vec<PathBuf>]) -> Result<(), ManifestError> {
    let own = rustix::process::geteuid().as_raw();
    let kept = manifest.files.iter().filter_map(|file| match &file.keeping {
        Keeping::Content { name, .. } => Some(directory.join(KEPT_DIRECTORY).join(name)),
        _ => None,
    });
    let manifests = [directory.to_owned(), directory.join("manifest.json")];
    for path in manifests.into_iter().chain(chains.iter().flatten().cloned()).chain(kept) {
        // What lies in other tiers is looked at there.
        match fs::symlink_metadata(&path).map(|found| found.uid()) {
            Ok(owner) if owner != own => return Err(ManifestError::Owner { path, owner }),
            _ => {}
        }
    }
    Ok(())
}

/// Reads a manifest and looks at no image. With a key, it must have been authenticated with this; without one, whether
/// somebody changed it is not known.
///
/// # Errors
/// See [`ManifestError`].
pub fn read_alone(directory: &Path, key: Option<&Key>) -> Result<Manifest, ManifestError> {
    let path = directory.join("manifest.json");
    let text = match read_within(directory, Path::new("manifest.json"), MAX_MANIFEST_BYTES) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(ManifestError::None { path: directory.to_owned() });
        }
        Err(source) => return Err(ManifestError::Io { path, source }),
    };
    let damaged = |what: String| ManifestError::Damaged { path: path.clone(), what };
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    match value.pointer("/manifest/format").and_then(serde_json::Value::as_u64) {
        Some(format) if (u64::from(OLDEST_FORMAT)..=u64::from(FORMAT_OF_WORLDS)).contains(&format) => {}
        Some(format) => return Err(ManifestError::Format { path, format }),
        None => return Err(damaged("it is not a manifest".into())),
    }
    let sealed: Sealed = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
    let text = serde_json::to_vec(&sealed.manifest).map_err(|error| damaged(error.to_string()))?;
    if checksum(&text) != sealed.checksum {
        return Err(damaged("its checksum does not fit".into()));
    }
    match (key, sealed.code) {
        (Some(_), None) => return Err(ManifestError::Sealed { path, source: SealError::Plain }),
        (Some(key), Some(code)) if !key.confirms(&text, &code) => return Err(ManifestError::Forged { path }),
        _ => {}
    }
    let manifest = sealed.manifest;
    if !is_job_name(&manifest.job) {
        return Err(damaged(format!("{:?} is no job's name", manifest.job)));
    }
    if manifest.images.is_empty() || manifest.missing_ranks() {
        return Err(damaged("its ranks are not complete".into()));
    }
    Ok(manifest)
}

#[cfg(test)]
pub(crate) mod tests;
