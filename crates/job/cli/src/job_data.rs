//! Job data: which data spaces a job's ranks see, and whether they move to what they read.

use crate::data::ready;
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use mend_data::space::mounts;

/// Data that a job's ranks see.
#[derive(Debug, Args)]
pub struct JobData {
    /// Data spaces that the ranks see, NAME:DIR, with commas. Default: MEND_DATA_SPACES
    #[arg(long, value_name = "LIST")]
    pub data: Option<String>,
    /// Whether ranks move to nodes that fetch the same data. Default: MEND_FOLLOW_DATA
    #[arg(long, value_name = "HOW")]
    pub follow_data: Option<FollowData>,
}

/// Whether ranks move to their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FollowData {
    /// They do where that saves more time than it costs
    Auto,
    /// The job's journal has which moves would pay (`mend log`)
    Advise,
    /// Nobody looks at what they read
    Off,
}

impl JobData {
    /// Puts it into the environment of a program, with which it goes into checkpoints and to the nodes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn put_into(self, env: &mut Vec<(String, String)>) -> Result<(), Failure> {
        let mut set = |name: &str, value: String| {
            env.retain(|(known, _)| known != name);
            env.push((name.to_owned(), value));
        };
        if let Some(text) = self.data {
            let mounts =
                mounts::read(&text).map_err(|why| Failure::usage(format!("--data: {why}"), "for example --data input:/mnt/data"))?;
            let mut names: Vec<String> = mounts.iter().map(|mount| mount.space.clone()).collect();
            names.sort_unstable();
            names.dedup();
            ready(names)?;
            set(mounts::VARIABLE, mounts::write(&mounts));
        }
        if let Some(how) = self.follow_data {
            let word = match how {
                FollowData::Auto => "auto",
                FollowData::Advise => "advise",
                FollowData::Off => "off",
            };
            set(mend_settings::FOLLOW_DATA.name, word.to_owned());
            let sees = env.iter().any(|(name, value)| name == mounts::VARIABLE && !value.trim().is_empty());
            if !sees && how != FollowData::Off {
                return Err(Failure::usage("--follow-data without a data space", "name one with --data NAME:DIR"));
            }
        }
        Ok(())
    }
}
