//! `mend version`: the release, and the formats that it reads and writes.

use crate::failure::Failure;
use crate::report;
use clap::Args;
use mend_controller::manifest;

/// `mend version`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend version --json | jq .protocol               what daemons and commands must have in common")]
pub struct Version {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Shows them.
pub fn version(arguments: &Version) -> Result<i32, Failure> {
    let (release, protocol, manifest) = (mend_messages::RELEASE, mend_messages::PROTOCOL, manifest::FORMAT);
    let (image, oldest, of_worlds) = (mend_image::FORMAT, manifest::OLDEST_FORMAT, manifest::FORMAT_OF_WORLDS);
    if arguments.json {
        report::json(&serde_json::json!({
            "release": release,
            "protocol": protocol,
            "image_format": image,
            "manifest_format": manifest,
            "manifest_format_of_worlds": of_worlds,
            "oldest_manifest_format": oldest,
        }))?;
    } else {
        crate::report::say!("mend {release}\nprotocol {protocol}, image format {image}");
        crate::report::say!(
            "manifests: formats {oldest} to {of_worlds} are read; {manifest} is written, {of_worlds} for a job that has spawned processes"
        );
    }
    Ok(0)
}
