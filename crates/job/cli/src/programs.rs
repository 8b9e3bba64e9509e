//! The programs of `mend run`: one, or several with `:` between them, each with ranks of its own in one `MPI_COMM_WORLD`
//! (MPI 4.1, 11.5, form B of `mpiexec`).

use crate::failure::Failure;
use crate::mpiexec;
use clap::{CommandFactory, Parser};
use mend_messages::job::{FurtherProgram, MAX_RANKS, Program};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What may stand before a program that is not the first.
#[derive(Debug, Parser)]
#[command(name = "mend run … :", disable_help_flag = true)]
struct Further {
    #[arg(short = 'n', long = "np", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: u32,
    #[arg(long = "env", num_args = 2, action = clap::ArgAction::Append)]
    env: Vec<String>,
    #[arg(long)]
    wdir: Option<PathBuf>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// What `mend run` was given of programs.
#[derive(Debug)]
pub struct Given {
    /// Ranks of the first program; `None` if the user did not say.
    pub ranks: Option<u32>,
    /// Environment of all programs.
    pub env: Vec<(String, String)>,
    /// NAME, VALUE, … of the first program alone.
    pub own: Vec<String>,
    /// Directory of the first program.
    pub wdir: Option<PathBuf>,
    /// The first program, and what follows it.
    pub program: Vec<OsString>,
}

impl Given {
    /// The programs, and the ranks of all, if the user said so. Directories are looked for from `here`.
    ///
    /// # Errors
    /// For an option or text that is not understood, and for more ranks than a job may have.
    pub fn programs(self, here: &Path) -> Result<(Program, Option<u32>), Failure> {
        let mut parts = self.program.split(|argument| argument == ":");
        let first: Vec<OsString> = parts.next().unwrap_or_default().to_vec();
        let parts: Vec<&[OsString]> = parts.collect();
        if first.is_empty() {
            return Err(no_program());
        }
        let directory = |wdir: Option<PathBuf>| {
            let directory = wdir.map_or_else(|| here.to_owned(), |directory| here.join(directory));
            text(directory.into_os_string()).map(PathBuf::from)
        };
        let (argv, env) = (texts(first)?, with(&self.env, &self.own)?);
        let mut program = Program { argv, env, cwd: directory(self.wdir)?, umask: own_umask(), further: Vec::new() };
        if parts.is_empty() {
            return Ok((program, self.ranks));
        }
        // As mpiexec has it: a program without -n gets one rank.
        let mut ranks = self.ranks.unwrap_or(1);
        for part in parts {
            let further = parse(part)?;
            let (argv, env, cwd) = (texts(further.program)?, with(&self.env, &further.env)?, directory(further.wdir)?);
            program.further.push(FurtherProgram { first: ranks, argv, env, cwd });
            ranks = ranks.saturating_add(further.ranks);
        }
        if ranks > MAX_RANKS {
            return Err(Failure::usage(format!("{ranks} ranks in all"), format!("a job has at most {MAX_RANKS}")));
        }
        Ok((program, Some(ranks)))
    }
}

/// This process's. To ask umask(2) is to set it.
fn own_umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let text = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(text.trim(), 8).ok()
}

fn no_program() -> Failure {
    Failure::usage("a program is missing beside a `:`", "for example: mend run -n 2 ./model : -n 2 ./filter")
}

fn parse(part: &[OsString]) -> Result<Further, Failure> {
    if part.is_empty() {
        return Err(no_program());
    }
    let own = mpiexec::options_of(&Further::command());
    let rewritten = mpiexec::rewrite_options(&own, part).map_err(|_| {
        let text = part.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let hint = "after a `:`, -n, --env and --wdir may stand before the program; other options go before the first program";
        Failure::usage(format!("`: {text}` is not understood"), hint)
    })?;
    let name = std::iter::once(OsString::from("mend run … :"));
    Further::try_parse_from(name.chain(rewritten)).map_err(|error| {
        let text = error.to_string();
        let why = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Failure::usage(format!("after a `:`: {why}"), "for example: mend run -n 2 ./model : -n 2 ./filter")
    })
}

fn texts(words: Vec<OsString>) -> Result<Vec<String>, Failure> {
    words.into_iter().map(text).collect()
}

fn text(value: OsString) -> Result<String, Failure> {
    let refuse = |value: OsString| Failure::usage(format!("{} is not UTF-8", value.to_string_lossy()), "Mend passes on UTF-8 only");
    value.into_string().map_err(refuse)
}

/// `env` with variables given as NAME, VALUE, ….
///
/// # Errors
/// If a name cannot be a variable's.
pub fn with(env: &[(String, String)], given: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut env = env.to_vec();
    for pair in given.chunks_exact(2) {
        let (name, value) = (&pair[0], &pair[1]);
        if name.is_empty() || name.contains('=') {
            return Err(Failure::usage(format!("`{name}` is not a variable's name"), "write -env NAME VALUE"));
        }
        if mend_settings::is_of_run(name) {
            mend_report::tell!("mend: {name} has no effect in the environment of ranks (hint: set it where you call mend run)");
        }
        env.retain(|(other, _)| other != name);
        env.push((name.clone(), value.clone()));
    }
    Ok(env)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(ranks: Option<u32>, line: &str) -> Given {
        let program = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect();
        let env = vec![("HOME".to_owned(), "/h".to_owned()), ("A".to_owned(), "0".to_owned())];
        Given { ranks, env, own: vec!["A".to_owned(), "1".to_owned()], wdir: Some("w".into()), program }
    }

    #[test]
    fn one_program_takes_all_ranks() {
        let (program, ranks) = given(None, "./app -n 3").programs(Path::new("/here")).unwrap();
        assert_eq!((program.argv.as_slice(), ranks), (["./app", "-n", "3"].map(String::from).as_slice(), None));
        assert_eq!(program.cwd, Path::new("/here/w"));
        assert!(program.env.contains(&("A".into(), "1".into())) && program.further.is_empty());
    }

    #[test]
    fn each_program_has_its_ranks_environment_and_directory() {
        let line = "model -x : -n 3 -env B 2 -wdir sub filter -n 9 : last";
        let (program, ranks) = given(Some(2), line).programs(Path::new("/here")).unwrap();
        assert_eq!((ranks, program.boundaries()), (Some(6), vec![2, 5]));
        let of = |rank| program.of(rank);
        assert_eq!([of(0).argv[0].as_str(), of(1).argv[0].as_str(), of(2).argv[0].as_str()], ["model", "model", "filter"]);
        assert_eq!((of(4).argv, of(4).cwd), (["filter", "-n", "9"].map(String::from).as_slice(), Path::new("/here/sub")));
        assert_eq!((of(5).argv, of(5).cwd), (["last"].map(String::from).as_slice(), Path::new("/here")));
        // What is the first program's own is not another's.
        let value = |rank, wanted| of(rank).env.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        assert_eq!([value(0, "A"), value(2, "A"), value(2, "B"), value(5, "B")].map(|v| v.unwrap_or_default()), ["1", "0", "2", ""]);
        assert_eq!(program.command().join(" "), "model -x : filter -n 9 : last");
    }

    #[test]
    fn what_is_not_understood_is_told() {
        for line in ["a :", ": a", "a : : b", "a : -n 0 b", "a : -n x b", "a : --hosts c b", "a : -n", "a : -env B=1 1 b", "a : -q b"] {
            assert!(given(Some(1), line).programs(Path::new("/")).is_err(), "{line}");
        }
        assert!(given(Some(MAX_RANKS), "a : b").programs(Path::new("/")).is_err());
    }
}
