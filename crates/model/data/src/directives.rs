//! What job scripts say about their input: Mend's own directive, and those of Slurm's burst buffers and of Cray's DataWarp.
//!
//! ```text
//! #MEND stage-in URI… PATH
//! #MEND data NAME:[PATH]…                                        what of data spaces the job reads: `mend data replicate --queue`
//! #BB stage_in source=… destination=… type=file|directory        slurm.schedmd.com/burst_buffer.html
//! #DW stage_in source=… destination=… type=file|directory        dwjob(7) of DataWarp
//! ```
//! They stand before the script's first command, as for Slurm. Words are split as a shell does it: quotes, backslash, `$NAME` and `${NAME}`. Other
//! directives of DataWarp's are named and passed over; what nobody knows is an error, and so is what cannot be read.

use crate::space;
use crate::uri::{Address, encoded};

/// Directives of burst buffers that have nothing to do with staging in, or are another's task.
const OTHERS: [&str; 11] = [
    "jobdw",
    "persistentdw",
    "stage_out",
    "swap",
    "create_persistent",
    "destroy_persistent",
    "stage_in_list",
    "capacity",
    "access",
    "pool",
    "type",
];

/// One thing to stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageIn {
    /// Line of the script, from 1.
    pub line: usize,
    /// Where it can be had.
    pub uris: Vec<String>,
    /// Where it is to be.
    pub path: String,
}

/// What a script says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// To be done, in order.
    pub stage_in: Vec<StageIn>,
    /// What of data spaces the job reads, as it stands there and where it stages to: `NAME:[PATH]`.
    pub reads: Vec<String>,
    /// Directives that are another's task: line, and what they are.
    pub passed_over: Vec<(usize, String)>,
    /// What cannot be done: line and reason. Nothing is done then.
    pub problems: Vec<(usize, String)>,
}

/// Reads a script. `variable` gives the value of an environment variable.
#[must_use]
pub fn read(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Script {
    let mut script = Script::default();
    let mut commands = false;
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let trimmed = line.trim_start();
        commands |= !trimmed.is_empty() && !trimmed.starts_with('#');
        let Some((mark, rest)) = directive(trimmed) else { continue };
        if commands {
            script.problems.push((number, format!("{mark} stands after the script's first command, where Slurm reads no directive")));
            continue;
        }
        // Their variables are nothing to us: a burst buffer's need not be set here.
        if is_others(mark, rest) {
            script.passed_over.push((number, format!("{mark} {}", rest.trim())));
            continue;
        }
        match words(rest, variable).and_then(|words| one(mark, &words)) {
            Ok(Said::Stage(uris, path)) => {
                script.reads.extend(space::split(&path).map(|_| path.clone()));
                script.stage_in.push(StageIn { line: number, uris, path });
            }
            Ok(Said::Reads(places)) => script.reads.extend(places),
            Err(why) => script.problems.push((number, why)),
        }
    }
    script
}

/// A directive's mark and what follows it.
fn directive(line: &str) -> Option<(&'static str, &str)> {
    ["#MEND", "#BB", "#DW"].into_iter().find_map(|mark| {
        let rest = line.strip_prefix(mark)?;
        rest.starts_with(char::is_whitespace).then_some((mark, rest))
    })
}

/// True of directives that are another's task.
fn is_others(mark: &str, rest: &str) -> bool {
    let verb = rest.split_whitespace().next().unwrap_or_default();
    mark != "#MEND" && OTHERS.contains(&verb.split('=').next().unwrap_or_default())
}

/// What a directive says.
enum Said {
    Stage(Vec<String>, String),
    Reads(Vec<String>),
}

fn one(mark: &str, words: &[String]) -> Result<Said, String> {
    let Some((verb, words)) = words.split_first() else { return Err(format!("{mark} says nothing")) };
    match (mark, verb.as_str()) {
        ("#MEND", "stage-in") => match words {
            [uris @ .., path] if !uris.is_empty() => {
                for uri in uris {
                    Address::parse(uri).map_err(|error| error.to_string())?;
                }
                Ok(Said::Stage(uris.to_vec(), path.clone()))
            }
            _ => Err("#MEND stage-in wants an address and a path: #MEND stage-in URI… PATH".to_owned()),
        },
        ("#MEND", "data") => {
            let is_none = |place: &&String| !space::split(place).is_some_and(|(_, path)| path.is_empty() || space::is_path(path));
            match words.iter().find(is_none) {
                Some(word) => Err(format!("#MEND data: {word} is no place in a data space: #MEND data NAME:[PATH]…")),
                None if words.is_empty() => Err("#MEND data wants a place in a data space: #MEND data NAME:[PATH]…".to_owned()),
                None => Ok(Said::Reads(words.to_vec())),
            }
        }
        ("#BB" | "#DW", "stage_in") => attributes(mark, words).map(|(uris, path)| Said::Stage(uris, path)),
        (_, verb) => Err(format!(
            "{mark} {verb} is no directive that is known: {mark} {}",
            if mark == "#MEND" {
                "stage-in URI… PATH, #MEND data NAME:[PATH]…"
            } else {
                "stage_in source=… destination=… type=…"
            }
        )),
    }
}

fn attributes(mark: &str, words: &[String]) -> Result<(Vec<String>, String), String> {
    let (mut source, mut destination, mut kind) = (None, None, None);
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("{mark} stage_in: {word} is no NAME=VALUE"))?;
        let place = match name {
            "source" => &mut source,
            "destination" => &mut destination,
            "type" => &mut kind,
            // Which burst buffer: there is none.
            "tier" | "profile" => continue,
            _ => return Err(format!("{mark} stage_in: {name} is no attribute that is known")),
        };
        if place.replace(value).is_some() {
            return Err(format!("{mark} stage_in names {name} twice"));
        }
    }
    let (Some(source), Some(destination)) = (source.filter(|it| !it.is_empty()), destination.filter(|it| !it.is_empty())) else {
        return Err(format!("{mark} stage_in wants source=… and destination=…"));
    };
    let mut uri = match source.contains("://") {
        true => source.to_owned(),
        false if source.starts_with('/') => format!("file://{}", encoded(source)),
        false => return Err(format!("{mark} stage_in: source={source} is neither an absolute path nor an address")),
    };
    Address::parse(&uri).map_err(|error| error.to_string())?;
    match kind.unwrap_or("file") {
        "file" if uri.ends_with('/') => return Err(format!("{mark} stage_in: {source} is a directory: type=directory")),
        "file" => {}
        "directory" if !uri.ends_with('/') => uri.push('/'),
        "directory" => {}
        other => return Err(format!("{mark} stage_in: type={other} is not read: file, directory")),
    }
    Ok((vec![uri], destination.to_owned()))
}

/// Splits as a shell does.
fn words(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = text.trim().chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            c if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            // Within double quotes it stands for itself before all but these.
            '\\' if quote == Some('"') && rest.peek().is_some_and(|next| !matches!(next, '$' | '`' | '"' | '\\')) => {
                word.get_or_insert_default().push('\\');
            }
            '\\' if quote != Some('\'') => match rest.next() {
                Some(c) => word.get_or_insert_default().push(c),
                None => return Err("a directive that goes on in the next line is not read".to_owned()),
            },
            '$' if quote != Some('\'') => {
                let braces = rest.next_if_eq(&'{').is_some();
                let mut name = String::new();
                while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                }
                if name.is_empty() || braces && rest.next_if_eq(&'}').is_none() {
                    return Err("a $ without the name of a variable".to_owned());
                }
                word.get_or_insert_default().push_str(&variable(&name).ok_or_else(|| format!("the variable {name} is not set"))?);
            }
            '~' if quote.is_none() && word.is_none() => {
                return Err("~ at the beginning of a word is not read: write $HOME, or put it in quotes".to_owned());
            }
            '`' if quote != Some('\'') => return Err("a command in backquotes is not run: put them in single quotes".to_owned()),
            c if c.is_whitespace() && quote.is_none() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn script(text: &str) -> Script {
        read(text, &|name| (name == "DW_JOB_STRIPED").then(|| "/bb/a b".to_owned()))
    }

    #[test]
    fn what_a_shell_would_put_in_place_of_words_is_not_taken_for_names() {
        let split = |text: &str| words(text, &|_| None);
        assert!(split("file:///a ~/b").is_err() && split("a `id`").is_err() && split("\"`id`\"").is_err());
        assert_eq!(split("http://h/~u/x '~/b' '`'").unwrap(), ["http://h/~u/x", "~/b", "`"]);
    }

    #[test]
    fn a_backslash_stays_where_a_shell_leaves_it() {
        let split = |text: &str| words(text, &|_| None);
        assert_eq!(split(r#""a\b" "a\\b" "\$x" "\"" "\`""#).unwrap(), [r"a\b", r"a\b", "$x", "\"", "`"]);
        assert_eq!(split(r#"a\b a\ b 'a\b' "a\ b""#).unwrap(), ["ab", "a b", r"a\b", r"a\ b"]);
        assert!(split("a\\").is_err() && split("\"a\\").is_err());
    }

    #[test]
    fn the_three_forms_are_read() {
        let found = script(
            "#!/bin/bash\n#SBATCH -N 2\n#MEND stage-in http://a/x s3://b/x 'in put/x'\n#DW jobdw type=scratch capacity=1GB access_mode=striped\n\
             #DW stage_in type=file source=/lus/in.dat destination=$DW_JOB_STRIPED/in.dat\n  #BB stage_in source=\"/lus/my dir\" destination=${DW_JOB_STRIPED}/d type=directory\n\
             # a remark\n#BBother\n\nsrun ./app\n",
        );
        let staged = |line, uris: &[&str], path: &str| StageIn {
            line,
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
            path: path.to_owned(),
        };
        let expected = [
            staged(3, &["http://a/x", "s3://b/x"], "in put/x"),
            staged(5, &["file:///lus/in.dat"], "/bb/a b/in.dat"),
            staged(6, &["file:///lus/my%20dir/"], "/bb/a b/d"),
        ];
        assert_eq!(found.stage_in, expected);
        assert_eq!(found.passed_over, [(4, "#DW jobdw type=scratch capacity=1GB access_mode=striped".to_owned())]);
        assert_eq!(found.problems, []);
    }

    #[test]
    fn what_is_another_s_task_is_passed_over_whatever_is_in_it() {
        for line in
            ["#DW stage_out source=$NOT_SET/out destination=/lus/out type=directory", "#DW jobdw capacity=${SIZE} 'type", "#BB pool=$A"]
        {
            let found = script(&format!("#!/bin/sh\n{line}\n"));
            assert_eq!((found.passed_over, found.problems), (vec![(2, line.to_owned())], vec![]));
        }
    }

    #[test]
    fn what_a_job_reads_of_data_spaces_is_told() {
        let found =
            script("#MEND data input: 'other:run7/in put'\n#MEND stage-in http://a/x input:x\n#MEND stage-in http://a/x /scratch/x\n");
        assert_eq!(found.reads, ["input:", "other:run7/in put", "input:x"]);
        assert_eq!((found.stage_in.len(), found.problems), (2, Vec::new()));
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        for (line, said) in [
            ("#MEND fetch http://a/x y", "#MEND fetch is no directive that is known"),
            ("#MEND stage-in x", "wants an address and a path"),
            ("#MEND data", "wants a place in a data space"),
            ("#MEND data input:a /scratch/b", "/scratch/b is no place in a data space"),
            ("#MEND data input:a/../b", "is no place in a data space"),
            ("#MEND stage-in a/b c", "no SCHEME://"),
            ("#MEND  ", "says nothing"),
            ("#DW frobnicate a=b", "#DW frobnicate is no directive"),
            ("#DW stage_in source=/a", "wants source=… and destination=…"),
            ("#DW stage_in source=a destination=b", "neither an absolute path nor an address"),
            ("#DW stage_in source=/a destination=b type=list", "type=list is not read"),
            ("#DW stage_in source=/a/ destination=b", "type=directory"),
            ("#DW stage_in source=/a source=/b destination=b", "source twice"),
            ("#DW stage_in source=/a destination=b colour=red", "colour is no attribute"),
            ("#DW stage_in source=/a destination=$NOT_SET/b", "NOT_SET is not set"),
            ("#MEND stage-in http://a/x 'b", "not closed"),
            ("#MEND stage-in http://a/x \\", "next line"),
            ("#MEND stage-in http://a/x ${b", "without the name"),
            ("true\n#MEND stage-in http://a/x b", "after the script's first command"),
        ] {
            let found = script(&format!("#!/bin/sh\n{line}\n"));
            let [(number, why)] = &found.problems[..] else { panic!("{line}: {found:?}") };
            assert_eq!((*number, found.stage_in.len()), (1 + line.lines().count(), 0));
            assert!(why.contains(said), "{why}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(#(MEND|BB|DW) |stage_in|stage-in|[ a-z='\"$\\{}\n/:]){0,30}") {
            let _ = script(&text);
        }
    }
}
