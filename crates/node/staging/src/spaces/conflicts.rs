//! Two files of one name, which nodes made that could not reach the same targets: `mend data check` names them, `mend data repair` gives each a name.

use super::shown;
use crate::failure::{FAILED, Failure};
use crate::report;
use mend_data::space::Entry;
use mend_data::space::conflicts::path_beside;
use mend_space::client::{Client, Refused, Writer};
use serde_json::{Value, json};
use std::sync::Arc;

/// What was found of them.
pub(super) struct Twins {
    /// Files that are not seen.
    pub hidden: Vec<Value>,
    /// Names of those that have one of their own by now.
    pub kept: Vec<String>,
}

/// The name that a file gets.
fn beside(client: &Client, entry: &Entry) -> String {
    format!("{}:{}", client.space.name, path_beside(entry))
}

/// Says which files at a path or below it have a name with others, or had one.
pub(super) fn tell(client: &Client, path: &str, as_json: bool) -> Twins {
    let (hidden, kept) = (client.conflicts(path), client.kept_beside(path));
    for entry in hidden.iter().filter(|_| !as_json) {
        let (name, beside) = (shown(client, entry), beside(client, entry));
        report::line(&format!("{name}: there is another file of that name, which is not seen; `mend data repair` lets it be {beside}"));
    }
    for entry in kept.iter().filter(|_| !as_json) {
        report::line(&format!("{}: it was made with the name of another file; keep which of the two you need", shown(client, entry)));
    }
    let hidden = hidden.iter().map(|entry| json!({ "name": shown(client, entry), "beside": beside(client, entry) })).collect();
    Twins { hidden, kept: kept.iter().map(|entry| shown(client, entry)).collect() }
}

/// Gives those that are not seen a name. What was done, and what could not be.
pub(super) fn part(client: &Arc<Client>, path: &str, tells: bool) -> (Vec<Value>, Vec<Failure>) {
    let writer = Writer::new(client.clone(), None);
    let (mut kept, mut failures) = (Vec::new(), Vec::new());
    for entry in client.conflicts(path) {
        let name = shown(client, &entry);
        match writer.keep_beside(&entry.id) {
            Ok(Some(path)) => {
                let beside = format!("{}:{path}", client.space.name);
                if tells {
                    report::line(&format!("{name}: repaired, the other file of that name is {beside} now"));
                }
                kept.push(json!({ "name": name, "beside": beside }));
            }
            // It has one, or went.
            Ok(None) | Err(Refused::Removed | Refused::Absent) => {}
            Err(refused) => failures.push(Failure::new(
                format!("{name}: another file of that name is not seen, and has no name of its own: {refused}"),
                "repeat the command when the targets answer",
                FAILED,
            )),
        }
    }
    (kept, failures)
}
