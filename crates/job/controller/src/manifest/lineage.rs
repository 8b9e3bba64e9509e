//! What the images of a checkpoint build on, as the manifests have it.

use super::{ImageEntry, Manifest, ManifestError, read};
use mend_messages::job::Rank;
use mend_sealed::Key;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

/// An image and those it builds on, newest first, down to a full one, each with its checkpoint's number.
pub type Line = Vec<(u64, ImageEntry)>;

/// For each rank its image and those it builds on, newest first, down to a full one, each with its checkpoint's number.
///
/// # Errors
/// [`ManifestError::Base`] if one of them is missing or torn, or not what the checkpoint builds on.
pub fn lineage(directory: &Path, manifest: &Manifest, key: Option<&Key>) -> Result<Vec<Line>, ManifestError> {
    let mut older = BTreeMap::new();
    manifest.images.iter().map(|image| line(directory, manifest, image, key, &mut older)).collect()
}

/// The [`lineage`]'s files.
///
/// # Errors
/// As for [`lineage`].
pub fn chains(directory: &Path, manifest: &Manifest, key: Option<&Key>) -> Result<Vec<Vec<PathBuf>>, ManifestError> {
    Ok(files(directory, manifest, &lineage(directory, manifest, key)?))
}

/// The same for one rank.
///
/// # Errors
/// As for [`chains`]; [`ManifestError::Damaged`] if there is no such rank.
pub fn chain_of(directory: &Path, manifest: &Manifest, rank: Rank, key: Option<&Key>) -> Result<Vec<PathBuf>, ManifestError> {
    let damaged = || ManifestError::Damaged { path: directory.join("manifest.json"), what: format!("it has no rank {rank}") };
    let image = manifest.image(rank).ok_or_else(damaged)?;
    Ok(line_files(directory, manifest, &line(directory, manifest, image, key, &mut BTreeMap::new())?))
}

/// The files of a checkpoint's [`lineage`].
#[must_use]
pub fn files(directory: &Path, manifest: &Manifest, lineage: &[Line]) -> Vec<Vec<PathBuf>> {
    lineage.iter().map(|line| line_files(directory, manifest, line)).collect()
}

fn line_files(directory: &Path, manifest: &Manifest, line: &Line) -> Vec<PathBuf> {
    let file = |(number, image): &(u64, ImageEntry)| match *number == manifest.number {
        true => directory.join(image.file()),
        false => directory.with_file_name(number.to_string()).join(image.file()),
    };
    line.iter().map(file).collect()
}

/// `older`: manifests that have been read.
fn line(
    directory: &Path,
    manifest: &Manifest,
    image: &ImageEntry,
    key: Option<&Key>,
    older: &mut BTreeMap<u64, Manifest>,
) -> Result<Line, ManifestError> {
    let checkpoints = directory.parent().unwrap_or(Path::new("/"));
    let mut line = vec![(manifest.number, image.clone())];
    let (mut next, mut number, mut sequence) = (image.base, manifest.number, image.sequence);
    while let Some(base) = next {
        let from = checkpoints.join(base.to_string());
        let failed = |source| ManifestError::Base { rank: image.rank, path: directory.to_owned(), base, source: Box::new(source) };
        let below = match older.entry(base) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unread) => unread.insert(read(&from, key).map_err(failed)?),
        };
        // Numbers descend, so this ends. Places in the chain may have gaps: images in between may have been merged.
        let linked = |entry: &&ImageEntry| base < number && entry.sequence < sequence;
        let entry = below.image(image.rank).filter(linked).filter(|_| (below.identity, below.number) == (manifest.identity, base));
        let foreign = || failed(ManifestError::Damaged { path: from.join("manifest.json"), what: "it is not what was built on".into() });
        let entry = entry.ok_or_else(foreign)?;
        line.push((base, entry.clone()));
        (next, number, sequence) = (entry.base, base, entry.sequence);
    }
    Ok(line)
}
