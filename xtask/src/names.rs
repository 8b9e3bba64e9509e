//! Names that say nothing, and paths that exist on one machine only.

use crate::Breach;

/// Words that name no contract and nothing that moves.
const EMPTY_WORDS: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "stuff"];

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
}
