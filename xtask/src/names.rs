//! Names that say nothing, constants without a noun, and paths that exist on one machine only.

use crate::Breach;

/// Words that name no contract and nothing that moves.
const EMPTY_WORDS: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "stuff"];

/// Adjectives and adverbs: as the name of a constant one says neither what is counted nor in which unit.
const NOUNLESS_WORDS: [&str; 44] = [
    "AGAIN",
    "AHEAD",
    "ALIKE",
    "ALWAYS",
    "ANEW",
    "BAD",
    "BEFORE",
    "BRIEF",
    "BUSIER",
    "BUSY",
    "CROWDED",
    "ELSEWHERE",
    "ENDLESS",
    "FAST",
    "FASTEST",
    "FOREVER",
    "FRESH",
    "FRUITLESS",
    "HIGHEST",
    "LARGE",
    "LATE",
    "LATELY",
    "LEAST",
    "LITTLE",
    "LONG",
    "LONGER",
    "LONGEST",
    "LOWEST",
    "MANY",
    "MOST",
    "MUCH",
    "NEVER",
    "NEW",
    "OFTEN",
    "OLD",
    "QUIET",
    "RECENT",
    "SHORT",
    "SLOW",
    "SLOWEST",
    "SMALL",
    "SOON",
    "SOURCELESS",
    "YOUNG",
];

/// This file, which must spell the paths that no other may hold.
const ITSELF: &str = "xtask/src/names.rs";

/// Directories of somebody's machine. A file that names one works nowhere else.
const MACHINE_PATHS: [&str; 6] = ["/work/", "/root/", "/home/", "/tmp/venv", "/tmp/target", "/Users/"];

/// Breaches in a file's path, relative to the workspace.
pub fn check(file: &str) -> Option<Breach> {
    let word = file.split(['/', '.', '-', '_']).find(|word| EMPTY_WORDS.contains(word))?;
    Some(Breach::new(file, format!("\"{word}\" in a name says nothing: name what it holds")))
}

/// Paths of one machine in a file's text.
pub fn machine_paths(file: &str, text: &str) -> Vec<Breach> {
    if file == ITSELF {
        return Vec::new();
    }
    let mut breaches = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for path in MACHINE_PATHS {
            // "network/work/" is no path of a machine: a path starts where no word does.
            let starts = |at: &usize| !line[..*at].ends_with(|c: char| c.is_alphanumeric() || "._-~})>".contains(c));
            if line.match_indices(path).map(|(at, _)| at).any(|at| starts(&at)) {
                breaches.push(Breach::new(format!("{file}:{}", number + 1), format!("\"{path}\" exists on one machine only")));
            }
        }
    }
    breaches
}

/// The constant or static that a line of Rust declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let visible = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(inside) => inside.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    let declaration = visible.trim_start();
    let named = declaration.strip_prefix("const ").or_else(|| declaration.strip_prefix("static "))?;
    named.split_once(':').map(|(name, _)| name.trim())
}

/// Constants of a file of Rust whose names have no noun.
pub fn nounless_constants(file: &str, text: &str) -> Vec<Breach> {
    let lines = text.lines().enumerate().filter_map(|(number, line)| Some((number, declared(line)?)));
    let nounless = lines.filter(|(_, name)| NOUNLESS_WORDS.contains(name));
    let breach = |(number, name): (usize, &str)| {
        let what = format!("the constant {name} has no noun: name what it is, and its unit, as in MAX_CLIENTS, RETRY_PAUSE or SMALL_BYTES");
        Breach::new(format!("{file}:{}", number + 1), what)
    };
    nounless.map(breach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_words_are_found_wherever_they_stand_in_a_path() {
        for file in ["crates/common/src/lib.rs", "a/utils.rs", "a/session_manager.rs", "x/page-helpers.py"] {
            assert!(check(file).is_some(), "{file}");
        }
        for file in ["crates/job/lab/src/commands.rs", "docs/utility.md", "tests/uncommon.py"] {
            assert_eq!(check(file), None);
        }
    }

    #[test]
    fn machine_paths_are_found_only_where_a_path_starts() {
        assert_eq!(machine_paths("a.py", "x\nopen('/root/.cargo')").len(), 1);
        assert_eq!(machine_paths("a.py", "cd /work/main").len(), 1);
        assert!(machine_paths("a.py", "network/work/x ${base}/root/x").is_empty());
        assert!(machine_paths(ITSELF, "/root/").is_empty());
    }

    #[test]
    fn constants_without_a_noun_are_found_wherever_they_are_declared() {
        for line in [
            "const MOST: usize = 3;",
            "    pub(super) const AGAIN: u64 = 1;",
            "pub static LATELY: u8 = 1;",
            "pub const SLOW: &str = \"x\";",
        ] {
            let found = nounless_constants("a.rs", &format!("\n{line}"));
            assert_eq!(found.len(), 1, "{line}");
            assert_eq!(found[0].place, "a.rs:2");
        }
        for line in
            ["const MOST_RANKS: u32 = 3;", "const fn slow() {}", "    Errno::AGAIN => 3,", "let most: usize = MOST;", "const N: usize = 3;"]
        {
            assert!(nounless_constants("a.rs", line).is_empty(), "{line}");
        }
    }
}
