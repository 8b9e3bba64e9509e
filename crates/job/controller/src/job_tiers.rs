//! Which tiers a job has, and what they hold when a life of it begins.

use crate::error::RunError;
use crate::manifest::{self, numbers};
use crate::tiers::held_objects;
use mend_job::setup::{Adopted, AdoptedImage};
use mend_messages::job::Program;
use mend_messages::tier::{ImageRef, Tier, TierSpec, parse_tiers};
use mend_sealed::Key;
use mend_settings::SettingError;
use std::fs;
use std::path::Path;

/// Of the object store's client: ranks do not get them where object storage is a tier.
const CREDENTIAL_VARIABLES: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// The tiers that were named, or those of the setting.
pub(crate) fn configured(named: Option<Vec<TierSpec>>) -> Result<Vec<TierSpec>, RunError> {
    Ok(match named {
        Some(tiers) => tiers,
        None => parse_tiers(&mend_settings::TIERS.text())?,
    })
}

/// Takes credentials of object storage out of the environment of a job that stores its checkpoints there: they would be in every manifest, and with that in
/// the store.
pub(crate) fn drop_credentials(program: &mut Program, tiers: &[TierSpec]) {
    if tiers.iter().any(|spec| matches!(spec.tier, Tier::Object(_))) {
        let keep = |(name, _): &(String, String)| !CREDENTIAL_VARIABLES.contains(&name.as_str());
        program.environments().for_each(|environment| environment.retain(keep));
    }
}

/// Bytes per second that copies to tiers may take; 0: no bound.
pub(crate) fn tier_rate() -> Result<u64, SettingError> {
    Ok(mend_settings::TIER_RATE.number()?.saturating_mul(1 << 20))
}

/// An image of a manifest, as nodes name it.
pub(crate) fn reference(number: u64, image: &manifest::ImageEntry) -> ImageRef {
    ImageRef { number, rank: image.rank, bytes: image.bytes, checksum: image.checksum, id: image.id }
}

/// What there is of older checkpoints.
pub(crate) fn adopted(checkpoints: &Path, key: Option<&Key>) -> Vec<Adopted> {
    let adopt = |number: u64| {
        let directory = checkpoints.join(number.to_string());
        let manifest = manifest::load(&directory, key).ok()?;
        let image = |entry: &manifest::ImageEntry| AdoptedImage {
            image: reference(number, entry),
            host: entry.host.clone(),
            base: entry.base,
            shared: fs::metadata(directory.join(entry.file())).is_ok_and(|found| found.len() == entry.bytes),
        };
        let images = manifest.images.iter().map(image).collect();
        Some(Adopted { number, periodic: manifest.periodic, images, objects: held_objects(&directory) })
    };
    numbers(checkpoints).into_iter().filter_map(adopt).collect()
}
