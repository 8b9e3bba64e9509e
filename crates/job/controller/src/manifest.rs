//! Published checkpoints: a directory `N` with one image per rank and `manifest.json`, which was renamed to that name
//! only when every byte in it was durable. `N.part` is one that was never finished and is never read.

use crate::record::{make_directories, sync_directory, write_durably};
use mend_coordination::checkpoint::image_name;
use mend_coordination::pmi::PmiServer;
use mend_messages::agent::ImageId;
use mend_messages::control::Phases;
use mend_messages::job::{Program, Rank};
use mend_messages::tier::TierSpec;
use mend_policy::schedule::Kind;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

mod lineage;

pub use lineage::{chain_of, chains, lineage};

/// Version of the manifest; another one is refused.
pub const FORMAT: u32 = 2;

/// One rank's image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageEntry {
    /// Which.
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

/// Bytes a rank had printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// To standard output.
    pub stdout: u64,
    /// To standard error.
    pub stderr: u64,
}

/// Everything but the images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
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
    pub program: Program,
    /// All hosts, spares last.
    pub hosts: Vec<String>,
    /// True if the job ran on its own machine alone, with an embedded daemon.
    pub local: bool,
    /// One per rank, ascending.
    pub images: Vec<ImageEntry>,
    /// The PMI server at the moment of the snapshot.
    pub pmi: PmiServer,
    /// What had been printed at that moment.
    pub printed: BTreeMap<Rank, Printed>,
    /// How long it took.
    pub phases: Phases,
    /// How long the job was stopped, microseconds.
    pub stopped_us: u64,
    /// From the first request to suspend until every image was durable, microseconds.
    pub durable_us: u64,
    /// Taken by the schedule, not because somebody asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub periodic: bool,
    /// Tiers that were to hold the images, nearest first; none: they lie beside this file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierSpec>,
}

impl Manifest {
    /// Length of all images.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.images.iter().map(|image| image.bytes).sum()
    }

    /// Numbers of the checkpoints that it builds on directly.
    #[must_use]
    pub fn bases(&self) -> BTreeSet<u64> {
        self.images.iter().filter_map(|image| image.base).collect()
    }

    /// How much of it is incremental.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.images.iter().filter(|image| image.base.is_none()).count() {
            0 => Kind::Incremental,
            full if full == self.images.len() => Kind::Full,
            _ => Kind::Mixed,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    checksum: String,
    manifest: Manifest,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not readable.
    #[error("cannot read {}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
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
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Written by another release.
    #[error("{} has format {format}, this release reads {FORMAT}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Its format.
        format: u64,
    },
    /// An image is missing or torn.
    #[error("rank {rank}: image {} {what}", path.display())]
    Image {
        /// Which rank.
        rank: Rank,
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A checkpoint that this one builds on cannot be used.
    #[error("rank {rank}: its image in {} builds on checkpoint {base}, which cannot be used", path.display())]
    Base {
        /// Which rank.
        rank: Rank,
        /// The checkpoint that builds on it.
        path: PathBuf,
        /// Its number.
        base: u64,
        /// Why.
        source: Box<ManifestError>,
    },
    /// Cannot be written.
    #[error("cannot publish the checkpoint in {}", path.display())]
    Publish {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ManifestError {
    /// What a user can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Io { .. } | Self::None { .. } => "`mend checkpoints` lists what can be restarted".into(),
            Self::Damaged { .. } | Self::Image { .. } | Self::Base { .. } => "restart from an older checkpoint with --checkpoint N".into(),
            Self::Format { .. } => "restart it with the release of Mend that wrote it".into(),
            Self::Publish { .. } => "make room, or choose another place with --checkpoint-dir".into(),
        }
    }
}

/// Numbers of the complete checkpoints in `directory`, ascending.
#[must_use]
pub fn numbers(directory: &Path) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut numbers: Vec<u64> = entries.flatten().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
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

/// Writes the manifest into `part` and renames it to its number. After this it is durable.
///
/// # Errors
/// [`ManifestError::Publish`], [`ManifestError::Image`] if an image is not in this (shared) directory.
pub fn publish(part: &Path, manifest: &Manifest) -> Result<PathBuf, ManifestError> {
    check_images(part, manifest)?;
    let failed = |source| ManifestError::Publish { path: part.to_owned(), source };
    write_durably(&part.join("manifest.json"), &sealed(manifest).map_err(failed)?).map_err(failed)?;
    let place = part.with_file_name(manifest.number.to_string());
    fs::rename(part, &place).map_err(failed)?;
    sync_directory(place.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    Ok(place)
}

/// Puts another manifest in the place of that of a published checkpoint, durably. A crash leaves the one or the other.
///
/// # Errors
/// As [`publish`].
pub fn replace(place: &Path, manifest: &Manifest) -> Result<(), ManifestError> {
    check_images(place, manifest)?;
    let failed = |source| ManifestError::Publish { path: place.to_owned(), source };
    write_durably(&place.join("manifest.json"), &sealed(manifest).map_err(failed)?).map_err(failed)
}

fn sealed(manifest: &Manifest) -> io::Result<Vec<u8>> {
    let checksum = checksum(manifest)?;
    Ok(serde_json::to_vec_pretty(&Sealed { checksum, manifest: manifest.clone() })?)
}

fn checksum(manifest: &Manifest) -> io::Result<String> {
    Ok(format!("{:016x}", xxh3_64(&serde_json::to_vec(manifest)?)))
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
        match fs::metadata(&path) {
            Ok(found) if found.len() == image.bytes => {}
            Ok(found) => return Err(wrong(format!("is torn: {} bytes instead of {}", found.len(), image.bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong("is missing (is the checkpoint directory shared by all nodes?)".into()));
            }
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        }
    }
    Ok(())
}

/// Reads a checkpoint's manifest and [`check`]s it.
///
/// # Errors
/// See [`ManifestError`].
pub fn load(directory: &Path) -> Result<Manifest, ManifestError> {
    let manifest = read_alone(directory)?;
    check(directory, &manifest)?;
    Ok(manifest)
}

/// Checks that every image of a checkpoint is there at its full length, with all that it builds on. The files, as
/// [`chains`] has them. The images' content is checked while they are restored.
///
/// # Errors
/// [`ManifestError::Image`], [`ManifestError::Base`].
pub fn check(directory: &Path, manifest: &Manifest) -> Result<Vec<Vec<PathBuf>>, ManifestError> {
    check_images(directory, manifest)?;
    chains(directory, manifest)
}

/// Reads a manifest and checks that its own images are there at their full length, not what they build on.
///
/// # Errors
/// See [`ManifestError`].
pub fn read(directory: &Path) -> Result<Manifest, ManifestError> {
    let manifest = read_alone(directory)?;
    check_images(directory, &manifest)?;
    Ok(manifest)
}

/// Reads a manifest and looks at no image.
///
/// # Errors
/// See [`ManifestError`].
pub fn read_alone(directory: &Path) -> Result<Manifest, ManifestError> {
    let path = directory.join("manifest.json");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ManifestError::None { path: directory.to_owned() }),
        Err(source) => return Err(ManifestError::Io { path, source }),
    };
    let damaged = |what: String| ManifestError::Damaged { path: path.clone(), what };
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    match value.pointer("/manifest/format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => return Err(ManifestError::Format { path, format }),
        None => return Err(damaged("it is not a manifest".into())),
    }
    let sealed: Sealed = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
    let expected = checksum(&sealed.manifest).map_err(|error| damaged(error.to_string()))?;
    if expected != sealed.checksum {
        return Err(damaged("its checksum does not fit".into()));
    }
    let manifest = sealed.manifest;
    if manifest.images.iter().enumerate().any(|(at, image)| image.rank as usize != at) || manifest.images.is_empty() {
        return Err(damaged("its ranks are not complete".into()));
    }
    Ok(manifest)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn entry(base: Option<u64>, sequence: u32) -> ImageEntry {
        ImageEntry {
            rank: 0,
            host: "a".into(),
            bytes: 3,
            checksum: 0,
            id: ImageId([sequence as u8 + 1; 16]),
            base,
            sequence,
            merged: false,
        }
    }

    fn publish_one(directory: &Path, number: u64, base: Option<u64>, sequence: u32) -> PathBuf {
        let part = prepare(directory, number).unwrap();
        fs::write(part.join(image_name(0)), "abc").unwrap();
        publish(&part, &Manifest { number, images: vec![entry(base, sequence)], ..manifest() }).unwrap()
    }

    #[test]
    fn what_an_image_builds_on_is_found_or_named() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        publish_one(directory, 1, None, 0);
        publish_one(directory, 2, Some(1), 1);
        let newest = publish_one(directory, 4, Some(2), 2);
        let files = chains(&newest, &load(&newest).unwrap()).unwrap();
        let numbered = |number: u64| directory.join(number.to_string()).join(image_name(0));
        assert_eq!(files, [[4, 2, 1].map(numbered)]);
        fs::write(numbered(1), "ab").unwrap();
        let error = load(&newest).unwrap_err();
        assert!(matches!(error, ManifestError::Base { rank: 0, base: 1, .. }), "{error}");
        fs::remove_dir_all(directory.join("2")).unwrap();
        assert!(matches!(load(&newest).unwrap_err(), ManifestError::Base { base: 2, .. }));
        // Neither itself, nor a later one, nor one that is not the one before it.
        assert!(load(&publish_one(directory, 5, Some(5), 1)).is_err());
        assert!(load(&publish_one(directory, 6, Some(7), 1)).is_err());
        publish_one(directory, 7, Some(6), 1);
        assert!(load(&directory.join("6")).is_err());
        publish_one(directory, 8, None, 0);
        assert!(load(&publish_one(directory, 9, Some(8), 2)).is_ok(), "merged in between");
        assert!(load(&publish_one(directory, 10, Some(9), 2)).is_err());
        let part = prepare(directory, 11).unwrap();
        fs::write(part.join(image_name(0)), "abc").unwrap();
        let error = publish(&part, &Manifest { number: 11, images: vec![entry(None, 2)], ..manifest() }).unwrap_err();
        assert!(error.to_string().contains("builds on an image that no checkpoint holds"), "{error}");
    }

    pub(crate) fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            release: "0".into(),
            job: "j".into(),
            identity: [1; 16],
            number: 1,
            taken: 0,
            program: Program { argv: vec!["a".into()], env: vec![], cwd: "/".into() },
            hosts: vec!["a".into()],
            local: false,
            images: vec![entry(None, 0)],
            pmi: PmiServer::new(1, &[1; 16]),
            printed: [(0, Printed { stdout: 5, stderr: 0 })].into(),
            phases: Phases::default(),
            stopped_us: 0,
            periodic: false,
            durable_us: 0,
            tiers: Vec::new(),
        }
    }

    #[test]
    fn published_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let part = prepare(directory.path(), 1).unwrap();
        let missing = publish(&part, &manifest()).unwrap_err();
        assert!(missing.to_string().contains("rank 0: image") && missing.to_string().contains("missing"));
        assert!(numbers(directory.path()).is_empty());
        fs::write(part.join(image_name(0)), "abc").unwrap();
        let place = publish(&part, &manifest()).unwrap();
        assert_eq!(numbers(directory.path()), [1]);
        assert_eq!(load(&place).unwrap(), manifest());
        fs::write(place.join(image_name(0)), "ab").unwrap();
        assert!(load(&place).unwrap_err().to_string().contains("torn: 2 bytes instead of 3"));
    }

    #[test]
    fn damage_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(load(directory.path()), Err(ManifestError::None { .. })));
        let part = prepare(directory.path(), 1).unwrap();
        fs::write(part.join(image_name(0)), "abc").unwrap();
        let place = publish(&part, &manifest()).unwrap();
        let file = place.join("manifest.json");
        let good = fs::read_to_string(&file).unwrap();
        fs::write(&file, good.replace("\"number\": 1", "\"number\": 2")).unwrap();
        assert!(matches!(load(&place), Err(ManifestError::Damaged { .. })));
        fs::write(&file, good.replace("\"format\": 2", "\"format\": 9")).unwrap();
        assert!(matches!(load(&place), Err(ManifestError::Format { format: 9, .. })));
        fs::write(&file, &good[..good.len() / 2]).unwrap();
        assert!(matches!(load(&place), Err(ManifestError::Damaged { .. })));
    }
}
