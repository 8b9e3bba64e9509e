//! No files of a crate import each other in a circle: a type belongs to the file whose subject it is, and what two files need lies
//! below both.
//!
//! What counts are paths that begin with `crate`, `self` or `super`, in `use` or anywhere else, outside of tests. A module and those
//! below it are one story, told in parts: what they use of each other counts neither way, so a crate's root is in no circle.

use crate::Breach;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// Circles that are there still: crate, its files, why. A circle is borne if all of its files are in one line; who unties one shortens
/// the list.
const KNOWN: &[(&str, &[&str], &str)] = &[];

/// A module, by its names from the crate's root.
type Module = Vec<String>;

/// Breaches among all Rust sources: names of files and their texts.
pub fn check<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Breach> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, (&str, &str)>> = BTreeMap::new();
    for (file, text) in files {
        if let Some((home, module)) = place(file) {
            crates.entry(home).or_default().insert(module, (file, text));
        }
    }
    let mut breaches = Vec::new();
    for (home, modules) in crates {
        for circle in circles(&modules) {
            let names: BTreeSet<&str> = circle.iter().map(|module| below(modules[module].0, home)).collect();
            let known = KNOWN.iter().any(|(its, files, _)| *its == home && names.iter().all(|name| files.contains(name)));
            if !known {
                let names: Vec<&str> = names.into_iter().collect();
                let what =
                    format!("import each other in a circle: {}; move what they share to the file where it belongs", names.join(", "));
                breaches.push(Breach::new(home, what));
            }
        }
    }
    breaches
}

fn below<'a>(file: &'a str, home: &str) -> &'a str {
    file.strip_prefix(home).and_then(|rest| rest.strip_prefix("/src/")).unwrap_or(file)
}

/// The crate that a file belongs to, and its module there. `None` for tests, programs beside the library, and what is not Rust.
fn place(file: &str) -> Option<(&str, Module)> {
    let (home, path) = file.strip_suffix(".rs")?.split_once("/src/")?;
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    if module.iter().any(|name| name == "bin" || name == "tests" || name.ends_with("_tests")) {
        return None;
    }
    let root = module.len() == 1 && ["lib", "main"].contains(&module[0].as_str());
    if root || module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    Some((home, module))
}

/// Sets of modules of which each leads to every other, by what they use.
fn circles(modules: &BTreeMap<Module, (&str, &str)>) -> Vec<Vec<Module>> {
    let uses: BTreeMap<&Module, BTreeSet<&Module>> =
        modules.iter().map(|(module, (_, text))| (module, used(module, text, modules))).collect();
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = modules.keys().map(|module| (module, reached(module, &uses))).collect();
    let mut left: BTreeSet<&Module> = modules.keys().filter(|module| reach[module].contains(*module)).collect();
    let mut found = Vec::new();
    while let Some(first) = left.first().copied() {
        let circle: Vec<&Module> =
            left.iter().copied().filter(|other| reach[first].contains(*other) && reach[other].contains(first)).collect();
        left.retain(|module| !circle.contains(module));
        found.push(circle.into_iter().cloned().collect());
    }
    found
}

fn reached<'a>(from: &'a Module, uses: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> BTreeSet<&'a Module> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(uses[module].iter().copied().filter(|used| found.insert(*used)));
    }
    found
}

/// Other modules that a file uses, neither above nor below it.
fn used<'a>(module: &Module, text: &str, modules: &'a BTreeMap<Module, (&str, &str)>) -> BTreeSet<&'a Module> {
    let mut paths = Vec::new();
    if let Ok(tokens) = text.parse() {
        walk(tokens, module, &mut paths);
    }
    let longest = |path: &Module| (0..=path.len()).rev().find_map(|length| modules.get_key_value(&path[..length])).map(|(found, _)| found);
    paths.iter().filter_map(longest).filter(|other| !other.starts_with(module) && !module.starts_with(other)).collect()
}

/// Collects the paths in a stream of tokens, from the crate's root.
fn walk(tokens: TokenStream, module: &Module, paths: &mut Vec<Module>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if let Some(end) = test_item(&tokens[at..]) {
            at += end;
            continue;
        }
        match &tokens[at] {
            TokenTree::Ident(word) if at == 0 || !is_colon(&tokens[at - 1]) => {
                let mut begin = module.clone();
                let start = match word.to_string().as_str() {
                    "crate" => Some(Module::new()),
                    "self" => Some(begin),
                    "super" => begin.pop().map(|_| begin),
                    _ => None,
                };
                if let Some(start) = start {
                    follow(&tokens[at + 1..], start, paths);
                }
            }
            TokenTree::Group(group) => walk(group.stream(), module, paths),
            _ => {}
        }
        at += 1;
    }
}

/// The rest of a path, `::a::b` or `::{a, b::c}`, after `start`.
fn follow(rest: &[TokenTree], mut start: Module, paths: &mut Vec<Module>) {
    let mut at = 0;
    while rest.len() > at + 2 && is_colon(&rest[at]) && is_colon(&rest[at + 1]) {
        match &rest[at + 2] {
            TokenTree::Ident(word) if word == "super" => drop(start.pop()),
            TokenTree::Ident(word) => start.push(word.to_string()),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for branch in inner.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',')) {
                    let Some(TokenTree::Ident(first)) = branch.first() else { continue };
                    let mut begin = start.clone();
                    if first != "self" {
                        begin.push(first.to_string());
                    }
                    follow(&branch[1..], begin, paths);
                }
                return;
            }
            _ => break,
        }
        at += 3;
    }
    paths.push(start);
}

fn is_colon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(mark) if mark.as_char() == ':')
}

/// How many tokens an item takes that is there for tests alone, its attribute included; `None`: it is none.
fn test_item(tokens: &[TokenTree]) -> Option<usize> {
    let [TokenTree::Punct(mark), TokenTree::Group(attribute), ..] = tokens else { return None };
    let text = attribute.stream().to_string().replace(' ', "");
    if mark.as_char() != '#' || !(text == "cfg(test)" || text.starts_with("cfg(all(test")) {
        return None;
    }
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(mark) => [';', ','].contains(&mark.as_char()),
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    // What stands in braces after `use` or `=` ends with its semicolon, which is harmless.
    Some(tokens.iter().skip(2).position(ends).map_or(tokens.len(), |at| at + 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(files: &[(&str, &str)]) -> usize {
        check(files.iter().copied()).len()
    }

    #[test]
    fn two_files_that_import_each_other_are_refused() {
        for (a, b) in [
            ("use crate::b::B;", "use crate::a::A;"),
            ("fn f() -> crate::b::B {}", "fn f() { super::a::f() }"),
            ("use crate::{b::{self, B}, c};", "use crate::{c, a};"),
            ("use super::{c, b};", "type A = Vec<crate::a::A>;"),
        ] {
            assert_eq!(breaches(&[("x/src/lib.rs", "mod a; mod b;"), ("x/src/a.rs", a), ("x/src/b.rs", b)]), 1, "{a} {b}");
        }
        let long = [("x/src/a.rs", "use crate::b::B;"), ("x/src/b/mod.rs", "use crate::c::d::D;"), ("x/src/c/d.rs", "use crate::a::A;")];
        assert!(check(long.iter().copied())[0].what.contains("a.rs, b/mod.rs, c/d.rs"));
    }

    #[test]
    fn what_leads_one_way_or_is_one_story_is_right() {
        for (a, b) in [
            ("use crate::b::B;", "use std::a::A; use other::a;"),
            ("use crate::b::B;", "#[cfg(test)] use crate::a::A; #[cfg(test)] mod tests { use crate::a::A; }"),
            ("use crate::b::B; // crate::b", "/// [`crate::a`]\nstruct B;"),
        ] {
            assert_eq!(breaches(&[("x/src/a.rs", a), ("x/src/b.rs", b)]), 0, "{a} {b}");
        }
        let parent = [("x/src/a/mod.rs", "mod b; use b::B; use self::b::C;"), ("x/src/a/b.rs", "use super::A; use crate::top;")];
        assert_eq!(breaches(&parent), 0);
        assert_eq!(breaches(&[("x/src/a.rs", "use crate::b::B;"), ("x/src/a/tests.rs", ""), ("y/src/b.rs", "use crate::a::A;")]), 0);
        assert_eq!(breaches(&[("x/src/a.rs", "use crate::b::B;"), ("x/src/b/tests.rs", "use crate::a;"), ("x/src/b.rs", "")]), 0);
    }

    #[test]
    fn what_is_known_is_still_there() {
        for (home, files, why) in KNOWN {
            assert!(files.len() > 1 && !why.is_empty(), "{home}");
        }
    }
}
