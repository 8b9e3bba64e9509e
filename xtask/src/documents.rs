//! Documents that must be there, whose links must lead somewhere, and whose generated parts must be current.

use crate::Breach;

/// What every reader may count on.
pub const NEEDED: [&str; 10] = [
    "README.md",
    "ARCHITECTURE.md",
    "SPECIFICATION.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "Makefile",
    ".ci/run",
    SETTINGS,
];

/// The reference of all settings, written by `cargo xtask settings`.
pub const SETTINGS: &str = "docs/settings.md";

/// What the reference must hold.
pub fn settings_page() -> String {
    let names = |settings: &[mend_settings::Setting]| settings.iter().map(|one| format!("`{}`", one.name)).collect::<Vec<_>>().join(", ");
    let (of_program, of_mounts) = (names(&mend_settings::OF_PROGRAM), names(&mend_settings::OF_MOUNTS));
    format!(
        "# Settings\n\nEnvironment variables; flags of the commands override them. What uses a value refuses one that cannot be used.\n\
         Written by `cargo xtask settings` from `crates/platform/settings`: change them there.\n\n\
         What a job does is decided by the environment of its `mend run` or `mend restart`, also where another process goes on in that one's place. Other commands do not\n\
         change it. But:\n\n\
         - {of_program} are those of the job's program, and in its checkpoints. `mend restart` goes on with\n  those, and says so where its own environment has another value. Moves over `ofi` take `MEND_OFI_PROVIDER` from the restart.\n\
         - Mounts by which ranks see data spaces have {of_mounts} from the job's program, too; those that it lacks from `mendd`.\n\
         - Targets of data spaces, and what puts files back into a space at a restart, have all settings from `mendd`: `MEND_SPACE_BEGUN_S`, `MEND_SPACE_TIMEOUT_MS` and others; so has what looks at spaces that no job uses: `MEND_SPACE_WATCH_S`, `MEND_SPACE_LOST_S`.\n\
         - `mendd` reads those that begin with `MEND_HEALTH` and `MEND_BMC`, `MEND_TIER_HOURS`, `MEND_HIDE_CPU_FEATURES` and `MEND_MIGRATE_LIBFABRIC` when it starts, and\n  \
         `MEND_TIERS` for the directories whose disks it watches.\n\
         - `mend migrate` and `mend drain` read `MEND_MIGRATE_MODE`.\n\
         - Every process has its own `MEND_HOME`, `MEND_SECRET_FILE`, `MEND_LIBDIR`, `MEND_PORT` and `MEND_LOG`.\n\
         - `mend data` and `mend pipe` outside of a job, and `libmend-data`, have theirs.\n\n{}",
        mend_settings::reference()
    )
}

/// The reference against the declarations.
pub fn settings(text: &str) -> Option<Breach> {
    (text != settings_page()).then(|| Breach::new(SETTINGS, "is not what the settings say: run `cargo xtask settings`"))
}

/// A README opens the two ways in, and its commands are marked so that the tests can run them.
pub fn readme(text: &str) -> Vec<Breach> {
    ["make demo", "make test", "```console\n$ "]
        .into_iter()
        .filter(|needed| !text.contains(needed))
        .map(|needed| Breach::new("README.md", format!("lacks {needed:?}")))
        .collect()
}

/// Where decisions are recorded, and the list of them.
pub const DECISIONS: &str = "docs/decisions/README.md";

/// Records that the list of decisions lacks, and such that come in another order there than their numbers'.
pub fn decisions(text: &str, files: &[String]) -> Vec<Breach> {
    let records = files.iter().filter_map(|file| file.strip_prefix("docs/decisions/")).filter(|name| name.starts_with('0'));
    let mut breaches = Vec::new();
    let mut last = 0;
    for name in records {
        match text.find(&format!("({name})")) {
            None => breaches.push(Breach::new(DECISIONS, format!("does not list {name}"))),
            Some(at) if at < last => breaches.push(Breach::new(DECISIONS, format!("lists {name} after a later one"))),
            Some(at) => last = at,
        }
    }
    breaches
}

/// Directories by which a path of this project begins, in the code spans of a document.
const OURS: [&str; 6] = ["benches/", "crates/", "docs/", "fuzz/", "tests/", "xtask/"];

/// Paths of this project that a Markdown file names in `code`, but that don't exist. Patterns and what is generated
/// (by a placeholder in capitals) are passed over.
pub fn named_paths(file: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Breach> {
    if !file.ends_with(".md") {
        return Vec::new();
    }
    let words = text.split('`').skip(1).step_by(2).filter_map(|span| span.split_whitespace().next());
    words
        .filter(|word| OURS.iter().any(|ours| word.starts_with(ours)))
        .filter(|word| !word.contains(|c: char| "*{<…".contains(c) || c.is_ascii_uppercase()))
        .filter(|word| !exists(word))
        .map(|word| Breach::new(file, format!("names {word}, which does not exist")))
        .collect()
}

/// Links of a Markdown file to files that don't exist. `exists` takes a path relative to the workspace.
pub fn links(file: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Breach> {
    if !file.ends_with(".md") {
        return Vec::new();
    }
    let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with('#') && !target.starts_with("mailto:"))
        .map(|target| target.split('#').next().unwrap_or(target))
        .filter(|target| !exists(&join(directory, target)))
        .map(|target| Breach::new(file, format!("links to {target}, which does not exist")))
        .collect()
}

/// Characters that a table's cell may have: what is longer is read more easily as text.
const CELL: usize = 200;

/// Cells of a Markdown file's tables that are too long. Code blocks are passed over.
pub fn cells(file: &str, text: &str) -> Vec<Breach> {
    if !file.ends_with(".md") {
        return Vec::new();
    }
    let mut breaches = Vec::new();
    let mut code = false;
    for (number, line) in text.lines().enumerate() {
        code ^= line.trim_start().starts_with("```");
        if code || !line.starts_with('|') {
            continue;
        }
        for cell in split_cells(line).filter(|cell| cell.chars().count() > CELL) {
            let length = cell.chars().count();
            breaches.push(Breach::new(
                format!("{file}:{}", number + 1),
                format!("has a cell of {length} characters, where {CELL} are allowed: say it as text"),
            ));
        }
    }
    breaches
}

/// The cells of a table's line. An escaped bar parts nothing.
fn split_cells(line: &str) -> impl Iterator<Item = &str> {
    let mut start = 0;
    let bars = line.match_indices('|').map(|(at, _)| at).filter(|&at| !line[..at].ends_with('\\'));
    bars.chain([line.len()]).map(move |at| {
        let cell = line[start..at].trim();
        start = (at + 1).min(line.len());
        cell
    })
}

fn join(directory: &str, target: &str) -> String {
    if directory.is_empty() { target.to_owned() } else { format!("{directory}/{target}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_from_where_they_stand() {
        let text = "[a](ARCHITECTURE.md#life) [b](https://mpich.org) [c](gone.md) [d](#here)";
        let exists = |path: &str| path == "docs/ARCHITECTURE.md";
        assert_eq!(links("docs/x.md", text, exists), [Breach::new("docs/x.md", "links to gone.md, which does not exist")]);
        assert!(links("docs/x.rs", text, |_| false).is_empty());
    }

    #[test]
    fn named_paths_exist() {
        let text = "run `tests/run.py unit`, see `docs/gone.md`, `fuzz/corpus/TARGET` and `tests/lab/test_*.py`";
        assert_eq!(
            named_paths("a.md", text, |path| path == "tests/run.py"),
            [Breach::new("a.md", "names docs/gone.md, which does not exist")]
        );
    }

    #[test]
    fn every_decision_is_listed_in_order() {
        let files = ["README.md", "0001-a.md", "0002-b.md", "0003-c.md"].map(|name| format!("docs/decisions/{name}"));
        assert!(decisions("[1](0001-a.md) [2](0002-b.md) [3](0003-c.md)", &files).is_empty());
        let wrong = decisions("[2](0002-b.md) [1](0001-a.md)", &files);
        let said = ["lists 0002-b.md after a later one", "does not list 0003-c.md"];
        assert_eq!(wrong, said.map(|what| Breach::new(DECISIONS, what)));
    }

    #[test]
    fn long_cells_are_refused_where_a_table_has_them() {
        let (short, long) = ("ä".repeat(200), "x".repeat(201));
        let table = format!("| a | b |\n| --- | --- |\n| {short} | {long} |\n\n{long}\n```\n| {long} |\n```\n");
        let breach = Breach::new("a.md:3", "has a cell of 201 characters, where 200 are allowed: say it as text");
        assert_eq!(cells("a.md", &table), [breach]);
        assert!(cells("a.rs", &table).is_empty());
        assert_eq!(cells("a.md", &format!("| {short} \\| x |")).len(), 1);
    }

    #[test]
    fn a_readme_shows_both_ways_in_and_runnable_commands() {
        assert_eq!(readme("make demo\nmake test\n```console\n$ mend version\n```"), []);
        assert_eq!(readme("make demo").len(), 2);
    }

    #[test]
    fn the_reference_is_compared_whole() {
        assert_eq!(settings(&settings_page()), None);
        assert!(settings("| old |").is_some());
    }
}
