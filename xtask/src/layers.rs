//! The dependency rule. `job`, `node`, `rank` and `store` meet through messages, files and shared memory, never through
//! each other's crates; all may use `model` and `platform`. `platform` may use `model` (it carries its messages);
//! `model` uses itself alone. Tests count: a dev-dependency is a dependency.

use crate::Breach;
use serde_json::Value;

/// Groups under `crates/`, with the groups that each may use besides itself.
const GROUPS: [(&str, &[&str]); 6] = [
    ("job", &["model", "platform"]),
    ("node", &["model", "platform"]),
    ("rank", &["model", "platform"]),
    ("store", &["model", "platform"]),
    ("platform", &["model"]),
    ("model", &[]),
];

/// Breaches among the graph's own crates (those with a path).
pub fn check(graph: &Value) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for package in list(&graph["packages"]).iter().filter(|package| package["source"].is_null()) {
        let name = text(&package["name"]);
        let place = text(&package["manifest_path"]);
        if text(&package["description"]).is_empty() {
            breaches.push(Breach::new(name, "has no description"));
        }
        if text(&package["license"]) != "MIT OR Apache-2.0" {
            breaches.push(Breach::new(name, "has not the licence of the project, MIT OR Apache-2.0"));
        }
        let Some(from) = group(place) else { continue };
        let Some((_, allowed)) = GROUPS.iter().find(|(group, _)| *group == from) else {
            breaches.push(Breach::new(name, format!("lies in crates/{from}, a group without a rule: add it to xtask/src/layers.rs")));
            continue;
        };
        for dependency in list(&package["dependencies"]) {
            let Some(to) = dependency["path"].as_str().and_then(group) else { continue };
            if to != from && !allowed.contains(&to) {
                let on = text(&dependency["name"]);
                breaches.push(Breach::new(name, format!("({from}) depends on {on} ({to}): they meet through messages, not crates")));
            }
        }
    }
    breaches
}

/// The group of a crate's directory or manifest: the component after the last `crates`.
fn group(path: &str) -> Option<&str> {
    let (_, below) = path.rsplit_once("/crates/")?;
    below.split('/').next()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn graph(from: &str, to: &str) -> Value {
        json!({"packages": [{
            "name": "a", "source": null, "description": "What it is for.", "license": "MIT OR Apache-2.0",
            "manifest_path": format!("/x/crates/{from}/a/Cargo.toml"),
            "dependencies": [{"name": "b", "path": format!("/x/crates/{to}/b")}, {"name": "serde"}],
        }]})
    }

    #[test]
    fn what_may_use_what() {
        for (from, to) in [("job", "job"), ("job", "model"), ("rank", "platform"), ("platform", "model"), ("model", "model")] {
            assert_eq!(check(&graph(from, to)), [], "{from} → {to}");
        }
        for (from, to) in
            [("job", "node"), ("node", "rank"), ("rank", "store"), ("model", "platform"), ("platform", "rank"), ("store", "job")]
        {
            assert_eq!(check(&graph(from, to)).len(), 1, "{from} → {to}");
        }
        assert!(check(&graph("misplaced", "model"))[0].what.contains("without a rule"));
    }

    #[test]
    fn every_crate_says_what_it_is_for() {
        let mut graph = graph("job", "model");
        graph["packages"][0]["description"] = Value::Null;
        assert_eq!(check(&graph), [Breach::new("a", "has no description")]);
    }

    #[test]
    fn other_peoples_crates_are_not_ours_to_rule() {
        let mut graph = graph("job", "node");
        graph["packages"][0]["source"] = json!("registry+https://github.com/rust-lang/crates.io-index");
        assert_eq!(check(&graph), []);
    }
}
