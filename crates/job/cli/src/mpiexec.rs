//! mpiexec's habits: `-np`, `-host`, `-hosts`, `-env`, `-wdir` … with one dash, before the program.

use crate::failure::Failure;
use std::ffi::OsString;

/// One-dash options of mpiexec, ours for them, and how many values follow.
const OPTIONS: &[(&str, &str, usize)] = &[
    ("-np", "--np", 1),
    ("-host", "--hosts", 1),
    ("-hosts", "--hosts", 1),
    ("-hostfile", "--hostfile", 1),
    ("-machinefile", "--hostfile", 1),
    ("-env", "--env", 2),
    ("-genv", "--env", 2),
    ("-wdir", "--wdir", 1),
    ("-spares", "--spares", 1),
];
/// Our own options that take values.
const WITH_VALUES: &[(&str, usize)] = &[
    ("-n", 1),
    ("--np", 1),
    ("--hosts", 1),
    ("--host", 1),
    ("-f", 1),
    ("--hostfile", 1),
    ("--machinefile", 1),
    ("--spares", 1),
    ("--env", 2),
    ("--genv", 2),
    ("--wdir", 1),
    ("--checkpoint-dir", 1),
    ("--interval", 1),
    ("--incremental", 1),
    ("--keep", 1),
];

/// Rewrites the options of `mend run …` that stand before the program; the program's own are left alone.
///
/// # Errors
/// If several programs are given (`:`), which is not supported yet.
pub fn rewrite(arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    if arguments.get(1).is_none_or(|verb| verb != "run") {
        return Ok(arguments);
    }
    let mut rewritten: Vec<OsString> = arguments[..2].to_vec();
    let mut rest = arguments[2..].iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        let values = if let Some((_, ours, values)) = OPTIONS.iter().find(|(theirs, ..)| *theirs == text) {
            rewritten.push(ours.into());
            *values
        } else {
            rewritten.push(argument.clone());
            if text == "--" || !text.starts_with('-') {
                break;
            }
            WITH_VALUES.iter().find(|(option, _)| *option == text).map_or(0, |(_, values)| *values)
        };
        rewritten.extend(rest.by_ref().take(values).cloned());
    }
    let program: Vec<OsString> = rest.cloned().collect();
    if program.iter().any(|argument| argument == ":") {
        return Err(Failure::usage(
            "several programs in one job (`:`) are not supported yet",
            "run one program on all ranks; it can branch on its rank",
        ));
    }
    rewritten.extend(program);
    Ok(rewritten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
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
        assert_eq!((run.ranks, run.hosts.as_deref()), (4, Some("a,b")));
        assert_eq!(run.env, ["A", "1", "B", "2"]);
        assert_eq!(run.program, ["lmp", "-in", "in.melt", "-np", "9"]);
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
    fn several_programs_are_refused() {
        let line = ["mend", "run", "-n", "1", "a", ":", "-n", "1", "b"];
        assert!(rewrite(line.iter().map(OsString::from).collect()).is_err());
    }
}
