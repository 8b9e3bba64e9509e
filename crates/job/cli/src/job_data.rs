//! Job data: which data spaces a job's ranks see, and whether they move to what they read.

use crate::failure::Failure;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use mend_data::space::mounts;
use mend_policy::follow::Mode;

/// Data that a job's ranks see.
#[derive(Debug, Args)]
pub struct JobData {
    /// Data spaces that the ranks see, NAME:DIR, with commas; they may write into NAME:DIR:rw. Default: MEND_DATA_SPACES
    #[arg(long, value_name = "LIST")]
    pub data: Option<String>,
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

impl JobData {
    /// Puts it into the environment of a program, with which it goes into checkpoints and to the nodes. The names of the spaces that its ranks see.
    ///
    /// # Errors
    /// What is wrong with it, or with the variables.
    pub fn put_into(self, env: &mut Vec<(String, String)>) -> Result<Vec<String>, Failure> {
        let from = if self.data.is_some() { "--data" } else { mounts::VARIABLE };
        let text = self.data.as_deref().unwrap_or_else(|| mounts::of_environment(env));
        let mounts = mounts::read(text).map_err(|why| Failure::usage(format!("{from}: {why}"), "for example --data input:/mnt/data, or output:/mnt/out:rw for ranks that write"))?;
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
        Ok(mounts::names(&mounts))
    }
}
