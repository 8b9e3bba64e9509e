//! `mend settings`: the environment variables that Mend reads.

use crate::failure::Failure;
use crate::report;
use clap::Args;
use mend_settings::ALL;
use serde_json::json;

/// `mend settings`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend settings                                    all of them, as a table
  mend settings --json | jq '.[] | select(.set)'   those that are set here")]
pub struct Settings {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints all settings, as a table or as JSON.
pub fn settings(arguments: &Settings) -> Result<i32, Failure> {
    if !arguments.json {
        report::out(format_args!("{}", mend_settings::reference()));
        return Ok(0);
    }
    let told = ALL.iter().map(|setting| {
        let (values, value) = (setting.values(), setting.text());
        json!({ "name": setting.name, "values": values, "default": setting.default, "set": setting.is_set(), "value": value, "meaning": setting.meaning })
    });
    report::json(&told.collect::<Vec<_>>())?;
    Ok(0)
}
