//! Rules on source text: length, where `unsafe` may stand and what must stand above it, and what the pure crates must
//! not touch.
//!
//! Rust is read as tokens, so that words in comments and strings don't count.

use crate::Breach;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Longest source file, lines. Past it, a file tells more than one story.
pub const MAX_LINES: usize = 600;

/// How far above an `unsafe` block its `SAFETY:` comment may end, lines.
const MAX_SAFETY_LINES: usize = 3;

/// Directories whose files may hold `unsafe`: the layers made for it, and what runs inside a rank.
const UNSAFE_HOMES: [&str; 4] = ["crates/platform/freestanding/", "crates/platform/kernel/", "crates/platform/fabric-sys/", "crates/rank/"];

/// Single files elsewhere that may, each with its reason.
const UNSAFE_FILES: [&str; 10] = [
    // A controller just forked closes what its caller had open.
    "crates/job/controller/src/detached.rs",
    // Between fork and exec of a process that enters a lab's namespaces.
    "crates/job/lab/src/exec.rs",
    "crates/job/lab/src/holder.rs",
    "crates/job/lab/src/launch.rs",
    // A C interface: what it is given are pointers.
    "crates/node/space-library/src/lib.rs",
    // Looks for functions of the agent by name.
    "crates/node/space-library/src/rank.rs",
    // Writes into a ring like a hostile peer.
    "fuzz/fuzz_targets/ring.rs",
    // Tests that need a pseudo-terminal, a signal, the user's id.
    "crates/job/lab/tests/lab/bench.rs",
    "crates/job/lab/tests/lab/commands.rs",
    "crates/job/lab/tests/lab/refusals.rs",
];

/// Modules of `std` that a pure crate's sources must not name: the world outside.
const WORLD: [&str; 6] = ["env", "fs", "os", "process", "sync", "thread"];

/// Macros of `std` that panic where they cannot write, on a full disk or without a reader.
const PANICKING_OUTPUT: [&str; 5] = ["dbg", "eprint", "eprintln", "print", "println"];

/// Directories where what cannot be written must end nothing.
const OUTPUT_HOMES: [&str; 2] = ["crates/job/", "crates/node/"];

/// Types that a pure crate's sources must not name: clocks and sockets. Addresses and durations are plain values.
const WORLDLY_TYPES: [&str; 5] = ["Instant", "SystemTime", "TcpListener", "TcpStream", "UdpSocket"];

/// Breaches in one file's text.
pub fn check(file: &str, text: &str) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let lines = text.lines().count();
    let source = [".rs", ".py", ".c", ".h", ".sh"].iter().any(|ending| file.ends_with(ending));
    if source && lines > MAX_LINES {
        breaches
            .push(Breach::new(file, format!("has {lines} lines, more than {MAX_LINES}: split it by what moves or by the contract held")));
    }
    if !file.ends_with(".rs") {
        return breaches;
    }
    let Ok(tokens) = text.parse::<TokenStream>() else {
        breaches.push(Breach::new(file, "is not Rust"));
        return breaches;
    };
    let pure = file.starts_with("crates/model/") && file.contains("/src/");
    let home = UNSAFE_HOMES.iter().any(|home| file.starts_with(home)) || UNSAFE_FILES.contains(&file);
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Found::default();
    walk(tokens, &mut found);
    if let Some(line) = found.unsafe_words.first().filter(|_| !home) {
        breaches.push(Breach::new(format!("{file}:{line}"), "unsafe outside the layers made for it"));
    }
    for line in found.unsafe_blocks.into_iter().filter(|line| !explained(&lines, *line)) {
        breaches
            .push(Breach::new(format!("{file}:{line}"), format!("unsafe without a SAFETY: comment within {MAX_SAFETY_LINES} lines above")));
    }
    if OUTPUT_HOMES.iter().any(|home| file.starts_with(home)) && file.contains("/src/") {
        for (line, name) in found.output {
            let what = format!("{name}! panics where nothing can be written: mend_report::tell!, or a write whose failure is looked at");
            breaches.push(Breach::new(format!("{file}:{line}"), what));
        }
    }
    if pure {
        for (line, name) in found.worldly {
            breaches
                .push(Breach::new(format!("{file}:{line}"), format!("{name} in a pure crate: no I/O, clock, thread or environment there")));
        }
    }
    breaches
}

#[derive(Default)]
struct Found {
    /// Lines of every `unsafe`.
    unsafe_words: Vec<usize>,
    /// Lines of those that open a block or an impl (declarations document `# Safety` instead; clippy sees to it).
    unsafe_blocks: Vec<usize>,
    /// Line and name of what reaches out of the process.
    worldly: Vec<(usize, String)>,
    /// Line and name of macros that panic where they cannot write.
    output: Vec<(usize, String)>,
}

fn walk(tokens: TokenStream, found: &mut Found) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "unsafe" => {
                let line = word.span().start().line;
                found.unsafe_words.push(line);
                if opens_block(tokens.get(at + 1)) {
                    found.unsafe_blocks.push(line);
                }
            }
            TokenTree::Ident(word) if word == "std" => found.worldly.extend(worldly_modules(&tokens[at + 1..])),
            TokenTree::Ident(word) if WORLDLY_TYPES.iter().any(|name| word == name) => {
                found.worldly.push((word.span().start().line, word.to_string()));
            }
            TokenTree::Ident(word) if is_called(tokens.get(at + 1)) && PANICKING_OUTPUT.iter().any(|name| word == name) => {
                found.output.push((word.span().start().line, word.to_string()));
            }
            TokenTree::Group(group) => walk(group.stream(), found),
            _ => {}
        }
    }
}

/// Whether a macro's name stands before it.
fn is_called(next: Option<&TokenTree>) -> bool {
    matches!(next, Some(TokenTree::Punct(mark)) if mark.as_char() == '!')
}

fn opens_block(next: Option<&TokenTree>) -> bool {
    match next {
        Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
        Some(TokenTree::Ident(word)) => word == "impl",
        _ => false,
    }
}

/// `::fs…` or `::{fs, …}` after a `std`.
fn worldly_modules(after: &[TokenTree]) -> Vec<(usize, String)> {
    let [TokenTree::Punct(a), TokenTree::Punct(b), next, ..] = after else { return Vec::new() };
    if a.as_char() != ':' || b.as_char() != ':' {
        return Vec::new();
    }
    let heads: Vec<TokenTree> = match next {
        TokenTree::Group(group) => {
            let members: Vec<TokenTree> = group.stream().into_iter().collect();
            let starts = |at: usize| at == 0 || matches!(&members[at - 1], TokenTree::Punct(comma) if comma.as_char() == ',');
            (0..members.len()).filter(|at| starts(*at)).map(|at| members[at].clone()).collect()
        }
        single => vec![single.clone()],
    };
    heads
        .into_iter()
        .filter_map(|head| match head {
            TokenTree::Ident(word) if WORLD.iter().any(|name| word == name) => Some((word.span().start().line, format!("std::{word}"))),
            _ => None,
        })
        .collect()
}

/// Whether a comment with `SAFETY:` stands on `line` (from 1), or ends within [`MAX_SAFETY_LINES`] lines above it. A comment
/// of several lines counts by its last.
fn explained(lines: &[&str], line: usize) -> bool {
    let index = line - 1;
    let mut above = index.saturating_sub(MAX_SAFETY_LINES);
    while above > 0 && lines[above].trim_start().starts_with("//") {
        above -= 1;
    }
    lines[above..=index.min(lines.len() - 1)].iter().any(|text| text.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(file: &str, text: &str) -> Vec<String> {
        check(file, text).into_iter().map(|breach| breach.what).collect()
    }

    #[test]
    fn long_files_are_found() {
        assert!(check("a.c", &"x\n".repeat(MAX_LINES)).is_empty());
        assert_eq!(check("a.c", &"x\n".repeat(MAX_LINES + 1)).len(), 1);
        assert!(check("a.lock", &"x\n".repeat(MAX_LINES + 1)).is_empty());
    }

    #[test]
    fn unsafe_blocks_say_what_they_lean_on() {
        let file = "crates/platform/kernel/src/lib.rs";
        assert_eq!(whats(file, "fn f() { unsafe { g() } }").len(), 1);
        assert_eq!(whats(file, "unsafe impl Send for A {}").len(), 1);
        assert!(whats(file, "// SAFETY: g has no conditions.\nfn f() { unsafe { g() } }").is_empty());
        assert!(
            whats(file, "// SAFETY: a first line,\n// a second,\n// a third,\n// a fourth,\n// and a fifth.\nfn f() {\n unsafe { g() } }")
                .is_empty()
        );
        assert_eq!(whats(file, "// SAFETY: too far.\n\n\n\n\nfn f() { unsafe { g() } }").len(), 1);
        assert!(whats(file, "/// # Safety\n/// None.\npub unsafe fn f() {}").is_empty());
    }

    #[test]
    fn unsafe_stays_in_its_layers() {
        assert_eq!(whats("crates/job/cli/src/main.rs", "pub unsafe fn f() {}"), ["unsafe outside the layers made for it"]);
        assert!(whats("crates/job/cli/src/main.rs", "// unsafe { }\nconst A: &str = \"unsafe { }\";").is_empty());
        assert!(whats("crates/rank/agent/src/lib.rs", "pub unsafe fn f() {}").is_empty());
    }

    #[test]
    fn what_cannot_be_written_ends_nothing() {
        let text = "fn f() { if a { eprintln!(\"{a}\"); } }";
        assert_eq!(whats("crates/job/controller/src/texts.rs", text).len(), 1);
        assert!(whats("crates/job/cli/tests/commands.rs", text).is_empty());
        assert!(whats("crates/job/cli/src/main.rs", "fn f() { mend_report::tell!(\"eprintln!\"); }").is_empty());
    }

    #[test]
    fn pure_crates_touch_nothing() {
        let file = "crates/model/image/src/lib.rs";
        assert_eq!(whats(file, "use std::fs::File;").len(), 1);
        assert_eq!(whats(file, "use std::{collections::BTreeMap, thread, fs};").len(), 2);
        assert_eq!(whats(file, "fn f() { let t = Instant::now(); }").len(), 1);
        assert!(whats(file, "use std::net::SocketAddr; use std::time::Duration; use std::io::Read;").is_empty());
        assert!(whats("crates/model/image/tests/golden.rs", "use std::fs;").is_empty());
        assert!(whats("crates/node/daemon/src/main.rs", "use std::fs;").is_empty());
    }
}
