//! Job data: which data spaces a job's ranks see, and whether they move to what they read.

use crate::failure::Failure;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use mend_data::offload;
use mend_data::space::mounts::{self, Mount};
use mend_policy::follow::Mode;
use std::path::PathBuf;

/// Data that a job's ranks see.
#[derive(Debug, Args)]
pub struct JobData {
    /// Data spaces that the ranks see, NAME:DIR, with commas; they may write into NAME:DIR:rw. NAME:DIR:create is made on the job's nodes unless it is there, and goes when the job has ended;
    /// create,memory: its targets are in memory; create,keep: it stays; create,copies=1: one copy of what ranks write; create,bucket=s3://BUCKET/PREFIX: in a bucket, to read.
    /// Default: MEND_DATA_SPACES
    #[arg(long, value_name = "LIST")]
    pub data: Option<String>,
    /// Stage what the #MEND, #BB and #DW lines of this job script say before ranks start, when data spaces are there
    #[arg(long, value_name = "FILE")]
    pub stage_script: Option<PathBuf>,
    /// Send files that ranks write into a data space away while the job runs, and what is left when it has ended. Default: MEND_OFFLOAD
    #[arg(long, value_name = "NAME=URI")]
    pub offload: Vec<String>,
    /// Whether ranks move to nodes that fetch the same data. Default: MEND_FOLLOW_DATA
    #[arg(long, value_name = "HOW", value_parser = modes())]
    pub follow_data: Option<Mode>,
}

fn modes() -> impl TypedValueParser<Value = Mode> {
    let shown = Mode::ALL.map(|mode| {
        PossibleValue::new(mode.word()).help(match mode {
            Mode::Auto => "They do where that saves more time than it costs",
            Mode::Advise => "The job's journal has which moves would pay (`mend log`)",
            Mode::Off => "Nobody looks at what they read",
        })
    });
    PossibleValuesParser::new(shown).map(|word| Mode::of(&word).unwrap_or_default())
}

/// Where ROMIO, of which most MPI libraries have their MPI-IO, reads hints for all files.
const ROMIO_HINTS: &str = "ROMIO_HINTS";
/// It does not read what is between the pieces of a write and write it back: another node may have written there, and locks between nodes are refused.
const NO_SIEVING: &[u8] = b"romio_ds_write disable\n";

/// The file with hints for jobs whose ranks write into a space; on all nodes that share the directory.
fn romio_hints() -> Result<String, Failure> {
    let home = mend_settings::home().map_err(|error| Failure::usage(error.to_string(), "see `mend settings`"))?;
    let path = home.join("romio-hints");
    let written = std::fs::create_dir_all(&home).and_then(|()| match std::fs::read(&path) {
        Ok(there) if there == NO_SIEVING => Ok(()),
        _ => mend_durable::write(&path, NO_SIEVING),
    });
    let failed = |error: std::io::Error| {
        Failure::usage(format!("{} cannot be written: {error}", path.display()), "MEND_HOME names another directory")
    };
    written.map_err(failed)?;
    Ok(path.display().to_string())
}

/// What `--data` and its variable look like.
const SPACES_HINT: &str = "for example --data input:/mnt/data, output:/mnt/out:rw for ranks that write, or scratch:/mnt/scratch:create for one that is made for the job";
/// What `--offload` and its variable look like.
const OFFLOAD_HINT: &str = "for example --offload output=file:///archive/run7, with --data output:/mnt/out:rw";

/// Looks at what the environment of a job's program says of its data, from wherever that came. What is wrong there would be found when the job has ended, and its data spaces are about to go.
///
/// # Errors
/// What is wrong with it.
pub fn check(env: &[(String, String)]) -> Result<(), Failure> {
    let mounts =
        mounts::read(mounts::of_environment(env)).map_err(|why| Failure::usage(format!("{}: {why}", mounts::VARIABLE), SPACES_HINT))?;
    let refuse = |why: String| Failure::usage(format!("{}: {why}", offload::VARIABLE), OFFLOAD_HINT);
    let all = offload::read(offload::of_environment(env)).map_err(refuse)?;
    match offload::unwritten(&all, &mounts) {
        Some(other) => Err(refuse(format!("ranks do not write into the data space {}", other.space))),
        None => Ok(()),
    }
}

impl JobData {
    /// Puts it into the environment of a program, with which it goes into checkpoints and to the nodes. The names of the spaces that its ranks see and that must be there.
    ///
    /// # Errors
    /// What is wrong with it, or with the variables.
    pub fn put_into(self, env: &mut Vec<(String, String)>) -> Result<Vec<String>, Failure> {
        let from = if self.data.is_some() { "--data" } else { mounts::VARIABLE };
        let text = self.data.as_deref().unwrap_or_else(|| mounts::of_environment(env));
        let refuse = |why: String| Failure::usage(format!("{from}: {why}"), SPACES_HINT);
        let mounts = mounts::read(text).map_err(refuse)?;
        if let Some(why) = mounts::obstacle(&mounts) {
            return Err(refuse(why));
        }
        let mut set = |name: &str, value: String| {
            env.retain(|(known, _)| known != name);
            env.push((name.to_owned(), value));
        };
        if self.data.is_some() {
            set(mounts::VARIABLE, mounts::write(&mounts));
        }
        if let Some(mode) = self.follow_data {
            set(mend_settings::FOLLOW_DATA.name, mode.word().to_owned());
            if mounts.is_empty() && mode != Mode::Off {
                return Err(Failure::usage("--follow-data without a data space", "name one with --data NAME:DIR"));
            }
        }
        if !self.offload.is_empty() {
            let words: Vec<String> = self.offload.iter().map(|given| offload::word(given)).collect();
            let all = offload::read(&words.join(" ")).map_err(|why| Failure::usage(format!("--offload: {why}"), OFFLOAD_HINT))?;
            if let Some(other) = offload::unwritten(&all, &mounts) {
                return Err(Failure::usage(format!("--offload: ranks do not write into the data space {}", other.space), OFFLOAD_HINT));
            }
            set(offload::VARIABLE, offload::write(&all));
        }
        if mounts.iter().any(|mount| mount.writable) && !env.iter().any(|(name, _)| name == ROMIO_HINTS) {
            env.push((ROMIO_HINTS.to_owned(), romio_hints()?));
        }
        let there: Vec<Mount> = mounts.into_iter().filter(|mount| mount.made.is_none()).collect();
        Ok(mounts::names(&there))
    }
}
