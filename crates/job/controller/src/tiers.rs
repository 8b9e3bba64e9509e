//! What is on record of a checkpoint's tiers.

use mend_kernel::untrusted::read_within;
use mend_messages::tier::{Tier, TierSpec};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

#[derive(Serialize, Deserialize)]
struct Held {
    complete: Vec<String>,
}

/// Names of the tiers that hold the whole checkpoint in this directory, as the job recorded it; none if nothing is on
/// record (a job with the shared directory alone keeps no record).
#[must_use]
pub fn held(directory: &Path) -> Vec<String> {
    let text = read_within(directory, Path::new("tiers.json"), 1 << 20).unwrap_or_default();
    serde_json::from_slice::<Held>(&text).map(|held| held.complete).unwrap_or_default()
}

/// Whether other tiers than the shared directory have a whole copy of one of these checkpoints.
#[must_use]
pub fn hold_any(checkpoints: &Path, numbers: &[u64]) -> bool {
    numbers.iter().any(|number| are_elsewhere(&held(&checkpoints.join(number.to_string()))))
}

/// Whether one of these tiers is another than the shared directory.
pub(crate) fn are_elsewhere(tiers: &[String]) -> bool {
    tiers.iter().any(|tier| tier != "shared")
}

/// The object tier of this name.
fn object(name: &str) -> Option<Tier> {
    name.parse::<TierSpec>().ok().map(|spec| spec.tier).filter(|tier| matches!(tier, Tier::Object(_)))
}

/// Object tiers that hold the whole checkpoint.
pub(crate) fn held_objects(directory: &Path) -> Vec<Tier> {
    held(directory).iter().filter_map(|name| object(name)).collect()
}

/// Object tiers that hold the whole checkpoint and that the job, which has these, does not look after.
pub(crate) fn foreign(directory: &Path, tiers: &[TierSpec]) -> Vec<String> {
    held_objects(directory).into_iter().filter(|tier| tiers.iter().all(|spec| spec.tier != *tier)).map(|tier| tier.to_string()).collect()
}

/// What object tiers hold is not this checkpoint any more: they are struck from its record.
pub(crate) fn forget_objects(directory: &Path) -> io::Result<()> {
    let (objects, left): (Vec<String>, Vec<String>) = held(directory).into_iter().partition(|name| object(name).is_some());
    if objects.is_empty() { Ok(()) } else { record_held(directory, left) }
}

/// Puts that on record.
pub(crate) fn record_held(directory: &Path, complete: Vec<String>) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(&Held { complete })?;
    mend_durable::write(&directory.join("tiers.json"), &text)
}

/// True for the shared directory alone with all its checkpoints: then images lie beside the manifest, and that is all.
#[must_use]
pub fn is_plain(specs: &[TierSpec]) -> bool {
    matches!(specs, [] | [TierSpec { tier: Tier::Shared, keep: 0 }])
}

/// Whether a checkpoint's directory has any image.
///
/// # Errors
/// Those of the file system.
pub(crate) fn has_images(directory: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        if entry?.file_name().to_string_lossy().ends_with(".image") {
            return Ok(true);
        }
    }
    Ok(false)
}
