//! Licences of all dependencies, from `cargo metadata`: each must be usable under a licence of the list.
//!
//! Works without a network. Advisories (RUSTSEC) need a database that is fetched; they are not checked here.

use crate::Breach;
use serde_json::Value;

/// Licences (SPDX) whose terms a binary of Mend can meet: permissive ones.
const ACCEPTED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages of the graph that are not ours.
pub fn foreign(graph: &Value) -> impl Iterator<Item = &Value> {
    let resolved = graph["resolve"]["nodes"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let packages = graph["packages"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    packages.iter().filter(|package| !package["source"].is_null() && resolved.iter().any(|node| node["id"] == package["id"]))
}

/// Dependencies under none of the accepted licences.
pub fn check(graph: &Value) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for package in foreign(graph) {
        let name = format!("{} {}", package["name"].as_str().unwrap_or("?"), package["version"].as_str().unwrap_or("?"));
        match package["license"].as_str() {
            Some(expression) if accepted(expression) => {}
            Some(expression) => breaches.push(Breach::new(name, format!("its licence, {expression}, is not among those accepted"))),
            None => breaches.push(Breach::new(name, "names no licence")),
        }
    }
    breaches
}

/// Whether an SPDX expression (or the old form with "/" for OR) can be met by accepted licences alone.
fn accepted(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any(&words, &mut at);
    met && at == words.len()
}

// any := all ("OR" all)*; all := one ("AND" one)*; one := "(" any ")" | id ["WITH" id]
fn any(words: &[&str], at: &mut usize) -> bool {
    let mut met = all(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at);
    }
    met
}

fn all(words: &[&str], at: &mut usize) -> bool {
    let mut met = one(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at);
    }
    met
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = any(words, at);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let whole = format!("{word} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
        return ACCEPTED.contains(&whole.as_str());
    }
    ACCEPTED.contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions() {
        for good in
            ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception OR GPL-2.0"]
        {
            assert!(accepted(good), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "GPL-2.0 WITH Classpath-exception-2.0", "(MIT", "MIT)", "", "MIT Apache-2.0"] {
            assert!(!accepted(bad), "{bad}");
        }
    }

    #[test]
    fn only_what_is_built_in_and_not_ours_counts() {
        let graph = json!({
            "resolve": {"nodes": [{"id": "1"}, {"id": "3"}, {"id": "4"}]},
            "packages": [
                {"id": "1", "name": "ours", "version": "1.0.0", "source": null, "license": "Secret"},
                {"id": "2", "name": "windows", "version": "1.0.0", "source": "registry", "license": "Secret"},
                {"id": "3", "name": "good", "version": "1.0.0", "source": "registry", "license": "MIT"},
                {"id": "4", "name": "bare", "version": "1.0.0", "source": "registry", "license": null},
            ],
        });
        assert_eq!(check(&graph), [Breach::new("bare 1.0.0", "names no licence")]);
    }
}
