//! mpiexec's habits: `-np`, `-host`, `-hosts`, `-env`, `-wdir` … with one dash, before the program. Every option of ours and each
//! of its aliases may be written so.

use crate::arguments::Arguments;
use crate::failure::Failure;
use clap::CommandFactory;
use std::collections::HashMap;
use std::ffi::OsString;

/// Our own options, as they are declared, and how many values follow each.
fn own_options() -> HashMap<String, usize> {
    let mut command = Arguments::command();
    command.build();
    command.find_subcommand("run").map(options_of).unwrap_or_default()
}

/// The options of a command, and how many values follow each.
pub(crate) fn options_of(command: &clap::Command) -> HashMap<String, usize> {
    let named = command.get_arguments().filter(|argument| !argument.is_positional());
    let names = |argument: &clap::Arg| {
        let long = argument.get_long_and_visible_aliases().into_iter().flatten().chain(argument.get_all_aliases().into_iter().flatten());
        let values = if argument.get_action().takes_values() { argument.get_num_args().map_or(1, |range| range.min_values()) } else { 0 };
        let short = argument.get_short().map(|short| (format!("-{short}"), values));
        long.map(|name| (format!("--{name}"), values)).chain(short).collect::<Vec<_>>()
    };
    named.flat_map(names).collect()
}

/// Rewrites the options of `mend run …` that stand before the program; the program's own are left alone.
///
/// # Errors
/// If there is no such option.
pub fn rewrite(arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    if arguments.get(1).is_none_or(|verb| verb != "run") {
        return Ok(arguments);
    }
    Ok([&arguments[..2], &rewrite_options(&own_options(), &arguments[2..])?].concat())
}

/// Rewrites the options that stand before a program.
pub(crate) fn rewrite_options(own: &HashMap<String, usize>, arguments: &[OsString]) -> Result<Vec<OsString>, Failure> {
    let mut rewritten = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        if text == "--" || !text.starts_with('-') {
            rewritten.push(argument.clone());
            break;
        }
        let (apart, values) = options(own, argument).ok_or_else(|| {
            let hint = format!("`mend run --help` lists the options; a program of that name goes behind --: mend run -- {text}");
            Failure::usage(format!("`mend run` has no option {text}"), hint)
        })?;
        rewritten.extend(apart);
        rewritten.extend(rest.by_ref().take(values).cloned());
    }
    rewritten.extend(rest.cloned());
    Ok(rewritten)
}

/// An option as clap takes it, and how many values follow it: a name with two dashes; those of one letter that stand together
/// apart, since clap would take `-n4` for the program. `None` if there is no such option.
fn options(own: &HashMap<String, usize>, argument: &OsString) -> Option<(Vec<OsString>, usize)> {
    let text = argument.to_string_lossy();
    if text.starts_with("--") {
        let name = text.split('=').next().unwrap_or(&text);
        let values = *own.get(name)?;
        return Some((vec![argument.clone()], if name == text { values } else { 0 }));
    }
    let named = format!("-{text}");
    if let Some(values) = own.get(&named) {
        return Some((vec![named.into()], *values));
    }
    let mut apart = Vec::new();
    let mut letters = text[1..].chars();
    while let Some(letter) = letters.next() {
        let name = format!("-{letter}");
        let values = *own.get(&name)?;
        apart.push(name.into());
        if values > 0 {
            let value = letters.as_str();
            return Some(if value.is_empty() { (apart, values) } else { ([apart, vec![value.into()]].concat(), values - 1) });
        }
    }
    (!apart.is_empty()).then_some((apart, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Command;
    use clap::Parser;

    fn parse(line: &str) -> crate::arguments::Run {
        let arguments = rewrite(line.split(' ').map(OsString::from).collect()).unwrap();
        match Arguments::try_parse_from(arguments).unwrap().command {
            Command::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_habits_of_mpiexec() {
        let run = parse("mend run -np 4 -hosts a,b -genv A 1 -env B 2 -wdir /tmp lmp -in in.melt -np 9");
        assert_eq!(run.genv, ["A", "1"]);
        assert_eq!((run.ranks, run.hosts.as_deref()), (Some(4), Some("a,b")));
        assert_eq!(run.env, ["B", "2"]);
        assert_eq!(run.program, ["lmp", "-in", "in.melt", "-np", "9"]);
        let run = parse("mend run -machinefile hosts -spares c -interval 60 -q lmp -q");
        assert_eq!((run.hostfile, run.spares.as_deref(), run.quiet), (Some("hosts".into()), Some("c"), true));
        assert_eq!((run.periodic.interval.as_deref(), run.program), (Some("60"), vec!["lmp".into(), "-q".into()]));
    }

    #[test]
    fn a_double_dash_ends_the_options() {
        let run = parse("mend run -n 2 --hosts a --spares c -- lmp -host x");
        assert_eq!(run.program, ["lmp", "-host", "x"]);
    }

    #[test]
    fn what_follows_our_own_options_is_not_the_program() {
        let run = parse("mend run --interval 60 --incremental auto --keep 3 app --keep 4");
        assert_eq!((run.periodic.interval.as_deref(), run.periodic.keep.as_deref()), (Some("60"), Some("3")));
        assert_eq!(run.program, ["app", "--keep", "4"]);
    }

    #[test]
    fn each_of_our_options_may_stand_before_one_of_mpiexec() {
        let run = parse("mend run --tiers memory,shared --encryption-key key --checkpoint-dir=/data -q -np 4 app -np 9");
        assert_eq!((run.tiers.as_deref(), run.ranks, run.quiet), (Some("memory,shared"), Some(4), true));
        assert_eq!(run.program, ["app", "-np", "9"]);
        for line in ["mend run -n4 --machinefile hosts -q app", "mend run -qn 4 -fhosts app"] {
            let run = parse(line);
            assert_eq!((run.ranks, run.hostfile, run.quiet), (Some(4), Some("hosts".into()), true));
        }
    }

    #[test]
    fn an_option_that_does_not_exist_is_not_the_program() {
        for line in
            ["mend run --mode stop app", "mend run -n 2 --frobnicate=3 app", "mend run -x app", "mend run -qx app", "mend run - app"]
        {
            assert!(rewrite(line.split(' ').map(OsString::from).collect()).is_err(), "{line}");
        }
        assert_eq!(parse("mend run -n 2 -- --mode stop").program, ["--mode", "stop"]);
        for line in ["mend run --help", "mend run -h"] {
            assert!(rewrite(line.split(' ').map(OsString::from).collect()).is_ok(), "{line}");
        }
    }
}
